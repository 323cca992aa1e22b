//! The engine agrees with the naive model under random work: transactions, flushes in order,
//! refusals, loads from old snapshots, forgetting, eviction, clearing, restarts; with a reader beside it
//! that must never see a row of another instance.

mod beside;
mod requests;

use super::naive;
use super::*;
use crate::{Installed, ReadAnswer, Ticket, TransactError};
use cachetier_model::{Comparison, Condition, Guard, Operation};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

struct World {
    schema: Arc<GroupSchema>,
    engine: Arc<Engine>,
    /// The one that the reader reads.
    shown: Arc<Mutex<Arc<Engine>>>,
    sink: Recorder,
    /// Root rows of the keys in play.
    keys: Vec<(RootKey, Row)>,
    /// What a reader must see.
    visible: BTreeMap<RootKey, Instance>,
    backend: BTreeMap<RootKey, Instance>,
    unflushed: VecDeque<Seen>,
    /// Commits of the recorder that were taken over.
    taken: usize,
    /// Open loads with the snapshot each reads from.
    loads: Vec<(Ticket, BTreeMap<RootKey, Instance>)>,
    loaded: BTreeSet<RootKey>,
    /// How often each kind of event happened; a test that never meets one proves nothing.
    met: BTreeMap<&'static str, u32>,
}

use cachetier_model::Row;

fn new_engine(schema: &Arc<GroupSchema>) -> Arc<Engine> {
    Arc::new(Engine::new(schema.clone(), EngineOptions { capacity_bytes: 256 << 20 }).unwrap())
}

impl World {
    fn new(random: &mut ChaCha8Rng) -> Self {
        let schema = Arc::new(samples::random_schema(random));
        let root = &schema.tables[0];
        let mut keys = BTreeMap::new();
        for _ in 0..8 {
            let row = samples::random_row(root, random);
            keys.insert(schema.root_key_of_row(0, &row).unwrap(), row);
        }
        let engine = new_engine(&schema);
        Self {
            shown: Arc::new(Mutex::new(engine.clone())),
            engine,
            sink: Recorder::default(),
            keys: keys.into_iter().collect(),
            visible: BTreeMap::new(),
            backend: BTreeMap::new(),
            unflushed: VecDeque::new(),
            taken: 0,
            loads: Vec::new(),
            loaded: BTreeSet::new(),
            met: BTreeMap::new(),
            schema,
        }
    }

    fn meet(&mut self, what: &'static str) {
        *self.met.entry(what).or_default() += 1;
    }

    fn absent(&self) -> Instance {
        Instance::absent(self.schema.tables.len())
    }

    fn seen_at(&self, key: &RootKey) -> Instance {
        self.visible.get(key).cloned().unwrap_or_else(|| self.absent())
    }

    fn pending(&self, key: &RootKey) -> bool {
        self.unflushed.iter().any(|s| s.key == *key && s.awaits_backend)
    }

    fn dirty(&self, key: &RootKey) -> bool {
        self.unflushed.iter().any(|s| s.key == *key && !s.awaits_backend)
    }

    fn step(&mut self, random: &mut ChaCha8Rng) {
        let (key, row) = self.keys[random.random_range(0..self.keys.len())].clone();
        match random.random_range(0..100) {
            0..45 => self.transact(&key, &row, random),
            45..60 => self.flush(random),
            60..68 => self.loads.push((self.engine.open_ticket().unwrap(), self.backend.clone())),
            68..86 => self.install(&key, random),
            86..92 => self.close(random),
            92..94 => self.forget(&key),
            94 => self.evict(&key),
            95..97 => self.foreign_write(&key, &row, random),
            97 => self.clear(&key),
            98 => self.restart(),
            _ => self.refuse_commits(&key, &row, random),
        }
        self.check(&key);
        self.check_plan(&key, random);
    }

    fn transact(&mut self, key: &RootKey, row: &Row, random: &mut ChaCha8Rng) {
        let transaction = self.transaction(row, random);
        let expected = naive::transact(&self.schema, key, &self.seen_at(key), &transaction);
        match self.engine.transact(key, &transaction, &self.sink) {
            Ok(done) => {
                let (after, rows) = expected.unwrap_or_else(|e| panic!("{e}: {transaction:?}"));
                assert_eq!(done.rows, rows);
                if done.sequence == 0 {
                    assert!(samples::same(&after, &self.seen_at(key)));
                    return self.meet("no effect");
                }
                self.committed(key, &after, done.awaits_backend);
            }
            Err(TransactError::NotLoaded) => {
                assert!(!self.dirty(key), "a dirty instance is loaded");
                self.meet("not loaded");
            }
            Err(TransactError::AwaitingBackend) => {
                assert!(self.pending(key) || !self.schema.lookups.is_empty());
                self.meet("awaiting");
            }
            Err(TransactError::LookupTaken { .. }) => {
                let (after, _) = expected.unwrap();
                assert!(self.lookup_taken(key, &after));
                self.meet("lookup taken");
            }
            // comparisons json lacks: the naive model is more liberal
            Err(TransactError::Request(_)) => self.meet("request"),
            Err(error) => {
                let kind = naive::kind(&error);
                assert_eq!(expected.err(), Some(kind), "{error} {transaction:?}");
                self.meet(kind);
            }
        }
    }

    fn committed(&mut self, key: &RootKey, after: &Instance, awaits_backend: bool) {
        assert!(!self.lookup_taken(key, after), "two instances have one lookup key");
        let seen = self.sink.seen.lock()[self.taken].clone();
        self.taken += 1;
        assert!(samples::same(&seen.image, after), "{seen:?} {after:?}");
        let replayed = naive::replay(&self.schema, &self.seen_at(key), &seen.changes);
        assert!(samples::same(&replayed, after), "{seen:?} {after:?}");
        assert_eq!(seen.awaits_backend, awaits_backend);
        if !awaits_backend {
            self.visible.insert(key.clone(), after.clone());
        }
        self.unflushed.push_back(seen);
        self.meet(if awaits_backend { "committed, awaits" } else { "committed" });
    }

    fn lookup_taken(&self, key: &RootKey, after: &Instance) -> bool {
        let of = |instance: &Instance| {
            let root = instance.tables[0].first()?;
            self.schema.lookup_key(0, root).ok()
        };
        !self.schema.lookups.is_empty()
            && of(after).is_some()
            && self.visible.iter().any(|(other, instance)| {
                other != key && self.loaded.contains(other) && of(instance) == of(after)
            })
    }

    /// The backend's own unique constraint.
    fn taken_in_backend(&self, key: &RootKey, image: &Instance) -> bool {
        let of = |instance: &Instance| {
            let root = instance.tables[0].first()?;
            (!self.schema.lookups.is_empty()).then(|| self.schema.lookup_key(0, root).ok())?
        };
        of(image).is_some()
            && self.backend.iter().any(|(other, i)| other != key && of(i) == of(image))
    }

    fn flush(&mut self, random: &mut ChaCha8Rng) {
        let Some(seen) = self.unflushed.pop_front() else { return };
        let refused = seen.awaits_backend
            && (random.random_bool(0.3) || self.taken_in_backend(&seen.key, &seen.image));
        if !refused {
            self.backend.insert(seen.key.clone(), seen.image.clone());
            if seen.awaits_backend {
                self.visible.insert(seen.key.clone(), seen.image.clone());
                self.loaded.insert(seen.key.clone());
            }
        } else if !self.dirty(&seen.key) {
            self.loaded.remove(&seen.key);
        }
        if !seen.image.exists() && !refused {
            self.loaded.remove(&seen.key);
        }
        if seen.awaits_backend {
            self.engine.decided(&seen.key, seen.sequence, !refused);
            self.meet(if refused { "refused by the backend" } else { "accepted" });
        } else {
            self.engine.flushed(&seen.key, seen.sequence);
            self.meet("flushed");
        }
    }

    fn install(&mut self, key: &RootKey, random: &mut ChaCha8Rng) {
        if self.loads.is_empty() {
            return;
        }
        let (ticket, snapshot) = &self.loads[random.random_range(0..self.loads.len())];
        let instance = snapshot.get(key).filter(|i| i.exists()).cloned();
        let exists = instance.is_some();
        let installed = self.engine.install(ticket, key, instance).unwrap();
        if installed == Installed::Inserted && exists {
            self.loaded.insert(key.clone());
        }
        self.meet(match installed {
            Installed::Inserted => "inserted",
            Installed::Present => "present",
            Installed::Broken => "broken",
            Installed::MemoryFull => "memory full",
        });
    }

    fn close(&mut self, random: &mut ChaCha8Rng) {
        if !self.loads.is_empty() {
            let (ticket, _) = self.loads.swap_remove(random.random_range(0..self.loads.len()));
            self.engine.close_ticket(ticket);
        }
    }

    fn forget(&mut self, key: &RootKey) {
        let unflushed = self.dirty(key) || self.pending(key);
        assert_eq!(self.engine.forget(key), !unflushed, "a dirty instance cannot be evicted");
        if !unflushed {
            self.loaded.remove(key);
            self.meet("forgotten");
        }
    }

    /// What was not read lately of a slot goes, unless something of it is not flushed.
    fn evict(&mut self, key: &RootKey) {
        let slot = key.slot();
        // the first pass takes the marks of reads away
        let evicted: usize = (0..2).map(|_| self.engine.evict_idle(slot)).sum();
        let held = |key: &RootKey| whole(&self.engine, key) != ReadAnswer::NotLoaded;
        let gone: Vec<RootKey> =
            self.loaded.iter().filter(|k| k.slot() == slot && !held(k)).cloned().collect();
        assert_eq!(gone.len(), evicted);
        for key in gone {
            assert!(!self.dirty(&key) && !self.pending(&key), "evicted with a change");
            self.loaded.remove(&key);
            self.meet("evicted");
        }
    }

    /// Somebody else changes the backend, for an instance that is not loaded here.
    fn foreign_write(&mut self, key: &RootKey, row: &Row, random: &mut ChaCha8Rng) {
        let idle = !self.dirty(key) && !self.pending(key) && self.engine.forget(key);
        if idle {
            self.loaded.remove(key);
        }
        let known = whole(&self.engine, key) != ReadAnswer::NotLoaded;
        if !idle || known || !self.loads.is_empty() {
            return;
        }
        let mut instance = samples::random_instance(&self.schema, random);
        let keys = self.schema.tables[0].root_key.len();
        for table in &mut instance.tables {
            table.iter_mut().for_each(|r| r[..keys].clone_from_slice(&row[..keys]));
        }
        if self.schema.lookups.is_empty() {
            self.backend.insert(key.clone(), instance.clone());
            self.visible.insert(key.clone(), instance);
            self.meet("foreign write");
        }
    }

    fn clear(&mut self, key: &RootKey) {
        let slot = key.slot();
        if self.unflushed.iter().any(|s| s.key.slot() == slot) {
            assert!(self.engine.slot_dirty(slot) > 0);
            return;
        }
        assert_eq!(self.engine.slot_dirty(slot), 0);
        self.engine.clear_slot(slot);
        self.loaded.retain(|k| k.slot() != slot);
        self.meet("cleared");
    }

    /// A new process: only what is not flushed comes back, from the journal.
    fn restart(&mut self) {
        self.loads.clear();
        self.engine = new_engine(&self.schema);
        *self.shown.lock() = self.engine.clone();
        self.loaded.clear();
        for seen in &self.unflushed {
            let mut image = Vec::new();
            cachetier_model::codec::encode_instance(&seen.image, &mut image);
            self.engine.restore(&seen.key, &image, seen.sequence, seen.awaits_backend).unwrap();
            if !seen.awaits_backend && seen.image.exists() {
                self.loaded.insert(seen.key.clone());
            }
        }
        self.meet("restarted");
    }

    fn refuse_commits(&mut self, key: &RootKey, row: &Row, random: &mut ChaCha8Rng) {
        use std::sync::atomic::Ordering::Relaxed;
        let transaction = self.transaction(row, random);
        self.sink.refuse.store(true, Relaxed);
        let outcome = self.engine.transact(key, &transaction, &self.sink);
        self.sink.refuse.store(false, Relaxed);
        assert!(outcome.is_err() || outcome.unwrap().sequence == 0);
    }

    fn check(&self, key: &RootKey) {
        match whole(&self.engine, key) {
            ReadAnswer::Found { tables, .. } => {
                let found = Instance { tables };
                let seen = self.seen_at(key);
                assert!(samples::same(&found, &seen), "{found:?} {seen:?}");
                self.check_lookup(key, &found);
            }
            ReadAnswer::Absent { .. } => assert!(!self.seen_at(key).exists()),
            ReadAnswer::NotLoaded => {
                assert!(!self.dirty(key) && !self.loaded.contains(key), "loaded, and not found");
            }
            ReadAnswer::Quarantined => panic!("nobody quarantined it"),
        }
        for row in self.seen_at(key).tables.iter().take(1).flatten() {
            if let Some(Ok(lookup)) =
                (!self.schema.lookups.is_empty()).then(|| self.schema.lookup_key(0, row))
            {
                let resolved = self.engine.resolve(0, &lookup).root;
                assert!(resolved.is_none() || self.loaded_as(&resolved.unwrap(), &lookup));
            }
        }
    }

    fn loaded_as(&self, key: &RootKey, lookup: &cachetier_model::LookupKey) -> bool {
        let root = self.seen_at(key).tables[0].first().cloned();
        root.is_some_and(|row| self.schema.lookup_key(0, &row).as_ref() == Ok(lookup))
    }

    fn check_lookup(&self, key: &RootKey, found: &Instance) {
        if self.schema.lookups.is_empty() {
            return;
        }
        if let Ok(lookup) = self.schema.lookup_key(0, &found.tables[0][0]) {
            let resolved = self.engine.resolve(0, &lookup).root;
            assert!(resolved.is_some(), "a loaded instance is found by its lookup key");
            let _ = key;
        }
    }

    /// Everything flushed and every load over: the sums are right and nothing is left behind.
    fn finish(&mut self, random: &mut impl Rng) {
        let _ = random;
        while let Some(seen) = self.unflushed.pop_front() {
            self.visible.insert(seen.key.clone(), seen.image.clone());
            if seen.awaits_backend {
                self.engine.decided(&seen.key, seen.sequence, true);
            } else {
                self.engine.flushed(&seen.key, seen.sequence);
            }
        }
        for (ticket, _) in self.loads.drain(..) {
            self.engine.close_ticket(ticket);
        }
        let mut rows = vec![0; self.schema.tables.len()];
        for slot in SlotId::all() {
            assert_eq!(self.engine.slot_dirty(slot), 0);
            assert!(self.engine.slot(slot).read().states.is_empty());
            self.engine.scan_slot(slot, &mut |key, instance, dirty| {
                assert!(!dirty);
                assert!(samples::same(instance, &self.visible[key]));
                instance.tables.iter().zip(&mut rows).for_each(|(t, n)| *n += t.len() as u64);
            });
        }
        let usage = self.engine.usage();
        assert_eq!(usage.tables.iter().map(|t| t.rows).collect::<Vec<_>>(), rows);
        assert_eq!(usage.dirty_instances, 0);
    }
}

#[test]
fn the_engine_agrees_with_a_naive_model_over_random_schemas() {
    let mut met: BTreeMap<&'static str, u32> = BTreeMap::new();
    let seeds = std::env::var("ENGINE_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(60);
    for seed in 0..seeds {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut world = World::new(&mut random);
        let (schema, keys, shown) = (world.schema.clone(), world.keys.clone(), world.shown.clone());
        let found = beside::read_while(&schema, &keys, &shown, || {
            for _ in 0..1_500 {
                world.step(&mut random);
            }
            world.finish(&mut random);
        });
        world.met.insert("read beside", found);
        for (what, count) in world.met {
            *met.entry(what).or_default() += count;
        }
    }
    for what in [
        "committed",
        "committed, awaits",
        "no effect",
        "not loaded",
        "awaiting",
        "lookup taken",
        "guard",
        "primary key",
        "foreign key",
        "not null",
        "key change",
        "wrong instance",
        "row count",
        "flushed",
        "accepted",
        "refused by the backend",
        "inserted",
        "present",
        "broken",
        "forgotten",
        "evicted",
        "read beside",
        "foreign write",
        "cleared",
        "restarted",
        "request",
        "plan",
    ] {
        assert!(met.get(what).is_some_and(|n| *n > 20), "{what} was hardly met: {met:?}");
    }
}
