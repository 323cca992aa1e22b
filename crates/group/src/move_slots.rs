//! Slots changing hands: pulled by the new owner, let go by the old one (R9, R23, R24).
//!
//! The gainer asks each holder to release, then takes the slots at the backend in one transaction,
//! and only then serves. The loser refuses, flushes, forgets, and answers what is free. Must never
//! take from a holder that did not answer: a silent owner may still acknowledge.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cachetier_model::{SlotSet, Topology};
use cachetier_write_through::{Release, SlotHolder, TakeoverRequest};
use tokio::time::Instant;

use crate::calls::Released;
use crate::core::Core;
use crate::error::GroupError;
use crate::notebook::LanesNote;
use crate::status::Problem;

/// Slots asked for in one go: bounds how long a slot is refused on both sides.
const BATCH_SLOTS: usize = 256;
/// The longest a release waits for the backlog before it answers what is free.
const RELEASE_WAIT: Duration = Duration::from_secs(2);
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(3);
/// How often a node that waits for others to take its slots asks the backend whether they did.
const LEAVING_POLL: Duration = Duration::from_millis(300);
/// Idempotency answers that go along with one release, far below what a message may have. Slots
/// whose answers find no room are asked for again.
const ANSWERS_BYTES_MAX: usize = 8 << 20;

impl Core {
    /// Brings ownership towards the topology, for as long as the node lives.
    pub(crate) async fn move_slots(self: Arc<Self>) {
        let mut changes = self.shared.slots.watch();
        let mut retry = RETRY_MIN;
        loop {
            changes.mark_unchanged();
            let pause = match self.move_step().await {
                Ok(Progress::Done) => {
                    retry = RETRY_MIN;
                    None
                }
                Ok(Progress::More) => {
                    retry = RETRY_MIN;
                    continue;
                }
                Ok(Progress::Waiting) => Some(LEAVING_POLL),
                Err(problem) => {
                    if self.shared.problems.raise("slots", problem.clone()) {
                        tracing::warn!(node = %self.shared.node.name, reason = %problem.reason,
                            message = %problem.message, "slots cannot be taken yet");
                    }
                    retry = (retry * 2).min(RETRY_MAX);
                    Some(retry)
                }
            };
            tokio::select! {
                () = self.shared.shutdown.cancelled() => return,
                _ = changes.changed(), if pause.is_none() => {}
                () = tokio::time::sleep(pause.unwrap_or(RETRY_MAX)), if pause.is_some() => {}
            }
        }
    }

    async fn move_step(&self) -> Result<Progress, Problem> {
        if self.shared.fenced().is_some() {
            return Ok(Progress::Done);
        }
        self.settle_leaving();
        let mut wanted = self.still_forgotten();
        if wanted.is_empty() {
            // only then: the backend is told first what it forgot
            wanted = self.shared.slots.look(|m| m.wanted());
        }
        if !wanted.is_empty() {
            let taken = self.take(wanted).await?;
            return Ok(if taken { Progress::More } else { Progress::Waiting });
        }
        self.shared.problems.heal("slots");
        let (given_away, leaving) =
            self.shared.slots.look(|m| (m.given_away(), !m.leaving().is_empty()));
        if given_away.is_empty() {
            return Ok(if leaving { Progress::Waiting } else { Progress::Done });
        }
        let holders = self.holders().await?;
        let mine = holders.iter().find(|h| h.node == self.shared.node.name);
        let mut gone = given_away;
        if let Some(mine) = mine {
            gone.subtract(&mine.slots);
        }
        if !gone.is_empty() {
            self.forget_slots(&gone).await;
        }
        Ok(Progress::Waiting)
    }

    /// Takes some of the wanted slots; false when others still have to flush them.
    async fn take(&self, wanted: SlotSet) -> Result<bool, Problem> {
        let Some(topology) = self.shared.topology.borrow().clone() else { return Ok(false) };
        let Some(token) = self.token() else { return Ok(false) };
        let holders = self.holders().await?;
        let batch = self.next_batch(&wanted, &holders);
        let mut request = batch.clone();
        let mut released = Vec::new();
        let mut silent = None;
        for holder in holders.iter().filter(|h| h.node != self.shared.node.name) {
            let mut slots = holder.slots.clone();
            slots.intersect_with(&batch);
            if slots.is_empty() {
                continue;
            }
            match self.ask_release(holder, &topology, &slots).await {
                Ok(release) => {
                    slots.subtract(&release.slots);
                    released.push(release);
                }
                Err(_) if cachetier_defects::on("r24-silent-owner") => {
                    let (node, free) = (holder.node.clone(), slots.clone());
                    released.push(Release { node, slots: free, ..Release::default() });
                    slots = SlotSet::empty();
                }
                Err(problem) => silent = Some(problem),
            }
            request.subtract(&slots);
        }
        if request.is_empty() {
            // slots of silent owners wait; those behind them may still be had
            return match silent {
                Some(problem) => self.take_rest(wanted, batch, problem).await,
                None => Ok(false),
            };
        }
        self.take_over(topology.epoch.0, token, request, released).await
    }

    /// Everything nobody else holds, and a bounded number of what others must stop serving.
    fn next_batch(&self, wanted: &SlotSet, holders: &[SlotHolder]) -> SlotSet {
        let mut free = wanted.clone();
        holders
            .iter()
            .filter(|h| h.node != self.shared.node.name)
            .for_each(|h| free.subtract(&h.slots));
        if !free.is_empty() {
            return free;
        }
        wanted.iter().take(BATCH_SLOTS).collect()
    }

    /// The first batch is stuck behind a silent owner: tries the slots behind it once, so that one
    /// lost node holds up its own slots only.
    async fn take_rest(
        &self,
        mut wanted: SlotSet,
        stuck: SlotSet,
        problem: Problem,
    ) -> Result<bool, Problem> {
        wanted.subtract(&stuck);
        if wanted.is_empty() {
            return Err(problem);
        }
        match Box::pin(self.take(wanted)).await {
            Ok(true) => Ok(true),
            Ok(false) | Err(_) => Err(problem),
        }
    }

    async fn ask_release(
        &self,
        holder: &SlotHolder,
        topology: &Topology,
        slots: &SlotSet,
    ) -> Result<Release, Problem> {
        let name = &holder.node;
        let unreachable = |why: &str| {
            let message = format!(
                "{} slots wait for node {name}, which owns them and does not answer ({why}); bring \
                 it back, with an empty volume if its own is lost for good: `cachectl accept-loss` \
                 then gives up what it had not flushed",
                slots.len()
            );
            Problem::new("PreviousOwnerUnreachable", message, true)
        };
        let node = topology.node(name).cloned();
        let node = match node {
            Some(node) => Some(node),
            None => self.shared.address_of(name).await,
        };
        let node = node.ok_or_else(|| unreachable("its address is not known here"))?;
        let answer =
            self.shared.peers.release_slots(&node, topology, &self.shared.node.name, slots).await;
        let mut answer = answer.map_err(|error| unreachable(&error.reason))?;
        answer.slots.intersect_with(slots);
        self.adopt_answers(&answer.answers).await?;
        let Released { slots, positions, versions, .. } = answer;
        Ok(Release { node: name.clone(), slots, positions, versions })
    }

    async fn take_over(
        &self,
        epoch: u64,
        token: u64,
        slots: SlotSet,
        released: Vec<Release>,
    ) -> Result<bool, Problem> {
        let request = TakeoverRequest {
            group_uid: self.shared.config.group.uid.clone(),
            node: self.shared.node.name.clone(),
            token,
            epoch,
            slots: slots.clone(),
            holding: self.shared.slots.look(|machine| {
                let mut holding = machine.serving().clone();
                holding.intersect_with(machine.assigned());
                holding
            }),
            released,
        };
        let answer = self.shared.backend.take_slots(request).await;
        let takeover = answer.map_err(|e| Problem::new(e.reason.as_str(), e.to_string(), true))?;
        let learnt = self.take_again(&takeover.forgotten);
        let mut owned = takeover.owned;
        owned.intersect_with(&slots);
        if owned.is_empty() {
            // what was known to be lacking waits for its holder, which must not be asked in a loop
            return Ok(learnt);
        }
        // long under way, the answer may be of a time before another node had these slots
        if !self.is_epoch(epoch) {
            return Ok(true);
        }
        let as_they_are = self.still_forgotten();
        // leftovers of an earlier time, and loads begun in it, must not be served
        let fresh = owned.iter().filter(|slot| !as_they_are.contains(*slot));
        fresh.for_each(|slot| self.engine.clear_slot(slot));
        takeover.quarantined.iter().for_each(|key| self.engine.quarantine(key));
        self.lanes.quarantine(&takeover.quarantined);
        self.lanes.slots_gained(&owned, &takeover.versions);
        self.note_positions().await;
        // noted first: what is acknowledged for them must be known as ours after a crash
        let not_noted = |error: GroupError| {
            Problem::new("Journal", format!("slots taken are not served: {error}"), true)
        };
        self.note_slots(&owned).await.map_err(not_noted)?;
        let served = self.shared.slots.apply(|machine| match self.is_epoch(epoch) {
            true => Some(machine.taken(&owned)),
            false => None,
        });
        let Some(served) = served else {
            self.note_slots(&SlotSet::empty()).await.map_err(not_noted)?;
            return Ok(true);
        };
        // only now: until they are served, what is here of them goes for the newest there is
        self.forgotten_slots.lock().subtract(&owned);
        self.restored_slots.lock().subtract(&owned);
        self.shared.tally.slots_taken.fetch_add(served.len() as u64, Ordering::Relaxed);
        tracing::info!(node = %self.shared.node.name, epoch, slots = served.len(), "slots taken");
        Ok(true)
    }

    /// Slots to be taken again whose content here is the newest there is.
    fn still_forgotten(&self) -> SlotSet {
        let mut slots = self.forgotten_slots.lock();
        slots.union_with(&self.restored_slots.lock());
        self.intersect_with_taken_again(&mut slots);
        slots.clone()
    }

    /// Those that are served, or were by the process before, and are still given to this node.
    pub(crate) fn intersect_with_taken_again(&self, slots: &mut SlotSet) {
        let mut ours = self.restored_slots.lock().clone();
        self.shared.slots.look(|machine| {
            ours.union_with(machine.serving());
            ours.intersect_with(machine.assigned());
        });
        slots.intersect_with(&ours);
    }

    fn is_epoch(&self, epoch: u64) -> bool {
        self.shared.topology.borrow().as_ref().is_some_and(|held| held.epoch.0 == epoch)
    }

    async fn holders(&self) -> Result<Vec<SlotHolder>, Problem> {
        let holders = self.shared.backend.holders(&self.shared.config.group.uid).await;
        holders.map_err(|e| Problem::new(e.reason.as_str(), e.to_string(), true))
    }

    /// The new owner asks: refuse, flush, forget, and say what is free.
    pub(crate) async fn release_slots(
        &self,
        topology: Topology,
        taker: &str,
        slots: &SlotSet,
    ) -> Result<Released, GroupError> {
        self.shared.apply_topology(topology).await?;
        if self.token().is_none() {
            // without a claim it is not known what this node holds
            return Err(GroupError::Starting {
                reason: "this node has no claim at the backend yet".into(),
            });
        }
        let mut asked = slots.clone();
        let held = self.shared.topology.borrow().clone();
        asked.intersect_with(&held.map(|t| t.slots_of(taker)).unwrap_or_default());
        let mut gone = asked.clone();
        self.shared.slots.apply(|machine| {
            gone.subtract(machine.serving());
            gone.subtract(machine.leaving());
            machine.freeze(&asked)
        });
        if !gone.is_empty() {
            // asked for again what had been let go: the rows may hold less than was confirmed
            self.lanes.look();
        }
        let deadline = Instant::now() + RELEASE_WAIT;
        let mut marks = self.lanes.watch();
        loop {
            marks.mark_unchanged();
            self.settle_leaving();
            let pending = self.shared.slots.look(|m| {
                let mut pending = m.leaving().clone();
                pending.intersect_with(&asked);
                pending
            });
            let waited = match pending.is_empty() {
                true => break,
                false => tokio::time::timeout_at(deadline, marks.changed()).await,
            };
            if !matches!(waited, Ok(Ok(()))) {
                break;
            }
        }
        // before it is known what is free: a lane that goes back after that says so by its row
        let (positions, versions) = self.lanes.rows_known();
        let free = self.flushed_of(self.shared.slots.look(|m| m.free_for_taker(&asked)));
        // what became of the flushed ones was told before their slot was free
        self.aside.caught_up().await;
        let (free, answers) = match cachetier_defects::on("r26-answers-stay-behind") {
            true => (free, Vec::new()),
            false => self.answers.of_slots(&free, ANSWERS_BYTES_MAX),
        };
        if !free.is_empty() {
            // before the taker hears of it: no later start may serve them on the journal's word
            self.note_slots(&SlotSet::empty()).await?;
        }
        let backlog = self.backlog();
        Ok(Released { slots: free, backlog, positions, versions, answers })
    }

    /// Frozen slots with nothing left to flush are forgotten and free.
    pub(crate) fn settle_leaving(&self) {
        let leaving = self.shared.slots.look(|m| m.leaving().clone());
        if !leaving.is_empty() {
            let free = self.flushed_of(leaving);
            self.let_go(&free);
        }
    }

    fn flushed_of(&self, slots: SlotSet) -> SlotSet {
        let any = cachetier_defects::on("r23-move-with-backlog");
        if any || self.lanes.backlog_of(&slots) == 0 {
            return slots;
        }
        let one = |slot| std::iter::once(slot).collect::<SlotSet>();
        slots.iter().filter(|slot| self.lanes.backlog_of(&one(*slot)) == 0).collect()
    }

    fn let_go(&self, free: &SlotSet) {
        if free.is_empty() {
            return;
        }
        self.shared.coverage.lock().gone(free);
        free.iter().for_each(|slot| self.engine.clear_slot(slot));
        self.shared.slots.apply(|machine| machine.release(free));
        self.shared.tally.slots_released.fetch_add(free.len() as u64, Ordering::Relaxed);
        tracing::info!(node = %self.shared.node.name, slots = free.len(), "slots released");
    }

    /// The writer row no longer has these slots.
    pub(crate) async fn forget_slots(&self, slots: &SlotSet) -> SlotSet {
        let unexpected = self.shared.slots.apply(|machine| machine.lost(slots));
        self.restored_slots.lock().subtract(slots);
        self.shared.coverage.lock().gone(slots);
        self.answers.gone(slots);
        slots.iter().for_each(|slot| self.engine.clear_slot(slot));
        if let Err(error) = self.note_slots(&SlotSet::empty()).await {
            tracing::warn!(node = %self.shared.node.name, reason = %error, "slots held not noted");
        }
        unexpected
    }

    /// Remembers how far the lanes are, before slots that were elsewhere are served: a start with
    /// the backend away must not bring back what this journal says of them from an earlier time.
    pub(crate) async fn note_positions(&self) {
        let marks = self.lanes.marks();
        let positions: Vec<u64> =
            marks.lanes.iter().map(|lane| lane.position.min(lane.confirmed)).collect();
        let settled = self.settled_positions().await;
        let note = LanesNote { positions, versions: self.lanes.versions(), settled };
        if !note.positions.is_empty()
            && let Err(error) = self.shared.notebook.set_lanes(&note).await
        {
            tracing::warn!(node = %self.shared.node.name, reason = %error, "positions not noted");
        }
    }

    /// Remembers the slots that a start with the backend away may serve: those held and not let
    /// go, and those that come.
    pub(crate) async fn note_slots(&self, coming: &SlotSet) -> Result<(), GroupError> {
        let mut coming = coming.clone();
        coming.union_with(&self.restored_slots.lock());
        self.shared.note_slots_held(&coming).await
    }
}

enum Progress {
    Done,
    /// Something was achieved; go on at once.
    More,
    /// Others have to act first.
    Waiting,
}
