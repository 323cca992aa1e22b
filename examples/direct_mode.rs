//! A cache group inside an application: no service, the same promises.
//!
//! `cargo run -p cachetier-group --example direct_mode CONFIG.json`, where the file is a node
//! configuration with `"topology": "Standalone"` whose root table is keyed by one bigint; the third
//! column of the row with key 1 is counted up, durably here and then in the backend.
#![allow(clippy::print_stdout, reason = "an example")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use cachetier_group::{
    AnswerWhen, Group, GroupOptions, KeySelector, NoPeers, ReadCall, TransactCall,
};
use cachetier_model::{NodeEntry, Operation, ReadPlan, RootKey, Transaction, Value};
use tokio_util::sync::CancellationToken;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let path = std::env::args().nth(1).context("name the configuration file")?;
    count_up(&std::fs::read(path)?).await
}

pub async fn count_up(config: &[u8]) -> anyhow::Result<()> {
    let options = GroupOptions {
        config: serde_json::from_slice(config)?,
        node: NodeEntry { name: "app-0".to_owned(), address: String::new() },
        peers: Arc::new(NoPeers),
    };
    let group = Group::start(options, CancellationToken::new()).await?;
    group.started().await?;

    let key = KeySelector::Root(RootKey::encode(&[Value::Int(1)])?);
    let call = ReadCall::new(key.clone(), ReadPlan::default());
    let before = group.read(call).await?;
    println!("read from {:?}: {:?}", before.source, before.tables);

    let counted = before.tables.first().and_then(|rows| rows.first()).and_then(|row| row.get(2));
    let Some(Value::Int(count)) = counted else {
        anyhow::bail!("there is no row with key 1 whose third column is a number");
    };
    let set = vec![(2, Value::Int(count + 1))];
    let update = Operation::Update { table: 0, conditions: vec![], set, expect: Some(1) };
    let transaction = Transaction { guards: vec![], operations: vec![update] };
    let answer = AnswerWhen::Durable;
    let call = TransactCall { key, transaction, answer, idempotency_key: None };
    let done = group.transact(call).await?;
    println!("durable at {}", done.position.sequence);

    let flushed = group.wait_flushed(done.position, Duration::from_secs(10)).await?;
    println!("in the backend: {flushed}");
    group.close(Duration::from_secs(10)).await;
    Ok(())
}
