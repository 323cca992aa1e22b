//! Writes without pause and prints each write after it was acknowledged, until it is killed: the
//! victim of the kill -9 tests.
//!
//! `crash_writer CONFIG.json FIRST_VALUE`
#![allow(clippy::print_stdout, reason = "its output is what the test reads")]

use std::io::Write;
use std::sync::Arc;

use anyhow::Context;
use cachetier_group::{AnswerWhen, Group, GroupOptions, KeySelector, NoPeers, TransactCall};
use cachetier_model::{NodeEntry, Operation, RootKey, Transaction, Value};
use tokio_util::sync::CancellationToken;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let config = std::fs::read(arguments.next().context("CONFIG.json is missing")?)?;
    let first: i64 = arguments.next().context("FIRST_VALUE is missing")?.parse()?;
    let options = GroupOptions {
        config: serde_json::from_slice(&config)?,
        node: NodeEntry { name: "n-0".to_owned(), address: "n-0:7070".to_owned() },
        peers: Arc::new(NoPeers),
    };
    let group = Group::start(options, CancellationToken::new()).await?;
    group.started().await?;
    let writers = (0..4).map(|writer| tokio::spawn(write(group.clone(), writer, first)));
    for writer in futures::future::join_all(writers).await {
        writer??;
    }
    Ok(())
}

/// Each writer has its own accounts, so that the last line of an account is its last value.
async fn write(group: Group, writer: i64, first: i64) -> anyhow::Result<()> {
    for value in first.. {
        for id in (1..=40).filter(|id| id % 4 == writer) {
            let set = vec![(2, Value::Int(value))];
            let update = Operation::Update { table: 0, conditions: vec![], set, expect: Some(1) };
            let transaction = Transaction { guards: vec![], operations: vec![update] };
            let key = KeySelector::Root(RootKey::encode(&[Value::Int(id)])?);
            let call = TransactCall { key, transaction, answer: AnswerWhen::Durable };
            group.transact(call).await?;
            let mut out = std::io::stdout().lock();
            writeln!(out, "{id} {value}")?;
            out.flush()?;
        }
    }
    Ok(())
}
