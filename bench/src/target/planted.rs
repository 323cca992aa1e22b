//! Faults planted on purpose, to prove that the checks find them. Never used for a figure.

use super::{Answer, Target};
use crate::traffic::{Input, Kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// One write in so many is answered and not done.
    LoseWrites { one_in: u64 },
    /// One kind of transaction is answered and not done.
    SkipKind(Kind),
}

/// A target behind a fault.
pub struct Planted {
    inner: Target,
    fault: Fault,
    /// Shared by all clients of the side.
    writes: Arc<AtomicU64>,
}

impl Planted {
    pub fn new(inner: Target, fault: Fault, writes: Arc<AtomicU64>) -> Self {
        Self { inner, fault, writes }
    }

    /// The count to start with: the first loss comes soon, so that a short run has one.
    pub fn counter(fault: Option<Fault>) -> Arc<AtomicU64> {
        const FIRST_LOSS_AT: u64 = 1_000;
        Arc::new(AtomicU64::new(match fault {
            Some(Fault::LoseWrites { one_in }) => one_in.saturating_sub(FIRST_LOSS_AT),
            _ => 0,
        }))
    }

    pub async fn execute(&self, input: &Input) -> Answer {
        if self.faulty(input) {
            return Answer::of(true);
        }
        Box::pin(self.inner.execute(input)).await
    }

    fn faulty(&self, input: &Input) -> bool {
        match self.fault {
            Fault::SkipKind(kind) => input.kind() == kind,
            Fault::LoseWrites { one_in } => {
                // Only those that surely have an effect, so that each is a loss.
                input.kind() == Kind::UpdateLocation
                    && (self.writes.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(one_in)
            }
        }
    }
}
