//! `drain`: refuse writes and flush everything, with a countdown; or take writes again.

use crate::arguments::{DrainArguments, Format};
use crate::exit::Exit;
use crate::output::{self, bytes, seconds};
use crate::reach::Reach;
use anyhow::{Context, Result};
use cachetier_client::wire::Backlog;
use futures::future::try_join_all;
use indicatif::ProgressBar;
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

const POLL: Duration = Duration::from_millis(500);

pub async fn run(reach: &Reach, arguments: &DrainArguments, format: Format) -> Result<Exit> {
    let until = Instant::now() + Duration::from_secs(arguments.timeout);
    let spinner = ProgressBar::new_spinner();
    let left = loop {
        let left = ask(reach, !arguments.resume).await?;
        if arguments.resume || left.transactions == 0 || Instant::now() >= until {
            break left;
        }
        spinner.set_message(format!(
            "{} transactions, {}, the oldest {} old",
            left.transactions,
            bytes(left.bytes),
            seconds(left.oldest_seconds)
        ));
        spinner.tick();
        tokio::time::sleep(POLL).await;
    };
    spinner.finish_and_clear();
    let drained = left.transactions == 0;
    match format {
        Format::Json => output::print_json(&json!({
            "writesStopped": !arguments.resume,
            "drained": drained,
            "backlog": {"transactions": left.transactions, "bytes": left.bytes},
        }))?,
        Format::Table if arguments.resume => say!("writes are taken again"),
        Format::Table if drained => say!("drained: the backend has every write"),
        Format::Table => say!(
            "not drained: {} transactions are still to be flushed; writes stay refused \
             (`drain --resume` takes them again)",
            left.transactions
        ),
    }
    Ok(Exit::good(arguments.resume || drained))
}

/// Tells every node, and sums what is left.
async fn ask(reach: &Reach, stop_writes: bool) -> Result<Backlog> {
    let answers = try_join_all(reach.nodes().iter().map(|node| async move {
        let answer = reach.admin(node).drain(stop_writes).await;
        answer.with_context(|| format!("{} was not told", node.name))
    }))
    .await?;
    let mut sum = Backlog::default();
    for backlog in answers.into_iter().filter_map(|a| a.backlog) {
        sum.transactions += backlog.transactions;
        sum.bytes += backlog.bytes;
        sum.oldest_seconds = sum.oldest_seconds.max(backlog.oldest_seconds);
    }
    Ok(sum)
}
