//! `accept-loss`: a journal is lost for good, and its node goes on with an empty one.

use crate::arguments::{AcceptLossArguments, Format};
use crate::exit::Exit;
use crate::output;
use crate::reach::Reach;
use anyhow::{Context, Result};
use serde_json::json;

pub async fn run(reach: &Reach, arguments: &AcceptLossArguments, format: Format) -> Result<Exit> {
    let AcceptLossArguments { node: name, journal } = arguments;
    let node = reach.nodes().iter().find(|node| node.name == *name);
    let node = node.with_context(|| format!("the group has no node {name}"))?;
    reach.admin(node).accept_loss(journal).await?;
    match format {
        Format::Json => output::print_json(&json!({"node": name, "lostJournal": journal}))?,
        Format::Table => say!(
            "{name} starts again in the place of journal {journal}; what that one had not flushed \
             is lost"
        ),
    }
    Ok(Exit::Done)
}
