mod agreement;
mod eviction;
mod history;
mod images;
mod linearizable;
mod naive;
mod promises;

use super::*;
use crate::samples;
use cachetier_model::{Transaction, Value};
use parking_lot::Mutex;

/// What a sink saw of a commit.
#[derive(Debug, Clone)]
struct Seen {
    sequence: u64,
    key: RootKey,
    image: Instance,
    changes: Vec<RowChange>,
    awaits_backend: bool,
}

/// A journal in memory: sequences count up, nothing is refused unless told so.
#[derive(Debug, Default)]
struct Recorder {
    seen: Mutex<Vec<Seen>>,
    refuse: std::sync::atomic::AtomicBool,
}

impl CommitSink for Recorder {
    fn commit(&self, commit: &Commit<'_>) -> Result<u64, CommitRefused> {
        if self.refuse.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(CommitRefused("the queue is full".into()));
        }
        assert_eq!(commit.slot, commit.key.slot());
        let mut seen = self.seen.lock();
        let sequence = seen.len() as u64 + 1;
        seen.push(Seen {
            sequence,
            key: commit.key.clone(),
            image: commit.image(),
            changes: commit.changes.to_vec(),
            awaits_backend: commit.awaits_backend,
        });
        Ok(sequence)
    }
}

fn engine(schema: GroupSchema, capacity_bytes: u64) -> Engine {
    Engine::new(Arc::new(schema), EngineOptions { capacity_bytes }).unwrap()
}

/// Installs under a ticket of its own.
fn load(engine: &Engine, key: &RootKey, instance: Option<Instance>) -> crate::Installed {
    let ticket = engine.open_ticket().unwrap();
    let installed = engine.install(&ticket, key, instance).unwrap();
    engine.close_ticket(ticket);
    installed
}

fn int_key(id: i64) -> RootKey {
    RootKey::encode(&[Value::Int(id)]).unwrap()
}

fn whole(engine: &Engine, key: &RootKey) -> crate::ReadAnswer {
    engine.read(key, &Default::default()).unwrap()
}

fn one(operation: cachetier_model::Operation) -> Transaction {
    Transaction { guards: Vec::new(), operations: vec![operation] }
}
