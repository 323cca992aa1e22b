//! A transaction whose row somebody keeps locked lets those behind it pass (promise 4).
//!
//! The lane's position passes nothing that is not in the backend, so the held one is set aside like
//! a reject: durably, in the same backend transaction as something behind it that does pass. Without
//! such a proof nothing is set aside: a backend that holds up everything (a locked table, a lack of
//! CPU) is waited for. Whoever owns the slot applies it when the lock is gone.

use super::build::{Sorted, request, set_aside};
use super::deliver::Step;
use super::segment::Segment;
use super::session::Sent;
use super::{Ended, Lane};
use crate::backend::flush::NewReject;
use crate::error::BackendError;
use crate::pending::Pending;
use crate::queue::{TakeLimits, Taken};
use cachetier_model::RootKey;
use std::time::Duration;

impl Lane {
    /// `held` is one transaction, held up this very moment; what is behind it is on the stack, or
    /// taken from the queue.
    pub(super) async fn let_pass(
        &mut self,
        held: Segment,
        error: BackendError,
        stack: &mut Vec<Segment>,
    ) -> Result<Step, Ended> {
        let Some(head) = held.entries.first().cloned() else { return Ok(Step::Settled) };
        if stack.is_empty() {
            stack.extend(self.take_more());
        }
        let behind = if held.resent { None } else { self.cut_behind(&head.key, stack) };
        let Some(passing) = behind else { return self.wait_for(held, &error).await };
        let sorted = self.sorted_behind(&head, &passing);
        match self.send_past(&head, &error, &sorted, passing.last_sequence()).await? {
            Sent::Committed => {
                self.report_refusal(&head, &error).await;
                self.position_moved(&held.entries, head.sequence, true);
                self.settle(&passing, &sorted, passing.last_sequence(), true, 1, 1).await;
                Ok(Step::Settled)
            }
            Sent::Refused(_) => {
                // another reason than a lock: whatever is behind is dealt with on its own
                stack.push(passing);
                self.set_aside_alone(held, &head, &error).await
            }
            Sent::Changed | Sent::Held(_) => {
                stack.push(passing);
                self.wait_for(held, &error).await
            }
            Sent::Rewound { to } => {
                stack.push(passing);
                Ok(Step::Rewound(held, to))
            }
        }
    }

    /// The next try is a patient one.
    async fn wait_for(&mut self, held: Segment, error: &BackendError) -> Result<Step, Ended> {
        self.wait_out(error).await?;
        Ok(Step::Again(Segment { hasty: false, ..held }))
    }

    /// What is behind, up to the first transaction that would be sent for another instance.
    fn cut_behind(&self, key: &RootKey, stack: &mut Vec<Segment>) -> Option<Segment> {
        let behind = stack.pop()?;
        let Some(count) = self.up_to_another(&behind, key) else {
            stack.push(behind);
            return None;
        };
        let (passing, rest) = behind.cut(count);
        if !rest.entries.is_empty() {
            stack.push(rest);
        }
        Some(passing)
    }

    fn take_more(&self) -> Option<Segment> {
        if *self.shared.paused.borrow() {
            return None;
        }
        let synced = *self.shared.synced.borrow();
        let limits = TakeLimits { delay: Duration::ZERO, ..self.limits() };
        match self.shared.queue.take(self.writer.lane, synced, limits) {
            Taken::Batch(batch) => Some(Segment::new(batch, false)),
            _ => None,
        }
    }

    /// Number of transactions up to the first that would be sent for another instance.
    fn up_to_another(&self, behind: &Segment, key: &RootKey) -> Option<usize> {
        let kept = self.sort(behind).kept;
        let other = kept.iter().find(|p| p.key != *key)?.sequence;
        behind.entries.iter().position(|p| p.sequence == other).map(|at| at + 1)
    }

    /// As [`Self::sort`] will, once the head is set aside.
    fn sorted_behind(&self, head: &Pending, passing: &Segment) -> Sorted {
        let Sorted { kept, mut following, foreign } = self.sort(passing);
        let (of_head, kept): (Vec<Pending>, Vec<Pending>) =
            kept.into_iter().partition(|p| p.key == head.key);
        following.extend(of_head);
        following.sort_by_key(|p| p.sequence);
        Sorted { kept, following, foreign }
    }

    /// One backend transaction: the head and what follows it set aside, the other one applied.
    async fn send_past(
        &mut self,
        head: &Pending,
        error: &BackendError,
        behind: &Sorted,
        next: u64,
    ) -> Result<Sent, Ended> {
        let schema = std::sync::Arc::clone(&self.shared.schema);
        match request(&schema, self.fence(), next, behind, true) {
            Ok(mut request) => {
                request.rejects.splice(0..0, put_aside(head, error));
                request.hasty = true;
                self.send(&request, 1).await
            }
            Err(refused) => Ok(Sent::Refused(refused)),
        }
    }

    async fn set_aside_alone(
        &mut self,
        held: Segment,
        head: &Pending,
        error: &BackendError,
    ) -> Result<Step, Ended> {
        let rejects = put_aside(head, error).into_iter().collect();
        let mut request = self.bare_request(head.sequence, rejects);
        request.synced_commit = true;
        match self.send(&request, u32::MAX).await? {
            Sent::Committed => {
                self.report_refusal(head, error).await;
                self.position_moved(&held.entries, head.sequence, true);
                Ok(Step::Settled)
            }
            Sent::Rewound { to } => Ok(Step::Rewound(held, to)),
            Sent::Refused(_) | Sent::Changed | Sent::Held(_) => Ok(Step::Again(held)),
        }
    }
}

/// What nobody was told of (R16) is given up instead: its caller hears that it did not happen.
fn put_aside(head: &Pending, error: &BackendError) -> Option<NewReject> {
    (!head.is_undecided()).then(|| set_aside(head, Some(error)))
}
