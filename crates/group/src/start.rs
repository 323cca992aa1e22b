//! Start: identity, schema, claim, replay, serving; and the same with the backend away.
//!
//! Owns the order of those steps. Each failure becomes a problem with its cure and is tried again;
//! what another writer holds is final. Must never serve before it is known whose journal this is,
//! nor claim before the attempt is noted (R8).

use std::sync::Arc;
use std::time::Duration;

use cachetier_write_through::{BackendError, Claim, Disposition, Reason};
use tokio::sync::watch;

use crate::core::Core;
use crate::shared::Shared;
use crate::status::{Ended, Problem};

mod build;
mod identity;

use build::{attach, build};
pub(crate) use identity::{check_home, recall_topology};
use identity::{claim, learn_schema};

const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(5);

/// Why a step of the start did not succeed.
pub(crate) enum Stop {
    /// Try again; the problem says what is wrong.
    Again { problem: Problem, away: bool },
    /// Never again in this process.
    Fenced { reason: String, message: String },
}

impl From<BackendError> for Stop {
    fn from(error: BackendError) -> Self {
        let reason = error.reason.as_str();
        match error.disposition() {
            Disposition::Fenced => {
                Self::Fenced { reason: reason.to_owned(), message: error.to_string() }
            }
            _ => Self::Again {
                problem: Problem::new(reason, error.to_string(), true),
                away: is_away(error.reason),
            },
        }
    }
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Again { problem, away: false }
    }
}

impl From<crate::error::GroupError> for Stop {
    fn from(error: crate::error::GroupError) -> Self {
        Self::from(Problem::new("Journal", error.to_string(), true))
    }
}

/// The backend cannot be asked: a node goes on with what its journal holds.
fn is_away(reason: Reason) -> bool {
    reason.disposition() == Disposition::Retry
        || matches!(
            reason,
            Reason::CredentialsMissing
                | Reason::AuthenticationFailed
                | Reason::TlsFailed
                | Reason::DatabaseMissing
        )
}

/// Starts the group, then stands by until the end: a start that panicked ends the group.
pub(crate) async fn run(shared: Arc<Shared>, core: Arc<watch::Sender<Option<Arc<Core>>>>) {
    start(Arc::clone(&shared), core).await;
    shared.shutdown.cancelled().await;
}

/// Returns when the group serves and has its claim, or never will.
async fn start(shared: Arc<Shared>, core: Arc<watch::Sender<Option<Arc<Core>>>>) {
    let mut retry = RETRY_MIN;
    let mut resumed: Option<Arc<Core>> = None;
    loop {
        let stop = match step(&shared, resumed.as_ref()).await {
            Ok(started) => {
                shared.problems.heal("start");
                if let Some(started) = started {
                    core.send_replace(Some(started));
                }
                return;
            }
            Err(stop) => stop,
        };
        match stop {
            Stop::Fenced { reason, message } => {
                shared.fence(&reason, &message);
                if resumed.is_none() {
                    shared.count_tail().await;
                }
                return;
            }
            Stop::Again { problem, away } => {
                if shared.problems.raise("start", problem.clone()) {
                    tracing::warn!(node = %shared.node.name, reason = %problem.reason,
                        message = %problem.message, "start waits");
                }
                if away && resumed.is_none() {
                    resumed = resume(&shared).await;
                    if let Some(resumed) = &resumed {
                        core.send_replace(Some(Arc::clone(resumed)));
                    }
                }
                if resumed.is_none() {
                    shared.count_tail().await;
                }
            }
        }
        tokio::select! {
            () = shared.shutdown.cancelled() => return,
            () = tokio::time::sleep(retry) => {}
        }
        retry = (retry * 2).min(RETRY_MAX);
    }
}

/// One try: schema, claim, and a core, unless one was resumed before.
async fn step(
    shared: &Arc<Shared>,
    resumed: Option<&Arc<Core>>,
) -> Result<Option<Arc<Core>>, Stop> {
    let schema = learn_schema(shared).await?;
    if let Some(core) = resumed {
        if core.schema_version != schema.version() {
            return Err(Problem::new(
                "SchemaDrift",
                "the tables in the backend are not those this node resumed with; put the old \
                 layout back, let the node flush, then change it again",
                true,
            )
            .into());
        }
        let claim = claim(shared, &schema).await?;
        let noted = shared.notebook.lanes()?;
        if core.lanes.staged_undecided(&claim) {
            // whether it was accepted or refused, only a start that reads its whole tail finds out
            let why = "the backend decided on transactions of before the start while it was away";
            shared.end(Ended::RestartNeeded(why));
            return Ok(None);
        }
        if went_back(&noted, &claim) {
            // what lies between is in the journal and not in the queue: start() reads it again
            shared.end(Ended::RestartNeeded("the backend lost commits while it was away"));
            return Ok(None);
        }
        attach(core, claim).await;
        return Ok(None);
    }
    let claim = claim(shared, &schema).await?;
    let core = build(shared, schema, Some(claim)).await?;
    Ok(Some(core))
}

/// True if the backend holds an older position than was confirmed before (R11).
fn went_back(noted: &[u64], claim: &Claim) -> bool {
    if noted.len() == claim.lanes.len() {
        return noted.iter().zip(&claim.lanes).any(|(noted, lane)| lane.position < *noted);
    }
    // of another lane map: since it was noted the lanes changed, which only goes forward, or the
    // backend is of a time before they did
    let lowest = claim.lanes.iter().map(|lane| lane.position).min();
    noted.iter().max() > lowest.as_ref()
}

/// Serves from the journal alone, under the last token and topology; `None` when there is nothing
/// to go on from.
async fn resume(shared: &Arc<Shared>) -> Option<Arc<Core>> {
    let claimed_before = shared.notebook.claim().ok()?.token.is_some();
    let schema = shared.notebook.schema().ok()??;
    if !claimed_before {
        return None;
    }
    match build(shared, Arc::new(schema), None).await {
        Ok(core) => {
            tracing::warn!(node = %shared.node.name, "the backend is away; resumed from the journal");
            Some(core)
        }
        Err(Stop::Again { problem, .. }) => {
            shared.problems.raise("resume", problem);
            None
        }
        Err(Stop::Fenced { .. }) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cachetier_write_through::LaneClaim;

    fn claim(positions: &[u64]) -> Claim {
        let lane = |(lane, position): (usize, &u64)| LaneClaim {
            lane: lane as u16,
            version: 1,
            position: *position,
            slots: cachetier_model::SlotSet::empty(),
        };
        let lanes = positions.iter().enumerate().map(lane).collect();
        Claim { token: 1, epoch: 1, lanes, quarantined: Vec::new() }
    }

    #[test]
    fn r11_a_backend_of_before_a_change_of_lanes_went_back() {
        assert!(!went_back(&[5, 9], &claim(&[5, 9])));
        assert!(went_back(&[5, 9], &claim(&[7, 8])));
        assert!(!went_back(&[7, 9], &claim(&[9, 9, 9, 9])), "the change was not noted yet");
        assert!(went_back(&[100, 100, 100, 100], &claim(&[90, 99])));
        assert!(!went_back(&[], &claim(&[0, 0])), "nothing was ever noted");
    }
}
