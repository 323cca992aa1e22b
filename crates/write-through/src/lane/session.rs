//! The lane's connection: opened when needed, and never used before the writer row was read.

use super::verdict::{Verdict, judge};
use super::{Ended, Lane};
use crate::backend::flush::{FlushOutcome, FlushRequest, WriterRow};
use crate::error::{BackendError, Disposition, Reason};
use crate::events::FlushEvent;
use crate::queue::lane_of;
use crate::service::meter::Meter;
use cachetier_model::{SlotId, SlotSet};

/// What became of a request.
#[derive(Debug)]
pub(super) enum Sent {
    Committed,
    /// Refused for good; rolled back as a whole.
    Refused(BackendError),
    /// The writer row changed (slots lost or version bumped): build the request again.
    Changed,
    Rewound {
        to: u64,
    },
    /// Rolled back as often as asked because a row stayed locked, or a statement took too long.
    /// There was no wait after the last time.
    Held(BackendError),
}

/// What the writer row said.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Look {
    AsBelieved,
    /// The row's version is newer; adopted, with the slots lost.
    Changed,
    Done,
    Rewound {
        to: u64,
    },
}

#[derive(Debug)]
pub(super) enum Trouble {
    Backend(BackendError),
    /// The server rolled the flush back itself: its outcome is not in doubt.
    Held(BackendError),
    Ended(Ended),
}

impl From<BackendError> for Trouble {
    fn from(error: BackendError) -> Self {
        Self::Backend(error)
    }
}

/// Tries of a whole batch whose rows stay locked or take too long, before it is taken apart.
pub(super) const HELD_TRIES: u32 = 3;

/// Lock timeout, statement timeout on rows of a table: fewer rows may pass where many do not. On
/// the writer row it only means that somebody acts on the group just now.
pub(super) fn is_held(error: &BackendError) -> bool {
    error.table.is_some() && crate::error::is_held(error.sqlstate.as_deref().unwrap_or_default())
}

impl Lane {
    /// Sends a request until its outcome is known.
    /// `tries`: how often rows may stay locked, or take too long, before that is the outcome.
    pub(super) async fn send(
        &mut self,
        request: &FlushRequest<'_>,
        tries: u32,
    ) -> Result<Sent, Ended> {
        let mut held = 0;
        loop {
            match self.try_send(request).await {
                Ok(sent) => {
                    self.backoff.reset();
                    self.shared.backend_is_up().await;
                    return Ok(sent);
                }
                Err(Trouble::Ended(ended)) => return Err(ended),
                Err(Trouble::Backend(error)) => self.wait_out(&error).await?,
                Err(Trouble::Held(error)) => {
                    held += 1;
                    if held >= tries {
                        return Ok(Sent::Held(error));
                    }
                    self.wait_out(&error).await?;
                }
            }
        }
    }

    async fn try_send(&mut self, request: &FlushRequest<'_>) -> Result<Sent, Trouble> {
        if self.session.is_none() || self.gains_unseen() {
            match self.open_session(request.next).await? {
                Look::AsBelieved => {}
                Look::Changed => return Ok(Sent::Changed),
                Look::Done => return Ok(Sent::Committed),
                Look::Rewound { to } => return Ok(Sent::Rewound { to }),
            }
        }
        let Some(session) = self.session.as_mut() else {
            return Err(BackendError::new("flush", Reason::Internal, "no session").into());
        };
        match session.flush(request).await {
            Ok(FlushOutcome::Committed) => Ok(Sent::Committed),
            Ok(FlushOutcome::FenceMissed) if cachetier_defects::on("r09-fence-missed-is-done") => {
                Ok(Sent::Committed)
            }
            Ok(FlushOutcome::FenceMissed) => match self.look(request.next).await? {
                // the row is as believed now: whoever held it has let go
                Look::AsBelieved | Look::Changed => Ok(Sent::Changed),
                Look::Done => Ok(Sent::Committed),
                Look::Rewound { to } => Ok(Sent::Rewound { to }),
            },
            Err(error) if error.disposition() == Disposition::Reject => Ok(Sent::Refused(error)),
            Err(error) => {
                self.drop_session();
                Err(if is_held(&error) { Trouble::Held(error) } else { error.into() })
            }
        }
    }

    /// Waits before the next attempt and makes the trouble visible.
    pub(super) async fn wait_out(&mut self, error: &BackendError) -> Result<(), Ended> {
        if error.disposition() == Disposition::Fenced {
            return Err(self.fenced(error.reason, error.message.clone()).await);
        }
        self.drop_session();
        self.shared.backend_is_down(error).await;
        Meter::add(&self.shared.meter.retries, 1);
        let wait = self.backoff.next(error.disposition());
        tracing::debug!(
            node = %self.writer.node, lane = self.writer.lane, attempt = self.backoff.attempts(),
            reason = %error.reason, elapsed_ms = wait.as_millis() as u64, "flush will be tried again"
        );
        tokio::select! {
            () = self.stop.cancelled() => Err(Ended::Stopped),
            () = tokio::time::sleep(wait) => Ok(()),
        }
    }

    pub(super) fn drop_session(&mut self) {
        self.session = None;
        self.confirm.session_lost();
    }

    pub(super) fn gains_unseen(&self) -> bool {
        self.shared.state.lock().gains != self.gains_seen
    }

    /// Opens a session if there is none, and reads the writer row.
    pub(super) async fn open_session(&mut self, next: u64) -> Result<Look, Trouble> {
        if self.session.is_none() {
            self.session = Some(self.shared.backend.open_lane(self.writer.clone()).await?);
        }
        self.look(next).await
    }

    /// Reads the writer row and takes over what it says.
    pub(super) async fn look(&mut self, next: u64) -> Result<Look, Trouble> {
        let (row, gains) = self.read_row().await?;
        let verdict = judge(row.as_ref(), self.token, self.position, next);
        let missing = |message: String| {
            Trouble::Backend(BackendError::new("read position", Reason::PositionMissing, message))
        };
        let look = match verdict {
            Verdict::NotDone => Look::AsBelieved,
            Verdict::Done => Look::Done,
            Verdict::Rewound { to } => Look::Rewound { to },
            Verdict::TokenTaken => {
                let message = "another start of this journal, or a copy of its volume, has \
                               claimed it; this process must not write any more";
                let ended = self.fenced(Reason::Fenced, message.to_owned()).await;
                return Err(Trouble::Ended(ended));
            }
            Verdict::Missing => {
                return Err(missing(
                    "the writer row of this node is gone from the bookkeeping; restore it, or \
                     give the queue up explicitly"
                        .to_owned(),
                ));
            }
            Verdict::Unknown { found } => {
                return Err(missing(format!(
                    "the writer row holds position {found}, which this process never wrote \
                     (believed {}); find out who changed it",
                    self.position
                )));
            }
        };
        if let Some(forgotten) = row.as_ref().and_then(|row| self.forgotten(row)) {
            if let Look::Rewound { to } = look {
                // nothing is sent before the slots are taken again; what is to be sent then is kept
                self.marks_went_back = true;
                self.shared.queue.rewound(self.writer.lane, to);
            }
            return Err(self.await_takeover(forgotten).await);
        }
        if std::mem::take(&mut self.marks_went_back) && !matches!(look, Look::Rewound { .. }) {
            // the backend is ahead again: an older one had only answered in between
            self.shared.queue.caught_up(self.writer.lane);
        }
        self.gains_seen = gains;
        let changed = match row {
            Some(row) => self.adopt_row(row, gains).await,
            None => false,
        };
        Ok(if changed && look == Look::AsBelieved { Look::Changed } else { look })
    }

    /// The writer row, and the gains that it says something about. One of a time before a takeover that
    /// was answered meanwhile says nothing about it, and is read again.
    async fn read_row(&mut self) -> Result<(Option<WriterRow>, u64), Trouble> {
        loop {
            let gains = self.shared.state.lock().gains;
            let Some(session) = self.session.as_mut() else {
                let error = BackendError::new("read position", Reason::Internal, "no session");
                return Err(error.into());
            };
            let row = match session.writer().await {
                Ok(row) => row,
                Err(error) => {
                    self.drop_session();
                    return Err(error.into());
                }
            };
            let older = row.as_ref().is_some_and(|row| row.version < self.version_known());
            if !older || self.shared.state.lock().gains == gains {
                return Ok((row, gains));
            }
        }
    }

    /// The newest version that this lane's row is known to have had.
    fn version_known(&self) -> u64 {
        let state = self.shared.state.lock();
        let noted = state.fences.get(usize::from(self.writer.lane));
        self.version.max(noted.map_or(0, |(version, _)| *version))
    }

    /// Slots of ours that the row lacks because it is of a time before they were taken.
    fn forgotten(&self, row: &WriterRow) -> Option<SlotSet> {
        if cachetier_defects::on("r09-takeover-lost-is-slots-lost") {
            return None;
        }
        let older = row.version < self.version_known();
        let (lane, lanes) = (self.writer.lane, self.writer.lanes);
        let state = self.shared.state.lock();
        let mut slots = if older { state.slots.clone() } else { state.awaited.clone() };
        slots.subtract(&row.slots);
        slots.subtract(&state.given_up);
        let mine = |slot: &SlotId| lane_of(*slot, lanes) == lane;
        let slots: SlotSet = slots.iter().filter(mine).collect();
        (!slots.is_empty()).then_some(slots)
    }

    async fn await_takeover(&mut self, slots: SlotSet) -> Trouble {
        let (lane, count) = (self.writer.lane, slots.len());
        self.shared.tell(FlushEvent::SlotsForgotten { lane, slots }).await;
        let message = format!(
            "the backend lacks the takeover of {count} slots that it had confirmed (a standby was \
             promoted, or an older state restored); they are taken again before anything of them is \
             sent"
        );
        Trouble::Backend(BackendError::new("read position", Reason::BackendNotReady, message))
    }

    /// Takes the row's version and drops the slots that it no longer has. A row read before the
    /// last gain says nothing about what was gained: nothing is dropped by it, and the next send
    /// looks again. True when anything that a request is built from changed.
    async fn adopt_row(&mut self, row: WriterRow, gains: u64) -> bool {
        let lanes = self.writer.lanes;
        let (lost, outdated) = {
            let mut state = self.shared.state.lock();
            let outdated = state.gains != gains;
            let mut lost = SlotSet::empty();
            if !outdated {
                lost.union_with(&state.slots);
                lost.subtract(&row.slots);
            }
            let lost: SlotSet =
                lost.iter().filter(|s| lane_of(*s, lanes) == self.writer.lane).collect();
            state.slots.subtract(&lost);
            if row.version < self.version || row.position < self.position {
                self.returned.union_with(&row.slots);
                self.returned.subtract(&state.slots);
            }
            self.returned.intersect_with(&row.slots);
            if let Some(fence) = state.fences.get_mut(usize::from(self.writer.lane)) {
                *fence = (row.version, row.position);
            }
            (lost, outdated)
        };
        let changed = outdated || row.version != self.version || !lost.is_empty();
        self.version = row.version;
        if !lost.is_empty() {
            tracing::warn!(
                node = %self.writer.node, lane = self.writer.lane, slots = lost.len(),
                "slots were taken over by another node"
            );
            let lane = self.writer.lane;
            self.shared.tell(FlushEvent::SlotsLost { lane, slots: lost }).await;
        }
        changed
    }

    async fn fenced(&mut self, reason: Reason, message: String) -> Ended {
        tracing::error!(node = %self.writer.node, lane = self.writer.lane, %reason, "fenced");
        self.shared.tell(FlushEvent::Fenced { reason, message }).await;
        Ended::Fenced
    }
}
