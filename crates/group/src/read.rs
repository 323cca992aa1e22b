//! One read's way: locate, read, wait until what was seen is durable, answer; on a miss through
//! the backend; past the store when the owner is away and the policy allows it.
//!
//! Must never answer "not there" because nothing is loaded, nor show what a crash could take back.

use cachetier_engine::ReadAnswer;
use cachetier_model::node_config::BypassReads;
use cachetier_model::{Instance, LookupId, LookupKey, ReadPlan, RootKey, Row, SlotId, TableRead};
use tokio::time::Instant;

use crate::calls::{KeySelector, ReadCall, ReadOutcome, Source};
use crate::core::Core;
use crate::error::{GroupError, RefusalReason};
use crate::evaluate;
use crate::ownership::SlotState;
use crate::refusals;
use crate::shared::Tally;

/// A read whose misses stay misses this often is given up with a retry hint.
const MISSES_MAX: u32 = 8;

impl Core {
    pub(crate) async fn read(&self, call: ReadCall) -> Result<ReadOutcome, GroupError> {
        let (root, lookup) = match call.key {
            KeySelector::Root(root) => (root, None),
            KeySelector::Lookup { lookup, key } => match self.find_root(lookup, &key).await? {
                Some(root) => (root, Some((lookup, key))),
                None => return Ok(not_found(Source::Cache)),
            },
        };
        let Some((lookup, key)) = lookup else { return self.read_root(&root, &call.plan).await };
        // the instance must still have this lookup key: its columns are read along
        let whole = call.plan.tables.is_empty();
        let mut plan = call.plan;
        if !whole {
            plan.tables.push(TableRead { table: 0, columns: Vec::new(), conditions: Vec::new() });
        }
        let mut outcome = self.read_root(&root, &plan).await?;
        let root_rows = if whole { outcome.tables.first().cloned() } else { outcome.tables.pop() };
        let root_row = root_rows.and_then(|rows| rows.into_iter().next());
        if !self.has_lookup(root_row.as_ref(), lookup, &key) {
            return Ok(not_found(outcome.source));
        }
        outcome.found = true;
        Ok(outcome)
    }

    pub(crate) fn has_lookup(
        &self,
        root_row: Option<&Row>,
        lookup: LookupId,
        key: &LookupKey,
    ) -> bool {
        root_row.is_some_and(|row| self.schema.lookup_key(lookup, row).as_ref() == Ok(key))
    }

    async fn read_root(&self, root: &RootKey, plan: &ReadPlan) -> Result<ReadOutcome, GroupError> {
        let slot = root.slot();
        let deadline = Instant::now() + self.hold_timeout();
        let mut source = Source::Cache;
        // keeps what a miss learned valid until it was read
        let mut learned = None;
        for _ in 0..MISSES_MAX {
            self.serving(slot, deadline).await?;
            match self.engine.read(root, plan).map_err(refusals::from_engine)? {
                ReadAnswer::Found { tables, as_of } => {
                    self.visible(as_of).await?;
                    self.tally_read(source);
                    return Ok(ReadOutcome { found: true, tables, source });
                }
                ReadAnswer::Absent { as_of } => {
                    self.visible(as_of).await?;
                    self.tally_read(source);
                    return Ok(not_found(source));
                }
                ReadAnswer::Quarantined => return Err(GroupError::Quarantined),
                ReadAnswer::NotLoaded => {
                    source = Source::ReadThrough;
                    let fetched = self.misses.fetch(root).await?;
                    if !fetched.installed && self.shared.slots.state(slot) == SlotState::Serving {
                        // no room to keep it: answered all the same
                        self.tally_read(source);
                        return self.evaluate(fetched.instance.as_deref(), plan, source);
                    }
                    learned = Some(fetched);
                }
            }
        }
        drop(learned);
        Err(GroupError::Busy {
            what: "changes of this instance while it was read",
            retry_after: std::time::Duration::from_millis(50),
        })
    }

    /// Reads past the store. For slots whose owner cannot be reached: what it acknowledged and did
    /// not flush is missing.
    pub(crate) async fn bypass_read(&self, call: ReadCall) -> Result<ReadOutcome, GroupError> {
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
                    None => return Ok(not_found(Source::Bypass)),
                }
            }
        };
        self.may_bypass(root.slot())?;
        let found = self.shared.backend.read_instances(std::slice::from_ref(&root)).await;
        let found = found.map_err(|error| away(&error.to_string()))?;
        let instance = found.into_iter().next().flatten();
        let root_row = instance.as_ref().and_then(|i| i.tables.first()).and_then(|t| t.first());
        if let Some((lookup, key)) = lookup
            && !self.has_lookup(root_row, lookup, key)
        {
            return Ok(not_found(Source::Bypass));
        }
        self.tally_read(Source::Bypass);
        self.evaluate(instance.as_ref(), &call.plan, Source::Bypass)
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
        plan: &ReadPlan,
        source: Source,
    ) -> Result<ReadOutcome, GroupError> {
        let Some(instance) = instance.filter(|i| i.exists()) else {
            return Ok(not_found(source));
        };
        let tables = evaluate::read_plan(&self.schema, instance, plan)?;
        Ok(ReadOutcome { found: true, tables, source })
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

fn not_found(source: Source) -> ReadOutcome {
    ReadOutcome { found: false, tables: Vec::new(), source }
}
