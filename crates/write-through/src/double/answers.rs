//! Reads, loads and rejects of the database in memory.

use super::state::{HeldChunk, Load, Rejected, State};
use super::store::key_of;
use crate::backend::flush::{Fence, FlushRequest, NewReject};
use crate::backend::load::{Chunk, KeyRange, LoadInfo, LoadSpec, ScanRequest};
use crate::backend::ownership::{fenced, slot_moved};
use crate::backend::reject::RejectEntry;
use crate::error::{BackendError, Reason};
use crate::plan::plan;
use cachetier_model::{Instance, LookupId, RootKey, Value};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

impl HeldChunk {
    pub fn renew(&mut self, lease: Duration) {
        self.until = Some(Instant::now() + lease);
    }

    pub fn give_back(&mut self) {
        (self.worker, self.until) = (None, None);
    }
}

impl State {
    fn instances(&self) -> Vec<(RootKey, Instance)> {
        let roots = self.data.store.tables.first().into_iter().flat_map(|t| t.values());
        let keys = roots.filter_map(|row| self.schema.root_key_of_row(0, row).ok());
        keys.filter_map(|key| self.instance(&key).map(|i| (key, i))).collect()
    }

    pub fn instance(&self, key: &RootKey) -> Option<Instance> {
        let mut instance = Instance::absent(self.schema.tables.len());
        for (table, rows) in self.data.store.tables.iter().enumerate() {
            let mine = rows
                .values()
                .filter(|row| self.schema.root_key_of_row(table, row).as_ref() == Ok(key));
            if let Some(out) = instance.tables.get_mut(table) {
                out.extend(mine.cloned());
            }
        }
        instance.exists().then_some(instance)
    }

    pub fn resolve(&self, lookup: LookupId, values: &[Value]) -> Option<RootKey> {
        let wanted = self.schema.encode_lookup_key(lookup, values).ok()?;
        let mut roots = self.data.store.tables.first()?.values();
        let row =
            roots.find(|row| self.schema.lookup_key(lookup, row).is_ok_and(|key| key == wanted))?;
        self.schema.root_key_of_row(0, row).ok()
    }

    pub fn chunks(&self, chunks: u32) -> Vec<KeyRange> {
        let keys: Vec<RootKey> = self.instances().into_iter().map(|(key, _)| key).collect();
        let size = keys.len().div_ceil(chunks.max(1) as usize).max(1);
        let mut ranges = Vec::new();
        let mut from = None;
        for key in keys.iter().step_by(size).skip(1) {
            ranges.push(KeyRange { from: from.replace(key.clone()), to: Some(key.clone()) });
        }
        ranges.push(KeyRange { from, to: None });
        ranges
    }

    pub fn pages(&self, request: &ScanRequest) -> VecDeque<Vec<(RootKey, Instance)>> {
        let KeyRange { from, to } = &request.range;
        let within = |key: &RootKey| {
            from.as_ref().is_none_or(|f| key >= f) && to.as_ref().is_none_or(|t| key < t)
        };
        let mut found = self.instances();
        found.retain(|(key, _)| within(key));
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found.chunks(request.page.max(1) as usize).map(<[_]>::to_vec).collect()
    }

    pub fn create_load(&mut self, spec: LoadSpec) -> LoadInfo {
        let LoadSpec { group_uid, load_id, filter, chunks } = spec;
        let fresh = |range| HeldChunk { range, worker: None, until: None, attempt: 0, done: None };
        let chunks = chunks.into_iter().map(fresh).collect();
        let key = (group_uid, load_id);
        info(&key.1.clone(), self.loads.entry(key).or_insert(Load { filter, chunks }))
    }

    pub fn load_info(&self, group_uid: &str, load_id: &str) -> Option<LoadInfo> {
        let load = self.loads.get(&(group_uid.to_owned(), load_id.to_owned()))?;
        Some(info(load_id, load))
    }

    pub fn take_chunk(
        &mut self,
        group_uid: &str,
        load_id: &str,
        worker: &str,
        lease: Duration,
    ) -> Option<Chunk> {
        let load = self.loads.get_mut(&(group_uid.to_owned(), load_id.to_owned()))?;
        let now = Instant::now();
        let free = |c: &HeldChunk| c.done.is_none() && c.until.is_none_or(|until| until <= now);
        let (number, chunk) = load.chunks.iter_mut().enumerate().find(|(_, c)| free(c))?;
        chunk.worker = Some(worker.to_owned());
        chunk.renew(lease);
        chunk.attempt += 1;
        Some(Chunk {
            group_uid: group_uid.to_owned(),
            load_id: load_id.to_owned(),
            number: number as u32,
            range: chunk.range.clone(),
            worker: worker.to_owned(),
            attempt: chunk.attempt,
        })
    }

    /// Acts on a chunk that is the worker's still.
    pub fn with_chunk(&mut self, chunk: &Chunk, act: impl FnOnce(&mut HeldChunk)) -> bool {
        let load = self.loads.get_mut(&(chunk.group_uid.clone(), chunk.load_id.clone()));
        let held = load.and_then(|l| l.chunks.get_mut(chunk.number as usize)).filter(|held| {
            held.worker.as_ref() == Some(&chunk.worker)
                && held.attempt == chunk.attempt
                && held.done.is_none()
        });
        held.map(act).is_some()
    }

    pub fn rejected(&self, request: &FlushRequest<'_>, reject: &NewReject) -> Rejected {
        let cause = reject.cause.clone();
        let text = |of: fn(&crate::RejectCause) -> &String| {
            cause.as_ref().map(of).cloned().unwrap_or_default()
        };
        Rejected {
            group_uid: request.fence.writer.group_uid.clone(),
            head: cause.is_some(),
            since: Instant::now(),
            entry: RejectEntry {
                id: self.next_reject,
                node: request.fence.writer.node.clone(),
                sequence: reject.sequence,
                key: reject.key.clone(),
                sqlstate: text(|c| &c.sqlstate),
                table: text(|c| &c.table),
                constraint: text(|c| &c.constraint),
                message: text(|c| &c.message),
                detail: text(|c| &c.detail),
                age_seconds: 0.0,
                following: 0,
                changes: reject.changes.to_vec(),
            },
        }
    }

    pub fn list_rejects(&self, group_uid: &str, limit: u32) -> Vec<RejectEntry> {
        let all = || self.data.rejects.iter().filter(|r| r.group_uid == group_uid);
        let behind = |head: &Rejected| {
            all().filter(|r| r.entry.key == head.entry.key && r.entry.id > head.entry.id).count()
        };
        let heads = all().filter(|r| r.head).take(limit as usize);
        heads
            .map(|head| RejectEntry {
                age_seconds: head.since.elapsed().as_secs_f64(),
                following: behind(head) as u32,
                changes: Vec::new(),
                ..head.entry.clone()
            })
            .collect()
    }

    pub fn reject_tail(&self, id: u64) -> Vec<RejectEntry> {
        let rejects = &self.data.rejects;
        let Some(head) = rejects.iter().find(|r| r.head && r.entry.id == id) else {
            return Vec::new();
        };
        let same = |r: &&Rejected| {
            r.group_uid == head.group_uid && r.entry.key == head.entry.key && r.entry.id >= id
        };
        rejects.iter().filter(same).map(|r| r.entry.clone()).collect()
    }

    pub fn remove_reject(&mut self, id: u64, by: &Fence, apply: bool) -> Result<u32, BackendError> {
        const ACT: &str = "resolve a reject";
        let row = self.writer_row(&by.writer).filter(|row| row.token == by.token);
        let row = row.ok_or_else(|| fenced(ACT))?;
        let tail = self.reject_tail(id);
        match tail.first() {
            None => {
                return Err(BackendError::new(ACT, Reason::NotFound, "there is no such reject"));
            }
            Some(head) if !row.slots.contains(head.key.slot()) => return Err(slot_moved(ACT)),
            Some(_) => {}
        }
        let mut store = self.data.store.clone();
        for entry in tail.iter().filter(|_| apply) {
            let waves = plan(&self.schema, &entry.changes)
                .map_err(|error| BackendError::new(ACT, Reason::ValueRefused, error.to_string()))?;
            for statement in waves.iter().flat_map(|w| &w.statements) {
                self.run(&mut store, statement)?;
            }
        }
        self.data.store = store;
        self.data.rejects.retain(|r| !tail.iter().any(|t| t.id == r.entry.id));
        Ok(tail.len() as u32)
    }
}

impl super::store::Store {
    /// Puts a row in as another writer of the database would, without any check.
    pub fn put_row(
        &mut self,
        schema: &cachetier_model::GroupSchema,
        table: usize,
        row: cachetier_model::Row,
    ) {
        let key = schema.table(table).and_then(|t| key_of(t, &row).ok());
        if let Some((key, rows)) = key.zip(self.tables.get_mut(table)) {
            rows.insert(key, row);
        }
    }
}

fn info(load_id: &str, load: &Load) -> LoadInfo {
    let done: Vec<u64> = load.chunks.iter().filter_map(|c| c.done).collect();
    LoadInfo {
        load_id: load_id.to_owned(),
        filter: load.filter.clone(),
        chunks_total: load.chunks.len() as u32,
        chunks_done: done.len() as u32,
        instances: done.iter().sum(),
    }
}
