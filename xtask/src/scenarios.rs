//! `cargo xtask scenarios`: which failures of the catalogue the system survives, by id, from the
//! names and outcomes of the tests that ran: `o14_…` is a test of scenario O14, `d07_…` of D07.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use crate::e2e::{self, E2eArgs};
use crate::test::{self, Level, Outcome, Summary};

/// Scenarios in the catalogue, by the letter of their id.
const OPERATOR: (char, usize) = ('o', 87);
const DATA: (char, usize) = ('d', 32);

#[derive(Args)]
pub struct ScenariosArgs {
    /// Also write the result as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Leave out those that need pods
    #[arg(long)]
    without_cluster: bool,
}

pub fn run(args: &ScenariosArgs) -> Result<()> {
    let filters: Vec<String> = [OPERATOR, DATA]
        .into_iter()
        .flat_map(|(letter, total)| (1..=total).map(move |n| format!("{letter}{n:02}_")))
        .collect();
    let levels = [Level::Unit, Level::Node, Level::Operator];
    let mut summary = test::of_levels(&levels, &filters)?;
    if !args.without_cluster {
        summary.add(e2e::summary(&E2eArgs::with_filters(filters))?);
    }
    report(&by_id(&summary), args)
}

/// Worst outcome per scenario; a scenario whose tests were all skipped is not passed.
fn by_id(summary: &Summary) -> BTreeMap<String, Outcome> {
    let mut ids: BTreeMap<String, Outcome> = BTreeMap::new();
    for (name, outcome) in &summary.outcomes {
        let Some(id) = id_of(name) else { continue };
        let known = ids.entry(id).or_insert(*outcome);
        if *outcome == Outcome::Failed || *known == Outcome::Skipped {
            *known = *outcome;
        }
    }
    ids
}

/// The id with which the last part of a test's path begins, after the level's name if that is there.
fn id_of(name: &str) -> Option<String> {
    let name = name.rsplit("::").next()?;
    let name = name.strip_prefix("e2e_").unwrap_or(name);
    let (id, _) = name.split_once('_')?;
    let letter = id.chars().next()?;
    let number = id.get(1..)?;
    let total = [OPERATOR, DATA].into_iter().find(|(known, _)| *known == letter)?.1;
    let known = number.len() == 2 && (1..=total).contains(&number.parse::<usize>().ok()?);
    known.then(|| id.to_uppercase())
}

fn report(ids: &BTreeMap<String, Outcome>, args: &ScenariosArgs) -> Result<()> {
    let count = |(letter, total): (char, usize)| {
        let passed = ids
            .iter()
            .filter(|(id, outcome)| {
                id.starts_with(letter.to_ascii_uppercase()) && **outcome == Outcome::Passed
            })
            .count();
        (passed, total)
    };
    let failed: Vec<&String> =
        ids.iter().filter(|(_, outcome)| **outcome == Outcome::Failed).map(|(id, _)| id).collect();
    for (id, outcome) in ids {
        println!("{id} {}", format!("{outcome:?}").to_lowercase());
    }
    let (operator, data) = (count(OPERATOR), count(DATA));
    if let Some(path) = &args.json {
        let part = |(passed, total)| json!({"passed": passed, "total": total});
        let value = json!({"operator": part(operator), "data": part(data), "failed": failed});
        std::fs::write(path, serde_json::to_string_pretty(&value)? + "\n")
            .with_context(|| format!("writing {}", path.display()))?;
    }
    println!("operator: {} of {} passed", operator.0, operator.1);
    println!("data: {} of {} passed", data.0, data.1);
    if !failed.is_empty() {
        bail!("{} scenarios failed", failed.len());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::id_of;

    #[test]
    fn ids_come_from_the_last_part_of_a_path() {
        assert_eq!(id_of("lanes::tests::d07_a_copy_is_fenced").as_deref(), Some("D07"));
        assert_eq!(id_of("o87_evicted").as_deref(), Some("O87"));
        assert_eq!(id_of("e2e_o42_a_chart").as_deref(), Some("O42"));
        for name in ["o88_none", "old_rows", "d7_short", "o14", "x::do_it"] {
            assert_eq!(id_of(name), None, "{name}");
        }
    }
}
