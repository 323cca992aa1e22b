//! `refresh`: the owners read instances again whose rows others changed in the backend.

use crate::arguments::{Format, RefreshArguments};
use crate::exit::{Exit, misuse};
use crate::output;
use crate::reach::Reach;
use crate::values;
use anyhow::{Context, Result, bail};
use cachetier_client::Key;
use cachetier_client::wire::Refreshed;
use cachetier_model::{GroupSchema, Value};
use futures::future::try_join_all;
use serde_json::{Map, Value as Json, json};

/// What a node takes in one request.
const KEYS_MAX: usize = 1_000;

pub async fn run(reach: &Reach, arguments: &RefreshArguments, format: Format) -> Result<Exit> {
    let client = reach.client().await?;
    let keys = typed(client.schema(), &arguments.keys).map_err(misuse)?;
    // every node is asked for every key, and answers for its own
    let answers = try_join_all(reach.nodes().iter().map(|node| {
        let keys = &keys;
        async move {
            let answer = reach.admin(node).refresh(keys).await;
            answer.with_context(|| format!("{} does not read again", node.name))
        }
    }))
    .await?;
    let outcomes: Vec<Refreshed> = (0..keys.len())
        .map(|index| {
            let of_nodes = answers.iter().filter_map(|of_node| of_node.get(index).copied());
            let mut owned = of_nodes.filter(|outcome| *outcome != Refreshed::NotOwner);
            owned.next().unwrap_or(Refreshed::NotOwner)
        })
        .collect();
    match format {
        Format::Json => {
            let pairs = arguments.keys.iter().zip(&outcomes);
            let found: Map<String, Json> =
                pairs.map(|(key, outcome)| (key.clone(), json!(word(*outcome)))).collect();
            output::print_json(&json!({"keys": found}))?;
        }
        Format::Table => {
            for (key, outcome) in arguments.keys.iter().zip(&outcomes) {
                say!("{key}: {}", word(*outcome));
            }
        }
    }
    Ok(Exit::good(outcomes.iter().all(|o| matches!(o, Refreshed::Done | Refreshed::NotLoaded))))
}

fn typed(schema: &GroupSchema, keys: &[String]) -> Result<Vec<Vec<Value>>> {
    if keys.len() > KEYS_MAX {
        bail!("{} keys in one call; at most {KEYS_MAX}", keys.len());
    }
    let columns = schema.root().map_or(0, |root| root.primary_key.len());
    keys.iter()
        .map(|text| {
            let values: Vec<String> = match columns {
                0 | 1 => vec![text.clone()],
                _ => text.split(',').map(str::to_owned).collect(),
            };
            match values::key(schema, &values, &[]).with_context(|| format!("key {text:?}"))? {
                Key::Root(values) => Ok(values),
                Key::Lookup { .. } => bail!("key {text:?} is no root key"),
            }
        })
        .collect()
}

fn word(outcome: Refreshed) -> &'static str {
    match outcome {
        Refreshed::Done => "read again",
        Refreshed::NotLoaded => "not loaded; the next read asks the backend",
        Refreshed::Pending => "left: changes of it are not flushed",
        Refreshed::Quarantined => "left: a reject of it waits for a decision",
        Refreshed::NotOwner | Refreshed::Unspecified => "left: no node that answered owns it",
    }
}
