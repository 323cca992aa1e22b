//! `status`: the group as the operator sees it, and each node as it sees itself.

use crate::arguments::Format;
use crate::exit::{self, Exit};
use crate::output::{self, bytes, seconds};
use crate::reach::{Node, Reach};
use anyhow::Result;
use cachetier_api::v1alpha1::CacheGroup;
use cachetier_client::ClientError;
use cachetier_client::wire::StatusResponse;
use futures::future::join_all;
use serde_json::{Value as Json, json};

/// A node and its own words, or why there are none.
pub type NodeAnswer = (Node, Result<StatusResponse, ClientError>);

/// Asks every node at once.
pub async fn ask(reach: &Reach) -> Vec<NodeAnswer> {
    join_all(
        reach
            .nodes()
            .iter()
            .map(|node| async move { (node.clone(), reach.admin(node).status().await) }),
    )
    .await
}

pub async fn run(reach: &Reach, format: Format) -> Result<Exit> {
    let answers = ask(reach).await;
    let fine = answers.iter().all(|(_, a)| a.as_ref().is_ok_and(|s| s.ready));
    match format {
        Format::Json => {
            let nodes: Vec<Json> = answers.iter().map(node_json).collect();
            let group = reach.resource.as_ref().and_then(|r| r.status.as_ref());
            output::print_json(&json!({
                "name": reach.name,
                "group": group.map(serde_json::to_value).transpose()?,
                "nodes": nodes,
            }))?;
        }
        Format::Table => print(reach, &answers),
    }
    let reached = answers.iter().any(|(_, a)| match a {
        Ok(_) => true,
        Err(error) => exit::of_client(error) != Exit::Unreachable,
    });
    Ok(if reached { Exit::good(fine) } else { Exit::Unreachable })
}

fn print(reach: &Reach, answers: &[NodeAnswer]) {
    say!("group {}", reach.name);
    if let Some(resource) = &reach.resource {
        print_resource(resource);
    }
    say!("");
    let mut table = output::table([
        "node",
        "phase",
        "ready",
        "topology",
        "slots",
        "loaded",
        "instances",
        "memory",
        "backlog",
        "oldest",
        "rejects",
    ]);
    for (node, answer) in answers {
        match answer {
            Ok(s) => table.add_row([
                node.name.clone(),
                phase(s),
                if s.ready { "yes" } else { "no" }.to_owned(),
                s.topology_version.to_string(),
                format!("{}/{}", s.slots_serving, s.slots_assigned),
                format!("{}/{}", s.slots_covered, s.slots_serving),
                s.instances.to_string(),
                format!("{} of {}", bytes(s.memory_bytes), bytes(s.memory_capacity_bytes)),
                s.backlog.as_ref().map_or(0, |b| b.transactions).to_string(),
                s.backlog.as_ref().map_or(String::new(), |b| seconds(b.oldest_seconds)),
                s.rejects.to_string(),
            ]),
            Err(_) => table.add_row([node.name.clone(), "unreachable".to_owned(), "no".to_owned()]),
        };
    }
    output::print_table(&table);
    for (node, answer) in answers {
        match answer {
            Ok(status) => {
                for problem in &status.problems {
                    say!("{}: {}: {}", node.name, problem.reason, problem.message);
                }
            }
            Err(error) => say!("{}: {error}", node.name),
        }
    }
}

fn print_resource(resource: &CacheGroup) {
    let Some(status) = &resource.status else {
        say!("the operator has not reported on it yet");
        return;
    };
    say!("{:?}, {} nodes ready", status.phase, status.ready);
    if !status.message.is_empty() {
        say!("{}: {}", status.reason, status.message);
    }
    for condition in &status.conditions {
        // Conditions with one cause share its message, which is long.
        let repeated = !status.message.is_empty() && condition.message == status.message;
        let message = if repeated { "(see above)" } else { condition.message.as_str() };
        say!(
            "  {:<18} {:<8} {:<24} {message}",
            condition.type_,
            condition.status,
            condition.reason
        );
    }
}

/// `Serving`, from the message's `NODE_PHASE_SERVING`.
pub fn phase(status: &StatusResponse) -> String {
    let name = status.phase().as_str_name().trim_start_matches("NODE_PHASE_").to_lowercase();
    name.replace('_', " ")
}

fn node_json((node, answer): &NodeAnswer) -> Json {
    let s = match answer {
        Ok(status) => status,
        Err(error) => {
            return json!({"node": node.name, "reachable": false, "error": error.to_string()});
        }
    };
    let problems: Vec<Json> = s
        .problems
        .iter()
        .map(|p| json!({"reason": p.reason, "message": p.message, "degraded": p.degraded}))
        .collect();
    let backlog = s.backlog.as_ref().map(|b| {
        json!({
            "transactions": b.transactions,
            "bytes": b.bytes,
            "oldestSeconds": b.oldest_seconds,
            "flushRowsPerSecond": b.flush_rows_per_second,
        })
    });
    json!({
        "node": node.name,
        "reachable": true,
        "phase": phase(s),
        "ready": s.ready,
        "version": s.version,
        "journal": s.journal,
        "generation": s.generation,
        "topologyVersion": s.topology_version,
        "slots": {
            "assigned": s.slots_assigned,
            "serving": s.slots_serving,
            "covered": s.slots_covered,
            "leaving": s.slots_leaving,
        },
        "backlog": backlog,
        "instances": s.instances,
        "memory": {"bytes": s.memory_bytes, "capacityBytes": s.memory_capacity_bytes},
        "journalVolume": {"bytes": s.journal_bytes, "capacityBytes": s.journal_capacity_bytes},
        "sequences": {"appended": s.appended, "durable": s.durable, "flushed": s.flushed},
        "rejects": s.rejects,
        "backendReachable": s.backend_reachable,
        "writesStopped": s.writes_stopped,
        "problems": problems,
    })
}
