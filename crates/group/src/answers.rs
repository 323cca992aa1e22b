//! Answers of transactions with an idempotency key, so that a repeated one is answered and not
//! applied again (R26).
//!
//! Owns the table of them: bounded in time by `idempotency.windowSeconds` and in bytes by
//! `idempotency.maxBytes`, past which the oldest go and are counted. Filled by commits (under the
//! queue's lock, after the journal gave the place), by a start from the journal, and by slots that
//! come from other nodes. Pure but for its clock; must never wait, and takes no other lock.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cachetier_model::node_config::IdempotencyConfig;
use cachetier_model::{IdempotencyKey, RootKey, SlotId, SlotSet};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::calls::Position;
use crate::frames;

/// What an answer costs beside its keys and counts.
const ENTRY_BYTES: u64 = 192;

/// A key belongs to its instance: the same bytes for another instance name another transaction.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    pub root: RootKey,
    pub key: IdempotencyKey,
}

/// A call with a key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    pub name: Arc<Name>,
    pub digest: u128,
}

/// What became of a transaction that is in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Done; acknowledged as soon as it is durable.
    Done,
    /// Only the backend can tell, and has not yet (R16).
    Undecided,
    /// It was never acknowledged and waits for an administrator.
    SetAside,
    /// The backend decided, and the process ended before it could note what.
    Unknown,
}

/// How the first call was, or is going to be, answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    /// Sequence 0: nothing was changed.
    pub position: Position,
    pub rows: Arc<[u32]>,
    pub fate: Fate,
    /// The frame of this journal that must be durable before the answer may leave (R7).
    pub durable_at: u64,
}

/// What is known of a request.
pub(crate) enum Found {
    /// Nothing: the caller may go on, and tells the outcome through the claim.
    First(Claim),
    /// The first one is under way.
    UnderWay,
    Known(Answer),
    /// The key was used for another request.
    Another,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    digest: u128,
    /// `None` while the first call is under way.
    answer: Option<Answer>,
}

/// An answer's place in the order of time.
#[derive(Debug)]
struct Kept {
    since: Instant,
    name: Arc<Name>,
    number: u64,
    bytes: u64,
}

#[derive(Debug, Default)]
struct Table {
    entries: HashMap<Arc<Name>, Entry>,
    /// Oldest first. What was taken out of `entries` stays here, and counts, until its time is over.
    order: VecDeque<Kept>,
    undecided: HashMap<u64, Arc<Name>>,
    bytes: u64,
    last_number: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Answers {
    window: Duration,
    bytes_max: u64,
    table: Mutex<Table>,
    /// Grows with every outcome; repeated calls watch it.
    changed: watch::Sender<u64>,
    repeated: AtomicU64,
    forgotten: AtomicU64,
}

/// For metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerFigures {
    pub answers: u64,
    pub bytes: u64,
    /// Calls that were answered from here.
    pub repeated: u64,
    /// Answers that went before their time, for want of room.
    pub forgotten: u64,
}

/// Tokio's clock, which a simulator can hold.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

impl Table {
    fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Puts an answer in, in place of whatever is known under the name.
    fn put(&mut self, name: &Arc<Name>, digest: u128, answer: Answer) {
        self.forget(name);
        let number = self.number();
        if answer.fate == Fate::Undecided {
            self.undecided.insert(answer.position.sequence, Arc::clone(name));
        }
        let length = name.root.as_bytes().len() + name.key.as_bytes().len();
        let bytes = ENTRY_BYTES + (length + answer.rows.len() * 4) as u64;
        self.bytes += bytes;
        self.order.push_back(Kept { since: now(), name: Arc::clone(name), number, bytes });
        self.entries.insert(Arc::clone(name), Entry { number, digest, answer: Some(answer) });
    }

    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.order.pop_front() else { return false };
        self.bytes -= oldest.bytes;
        let is_this = self.entries.get(&oldest.name).is_some_and(|e| e.number == oldest.number);
        if is_this {
            self.forget(&oldest.name);
        }
        is_this
    }

    fn forget(&mut self, name: &Arc<Name>) {
        let entry = self.entries.remove(name);
        if let Some(answer) = entry.and_then(|entry| entry.answer) {
            self.undecided.remove(&answer.position.sequence);
        }
    }
}

impl Answers {
    pub(crate) fn new(config: &IdempotencyConfig) -> Arc<Self> {
        Arc::new(Self {
            window: Duration::from_secs(config.window_seconds),
            bytes_max: config.max_bytes,
            table: Mutex::default(),
            changed: watch::Sender::new(0),
            repeated: AtomicU64::new(0),
            forgotten: AtomicU64::new(0),
        })
    }

    /// Whether this group keeps answers at all.
    pub(crate) fn are_kept(&self) -> bool {
        !self.window.is_zero()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn tell(&self) {
        self.changed.send_modify(|version| *version += 1);
    }

    /// The first caller of a name gets a claim; who comes while it is held waits.
    pub(crate) fn begin(self: &Arc<Self>, request: &Request) -> Found {
        let mut table = self.table.lock();
        match table.entries.get(&request.name) {
            Some(entry) if entry.digest != request.digest => Found::Another,
            Some(Entry { answer: Some(answer), .. }) => Found::Known(answer.clone()),
            Some(_) => Found::UnderWay,
            None => {
                let number = table.number();
                let entry = Entry { number, digest: request.digest, answer: None };
                table.entries.insert(Arc::clone(&request.name), entry);
                let answers = Arc::clone(self);
                Found::First(Claim { answers, request: request.clone(), number })
            }
        }
    }

    pub(crate) fn note_repeat(&self) {
        self.repeated.fetch_add(1, Ordering::Relaxed);
    }

    /// An answer of an earlier process, or of a slot that comes from another node.
    pub(crate) fn put(&self, request: &Request, answer: Answer) {
        let mut table = self.table.lock();
        table.put(&request.name, request.digest, answer);
        self.keep_bound(&mut table);
        drop(table);
        self.tell();
    }

    /// True if exactly this is known already.
    pub(crate) fn has(&self, request: &Request, position: &Position) -> bool {
        let table = self.table.lock();
        let answer = table.entries.get(&request.name).and_then(|e| e.answer.as_ref());
        answer.is_some_and(|answer| answer.position == *position)
    }

    fn keep_bound(&self, table: &mut Table) {
        while table.bytes > self.bytes_max && !table.order.is_empty() {
            if table.drop_oldest() {
                self.forgotten.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Lets go of what is older than the window.
    pub(crate) fn expire(&self) {
        let (now, mut table) = (now(), self.table.lock());
        while table.order.front().is_some_and(|k| now.duration_since(k.since) >= self.window) {
            table.drop_oldest();
        }
    }

    /// An undecided transaction and the answer it gets when the backend accepts it.
    pub(crate) fn awaiting(&self, sequence: u64) -> Option<(Request, Answer)> {
        let table = self.table.lock();
        let name = table.undecided.get(&sequence)?;
        let entry = table.entries.get(name)?;
        let answer = Answer { fate: Fate::Done, ..entry.answer.clone()? };
        Some((Request { name: Arc::clone(name), digest: entry.digest }, answer))
    }

    /// The backend accepted it, and this frame of the journal says so.
    pub(crate) fn accepted(&self, sequence: u64, noted: u64) {
        self.decide(sequence, |answer| {
            answer.fate = Fate::Done;
            answer.durable_at = answer.durable_at.max(noted);
            true
        });
    }

    /// It never happened: the key is free again.
    pub(crate) fn refused(&self, sequence: u64) {
        self.decide(sequence, |_| false);
    }

    /// It was set aside, and its caller was told that the outcome is unknown.
    pub(crate) fn set_aside(&self, sequence: u64) {
        self.decide(sequence, |answer| {
            answer.fate = Fate::SetAside;
            true
        });
    }

    /// The backend decided while an earlier process ended; nobody noted what.
    pub(crate) fn unknown(&self, sequence: u64) {
        self.decide(sequence, |answer| {
            answer.fate = Fate::Unknown;
            true
        });
    }

    /// What waits for the backend's decision.
    pub(crate) fn undecided(&self) -> Vec<(u64, RootKey)> {
        let table = self.table.lock();
        table.undecided.iter().map(|(sequence, name)| (*sequence, name.root.clone())).collect()
    }

    /// `change` says whether the answer stays.
    fn decide(&self, sequence: u64, change: impl FnOnce(&mut Answer) -> bool) {
        let mut table = self.table.lock();
        let Some(name) = table.undecided.remove(&sequence) else { return };
        let answer = table.entries.get_mut(&name).and_then(|entry| entry.answer.as_mut());
        if !answer.is_some_and(change) {
            table.forget(&name);
        }
        drop(table);
        self.tell();
    }

    /// An administrator decided about what was set aside of an instance.
    pub(crate) fn resolved(&self, root: &RootKey, discarded: bool) {
        let mut table = self.table.lock();
        let aside = |entry: &Entry| entry.answer.as_ref().is_some_and(|a| a.fate == Fate::SetAside);
        table.entries.retain(|name, entry| {
            let concerned = name.root == *root && aside(entry);
            if let Some(answer) = entry.answer.as_mut().filter(|_| concerned) {
                answer.fate = Fate::Done;
            }
            !(concerned && discarded)
        });
        drop(table);
        self.tell();
    }

    /// Slots that are another node's now.
    pub(crate) fn gone(&self, slots: &SlotSet) {
        let mut table = self.table.lock();
        table
            .entries
            .retain(|name, entry| entry.answer.is_none() || !slots.contains(name.root.slot()));
        let Table { undecided, entries, .. } = &mut *table;
        undecided.retain(|_, name| entries.contains_key(name));
    }

    /// The answers of slots that are let go, as the journal would keep them, and the slots whose
    /// answers these are: as many as fit into `bytes_max`, one at least, none with an undecided one.
    pub(crate) fn of_slots(&self, slots: &SlotSet, bytes_max: usize) -> (SlotSet, Vec<Bytes>) {
        let table = self.table.lock();
        let mut fitting = slots.clone();
        let mut by_slot: BTreeMap<SlotId, VecDeque<Bytes>> = BTreeMap::new();
        for Kept { name, number, .. } in &table.order {
            let slot = name.root.slot();
            let entry = table.entries.get(name).filter(|entry| entry.number == *number);
            let Some(entry) = entry.filter(|_| slots.contains(slot)) else { continue };
            let Some(answer) = &entry.answer else { continue };
            if answer.fate == Fate::Undecided {
                fitting.subtract(&std::iter::once(slot).collect());
            }
            let request = Request { name: Arc::clone(name), digest: entry.digest };
            by_slot.entry(slot).or_default().push_back(frames::answered(&request, answer).into());
        }
        drop(table);
        let mut taken: Vec<Bytes> = Vec::new();
        let mut room = bytes_max;
        for (slot, mut answers) in by_slot {
            let mut size: usize = answers.iter().map(Bytes::len).sum();
            while taken.is_empty() && size > room && !answers.is_empty() {
                size -= answers.pop_front().map_or(0, |oldest| oldest.len());
                self.forgotten.fetch_add(1, Ordering::Relaxed);
            }
            if size > room || !fitting.contains(slot) {
                fitting.subtract(&std::iter::once(slot).collect());
                continue;
            }
            room -= size;
            taken.extend(answers);
        }
        (fitting, taken)
    }

    pub(crate) fn figures(&self) -> AnswerFigures {
        let table = self.table.lock();
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        AnswerFigures {
            answers: table.entries.len() as u64,
            bytes: table.bytes,
            repeated: get(&self.repeated),
            forgotten: get(&self.forgotten),
        }
    }
}

/// The right to be the first of a name. Dropped without an outcome, the key is free again.
pub(crate) struct Claim {
    answers: Arc<Answers>,
    pub request: Request,
    number: u64,
}

impl Claim {
    /// False once an answer came from elsewhere: the slot was away meanwhile, and this call must
    /// not commit any more.
    pub(crate) fn is_held(&self) -> bool {
        let table = self.answers.table.lock();
        let entry = table.entries.get(&self.request.name);
        entry.is_some_and(|entry| entry.number == self.number && entry.answer.is_none())
    }

    /// Keeps the answer that `answer` makes under the table's lock. `None`, from it or because the
    /// claim is not held any more: nothing is kept.
    pub(crate) fn settle<E>(
        &self,
        answer: impl FnOnce() -> Result<Option<Answer>, E>,
    ) -> Result<bool, E> {
        let mut table = self.answers.table.lock();
        let entry = table.entries.get(&self.request.name);
        if entry.is_none_or(|entry| entry.number != self.number || entry.answer.is_some()) {
            return Ok(false);
        }
        let Some(answer) = answer()? else { return Ok(false) };
        table.put(&self.request.name, self.request.digest, answer);
        self.answers.keep_bound(&mut table);
        drop(table);
        self.answers.tell();
        Ok(true)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut table = self.answers.table.lock();
        let mine = table.entries.get(&self.request.name);
        if mine.is_some_and(|entry| entry.number == self.number && entry.answer.is_none()) {
            table.entries.remove(&self.request.name);
        }
        drop(table);
        self.answers.tell();
    }
}

#[cfg(test)]
mod tests;
