//! Delivers a batch: whole if the backend takes it, in halves if it refuses, down to the one
//! transaction that is set aside; and again from the journal if the backend lost commits.

use super::build::{Sorted, by_instance, request, set_aside};
use super::segment::Segment;
use super::session::{HELD_TRIES, Look, Sent, Trouble};
use super::{Ended, Lane};
use crate::backend::flush::FlushRequest;
use crate::error::{BackendError, Reason};
use crate::events::FlushEvent;
use crate::pending::Pending;
use crate::queue::lane_of;
use crate::service::ReplayError;
use crate::service::meter::Meter;
use cachetier_model::RootKey;
use std::time::Duration;
use tokio::time::Instant;

/// A refusal for a key is tried once more after the other lanes have passed its sequence, at most
/// this much later: another lane may carry the change that makes room for it.
const OTHER_LANES_WAIT: Duration = Duration::from_secs(5);

/// What the backend had accepted and lost is refused for a key as long as another lane, here or at
/// another node, has not sent again what made room for it. So long it is tried again, counted from the
/// first of them: many that are refused for good hold their lane no longer than one.
const OTHERS_AGAIN_MAX: Duration = Duration::from_secs(60);
const OTHERS_AGAIN_PAUSE: Duration = Duration::from_millis(250);

/// A batch that is held up is taken apart into this many: of a thousand transactions the held one is
/// found with three more timeouts, and all parts before it pass at once.
const HELD_PARTS: usize = 16;

/// What an attempt left to do.
pub(super) enum Step {
    Settled,
    Split(Vec<Segment>),
    Again(Segment),
    /// One transaction whose row stays locked.
    Held(Segment, BackendError),
    Rewound(Segment, u64),
}

/// The part of the journal that the backend lost.
struct CatchUp {
    after: u64,
    upto: u64,
}

impl Lane {
    pub(super) async fn deliver(&mut self, batch: Vec<Pending>) -> Result<(), Ended> {
        match self.travel(Segment::new(batch, false)).await? {
            Some(alone) => self.work_off(vec![alone], None).await,
            None => Ok(()),
        }
    }

    /// Without work: keeps the position young, notices a fence, a loss, a backend that went back.
    pub(super) async fn look_around(&mut self) -> Result<(), Ended> {
        let synced = *self.shared.synced.borrow();
        if let Some(upto) = self.shared.queue.idle_upto(self.writer.lane, synced) {
            return self.move_position(upto).await;
        }
        self.look_at_row().await
    }

    /// Reads the writer row, and sends again what it no longer holds.
    pub(super) async fn look_at_row(&mut self) -> Result<(), Ended> {
        loop {
            match self.open_session(self.position).await {
                Ok(Look::Rewound { to }) => return self.rewind(Vec::new(), to).await,
                Ok(_) => {
                    self.backoff.reset();
                    self.shared.backend_is_up().await;
                    return Ok(());
                }
                Err(Trouble::Ended(ended)) => return Err(ended),
                Err(Trouble::Backend(error) | Trouble::Held(error)) => {
                    self.wait_out(&error).await?;
                }
            }
        }
    }

    async fn move_position(&mut self, upto: u64) -> Result<(), Ended> {
        loop {
            let request = self.bare_request(upto, Vec::new());
            let synced = request.synced_commit;
            match self.send(&request, u32::MAX).await? {
                Sent::Committed => {
                    self.position_moved(&[], upto, synced);
                    return Ok(());
                }
                Sent::Changed | Sent::Held(_) => {}
                Sent::Rewound { to } => return self.rewind(Vec::new(), to).await,
                Sent::Refused(error) => self.wait_out(&error).await?,
            }
        }
    }

    async fn rewind(&mut self, stack: Vec<Segment>, to: u64) -> Result<(), Ended> {
        let catch_up = self.begin_catch_up(to).await;
        self.work_off(stack, Some(catch_up)).await
    }

    async fn work_off(
        &mut self,
        mut stack: Vec<Segment>,
        mut catch_up: Option<CatchUp>,
    ) -> Result<(), Ended> {
        loop {
            let resending = stack.last().is_some_and(|s| s.resent);
            if let Some(behind) = catch_up.as_mut().filter(|_| !resending) {
                match self.read_back(behind).await? {
                    Some(segment) => stack.push(segment),
                    None => {
                        let upto = behind.upto;
                        catch_up = self.end_catch_up(upto).await?;
                    }
                }
            }
            let Some(segment) = stack.pop() else {
                if catch_up.is_some() {
                    continue;
                }
                return Ok(());
            };
            let step = match self.attempt(segment).await? {
                Step::Held(segment, error) => self.let_pass(segment, error, &mut stack).await?,
                step => step,
            };
            match step {
                Step::Settled => {}
                Step::Again(segment) | Step::Held(segment, _) => stack.push(segment),
                Step::Split(parts) => stack.extend(parts.into_iter().rev()),
                Step::Rewound(segment, to) => {
                    stack.push(segment);
                    stack.retain(|s| !s.resent);
                    let upto = catch_up.as_ref().map_or(0, |c| c.upto);
                    let mut next = self.begin_catch_up(to).await;
                    next.upto = next.upto.max(upto);
                    catch_up = Some(next);
                }
            }
        }
    }

    async fn attempt(&mut self, segment: Segment) -> Result<Step, Ended> {
        let sorted = self.sort(&segment);
        if sorted.kept.is_empty() && sorted.following.is_empty() {
            self.settle(&segment, &sorted, self.position, false, 0, 0).await;
            return Ok(Step::Settled);
        }
        let next = segment.last_sequence();
        // where it may be committed already, the retry must not claim more than that commit did
        let synced = segment.tried_synced.unwrap_or_else(|| self.wants_synced_commit(&sorted.kept));
        let schema = std::sync::Arc::clone(&self.shared.schema);
        let mut request = match request(&schema, self.fence(), next, &sorted, synced) {
            Ok(request) => request,
            Err(refused) => return self.refused(segment, &sorted, refused).await,
        };
        request.hasty = segment.hasty;
        let started = Instant::now();
        let tries = if segment.held { 1 } else { HELD_TRIES };
        match self.send(&request, tries).await? {
            Sent::Committed => {
                let rows = request.rows();
                let statements = request.waves.iter().map(|w| w.statements.len()).sum();
                let busy = started.elapsed();
                self.shared.meter.committed(sorted.kept.len(), rows, statements, busy);
                tracing::debug!(
                    lane = self.writer.lane,
                    rows,
                    seq = next,
                    elapsed_ms = busy.as_millis() as u64,
                    "flush batch committed"
                );
                self.settle(&segment, &sorted, next, synced, rows, statements).await;
                Ok(Step::Settled)
            }
            Sent::Refused(error) => self.refused(segment, &sorted, error).await,
            Sent::Held(_) if segment.entries.len() > 1 => {
                let parts = segment.parts(HELD_PARTS).into_iter();
                Ok(Step::Split(parts.map(Segment::held_before).collect()))
            }
            Sent::Held(error) if segment.hasty => Ok(Step::Held(segment, error)),
            Sent::Held(_) => Ok(Step::Again(Segment { hasty: true, held: true, ..segment })),
            // an earlier try, given up for lost, may be what changes the row in the end
            Sent::Changed => Ok(Step::Again(Segment { tried_synced: Some(synced), ..segment })),
            Sent::Rewound { to } => Ok(Step::Rewound(segment, to)),
        }
    }

    async fn refused(
        &mut self,
        mut segment: Segment,
        sorted: &Sorted,
        error: BackendError,
    ) -> Result<Step, Ended> {
        if segment.entries.len() > 1 {
            return Ok(Step::Split(segment.halves()));
        }
        let started = Instant::now();
        let Some(refused) = sorted.kept.first() else {
            // only a follower of a reject: the bookkeeping itself refuses, which a human must see
            let mut trouble = error;
            trouble.reason = Reason::Internal;
            self.wait_out(&trouble).await?;
            return Ok(Step::Again(segment));
        };
        let of_a_key = matches!(error.sqlstate.as_deref(), Some("23505" | "23503" | "23P01"));
        if of_a_key && refused.accepted {
            let since = *self.refused_since.get_or_insert(started);
            if started.duration_since(since) < OTHERS_AGAIN_MAX {
                self.others_send_again(refused.sequence, since == started).await?;
                return Ok(Step::Again(segment));
            }
        }
        if of_a_key && !segment.tried_again {
            segment.tried_again = true;
            self.let_others_pass(refused.sequence).await;
            return Ok(Step::Again(segment));
        }
        let rejects = if refused.is_undecided() {
            Vec::new()
        } else {
            vec![set_aside(refused, Some(&error))]
        };
        let mut request = self.bare_request(refused.sequence, rejects);
        request.synced_commit = true;
        match self.send(&request, u32::MAX).await? {
            Sent::Committed => {
                self.report_refusal(refused, &error).await;
                let entries = if segment.resent { &[][..] } else { &segment.entries };
                self.position_moved(entries, refused.sequence, true);
                Ok(Step::Settled)
            }
            Sent::Refused(error) => {
                let mut trouble = error;
                trouble.reason = Reason::Internal;
                self.wait_out(&trouble).await?;
                Ok(Step::Again(segment))
            }
            Sent::Changed | Sent::Held(_) => Ok(Step::Again(segment)),
            Sent::Rewound { to } => Ok(Step::Rewound(segment, to)),
        }
    }

    pub(super) async fn report_refusal(&mut self, refused: &Pending, error: &BackendError) {
        let (lane, key) = (self.writer.lane, refused.key.clone());
        let sequence = refused.sequence;
        tracing::warn!(
            node = %self.writer.node, lane, seq = sequence, reason = %error.reason,
            sqlstate = error.sqlstate.as_deref().unwrap_or_default(),
            table = error.table.as_deref().unwrap_or_default(),
            awaited = refused.is_undecided(), "the backend refused a transaction"
        );
        if refused.is_undecided() {
            Meter::add(&self.shared.meter.refused, 1);
            let cause = error.into();
            self.shared.tell(FlushEvent::Refused { lane, key, sequence, cause }).await;
        } else {
            Meter::add(&self.shared.meter.rejected, 1);
            self.shared.state.lock().quarantined.insert(key.clone(), sequence);
            let (sequences, cause) = (vec![sequence], Some(error.into()));
            self.shared.tell(FlushEvent::Rejected { lane, key, sequences, cause }).await;
        }
    }

    /// Lanes that have nothing to do do not know yet that the backend went back.
    async fn others_send_again(&self, sequence: u64, first: bool) -> Result<(), Ended> {
        if first {
            tracing::warn!(
                node = %self.writer.node, lane = self.writer.lane, seq = sequence,
                "the backend refuses, for a key, what it had accepted before it lost commits; waiting \
                 until the others have sent theirs again"
            );
        }
        self.shared.looks.send_modify(|looks| *looks += 1);
        tokio::select! {
            () = self.stop.cancelled() => Err(Ended::Stopped),
            () = tokio::time::sleep(OTHERS_AGAIN_PAUSE) => Ok(()),
        }
    }

    async fn let_others_pass(&self, sequence: u64) {
        let mut marks = self.shared.queue.subscribe();
        let mine = usize::from(self.writer.lane);
        let passed = marks.wait_for(|m| {
            let others = m.lanes.iter().enumerate().filter(|(n, _)| *n != mine);
            others.map(|(_, l)| l.flushed).all(|flushed| flushed.saturating_add(1) >= sequence)
        });
        tokio::select! {
            () = self.stop.cancelled() => {}
            _ = tokio::time::timeout(OTHER_LANES_WAIT, passed) => {}
        }
    }

    /// A request without rows: moves the position, and sets aside what is given.
    pub(super) fn bare_request<'a>(
        &self,
        next: u64,
        rejects: Vec<crate::backend::flush::NewReject>,
    ) -> FlushRequest<'a> {
        let synced_commit = self.wants_synced_commit(&[]);
        FlushRequest {
            fence: self.fence(),
            next,
            along: Vec::new(),
            waves: Vec::new(),
            rejects,
            synced_commit,
            hasty: false,
        }
    }

    /// Tells the group first, then moves the marks.
    pub(super) async fn settle(
        &mut self,
        segment: &Segment,
        sorted: &Sorted,
        position: u64,
        synced: bool,
        rows: usize,
        _statements: usize,
    ) {
        let lane = self.writer.lane;
        if !sorted.kept.is_empty() {
            debug_assert!(rows > 0 || sorted.kept.iter().all(|p| p.sequence <= position));
            let keys = crate::service::last_sequences(&sorted.kept);
            let awaited = sorted.kept.iter().filter(|p| p.is_awaited());
            let accepted = awaited.map(|p| (p.key.clone(), p.sequence)).collect();
            let resent = segment.resent;
            let (upto, known) = (position, false);
            let event = FlushEvent::Flushed { lane, upto, keys, accepted, resent, known };
            self.shared.tell(event).await;
        }
        Meter::add(&self.shared.meter.rejected, sorted.following.len());
        for (key, sequences) in by_instance(&sorted.following) {
            self.shared.tell(FlushEvent::Rejected { lane, key, sequences, cause: None }).await;
        }
        if !sorted.foreign.is_empty() {
            Meter::add(&self.shared.meter.dropped, sorted.foreign.len());
            let dropped = sorted.foreign.iter().map(|p| (p.key.clone(), p.sequence));
            let transactions = dropped.collect();
            self.shared.tell(FlushEvent::Dropped { lane, transactions }).await;
        }
        let entries = if segment.resent { &[][..] } else { &segment.entries };
        self.position_moved(entries, position, synced);
    }

    pub(super) fn position_moved(&mut self, done: &[Pending], position: u64, synced: bool) {
        let lane = self.writer.lane;
        let moved = position > self.position;
        self.position = self.position.max(position);
        if moved && synced {
            self.confirm.synced();
            self.shared.turns.log_was_synced();
        } else if moved {
            self.confirm.committed(position);
        }
        if let Some(fence) = self.shared.state.lock().fences.get_mut(usize::from(lane)) {
            fence.1 = self.position;
        }
        self.shared.queue.settled(lane, done, self.position, synced && moved);
    }

    /// Everything up to there was sent again: the position is what it was before, also where the
    /// last of it moved no row of this lane. Answers what is to be read back now, if more was lost.
    async fn end_catch_up(&mut self, upto: u64) -> Result<Option<CatchUp>, Ended> {
        while self.position < upto {
            let request = self.bare_request(upto, Vec::new());
            let synced = request.synced_commit;
            match self.send(&request, u32::MAX).await? {
                Sent::Committed => self.position_moved(&[], upto, synced),
                Sent::Changed | Sent::Held(_) => {}
                Sent::Rewound { to } => {
                    let next = self.begin_catch_up(to).await;
                    return Ok(Some(CatchUp { upto: next.upto.max(upto), ..next }));
                }
                Sent::Refused(error) => self.wait_out(&error).await?,
            }
        }
        self.shared.queue.caught_up(self.writer.lane);
        Ok(None)
    }

    async fn begin_catch_up(&mut self, to: u64) -> CatchUp {
        let (lane, from) = (self.writer.lane, self.position);
        tracing::warn!(
            node = %self.writer.node, lane, seq = to,
            "the backend lost commits; sending them again from the journal"
        );
        // the rejects of other lanes were committed with other positions
        let lanes = self.writer.lanes;
        let kept = |key: &RootKey, head: u64| head <= to || lane_of(key.slot(), lanes) != lane;
        self.shared.state.lock().quarantined.retain(|key, head| kept(key, *head));
        self.position = to;
        self.refused_since = None;
        self.confirm.synced();
        self.confirm.committed(to);
        self.shared.queue.rewound(lane, to);
        self.shared.tell(FlushEvent::Rewound { lane, from, to }).await;
        let upto = if cachetier_defects::on("r11-nothing-sent-again") { to } else { from };
        CatchUp { after: to, upto }
    }

    /// The next part of what the backend lost; `None` when all was read.
    async fn read_back(&mut self, behind: &mut CatchUp) -> Result<Option<Segment>, Ended> {
        loop {
            let (lane, lanes) = (self.writer.lane, self.writer.lanes);
            let bytes = self.shared.options.batch_bytes_max;
            let read = match &self.shared.replay {
                Some(replay) => replay.read_after(behind.after, behind.upto, bytes).await,
                None => Err(ReplayError::TooOld),
            };
            match read {
                Ok(entries) if entries.is_empty() => return Ok(None),
                Ok(mut entries) => {
                    behind.after = entries.last().map_or(behind.upto, |p| p.sequence);
                    entries.retain(|p| lane_of(p.slot, lanes) == lane);
                    if !entries.is_empty() {
                        return Ok(Some(Segment::new(entries, true)));
                    }
                }
                Err(error) => self.wait_out(&cannot_read_back(&error)).await?,
            }
        }
    }
}

fn cannot_read_back(error: &ReplayError) -> BackendError {
    let act = "send again from the journal";
    match error {
        ReplayError::TooOld => BackendError::new(
            act,
            Reason::PositionTooOld,
            "the backend holds a position older than the journal still holds (a restored backup?); \
             restore a newer state of the backend, or give the difference up explicitly",
        ),
        ReplayError::Failed(why) => {
            let message = format!("the journal cannot be read back: {why}");
            BackendError::new(act, Reason::Internal, message)
        }
    }
}
