//! `pause` and `resume`: the flushing of all nodes is held back, or goes on.

use crate::arguments::Format;
use crate::exit::Exit;
use crate::output::{self, bytes};
use crate::reach::Reach;
use anyhow::{Context, Result};
use futures::future::try_join_all;
use serde_json::json;

pub async fn run(reach: &Reach, pause: bool, format: Format) -> Result<Exit> {
    let answers = try_join_all(reach.nodes().iter().map(|node| async move {
        let answer = reach.admin(node).pause_flushing(pause).await;
        answer.with_context(|| format!("{} did not do it", node.name))
    }))
    .await?;
    let transactions: u64 = answers.iter().map(|backlog| backlog.transactions).sum();
    let waiting: u64 = answers.iter().map(|backlog| backlog.bytes).sum();
    match format {
        Format::Json => output::print_json(&json!({
            "paused": pause,
            "backlog": {"transactions": transactions, "bytes": waiting},
        }))?,
        Format::Table => say!(
            "flushing {}: {transactions} transactions wait ({})",
            if pause { "is paused until `resume` or a restart" } else { "goes on" },
            bytes(waiting)
        ),
    }
    Ok(Exit::Done)
}
