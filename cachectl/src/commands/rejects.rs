//! `rejects`: what the backend refused for good, and what becomes of it.

use crate::arguments::{ChosenRejects, Format, RejectFilter, RejectsCommand};
use crate::exit::{Exit, misuse};
use crate::output::{self, seconds};
use crate::reach::{Node, Reach};
use anyhow::{Context, Result, anyhow, bail};
use cachetier_client::wire::{Reject, RejectedChange, RejectedTransaction};
use futures::future::try_join_all;
use serde_json::{Value as Json, json};
use std::io::{BufRead, IsTerminal};

/// Rejects fetched to find one by its id.
const SEARCHED_MAX: u32 = 10_000;
/// Transactions of one reject that `show` prints.
const SHOWN_MAX: usize = 20;

pub async fn run(reach: &Reach, command: &RejectsCommand, format: Format) -> Result<Exit> {
    match command {
        RejectsCommand::List { limit, filter } => list(reach, *limit, filter, format).await,
        RejectsCommand::Show { id } => show(reach, *id, format).await,
        RejectsCommand::Replay(chosen) => decide(reach, chosen, false, format).await,
        RejectsCommand::Discard(chosen) => decide(reach, chosen, true, format).await,
    }
}

async fn decide(
    reach: &Reach,
    chosen: &ChosenRejects,
    discard: bool,
    format: Format,
) -> Result<Exit> {
    if let [id] = chosen.ids.as_slice() {
        let (node, reject) = find(reach, *id).await?;
        if discard && !chosen.yes && !confirmed(&reject)? {
            say!("nothing was dropped");
            return Ok(Exit::NotGood);
        }
        let transactions = resolve(reach, &node, &reject, discard).await?;
        match format {
            Format::Json => {
                output::print_json(&json!({"id": id, done(discard): transactions}))?;
            }
            Format::Table => say!("{transactions} transactions {}", done(discard)),
        }
        return Ok(Exit::Done);
    }
    check_table(reach, &chosen.filter).await?;
    let mut rejects = all(reach, SEARCHED_MAX).await?;
    let missing = chosen.ids.iter().find(|id| !rejects.iter().any(|(_, r)| r.id == **id));
    if let Some(id) = missing {
        bail!("there is no open reject {id}; see `rejects list`");
    }
    rejects.retain(|(_, reject)| is_chosen(chosen, reject));
    // where nothing is to be done, there is nothing to confirm
    if !chosen.yes && !rejects.is_empty() {
        return only_shown(&rejects, discard, format);
    }
    all_of(reach, &rejects, discard, format).await
}

fn is_chosen(chosen: &ChosenRejects, reject: &Reject) -> bool {
    let ChosenRejects { ids, filter, all: _, yes: _ } = chosen;
    (ids.is_empty() || ids.contains(&reject.id)) && passes(filter, reject)
}

fn passes(filter: &RejectFilter, reject: &Reject) -> bool {
    let RejectFilter { table, sqlstate, older_than } = filter;
    table.as_ref().is_none_or(|table| *table == reject.table)
        && sqlstate.as_ref().is_none_or(|code| *code == reject.sqlstate)
        && older_than.as_ref().is_none_or(|age| reject.age_seconds > age.duration().as_secs_f64())
}

/// A misspelt table must not look like one without rejects. A group that serves nobody cannot be
/// asked for its tables; its rejects can still be listed.
async fn check_table(reach: &Reach, filter: &RejectFilter) -> Result<()> {
    let Some(table) = &filter.table else { return Ok(()) };
    let Ok(client) = reach.client().await else { return Ok(()) };
    let schema = client.schema();
    if schema.tables.iter().any(|t| t.name == *table) {
        return Ok(());
    }
    let names: Vec<&str> = schema.tables.iter().map(|t| t.name.as_str()).collect();
    Err(misuse(anyhow!("there is no table {table}; the group has {}", names.join(", "))))
}

fn done(discard: bool) -> &'static str {
    if discard { "discarded" } else { "replayed" }
}

/// What would be done.
fn only_shown(rejects: &[(Node, Reject)], discard: bool, format: Format) -> Result<Exit> {
    let transactions: u64 = rejects.iter().map(|(_, r)| 1 + u64::from(r.following)).sum();
    let what = done(discard);
    match format {
        Format::Json => {
            let ids: Vec<u64> = rejects.iter().map(|(_, r)| r.id).collect();
            output::print_json(&json!({"would": what, "ids": ids, "transactions": transactions}))?;
        }
        Format::Table => {
            print_table(rejects);
            say!(
                "{} rejects with {transactions} transactions would be {what}; add --yes to do it",
                rejects.len()
            );
        }
    }
    Ok(Exit::NotGood)
}

/// Oldest first. One that cannot be decided does not keep the others.
async fn all_of(
    reach: &Reach,
    rejects: &[(Node, Reject)],
    discard: bool,
    format: Format,
) -> Result<Exit> {
    let (mut transactions, mut failed) = (0, Vec::new());
    for (node, reject) in rejects {
        match resolve(reach, node, reject, discard).await {
            Ok(count) => transactions += u64::from(count),
            Err(error) => failed.push((reject.id, format!("{error:#}"))),
        }
    }
    let (what, count) = (done(discard), rejects.len() - failed.len());
    match format {
        Format::Json => {
            let failed: Vec<Json> =
                failed.iter().map(|(id, why)| json!({"id": id, "reason": why})).collect();
            output::print_json(&json!({what: transactions, "rejects": count, "failed": failed}))?;
        }
        Format::Table => {
            for (id, why) in &failed {
                say!("reject {id}: {why}");
            }
            say!(
                "{count} rejects with {transactions} transactions {what}, {} failed",
                failed.len()
            );
        }
    }
    Ok(if failed.is_empty() { Exit::Done } else { Exit::Failed })
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

async fn list(reach: &Reach, limit: u32, filter: &RejectFilter, format: Format) -> Result<Exit> {
    check_table(reach, filter).await?;
    let mut rejects = all(reach, SEARCHED_MAX).await?;
    rejects.retain(|(_, reject)| passes(filter, reject));
    let more = rejects.len().saturating_sub(limit as usize);
    rejects.truncate(limit as usize);
    match format {
        Format::Json => {
            let list: Vec<Json> = rejects.iter().map(|(_, r)| to_json(r)).collect();
            output::print_json(&json!({"rejects": list, "more": more}))?;
        }
        Format::Table if rejects.is_empty() => say!("no rejects"),
        Format::Table => {
            print_table(&rejects);
            if more > 0 {
                say!("and {more} more; see --limit");
            }
        }
    }
    Ok(Exit::Done)
}

fn print_table(rejects: &[(Node, Reject)]) {
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
    for (_, r) in rejects {
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

async fn show(reach: &Reach, id: u64, format: Format) -> Result<Exit> {
    let (node, reject) = find(reach, id).await?;
    let shown = reach.admin(owner(reach, &node, &reject)).show_reject(id).await?;
    match format {
        Format::Json => {
            let mut json = to_json(&reject);
            if let Json::Object(fields) = &mut json {
                let transactions = shown.transactions.iter().map(transaction_json).collect();
                fields.insert("transactions".to_owned(), transactions);
            }
            output::print_json(&json)?;
        }
        Format::Table => print_one(&reject, &shown.transactions),
    }
    Ok(Exit::Done)
}

fn print_one(reject: &Reject, transactions: &[RejectedTransaction]) {
    say!("reject {} of {}", reject.id, reject.node);
    say!("  sequence    {}", reject.sequence);
    say!("  age         {}", seconds(reject.age_seconds));
    say!("  SQLSTATE    {}", reject.sqlstate);
    say!("  table       {}", reject.table);
    say!("  constraint  {}", reject.constraint);
    say!("  message     {}", reject.message);
    say!("  instance    {} (hash of its key)", reject.key_hash);
    say!("  behind it   {} transactions of the same instance", reject.following);
    for transaction in transactions.iter().take(SHOWN_MAX) {
        say!("  transaction {}", transaction.sequence);
        for change in &transaction.changes {
            let columns = match change.columns.as_slice() {
                [] => String::new(),
                columns => format!(" ({})", columns.join(", ")),
            };
            say!("    {} {}{columns}", change.kind, change.table);
        }
    }
    if let more @ 1.. = transactions.len().saturating_sub(SHOWN_MAX) {
        say!("  and {more} transactions more; -o json shows them all");
    }
    let id = reject.id;
    say!(
        "\nThe backend's own words, which may name rows, are only there: SELECT detail FROM \
         cachetier.reject WHERE id = {id}\n\
         Repair the cause and `rejects replay {id}`, or give it up with `rejects discard {id}`."
    );
}

fn transaction_json(transaction: &RejectedTransaction) -> Json {
    let change =
        |c: &RejectedChange| json!({"table": c.table, "kind": c.kind, "columns": c.columns});
    let changes: Vec<Json> = transaction.changes.iter().map(change).collect();
    json!({"sequence": transaction.sequence, "changes": changes})
}

/// The node that can decide about it.
fn owner<'a>(reach: &'a Reach, lists_it: &'a Node, reject: &Reject) -> &'a Node {
    reach.nodes().iter().find(|n| n.name == reject.node).unwrap_or(lists_it)
}

async fn resolve(reach: &Reach, node: &Node, reject: &Reject, discard: bool) -> Result<u32> {
    Ok(reach.admin(owner(reach, node, reject)).resolve_reject(reject.id, discard).await?)
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
        "keyHash": r.key_hash,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_api::TimeSpan;

    fn reject(id: u64, table: &str, sqlstate: &str, age_seconds: f64) -> Reject {
        let (table, sqlstate) = (table.to_owned(), sqlstate.to_owned());
        Reject { id, table, sqlstate, age_seconds, ..Reject::default() }
    }

    fn chosen() -> ChosenRejects {
        ChosenRejects::default()
    }

    #[test]
    fn a_reject_is_chosen_by_its_id_or_by_every_filter_given() {
        let one = reject(7, "orders", "23514", 700.0);
        let all = ChosenRejects { all: true, ..chosen() };
        let by = |filter| ChosenRejects { filter, ..chosen() };
        let orders = || RejectFilter { table: Some("orders".into()), ..RejectFilter::default() };
        let table = by(orders());
        let of_age = |age| RejectFilter { older_than: TimeSpan::parse(age).ok(), ..orders() };
        let old = by(of_age("10m"));
        let id = ChosenRejects { ids: vec![6, 7], ..chosen() };
        assert!([&all, &table, &old, &id].into_iter().all(|chosen| is_chosen(chosen, &one)));
        let code = by(RejectFilter { sqlstate: Some("23505".into()), ..orders() });
        assert!(!is_chosen(&code, &one), "the table fits, the code does not");
        assert!(!is_chosen(&by(of_age("12m")), &one));
        assert!(!is_chosen(&ChosenRejects { ids: vec![8], ..chosen() }, &one));
        assert!(chosen().check().is_err() && all.check().is_ok() && id.check().is_ok());
    }
}
