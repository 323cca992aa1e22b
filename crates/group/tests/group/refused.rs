//! Starts that no waiting would heal: they end, with the field and the cause.

use std::path::Path;
use std::sync::Arc;

use cachetier_group::{Group, GroupError, GroupOptions, NoPeers};
use cachetier_model::node_config::NodeConfig;
use tokio_util::sync::CancellationToken;

use crate::scene::entry;

/// A configuration without a backend behind it, changed at some fields.
async fn start(journal: &Path, changed: serde_json::Value) -> GroupError {
    let mut config = serde_json::json!({
        "group": { "name": "t/g", "uid": "u" },
        "backend": { "credentialsDir": "/nowhere" },
        "tables": [{ "name": "a" }],
        "journal": { "directory": journal, "capacityBytes": 16 << 20 },
    });
    let serde_json::Value::Object(changed) = changed else { panic!("an object of fields") };
    config.as_object_mut().unwrap().extend(changed);
    let config: NodeConfig = serde_json::from_value(config).unwrap();
    let options = GroupOptions { config, node: entry("n-0"), peers: Arc::new(NoPeers) };
    Group::start(options, CancellationToken::new()).await.err().unwrap()
}

#[tokio::test]
async fn a_configuration_that_cannot_work_ends_the_start_with_its_field() {
    let dir = tempfile::tempdir().unwrap();
    let journal = dir.path().join("journal");
    let cases = [
        (serde_json::json!({ "tables": [] }), "tables: there are none"),
        (
            serde_json::json!({ "tables": [{ "name": "a" }, { "name": "b", "parent": "c" }] }),
            "tables[b].parent: c is not a table of the group",
        ),
        (
            serde_json::json!({ "memory": { "capacityBytes": 4096 } }),
            "memory.capacityBytes: it is 4096; at least",
        ),
        (
            serde_json::json!({ "preload": { "readyAtPercent": 120 } }),
            "preload.readyAtPercent: it is 120; at most 100",
        ),
        (serde_json::json!({ "writeThrough": { "lanes": 8 } }), "backend.maxConnections"),
    ];
    for (changed, words) in cases {
        let refused = start(&journal, changed).await;
        assert!(matches!(refused, GroupError::Configuration(_)), "{refused:?}");
        assert!(refused.to_string().contains(words), "{refused}");
    }
    assert!(!journal.exists(), "a refused start touches nothing");
    let small = serde_json::json!({ "journal": { "directory": journal, "capacityBytes": 1 } });
    let refused = start(&journal, small).await.to_string();
    assert!(refused.contains("journal.capacityBytes: set it to at least"), "{refused}");
}

#[tokio::test]
async fn a_journal_that_cannot_be_opened_says_where_and_what_the_system_said() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "not a directory").unwrap();
    let refused = start(&file.join("journal"), serde_json::json!({})).await;
    assert!(matches!(refused, GroupError::JournalUnopened { .. }), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains("journal.directory") && text.contains("os error 20"), "{text}");
}
