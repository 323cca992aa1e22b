//! The reference of node.yaml names every field there is.

#![allow(clippy::unwrap_used, reason = "tests")]

use cachetier_model::node_config::NodeConfig;
use serde_json::Value;

const REFERENCE: &str = include_str!("../../../docs/operations/node-yaml.md");

/// With every optional part present.
const WHOLE: &str = "
group: {name: t/g, uid: u}
backend: {credentialsDir: /c}
tables: [{name: a, lookupKeys: [[k]]}, {name: b, parent: a}]
journal: {directory: /j}
tls: {directory: /t}
";

fn paths(value: &Value, at: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
                paths(value, &path, out);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().for_each(|item| paths(item, &format!("{at}[]"), out));
        }
        _ => out.push(at.to_owned()),
    }
}

#[test]
fn the_reference_names_every_field_and_no_other() {
    let config: NodeConfig = serde_saphyr::from_str(WHOLE).unwrap();
    let mut fields = Vec::new();
    paths(&serde_json::to_value(&config).unwrap(), "", &mut fields);
    fields.push("tables".to_owned());
    let told = |line: &str| line.strip_prefix("| `")?.split_once('`').map(|(f, _)| f.to_owned());
    let mut documented: Vec<String> = REFERENCE.lines().filter_map(told).collect();
    documented.sort_unstable();
    fields.sort_unstable();
    fields.dedup();
    assert_eq!(documented, fields);
}

#[test]
fn the_reference_tells_the_defaults() {
    let config: NodeConfig = serde_saphyr::from_str(WHOLE).unwrap();
    let default_of = |field: &str| {
        let row = REFERENCE.lines().find(|l| l.starts_with(&format!("| `{field}` |"))).unwrap();
        row.split('|').nth(2).unwrap().trim().replace('`', "")
    };
    let told = [
        ("backend.maxConnections", config.backend.max_connections.to_string()),
        ("journal.syncIntervalMs", config.journal.sync_interval_ms.to_string()),
        ("journal.keepFlushedSeconds", config.journal.keep_flushed_seconds.to_string()),
        ("journal.durability", format!("{:?}", config.journal.durability)),
        ("memory.eviction", format!("{:?}", config.memory.eviction)),
        ("memory.images", format!("{:?}", config.memory.images)),
        ("writeThrough.lanes", config.write_through.lanes.to_string()),
        ("writeThrough.maxBatchRows", config.write_through.max_batch_rows.to_string()),
        ("writeThrough.maxDelayMs", config.write_through.max_delay_ms.to_string()),
        ("writeThrough.backendCommit", format!("{:?}", config.write_through.backend_commit)),
        ("bypass.holdTimeoutMs", config.bypass.hold_timeout_ms.to_string()),
        ("bypass.maxConcurrent", config.bypass.max_concurrent.to_string()),
        ("preload.mode", format!("{:?}", config.preload.mode)),
        ("preload.readyAtPercent", config.preload.ready_at_percent.to_string()),
        ("listen.grpc", config.listen.grpc.clone()),
        ("topology", format!("{:?}", config.topology)),
    ];
    for (field, value) in told {
        assert_eq!(default_of(field), value, "{field}");
    }
}
