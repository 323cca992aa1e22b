//! A small batch travels with those of other lanes, in one backend transaction: at low rates the
//! backend has one transaction where it would have one per lane.
//!
//! All writer rows move, or none. Whatever goes wrong, each lane sends its part again by itself, and
//! after an unknown outcome its own row tells it first whether there is anything to send.

use super::build::Sorted;
use super::segment::Segment;
use super::session::is_held;
use super::{Ended, Lane};
use crate::backend::flush::{FlushOutcome, FlushRequest, Move};
use crate::error::{BackendError, Disposition, Reason};
use crate::pending::Pending;
use crate::plan::plan;
use crate::service::convoy::{Carried, Joined, Lead, Passenger};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// So long a lane that leads waits for the ones it called.
const JOINING: Duration = Duration::from_millis(1);
/// So long a lane waits for the transaction before to end; then it goes alone.
const PATIENCE: Duration = Duration::from_millis(100);
/// An answer of the backend to several lanes' transaction is waited for so long.
const ANSWER: Duration = Duration::from_secs(3);

impl Lane {
    /// Answers what must be sent alone; `None`: nothing is left.
    pub(super) async fn travel(&mut self, segment: Segment) -> Result<Option<Segment>, Ended> {
        let shared = Arc::clone(&self.shared);
        loop {
            let Some(sorted) = self.fit_to_travel(&segment) else { return Ok(Some(segment)) };
            let row = Move { fence: self.fence(), next: segment.last_sequence() };
            let synced = self.must_sync(&sorted.kept);
            let waiting = match shared.convoy.join(row, &sorted.kept, synced) {
                Joined::Leads(lead) => return self.lead(lead, segment, &sorted).await,
                Joined::Waits(waiting) => waiting,
            };
            let carried = tokio::select! {
                () = self.stop.cancelled() => return Err(Ended::Stopped),
                carried = waiting.arrive(PATIENCE) => carried,
            };
            if carried != Carried::Again {
                return Ok(self.arrive(carried, segment, &sorted).await);
            }
        }
    }

    /// Only what is small, simple and sent for the first time, over a session that is fine.
    fn fit_to_travel(&self, segment: &Segment) -> Option<Sorted> {
        let (lanes, options) = (usize::from(self.writer.lanes), &self.shared.options);
        let small = segment.rows() <= options.batch_rows_max as usize / lanes.max(1);
        if lanes < 2 || !small || self.session.is_none() || self.gains_unseen() {
            return None;
        }
        let sorted = self.sort(segment);
        let simple = sorted.following.is_empty() && sorted.foreign.is_empty();
        (simple && !sorted.kept.is_empty()).then_some(sorted)
    }

    async fn lead(
        &mut self,
        lead: Lead<'_>,
        segment: Segment,
        sorted: &Sorted,
    ) -> Result<Option<Segment>, Ended> {
        tokio::time::sleep(JOINING).await;
        let passengers = lead.passengers();
        if passengers.is_empty() {
            return Ok(Some(segment));
        }
        let carried = self.send_all(segment.last_sequence(), sorted, &passengers).await;
        passengers.into_iter().for_each(|passenger| passenger.tell(carried));
        drop(lead);
        Ok(self.arrive(carried, segment, sorted).await)
    }

    async fn send_all(&mut self, next: u64, own: &Sorted, passengers: &[Passenger]) -> Carried {
        let schema = Arc::clone(&self.shared.schema);
        let others = passengers.iter().flat_map(|passenger| &passenger.batch);
        let mut kept: Vec<&Pending> = own.kept.iter().chain(others).collect();
        // as one lane would have had them
        kept.sort_unstable_by_key(|pending| pending.sequence);
        let Ok(waves) = plan(&schema, kept.iter().flat_map(|p| p.changes.iter())) else {
            return Carried::Alone;
        };
        let synced = self.must_sync(&own.kept)
            || passengers.iter().any(|passenger| passenger.synced)
            || self.shared.turns.take();
        let along: Vec<Move> = match cachetier_defects::on("r09-lanes-travel-without-their-rows") {
            true => Vec::new(),
            false => passengers.iter().map(|passenger| passenger.row.clone()).collect(),
        };
        let request = FlushRequest {
            fence: self.fence(),
            next,
            along,
            waves,
            rejects: Vec::new(),
            synced_commit: synced,
            hasty: true,
        };
        let Some(session) = self.session.as_mut() else { return Carried::Alone };
        let started = Instant::now();
        let answer = tokio::time::timeout(ANSWER, session.flush(&request)).await;
        let outcome = answer.unwrap_or_else(|_| Err(no_answer()));
        if matches!(outcome, Ok(FlushOutcome::Committed)) {
            let statements = request.waves.iter().map(|w| w.statements.len()).sum();
            let (rows, busy) = (request.rows(), started.elapsed());
            self.shared.meter.committed(kept.len(), rows, statements, busy);
            self.backoff.reset();
            self.shared.backend_is_up().await;
            tracing::debug!(
                lanes = passengers.len() + 1,
                rows,
                seq = next,
                elapsed_ms = busy.as_millis() as u64,
                "flush batch of several lanes committed"
            );
        } else if matches!(&outcome, Err(error) if error.disposition() != Disposition::Reject) {
            self.drop_session();
        }
        verdict(&outcome, synced)
    }

    /// What is left to do of a segment that travelled.
    async fn arrive(
        &mut self,
        carried: Carried,
        segment: Segment,
        sorted: &Sorted,
    ) -> Option<Segment> {
        match carried {
            Carried::Committed { synced } => {
                let (next, rows) = (segment.last_sequence(), segment.rows());
                self.settle(&segment, sorted, next, synced, rows, 0).await;
                None
            }
            Carried::Alone | Carried::Again => Some(segment),
            Carried::InDoubt { synced } => {
                // a new session begins with a look at the row
                self.drop_session();
                Some(Segment { tried_synced: Some(synced), ..segment })
            }
        }
    }
}

fn no_answer() -> BackendError {
    let message = "several lanes' transaction was not answered in time";
    BackendError::new("flush", Reason::BackendUnreachable, message)
}

fn verdict(outcome: &Result<FlushOutcome, BackendError>, synced: bool) -> Carried {
    match outcome {
        Ok(FlushOutcome::Committed) => Carried::Committed { synced },
        // rolled back as a whole
        Ok(FlushOutcome::FenceMissed) => Carried::Alone,
        Err(error) if error.disposition() == Disposition::Reject || is_held(error) => {
            Carried::Alone
        }
        Err(_) => Carried::InDoubt { synced },
    }
}
