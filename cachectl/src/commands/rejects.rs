//! `rejects`: what the backend refused for good, and what becomes of it.

use crate::arguments::{Format, RejectsCommand};
use crate::exit::{Exit, misuse};
use crate::output::{self, seconds};
use crate::reach::{Node, Reach};
use anyhow::{Context, Result, anyhow};
use cachetier_client::wire::Reject;
use futures::future::try_join_all;
use serde_json::{Value as Json, json};
use std::io::{BufRead, IsTerminal};

/// Rejects fetched to find one by its id.
const SEARCHED_MAX: u32 = 10_000;

pub async fn run(reach: &Reach, command: &RejectsCommand, format: Format) -> Result<Exit> {
    match command {
        RejectsCommand::List { limit } => list(reach, *limit, format).await,
        RejectsCommand::Show { id } => {
            let (_, reject) = find(reach, *id).await?;
            match format {
                Format::Json => output::print_json(&to_json(&reject))?,
                Format::Table => show(&reject),
            }
            Ok(Exit::Done)
        }
        RejectsCommand::Replay { id } => resolve(reach, *id, false, format).await,
        RejectsCommand::Discard { id, yes } => {
            let (_, reject) = find(reach, *id).await?;
            if !yes && !confirmed(&reject)? {
                say!("nothing was dropped");
                return Ok(Exit::NotGood);
            }
            resolve(reach, *id, true, format).await
        }
    }
}

/// Rejects of all nodes, oldest first, each with the node that lists it.
async fn all(reach: &Reach, limit: u32) -> Result<Vec<(Node, Reject)>> {
    let lists = try_join_all(reach.nodes().iter().map(|node| async move {
        let rejects = reach.admin(node).list_rejects(limit).await;
        let rejects =
            rejects.with_context(|| format!("{} does not list its rejects", node.name))?;
        Ok::<_, anyhow::Error>(rejects.into_iter().map(|r| (node.clone(), r)).collect::<Vec<_>>())
    }))
    .await?;
    let mut rejects: Vec<(Node, Reject)> = lists.into_iter().flatten().collect();
    // Nodes may list the rejects of the whole group; the owner's word comes first.
    rejects.sort_by_key(|(node, r)| (r.id, r.node != node.name));
    rejects.dedup_by_key(|(_, r)| r.id);
    Ok(rejects)
}

async fn find(reach: &Reach, id: u64) -> Result<(Node, Reject)> {
    let found = all(reach, SEARCHED_MAX).await?.into_iter().find(|(_, r)| r.id == id);
    found.with_context(|| format!("there is no open reject {id}; see `rejects list`"))
}

async fn list(reach: &Reach, limit: u32, format: Format) -> Result<Exit> {
    let mut rejects = all(reach, limit).await?;
    rejects.truncate(limit as usize);
    match format {
        Format::Json => {
            let list: Vec<Json> = rejects.iter().map(|(_, r)| to_json(r)).collect();
            output::print_json(&json!({"rejects": list}))?;
        }
        Format::Table if rejects.is_empty() => say!("no rejects"),
        Format::Table => {
            let mut table = output::table([
                "id",
                "node",
                "age",
                "sqlstate",
                "table",
                "constraint",
                "behind it",
                "message",
            ]);
            for (_, r) in &rejects {
                table.add_row([
                    r.id.to_string(),
                    r.node.clone(),
                    seconds(r.age_seconds),
                    r.sqlstate.clone(),
                    r.table.clone(),
                    r.constraint.clone(),
                    r.following.to_string(),
                    r.message.clone(),
                ]);
            }
            output::print_table(&table);
        }
    }
    Ok(Exit::Done)
}

fn show(reject: &Reject) {
    say!("reject {} of {}", reject.id, reject.node);
    say!("  sequence    {}", reject.sequence);
    say!("  age         {}", seconds(reject.age_seconds));
    say!("  SQLSTATE    {}", reject.sqlstate);
    say!("  table       {}", reject.table);
    say!("  constraint  {}", reject.constraint);
    say!("  message     {}", reject.message);
    say!("  behind it   {} transactions of the same instance", reject.following);
    say!(
        "\nRepair the cause and `rejects replay {0}`, or give it up with `rejects discard {0}`.",
        reject.id
    );
}

async fn resolve(reach: &Reach, id: u64, discard: bool, format: Format) -> Result<Exit> {
    let (node, reject) = find(reach, id).await?;
    let owner = reach.nodes().iter().find(|n| n.name == reject.node).unwrap_or(&node);
    let transactions = reach.admin(owner).resolve_reject(id, discard).await?;
    let what = if discard { "discarded" } else { "replayed" };
    match format {
        Format::Json => output::print_json(&json!({"id": id, what: transactions}))?,
        Format::Table => say!("{transactions} transactions {what}"),
    }
    Ok(Exit::Done)
}

fn confirmed(reject: &Reject) -> Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Err(misuse(anyhow!(
            "discard drops acknowledged writes; add --yes to do it without being asked"
        )));
    }
    let question = format!(
        "Drop reject {} and the {} acknowledged transactions behind it? [y/N] ",
        reject.id, reject.following
    );
    output::whole(question.as_bytes());
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn to_json(r: &Reject) -> Json {
    json!({
        "id": r.id,
        "node": r.node,
        "sequence": r.sequence,
        "sqlstate": r.sqlstate,
        "table": r.table,
        "constraint": r.constraint,
        "message": r.message,
        "ageSeconds": r.age_seconds,
        "following": r.following,
    })
}
