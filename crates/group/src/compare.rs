//! Proof that cache and backend hold the same: every loaded instance, or a sample of them.
//!
//! Walks snapshots of the backend beside the store, and the store beside what the walk met. What
//! differs at first sight may just be unflushed: it is compared again after its flush, until it
//! stands still. Must never count a pending write as a difference, nor take "not loaded" for one;
//! nor keep more in memory than two figures per slot and a bounded number of keys; nor wait for a
//! connection while a scan holds one.

use std::sync::Arc;
use std::time::Duration;

use cachetier_engine::ReadAnswer;
use cachetier_model::{Instance, ReadPlan, RootKey, SlotId};
use cachetier_write_through::{KeyRange, ScanRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::calls::{
    CompareCall, CompareProgress, InstanceDifference, InstanceTable, Repair, TableDifference,
};
use crate::core::Core;
use crate::difference;
use crate::error::GroupError;
use crate::ownership::SlotState;

const PAGE: u32 = 512;
/// Suspects compared again together.
const RECHECK_BATCH: usize = 64;
const RECHECKS_MAX: u32 = 20;
/// Suspects kept while a scan is open; with more, the scan is closed, and another one goes on.
const SUSPECTS_MAX: usize = 65_536;
/// Keys asked for together whether the backend has them.
const UNMET_BATCH: usize = 512;
const FLUSH_WAIT: Duration = Duration::from_secs(30);
/// The longest a throttled comparison may take.
const PACE_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

type Sender = mpsc::Sender<Result<CompareProgress, GroupError>>;

/// What the store holds of one key.
enum Here {
    NotLoaded,
    Absent { as_of: u64 },
    Found { instance: Instance, as_of: u64 },
}

impl Core {
    pub(crate) fn compare(
        self: &Arc<Self>,
        call: CompareCall,
    ) -> mpsc::Receiver<Result<CompareProgress, GroupError>> {
        let (sender, receiver) = mpsc::channel(16);
        let core = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            let CompareCall { sample, repair, rows_per_second } = call;
            let way = repair.map_or("none", Repair::word);
            tracing::info!(node = %core.shared.node.name, sample, rows_per_second, repair = way,
                "comparison begun by an administrator");
            let mut comparison = Comparison::new(&core, call, sender);
            let outcome = comparison.run().await;
            let last = outcome.map(|()| CompareProgress { done: true, ..comparison.progress });
            // whoever asked may have gone
            let _gone = comparison.sender.send(last).await;
        });
        receiver
    }
}

/// Which loaded instances of a slot the walk met: their number, and the sum of their digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Met {
    count: u64,
    sum: u64,
}

impl Met {
    fn add(&mut self, digest: u64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(digest);
    }
}

struct Comparison<'a> {
    core: &'a Core,
    sample: u64,
    repair: Option<Repair>,
    pace: Pace,
    sender: Sender,
    progress: CompareProgress,
    /// By slot.
    met: Vec<Met>,
    suspects: Vec<RootKey>,
}

impl<'a> Comparison<'a> {
    fn new(core: &'a Core, call: CompareCall, sender: Sender) -> Self {
        let tables = core.schema.tables.iter();
        let tables = tables
            .map(|t| TableDifference { table: t.name.clone(), ..TableDifference::default() })
            .collect();
        let progress = CompareProgress { tables, ..CompareProgress::default() };
        let sample = u64::from(call.sample.max(1));
        let (repair, pace) = (call.repair, Pace::new(call.rows_per_second));
        let met = vec![Met::default(); usize::from(cachetier_model::SLOT_COUNT)];
        Self { core, sample, repair, pace, sender, progress, met, suspects: Vec::new() }
    }

    async fn run(&mut self) -> Result<(), GroupError> {
        self.estimate().await;
        let mut from = None;
        loop {
            let last = self.walk(from.take()).await?;
            self.recheck(1).await?;
            match last {
                Some(last) => from = Some(last),
                None => break,
            }
        }
        for slot in SlotId::all() {
            if self.core.shared.slots.state(slot) == SlotState::Serving {
                self.meet_unmet(slot).await?;
                self.recheck(RECHECK_BATCH).await?;
            }
        }
        self.recheck(1).await?;
        self.tell().await
    }

    /// Walks one snapshot, beginning behind a key, until its end or until there are enough
    /// suspects; answers the last key then.
    async fn walk(&mut self, behind: Option<RootKey>) -> Result<Option<RootKey>, GroupError> {
        let range = KeyRange { from: behind.clone(), to: None };
        let request = ScanRequest { range, page: PAGE, ..ScanRequest::default() };
        let mut scan = self.core.shared.backend.open_scan(request).await.map_err(away)?;
        while let Some(page) = scan.next().await.map_err(away)? {
            for (key, instance) in page.iter().filter(|(key, _)| behind.as_ref() != Some(key)) {
                self.meet(key, instance)?;
            }
            self.tell().await?;
            self.pace.keep(page.iter().map(|(_, instance)| instance.row_count()).sum()).await;
            if self.suspects.len() >= SUSPECTS_MAX {
                return Ok(page.into_iter().next_back().map(|(key, _)| key));
            }
        }
        Ok(None)
    }

    async fn estimate(&mut self) {
        let Ok(rows) = self.core.shared.backend.expected_rows().await else { return };
        let share = self.core.shared.slots.serving().len() as u64;
        let all = rows.first().copied().unwrap_or(0);
        self.progress.expected_instances = all * share / u64::from(cachetier_model::SLOT_COUNT);
    }

    async fn tell(&mut self) -> Result<(), GroupError> {
        let gone = || GroupError::internal("nobody waits for the comparison any more");
        let progress = self.progress.clone();
        self.progress.found.clear();
        self.sender.send(Ok(progress)).await.map_err(|_| gone())
    }

    fn sampled(&self, key: &RootKey) -> Option<u64> {
        let digest = key.hash64();
        digest.is_multiple_of(self.sample).then_some(digest)
    }

    /// An instance of the backend's snapshot.
    fn meet(&mut self, key: &RootKey, backend: &Instance) -> Result<(), GroupError> {
        if self.core.shared.slots.state(key.slot()) != SlotState::Serving {
            return Ok(());
        }
        let Some(digest) = self.sampled(key) else { return Ok(()) };
        match self.here(key)? {
            Some(Here::NotLoaded) | None => self.progress.not_loaded += 1,
            Some(Here::Found { instance, .. }) => {
                if let Some(met) = self.met.get_mut(key.slot().index()) {
                    met.add(digest);
                }
                if difference::same(&self.core.schema, &instance, backend) {
                    self.count_equal(&instance);
                } else {
                    self.suspects.push(key.clone());
                }
            }
            Some(Here::Absent { .. }) => self.suspects.push(key.clone()),
        }
        Ok(())
    }

    /// Loaded instances that the walk did not meet. Where number and digests agree there are none;
    /// elsewhere the backend is asked for each key of the slot.
    async fn meet_unmet(&mut self, slot: SlotId) -> Result<(), GroupError> {
        let mut loaded = Met::default();
        self.core.engine.scan_slot(slot, &mut |key, _, _| {
            self.sampled(key).into_iter().for_each(|digest| loaded.add(digest));
        });
        if self.met.get(slot.index()) == Some(&loaded) {
            return Ok(());
        }
        let mut keys = Vec::new();
        self.core.engine.scan_slot(slot, &mut |key, _, _| {
            if self.sampled(key).is_some() {
                keys.push(key.clone());
            }
        });
        for batch in keys.chunks(UNMET_BATCH) {
            let found = self.core.shared.backend.read_instances(batch, None).await.map_err(away)?;
            let unmet = batch.iter().zip(found).filter(|(_, there)| there.is_none());
            self.suspects.extend(unmet.map(|(key, _)| key.clone()));
        }
        Ok(())
    }

    /// The instance as the store has it; `None` when it is quarantined.
    fn here(&self, key: &RootKey) -> Result<Option<Here>, GroupError> {
        let read = self.core.engine.read(key, &ReadPlan::default());
        Ok(match read.map_err(crate::refusals::from_engine)? {
            ReadAnswer::Found { tables, as_of } => {
                Some(Here::Found { instance: Instance { tables }, as_of })
            }
            ReadAnswer::Absent { as_of } => Some(Here::Absent { as_of }),
            ReadAnswer::NotLoaded => Some(Here::NotLoaded),
            ReadAnswer::Quarantined => None,
        })
    }

    fn count_equal(&mut self, instance: &Instance) {
        self.progress.instances += 1;
        self.progress.rows += instance.row_count() as u64;
        for (table, rows) in self.progress.tables.iter_mut().zip(&instance.tables) {
            table.rows += rows.len() as u64;
        }
    }

    async fn recheck(&mut self, enough: usize) -> Result<(), GroupError> {
        while self.suspects.len() >= enough.max(1) {
            let count = self.suspects.len().min(RECHECK_BATCH);
            let batch: Vec<RootKey> = self.suspects.drain(..count).collect();
            for key in &batch {
                self.recheck_one(key).await?;
            }
            self.tell().await?;
        }
        Ok(())
    }

    /// Compares until the instance stood still from before the backend was read until after.
    async fn recheck_one(&mut self, key: &RootKey) -> Result<(), GroupError> {
        for attempt in 0..RECHECKS_MAX {
            if self.core.shared.slots.state(key.slot()) != SlotState::Serving {
                return Ok(());
            }
            let Some(before) = self.here(key)? else { return Ok(()) };
            let as_of = match before {
                Here::NotLoaded => {
                    self.progress.not_loaded += 1;
                    return Ok(());
                }
                Here::Absent { as_of } | Here::Found { as_of, .. } => as_of,
            };
            if as_of > 0 {
                // unflushed: once more when the backend has it
                self.core.reached(key.slot(), as_of, FLUSH_WAIT).await?;
                let mut pause = tokio::time::interval(Duration::from_millis(5));
                pause.tick().await;
                pause.tick().await;
                continue;
            }
            let found =
                self.core.shared.backend.read_instances(std::slice::from_ref(key), None).await;
            let backend = found.map_err(away)?.into_iter().next().flatten();
            let backend =
                backend.unwrap_or_else(|| Instance::absent(self.core.schema.tables.len()));
            let ours = match (self.here(key)?, attempt + 1 == RECHECKS_MAX) {
                (Some(Here::Found { instance, as_of: 0 }), _) => instance,
                (Some(Here::Absent { as_of: 0 }), _) => {
                    Instance::absent(self.core.schema.tables.len())
                }
                (_, false) => continue,
                (_, true) => break,
            };
            self.judge(key, &ours, &backend).await;
            return Ok(());
        }
        Err(GroupError::Busy {
            what: "changes of an instance that is to be compared; compare again in a quieter moment",
            retry_after: Duration::from_secs(5),
        })
    }

    async fn judge(&mut self, key: &RootKey, ours: &Instance, backend: &Instance) {
        self.count_equal(ours);
        let counts = difference::count(&self.core.schema, ours, backend);
        let mut found = InstanceDifference::default();
        for ((id, table), count) in self.progress.tables.iter_mut().enumerate().zip(counts) {
            let rows = count.only_here + count.only_there + count.different;
            if rows == 0 {
                continue;
            }
            table.only_in_cache += count.only_here;
            table.only_in_backend += count.only_there;
            table.different += count.different;
            self.progress.differences += rows;
            found.tables.push(InstanceTable {
                table: table.table.clone(),
                only_in_cache: count.only_here,
                only_in_backend: count.only_there,
                different: count.different,
                columns: difference::columns(&self.core.schema, id, ours, backend),
            });
        }
        if found.tables.is_empty() {
            return;
        }
        found.key_hash = key.fingerprint();
        if let Some(repair) = self.repair {
            self.core.repair(key, (ours, backend), repair, &mut found).await;
            self.progress.repaired += u64::from(found.repaired);
        }
        self.progress.found.push(found);
    }
}

/// Keeps the comparison from taking more of the backend than it may.
struct Pace {
    rows_per_second: u64,
    begun: Instant,
    rows: u64,
}

impl Pace {
    fn new(rows_per_second: u64) -> Self {
        Self { rows_per_second, begun: Instant::now(), rows: 0 }
    }

    /// Waits until so many more rows may have been read.
    async fn keep(&mut self, rows: usize) {
        self.rows += rows as u64;
        if self.rows_per_second > 0 {
            let seconds = self.rows as f64 / self.rows_per_second as f64;
            let due = Duration::try_from_secs_f64(seconds).unwrap_or(PACE_MAX).min(PACE_MAX);
            tokio::time::sleep_until(self.begun + due).await;
        }
    }
}

fn away(error: cachetier_write_through::BackendError) -> GroupError {
    GroupError::BackendAway { reason: error.to_string().into() }
}
