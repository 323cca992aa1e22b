//! One read's way: locate, read, wait until what was seen is durable, answer; on a miss through
//! the backend; past the store when the owner is away and the policy allows it.
//!
//! Must never answer "not there" because nothing is loaded, nor show what a crash could take back.

use cachetier_engine::{CollectRows, ReadStatus, RowSink};
use cachetier_journal::Sequence;
use cachetier_model::node_config::BypassReads;
use cachetier_model::{Instance, LookupId, LookupKey, ReadPlan, RootKey, Row, SlotId};
use cachetier_write_through::{BypassRead, WriterMark};
use tokio::time::Instant;
use uuid::Uuid;

use crate::calls::{KeySelector, Position, ReadCall, ReadFound, ReadOutcome, Source};
use crate::core::Core;
use crate::error::{GroupError, RefusalReason};
use crate::evaluate;
use crate::ownership::SlotState;
use crate::refusals;
use crate::shared::Tally;

/// A read whose misses stay misses this often is given up with a retry hint.
const MISSES_MAX: u32 = 8;

impl Core {
    pub(crate) async fn read(&self, call: &ReadCall) -> Result<ReadOutcome, GroupError> {
        let mut rows = CollectRows::default();
        let ReadFound { found, source, confirmed } = self.read_into(call, &mut rows).await?;
        let tables = if found { rows.tables } else { Vec::new() };
        Ok(ReadOutcome { found, tables, source, confirmed })
    }

    /// The rows go to the sink; what is in it counts only when the answer is `found`.
    pub(crate) async fn read_into<S: RowSink + Send + ?Sized>(
        &self,
        call: &ReadCall,
        sink: &mut S,
    ) -> Result<ReadFound, GroupError> {
        self.has_appended(call.min_position)?;
        match &call.key {
            KeySelector::Root(root) => self.read_root(root, None, &call.plan, sink).await,
            KeySelector::Lookup { lookup, key } => match self.find_root(*lookup, key).await? {
                // the instance must still have this lookup key
                Some(root) => self.read_root(&root, Some((*lookup, key)), &call.plan, sink).await,
                None => Ok(not_found(Source::Cache)),
            },
        }
    }

    /// Errs for a position of this journal that it never gave out, or lost. What another journal had
    /// acknowledged of a slot was in the backend when this node took it (R23).
    fn has_appended(&self, position: Option<Position>) -> Result<(), GroupError> {
        let Some(position) = position.filter(|p| p.journal == self.shared.journal.id()) else {
            return Ok(());
        };
        let sequence = Sequence::from_stored(position.sequence);
        let has = |sequence: Sequence| match sequence.generation() == self.shared.generation {
            true => sequence <= self.shared.last_appended(),
            // a power cut may have taken it, whatever was written since
            false => self.shared.ends.lock().hold(sequence),
        };
        if sequence.is_some_and(has) {
            return Ok(());
        }
        Err(GroupError::PositionNotReached { reason: "the owner's journal does not have it" })
    }

    fn has_lookup(&self, root_row: Option<&Row>, lookup: LookupId, key: &LookupKey) -> bool {
        root_row.is_some_and(|row| self.schema.lookup_key(lookup, row).as_ref() == Ok(key))
    }

    async fn read_root<S: RowSink + Send + ?Sized>(
        &self,
        root: &RootKey,
        found_by: Option<(LookupId, &LookupKey)>,
        plan: &ReadPlan,
        sink: &mut S,
    ) -> Result<ReadFound, GroupError> {
        let slot = root.slot();
        let mut source = Source::Cache;
        let mut deadline = None;
        // keeps what a miss learned valid until it was read
        let mut learned = None;
        for _ in 0..MISSES_MAX {
            self.shared.check_alive()?;
            if self.shared.slots.state(slot) != SlotState::Serving {
                let until = *deadline.get_or_insert_with(|| Instant::now() + self.hold_timeout());
                self.serving(slot, until).await?;
            }
            self.undecided.wait(root, || self.hold_timeout()).await?;
            let status = self.engine.read_into(root, found_by, plan, sink);
            let (found, as_of) = match status.map_err(refusals::from_engine)? {
                ReadStatus::Found { as_of } => (true, as_of),
                ReadStatus::Absent { as_of } | ReadStatus::OtherKey { as_of } => (false, as_of),
                ReadStatus::Quarantined => return Err(GroupError::Quarantined),
                ReadStatus::NotLoaded => {
                    source = Source::ReadThrough;
                    let fetched = self.misses.fetch(root).await?;
                    if !fetched.installed && self.shared.slots.state(slot) == SlotState::Serving {
                        // no room to keep it: answered all the same
                        self.tally_read(source);
                        let instance = fetched.instance.as_deref();
                        let outcome = self.evaluate(instance, found_by, plan, source)?;
                        return Ok(outcome.give(plan, sink));
                    }
                    learned = Some(fetched);
                    continue;
                }
            };
            self.shown(as_of).await?;
            self.tally_read(source);
            return Ok(ReadFound { found, source, confirmed: None });
        }
        drop(learned);
        Err(GroupError::Busy {
            what: "changes of this instance while it was read",
            retry_after: std::time::Duration::from_millis(50),
        })
    }

    async fn shown(&self, as_of: u64) -> Result<(), GroupError> {
        if cachetier_defects::on("r07-shown-before-durable") {
            return Ok(());
        }
        self.visible(as_of).await
    }

    /// Reads past the store. For slots whose owner cannot be reached: what it acknowledged and did
    /// not flush is missing.
    pub(crate) async fn bypass_read(&self, call: &ReadCall) -> Result<ReadOutcome, GroupError> {
        let away = |reason: &str| GroupError::BackendAway { reason: reason.into() };
        if self.shared.config.bypass.reads == BypassReads::Deny || call.no_bypass {
            return Err(away(
                "the owner of the slot is away, and bypass.reads forbids going around",
            ));
        }
        let _permit = self.bypass_place().await?;
        let (root, lookup) = match &call.key {
            KeySelector::Root(root) => (root.clone(), None),
            KeySelector::Lookup { lookup, key } => {
                match self.resolve_at_backend(*lookup, key).await? {
                    Some(root) => (root, Some((*lookup, key))),
                    None if call.min_position.is_some() => {
                        let reason = "the owner is away, and no row has this lookup key yet";
                        return Err(GroupError::PositionNotReached { reason });
                    }
                    None => return Ok(ReadOutcome::absent(Source::Bypass)),
                }
            }
        };
        self.may_bypass(root.slot())?;
        let uid = &self.shared.config.group.uid;
        let past = self.shared.backend.read_past(&root, uid).await;
        let past = past.map_err(|error| away(&error.to_string()))?;
        if past.set_aside {
            return Err(GroupError::Quarantined);
        }
        if let Some(position) = call.min_position {
            reached(&past, position)?;
        }
        self.tally_read(Source::Bypass);
        let outcome = self.evaluate(past.instance.as_ref(), lookup, &call.plan, Source::Bypass)?;
        Ok(ReadOutcome { confirmed: past.owner().and_then(position_of), ..outcome })
    }

    /// One of the bounded number of reads past the store. Waiting for it is bounded too, in time and
    /// in number: who cannot be served hears so.
    async fn bypass_place(&self) -> Result<tokio::sync::SemaphorePermit<'_>, GroupError> {
        let busy = || GroupError::Busy {
            what: "reads past the store; raise bypass.maxConcurrent if this goes on",
            retry_after: std::time::Duration::from_millis(200),
        };
        let _waiting = self.bypass_waiting.try_acquire().map_err(|_| busy())?;
        let permit = tokio::time::timeout(self.hold_timeout(), self.bypass.acquire()).await;
        permit.map_err(|_| busy())?.map_err(|_| busy())
    }

    /// Errs while this node itself serves the slot or may have changes of it that the backend has
    /// not: a read past the store would miss them (R25).
    fn may_bypass(&self, slot: SlotId) -> Result<(), GroupError> {
        if cachetier_defects::on("r25-own-bypass") {
            return Ok(());
        }
        match self.shared.slots.state(slot) {
            SlotState::Serving => Err(GroupError::refused(
                RefusalReason::Schema,
                "this node serves the slot; a bypass could miss its own unflushed changes",
            )),
            SlotState::Leaving | SlotState::Acquiring => Err(self.moving(slot)),
            SlotState::Foreign | SlotState::Released => {
                match self.lanes.backlog_of(&std::iter::once(slot).collect()) {
                    0 => Ok(()),
                    _ => Err(self.moving(slot)),
                }
            }
        }
    }

    fn evaluate(
        &self,
        instance: Option<&Instance>,
        found_by: Option<(LookupId, &LookupKey)>,
        plan: &ReadPlan,
        source: Source,
    ) -> Result<ReadOutcome, GroupError> {
        let Some(instance) = instance.filter(|i| i.exists()) else {
            return Ok(ReadOutcome::absent(source));
        };
        if let Some((lookup, key)) = found_by {
            let root_row = instance.tables.first().and_then(|rows| rows.first());
            if !self.has_lookup(root_row, lookup, key) {
                return Ok(ReadOutcome::absent(source));
            }
        }
        let tables = evaluate::read_plan(&self.schema, instance, plan)?;
        Ok(ReadOutcome { found: true, tables, source, confirmed: None })
    }

    fn tally_read(&self, source: Source) {
        let tally = &self.shared.tally;
        let counter = match source {
            Source::Cache => &tally.reads_cache,
            Source::ReadThrough => &tally.reads_through,
            Source::Bypass => &tally.reads_bypass,
        };
        Tally::add(counter, 1);
    }
}

fn not_found(source: Source) -> ReadFound {
    ReadFound { found: false, source, confirmed: None }
}

fn position_of(writer: &WriterMark) -> Option<Position> {
    let journal = Uuid::parse_str(&writer.journal).ok()?;
    Some(Position { journal, sequence: writer.position })
}

/// Errs unless what was read past the store holds the write (R25).
fn reached(past: &BypassRead, position: Position) -> Result<(), GroupError> {
    if cachetier_defects::on("r25-position-ignored") {
        return Ok(());
    }
    let reason = match past.holds(&position.journal.to_string(), position.sequence) {
        Some(true) => return Ok(()),
        Some(false) => "the owner is away, and the backend has not yet what it acknowledged",
        None => "the owner is away, and no node of the group has the journal of this position",
    };
    Err(GroupError::PositionNotReached { reason })
}

impl ReadOutcome {
    fn absent(source: Source) -> Self {
        Self { found: false, tables: Vec::new(), source, confirmed: None }
    }

    /// Gives the rows, read by `plan`, to a sink.
    pub fn give<S: RowSink + ?Sized>(&self, plan: &ReadPlan, sink: &mut S) -> ReadFound {
        for (position, rows) in self.tables.iter().enumerate() {
            sink.table(plan.tables.get(position).map_or(position, |read| read.table));
            for row in rows {
                sink.row(row.len());
                row.iter().for_each(|value| sink.value(value.as_value_ref()));
                sink.row_end();
            }
            sink.table_end();
        }
        ReadFound { found: self.found, source: self.source, confirmed: self.confirmed }
    }
}
