//! Transactions: check, commit to the sink, apply; and what the backend makes of them later.

use super::{Changing, Commit, CommitSink, Engine};
use crate::slot::Target;
use crate::state::Pending;
use crate::work::{InPlace, Outcome, Work};
use crate::{Committed, TransactError};
use cachetier_model::{ChangeKind, RootKey, RowChange, Transaction};
use std::time::Duration;

/// Attempts to look into another instance's slot (for lookup uniqueness) before the caller is
/// told to try again; the pause between the later ones makes them a minute.
const ATTEMPTS_MAX: u32 = 600_000;
/// Attempts that only yield; a slot is rarely held longer.
const ATTEMPTS_YIELDING: u32 = 100;
const ATTEMPT_PAUSE: Duration = Duration::from_micros(100);

/// What the state and the side tables of one more dirty instance may take.
const STATE_BYTES: usize = 512;

impl Engine {
    /// All or nothing on one instance. A transaction without effect commits nothing.
    ///
    /// `AwaitingBackend` means: try again once the backend has decided on an earlier transaction of
    /// this instance, or of one that takes or releases the same lookup key.
    pub fn transact(
        &self,
        key: &RootKey,
        transaction: &Transaction,
        sink: &dyn CommitSink,
    ) -> Result<Committed, TransactError> {
        let target = self.target(key);
        for attempt in 0..ATTEMPTS_MAX {
            let mut slot = self.change(target);
            if let Some(done) = self.attempt(&mut slot, target, transaction, sink)? {
                return Ok(done);
            }
            drop(slot);
            if attempt < ATTEMPTS_YIELDING {
                std::thread::yield_now();
            } else {
                std::thread::sleep(ATTEMPT_PAUSE);
            }
        }
        Err(TransactError::AwaitingBackend)
    }

    /// `None`: another slot's lock was needed and not free.
    fn attempt(
        &self,
        slot: &mut Changing<'_>,
        target: Target<'_>,
        transaction: &Transaction,
        sink: &dyn CommitSink,
    ) -> Result<Option<Committed>, TransactError> {
        let state = slot.state(target.key);
        if state.is_some_and(|s| s.quarantined) {
            return Err(TransactError::Quarantined);
        }
        if state.is_some_and(|s| s.pending.is_some()) {
            return Err(TransactError::AwaitingBackend);
        }
        let known_absent = state.is_some_and(|s| s.absent);
        let found = slot.find(target);
        let before = found.map(|found| slot.record_at(found));
        if before.is_none() && !known_absent {
            return Err(TransactError::NotLoaded);
        }
        let Outcome { rows, changes, packed, in_place } =
            self.work(target.key, before, transaction)?;
        if changes.is_empty() {
            return Ok(Some(Committed { sequence: 0, rows, awaits_backend: false }));
        }
        let awaits_backend = self.rules.awaits_backend(&changes);
        let moves = if self.rules.moves_lookups(&changes) {
            self.lookup_moves(before, packed.as_deref())
        } else {
            Vec::new()
        };
        let mut roomy = true;
        if let Some(packed) = &packed {
            let length = if in_place { 0 } else { packed.len() };
            roomy = self.has_room(slot, length);
            if !roomy && !self.makes_room(slot, target.key, length) {
                return Err(TransactError::MemoryFull);
            }
        }
        if !self.reserve(slot, target, &moves)? {
            return Ok(None);
        }
        let commit = Commit {
            slot: target.key.slot(),
            key: target.key,
            changes: &changes,
            rows: &rows,
            awaits_backend,
            packed: packed.as_deref(),
            layout: &self.layout,
        };
        let sequence = match sink.commit(&commit) {
            Ok(sequence) => sequence,
            Err(refused) => {
                self.unreserve(target, &moves);
                return Err(TransactError::Refused(refused));
            }
        };
        if awaits_backend {
            let image = packed.map(Vec::into_boxed_slice);
            slot.pending_bytes += image.as_ref().map_or(0, |i| i.len());
            slot.state_mut(target.key).pending = Some(Box::new(Pending { sequence, image }));
        } else {
            match packed.as_deref() {
                // nothing moved in the slot since the record was found
                Some(packed) if in_place && roomy => slot.put_at(found, target, packed),
                packed => self.replace(slot, target, packed),
            };
            self.count_changes(&changes);
            self.release(target, &moves);
            let state = slot.state_mut(target.key);
            state.dirty = sequence;
            state.absent = packed.is_none();
        }
        Ok(Some(Committed { sequence, rows, awaits_backend }))
    }

    /// Whether the budget allows one more dirty instance, and a record of this length (0: none).
    fn has_room(&self, slot: &Changing<'_>, length: usize) -> bool {
        let growth = if length == 0 { 0 } else { slot.growth_for(length) };
        self.memory.admits(growth + length + STATE_BYTES)
    }

    /// The same after others were evicted from the slot, where that is allowed.
    fn makes_room(&self, slot: &mut Changing<'_>, key: &RootKey, length: usize) -> bool {
        self.evicts() && self.make_room(slot, key, length, length + STATE_BYTES)
    }

    /// What the transaction makes of the instance.
    fn work(
        &self,
        key: &RootKey,
        before: Option<&[u8]>,
        transaction: &Transaction,
    ) -> Result<Outcome, TransactError> {
        let (schema, layout) = (&*self.schema, &self.layout);
        if let Some(packed) = before
            && let Some(done) = InPlace::run(schema, layout, &self.rules, packed, transaction)?
        {
            return Ok(done);
        }
        Work::new(schema, layout, key, before).run(transaction)
    }

    /// Makes the packed instance (`None`: its absence) the visible one, and counts its rows.
    /// Lookups are the caller's.
    pub(super) fn apply(&self, slot: &mut Changing<'_>, target: Target<'_>, packed: Option<&[u8]>) {
        if let Some(old) = slot.record(target) {
            self.count(old, -1);
        }
        if let Some(packed) = packed {
            self.count(packed, 1);
        }
        self.replace(slot, target, packed);
    }

    fn replace(&self, slot: &mut Changing<'_>, target: Target<'_>, packed: Option<&[u8]>) -> bool {
        match packed {
            // an address space of 8 GiB per slot is never full before the budget is
            Some(packed) => slot.put(target, packed),
            None => slot.take(target),
        }
    }

    fn count_changes(&self, changes: &[RowChange]) {
        for change in changes {
            match change.kind {
                ChangeKind::Insert => self.memory.count_rows(change.table, 1),
                ChangeKind::Delete => self.memory.count_rows(change.table, -1),
                ChangeKind::Update => {}
            }
        }
    }

    /// Counts the rows of a packed instance in (`sign` 1) or out (-1).
    pub(super) fn count(&self, packed: &[u8], sign: i64) {
        let mut rest = packed;
        for table in 0..self.schema.tables.len() {
            let Some(view) = self.layout.view(table, rest) else { return };
            self.memory.count_rows(table, sign * view.rows() as i64);
            rest = rest.get(view.length()..).unwrap_or_default();
        }
    }

    /// The backend has every change of the instance up to and including this sequence.
    pub fn flushed(&self, key: &RootKey, upto: u64) {
        let target = self.target(key);
        let mut slot = self.change(target);
        let Some(state) = slot.states.get_mut(key) else { return };
        if let Some(pending) = state.pending.take_if(|p| p.sequence <= upto) {
            self.accept(&mut slot, target, *pending);
            return;
        }
        if state.dirty == 0 || state.dirty > upto {
            return;
        }
        state.dirty = 0;
        if state.absent {
            state.absent = false;
            self.leave_mark(&mut slot, target, true);
            slot.settle(key);
        } else if state.is_trivial() {
            slot.drop_state(key);
        }
    }

    /// R16: the backend accepted (now visible) or refused (the instance is not loaded any more,
    /// unless earlier changes of it are still to be flushed) the transaction of this sequence.
    pub fn decided(&self, key: &RootKey, sequence: u64, accepted: bool) {
        let target = self.target(key);
        let mut slot = self.change(target);
        let Some(state) = slot.states.get_mut(key) else { return };
        let Some(pending) = state.pending.take_if(|p| p.sequence == sequence) else { return };
        if accepted {
            self.accept(&mut slot, target, *pending);
            return;
        }
        let keep = state.dirty != 0;
        self.drop_pending(&mut slot, target, *pending);
        if !keep {
            self.discard(&mut slot, target);
        }
        slot.settle(key);
    }

    pub(super) fn accept(&self, slot: &mut Changing<'_>, target: Target<'_>, pending: Pending) {
        let image = pending.image.as_deref();
        slot.pending_bytes -= image.map_or(0, <[u8]>::len);
        let before = slot.record(target).map(<[u8]>::to_vec);
        let moves = self.lookup_moves(before.as_deref(), image);
        self.apply(slot, target, image);
        self.release(target, &moves);
        let state = slot.state_mut(target.key);
        state.dirty = 0;
        state.absent = false;
        if image.is_none() {
            self.leave_mark(slot, target, true);
        }
        slot.settle(target.key);
    }

    /// Forgets a transaction that will not be; what it reserved is free again.
    pub(super) fn drop_pending(
        &self,
        slot: &mut Changing<'_>,
        target: Target<'_>,
        pending: Pending,
    ) {
        let image = pending.image.as_deref();
        slot.pending_bytes -= image.map_or(0, <[u8]>::len);
        let before = slot.record(target).map(<[u8]>::to_vec);
        let moves = self.lookup_moves(before.as_deref(), image);
        self.unreserve(target, &moves);
    }

    /// Takes the record out and leaves a mark for open loads; the instance is not loaded.
    pub(super) fn discard(&self, slot: &mut Changing<'_>, target: Target<'_>) {
        let before = slot.record(target).map(<[u8]>::to_vec);
        let moves = self.lookup_moves(before.as_deref(), None);
        self.apply(slot, target, None);
        self.release(target, &moves);
        self.leave_mark(slot, target, false);
    }

    /// For the loads that are open now: what they read about the key may be out of date.
    fn leave_mark(&self, slot: &mut Changing<'_>, target: Target<'_>, absent: bool) {
        let mark = self.tickets.mark(target.key);
        let state = slot.state_mut(target.key);
        state.marked = mark.unwrap_or(0);
        state.absent = absent && mark.is_some();
        state.learned = 0;
    }

    /// Takes the instance out of service until [`Engine::forget`].
    pub fn quarantine(&self, key: &RootKey) {
        let target = self.target(key);
        let mut slot = self.change(target);
        if let Some(pending) = slot.state_mut(key).pending.take() {
            self.drop_pending(&mut slot, target, *pending);
        }
        self.discard(&mut slot, target);
        let state = slot.state_mut(key);
        state.quarantined = true;
        state.dirty = 0;
    }

    /// Makes the instance not loaded; false (and nothing happens) when it is dirty and not
    /// quarantined.
    pub fn forget(&self, key: &RootKey) -> bool {
        let target = self.target(key);
        let mut slot = self.change(target);
        if slot.state(key).is_some_and(|s| s.is_unflushed()) {
            return false;
        }
        self.discard(&mut slot, target);
        slot.state_mut(key).quarantined = false;
        slot.settle(key);
        true
    }
}
