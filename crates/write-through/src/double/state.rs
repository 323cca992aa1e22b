//! What the database in memory holds, its commits, and what may go wrong with them.

use super::store::Store;
use crate::backend::claim::{
    Claim, ClaimRequest, LaneChange, LaneClaim, Leave, Takeover, TakeoverRequest,
};
use crate::backend::flush::{AsOf, FlushOutcome, FlushRequest, RowMark, WriterId, WriterRow};
use crate::backend::load::KeyRange;
use crate::backend::ownership::{
    TakeoverPlan, Writer, admit, fenced, fresh_lanes, plan_lane_change, plan_leave, plan_takeover,
    tables_claimed,
};
use crate::backend::reject::RejectEntry;
use crate::error::{BackendError, Reason};
use crate::plan::Statement;
use cachetier_model::{GroupSchema, RootKey, SlotSet};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How a flush's connection breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    Not,
    /// Nothing of it happened.
    BeforeCommit,
    /// It happened and the answer is lost.
    AfterCommit,
}

/// Says of a statement that a trigger refuses it.
pub type Refusal = Box<dyn Fn(&Statement<'_>) -> bool + Send>;

#[derive(Default)]
pub struct Faults {
    /// No connection at all.
    pub away: bool,
    /// One entry per flush to come; none: nothing breaks.
    pub breaks: VecDeque<Break>,
    /// A trigger's own opinion.
    pub refuse: Option<Refusal>,
    /// Says of a statement that somebody holds a lock on one of its rows.
    pub locked: Option<Refusal>,
    /// A statement on more rows than this takes too long.
    pub rows_in_time: Option<usize>,
    /// Whoever changes the lane map finds no connection.
    pub lane_changes_away: bool,
    /// From reading a writer row to its answer.
    pub writer_answer_delay: Duration,
}

/// Everything that a commit makes durable together.
#[derive(Clone, Default)]
pub(super) struct Data {
    pub store: Store,
    /// By group.
    pub writers: BTreeMap<String, Vec<Writer>>,
    /// Group uid and name, by table.
    pub claims: BTreeMap<String, (String, String)>,
    pub rejects: Vec<Rejected>,
}

#[derive(Clone)]
pub(super) struct Rejected {
    pub group_uid: String,
    pub head: bool,
    pub since: Instant,
    pub entry: RejectEntry,
}

#[derive(Clone, Debug)]
pub(super) struct HeldChunk {
    pub range: KeyRange,
    pub worker: Option<String>,
    pub until: Option<Instant>,
    pub attempt: u32,
    pub done: Option<u64>,
}

pub(super) struct Load {
    pub filter: String,
    pub chunks: Vec<HeldChunk>,
}

pub(super) struct State {
    pub schema: Arc<GroupSchema>,
    pub data: Data,
    /// The state before the first commit that no crash would keep.
    synced: Option<Box<Data>>,
    pub inserted: u64,
    pub flushed: u64,
    pub timeline: u32,
    /// Connections of an earlier number are broken.
    pub session: u64,
    pub faults: Faults,
    pub loads: BTreeMap<(String, String), Load>,
    pub next_reject: u64,
}

impl State {
    pub fn new(schema: Arc<GroupSchema>) -> Self {
        let data = Data { store: Store::of(&schema), ..Data::default() };
        Self {
            schema,
            data,
            synced: None,
            inserted: 1,
            flushed: 1,
            timeline: 1,
            session: 1,
            faults: Faults::default(),
            loads: BTreeMap::new(),
            next_reject: 1,
        }
    }

    pub fn check_reachable(&self) -> Result<(), BackendError> {
        if self.faults.away { Err(broken()) } else { Ok(()) }
    }

    pub fn crash(&mut self) {
        if let Some(synced) = self.synced.take() {
            self.data = *synced;
        }
        self.session += 1;
        self.inserted = self.flushed;
    }

    /// Another server takes over, which has only this: commits that were confirmed are gone too.
    pub fn fail_over(&mut self, standby: Data) {
        self.crash();
        self.data = standby;
        self.timeline += 1;
    }

    pub fn flush_log(&mut self) {
        self.synced = None;
        self.flushed = self.inserted;
    }

    fn commit(&mut self, data: Data, synced: bool) {
        let before = std::mem::replace(&mut self.data, data);
        self.inserted += 1;
        if synced {
            self.flush_log();
        } else if self.synced.is_none() {
            self.synced = Some(Box::new(before));
        }
    }

    pub fn writers_of(&self, group_uid: &str) -> Vec<Writer> {
        self.data.writers.get(group_uid).cloned().unwrap_or_default()
    }

    pub fn claim(&mut self, request: &ClaimRequest) -> Result<Claim, BackendError> {
        let (uid, name) = (&request.group.uid, &request.group.name);
        let mut data = self.data.clone();
        for table in &request.tables {
            let claim = data.claims.entry(table.clone()).or_insert((uid.clone(), name.clone()));
            if claim.0 != *uid {
                return Err(tables_claimed(table, &claim.1, &claim.0));
            }
        }
        let writers = data.writers.entry(uid.clone()).or_default();
        let mine: Vec<&Writer> = writers.iter().filter(|w| w.node == request.node).collect();
        let token = admit(request, &mine)? + 1;
        if mine.is_empty() {
            let lanes = fresh_lanes(request.lanes, 1, 0, &SlotSet::empty());
            writers.extend(lanes.iter().map(|lane| writer(request, token, lane, lanes.len())));
        }
        let mut claim =
            Claim { token, epoch: request.epoch, lanes: Vec::new(), quarantined: Vec::new() };
        for writer in writers.iter_mut().filter(|w| w.node == request.node) {
            if writer.journal != request.journal {
                writer.position = 0;
            }
            writer.journal.clone_from(&request.journal);
            writer.attempt.clone_from(&request.attempt);
            (writer.token, writer.epoch) = (token, writer.epoch.max(request.epoch));
            claim.epoch = claim.epoch.max(writer.epoch);
            claim.lanes.push(LaneClaim {
                lane: writer.lane,
                version: writer.version,
                position: writer.position,
                slots: writer.slots.clone(),
            });
        }
        self.commit(data, true);
        claim.quarantined = self.quarantined(uid, &claim.slots());
        Ok(claim)
    }

    pub fn settle_claim(
        &mut self,
        group_uid: &str,
        node: &str,
        token: u64,
    ) -> Result<(), BackendError> {
        let mut data = self.data.clone();
        let writers = data.writers.entry(group_uid.to_owned()).or_default();
        let mut mine = writers.iter_mut().filter(|w| w.node == node && w.token == token).peekable();
        if mine.peek().is_none() {
            return Err(fenced("settle the claim"));
        }
        mine.for_each(|writer| writer.attempt.clear());
        self.commit(data, true);
        Ok(())
    }

    pub fn take_slots(&mut self, request: &TakeoverRequest) -> Result<Takeover, BackendError> {
        let mut data = self.data.clone();
        let writers = data.writers.entry(request.group_uid.clone()).or_default();
        let plan = plan_takeover(request, writers)?;
        for (index, slots, bump) in &plan.rows {
            if let Some(writer) = writers.get_mut(*index) {
                writer.slots = slots.clone();
                writer.version += bump;
                writer.epoch = writer.epoch.max(request.epoch);
            }
        }
        self.commit(data, true);
        let quarantined = self.quarantined(&request.group_uid, &plan.owned);
        let TakeoverPlan { owned, held, forgotten, versions, .. } = plan;
        Ok(Takeover { owned, held, quarantined, forgotten, versions })
    }

    pub fn change_lanes(
        &mut self,
        change: &LaneChange,
    ) -> Result<Option<Vec<LaneClaim>>, BackendError> {
        if self.faults.lane_changes_away {
            return Err(broken());
        }
        let mut data = self.data.clone();
        let writers = data.writers.entry(change.group_uid.clone()).or_default();
        let (mine, others): (Vec<Writer>, Vec<Writer>) =
            writers.drain(..).partition(|w| w.node == change.node);
        let mine: Vec<&Writer> = mine.iter().collect();
        let Some(lanes) = plan_lane_change(change, &mine)? else { return Ok(None) };
        let Some(first) = mine.first() else { return Ok(None) };
        writers.extend(others);
        writers.extend(lanes.iter().map(|lane| Writer {
            lanes: lanes.len() as u16,
            lane: lane.lane,
            version: lane.version,
            slots: lane.slots.clone(),
            position: lane.position,
            ..Writer::clone(first)
        }));
        self.commit(data, true);
        Ok(Some(lanes))
    }

    pub fn leave(&mut self, leave: &Leave) -> Result<Vec<String>, BackendError> {
        let others = plan_leave(leave, &self.writers_of(&leave.group_uid))?;
        if others.is_empty() {
            self.forget(&leave.group_uid);
            return Ok(others);
        }
        let mut data = self.data.clone();
        let writers = data.writers.entry(leave.group_uid.clone()).or_default();
        writers.retain(|w| w.node != leave.node);
        self.commit(data, true);
        Ok(others)
    }

    pub fn forget(&mut self, group_uid: &str) {
        let mut data = self.data.clone();
        data.writers.remove(group_uid);
        data.claims.retain(|_, (uid, _)| uid != group_uid);
        data.rejects.retain(|r| r.group_uid != group_uid);
        self.loads.retain(|(uid, _), _| uid != group_uid);
        self.commit(data, true);
    }

    fn quarantined(&self, group_uid: &str, slots: &SlotSet) -> Vec<RootKey> {
        let heads = self.data.rejects.iter().filter(|r| r.head && r.group_uid == group_uid);
        heads.map(|r| r.entry.key.clone()).filter(|key| slots.contains(key.slot())).collect()
    }

    pub fn has_rejects(&self, group_uid: &str, key: &RootKey) -> bool {
        self.data.rejects.iter().any(|r| r.group_uid == group_uid && r.entry.key == *key)
    }

    pub fn writer_row(&self, id: &WriterId) -> Option<WriterRow> {
        let found = self.data.writers.get(&id.group_uid)?.iter().find(|w| is(w, id))?;
        Some(WriterRow {
            token: found.token,
            version: found.version,
            epoch: found.epoch,
            position: found.position,
            slots: found.slots.clone(),
        })
    }

    pub fn holds(&self, as_of: &AsOf) -> bool {
        let lanes = as_of.positions.len();
        let rows: Vec<RowMark> = self
            .writers_of(&as_of.group_uid)
            .iter()
            .filter(|w| w.node == as_of.node && usize::from(w.lanes) == lanes)
            .map(|w| RowMark { lane: w.lane, position: w.position, version: w.version })
            .collect();
        as_of.holds(&rows)
    }

    pub fn flush(&mut self, request: &FlushRequest<'_>) -> Result<FlushOutcome, BackendError> {
        let fault = self.faults.breaks.pop_front().unwrap_or(Break::Not);
        if fault == Break::BeforeCommit {
            return Err(broken());
        }
        let mut data = self.data.clone();
        let writers = data.writers.entry(request.fence.writer.group_uid.clone()).or_default();
        for (fence, next) in request.moves() {
            let row = writers.iter_mut().find(|w| is(w, &fence.writer)).filter(|w| {
                w.token == fence.token && w.version == fence.version && w.position == fence.position
            });
            let Some(row) = row else { return Ok(FlushOutcome::FenceMissed) };
            row.position = next;
        }
        for statement in request.waves.iter().flat_map(|w| &w.statements) {
            self.run(&mut data.store, statement)?;
        }
        for reject in &request.rejects {
            data.rejects.push(self.rejected(request, reject));
            self.next_reject += 1;
        }
        self.commit(data, request.synced_commit);
        if fault == Break::AfterCommit { Err(broken()) } else { Ok(FlushOutcome::Committed) }
    }

    pub fn run(&self, store: &mut Store, statement: &Statement<'_>) -> Result<(), BackendError> {
        if self.faults.refuse.as_ref().is_some_and(|refuse| refuse(statement)) {
            let mut error = super::store::refused("P0001", "", "");
            error.reason = Reason::TriggerRefused;
            return Err(error);
        }
        if self.faults.rows_in_time.is_some_and(|max| statement.rows.len() > max) {
            return Err(self.held(statement, "57014"));
        }
        if self.faults.locked.as_ref().is_some_and(|locked| locked(statement)) {
            return Err(self.held(statement, "55P03"));
        }
        let affected = store.run(&self.schema, statement)?;
        if affected == statement.rows.len() as u64 {
            return Ok(());
        }
        let message = "rows affected are not rows sent";
        Err(BackendError::new("flush", Reason::RowCountMismatch, message))
    }

    fn held(&self, statement: &Statement<'_>, sqlstate: &str) -> BackendError {
        let mut error = BackendError::new("flush", Reason::BackendBusy, "the statement timed out");
        error.sqlstate = Some(sqlstate.into());
        error.table = self.schema.table(statement.table).map(|t| t.name.as_str().into());
        error
    }
}

fn is(writer: &Writer, id: &WriterId) -> bool {
    writer.node == id.node && writer.lanes == id.lanes && writer.lane == id.lane
}

fn writer(request: &ClaimRequest, token: u64, lane: &LaneClaim, lanes: usize) -> Writer {
    Writer {
        node: request.node.clone(),
        lanes: lanes as u16,
        lane: lane.lane,
        journal: request.journal.clone(),
        attempt: request.attempt.clone(),
        token,
        version: lane.version,
        epoch: request.epoch,
        slots: lane.slots.clone(),
        position: lane.position,
    }
}

pub(super) fn broken() -> BackendError {
    BackendError::new("use the double", Reason::BackendUnreachable, "the connection broke")
}
