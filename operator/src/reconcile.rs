//! One pass over one group: `dereference → validate → build → apply → status`. The two ends touch the
//! network, the middle (`plan`, `build`) is pure.
//!
//! Owns the order of the steps and what happens when one fails. Keeps no memory between passes but
//! caches that can be lost.

pub mod apply;
pub mod context;
pub mod deletion;
pub mod dereference;
pub mod status;
pub mod validate;

pub use context::Context;

use crate::plan::{Plan, plan};
use crate::topology::Activity;
use cachetier_api::v1alpha1::CacheGroup;
use kube::core::DeserializeGuard;
use kube::runtime::controller::Action;
use std::sync::Arc;
use std::time::Duration;

/// Longest time of a whole pass; a hanging call must not keep the next change waiting.
const PASS_TIMEOUT: Duration = Duration::from_secs(60);
/// Time to the next look while something is going on.
const BUSY: Duration = Duration::from_secs(1);

#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    #[error("calling the API server")]
    Kube(#[from] kube::Error),
    #[error("{kind} {name} is refused by the API server: {message}")]
    Refused { kind: &'static str, name: String, message: String },
    #[error("{kind} {name} exists and belongs to somebody else")]
    NameTaken { kind: &'static str, name: String },
    #[error("{kind} {name} is still being deleted")]
    Leaving { kind: &'static str, name: String },
    #[error("{kind} {name} was made by somebody else during the pass")]
    Changed { kind: &'static str, name: String },
    #[error("keeping the group's certificates")]
    Certificates(#[from] crate::certificates::CertificateError),
    #[error("building the group's objects")]
    Build(#[from] crate::build::BuildError),
    #[error("writing the topology record")]
    Record(#[from] serde_json::Error),
    #[error("the pass took longer than {0:?}")]
    Timeout(Duration),
    #[error("the stored object cannot be read: {0}")]
    Invalid(String),
}

/// What the controller does about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Somebody else was faster: look again.
    Again,
    /// Nothing helps until the object changes.
    Reject,
    /// Try again, later and later.
    Retry,
}

impl ReconcileError {
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Kube(kube::Error::Api(status)) if status.code == 409 => Disposition::Again,
            Self::Leaving { .. } | Self::Changed { .. } => Disposition::Again,
            Self::Invalid(_) => Disposition::Reject,
            _ => Disposition::Retry,
        }
    }
}

/// A group that may not parse: only that one is affected.
pub type StoredGroup = DeserializeGuard<CacheGroup>;

pub async fn reconcile(
    stored: Arc<StoredGroup>,
    context: Arc<Context>,
) -> Result<Action, ReconcileError> {
    let group = match &stored.0 {
        Ok(group) => Arc::new(group.clone()),
        Err(invalid) => {
            context.events.invalid_object(invalid).await;
            return Err(ReconcileError::Invalid(invalid.error.clone()));
        }
    };
    context.metrics.passes.inc();
    tokio::time::timeout(PASS_TIMEOUT, Box::pin(pass(&context, group)))
        .await
        .unwrap_or(Err(ReconcileError::Timeout(PASS_TIMEOUT)))
}

async fn pass(context: &Context, group: Arc<CacheGroup>) -> Result<Action, ReconcileError> {
    let deleting = group.metadata.deletion_timestamp.is_some();
    if deleting && !deletion::holds(&group) {
        context.forget(group.metadata.uid.as_deref().unwrap_or_default());
        return Ok(Action::await_change());
    }
    if !deleting && !deletion::holds(&group) {
        deletion::hold(context, &group).await?;
    }
    let observed = Box::pin(dereference::dereference(context, group)).await?;
    let plan = plan(&observed);
    if plan.drain.as_ref().is_some_and(|drain| drain.done) {
        let clean = plan.drain.as_ref().is_some_and(|drain| drain.clean);
        let released = deletion::release(context, &observed, clean).await?;
        return Ok(if released { Action::await_change() } else { Action::requeue(BUSY) });
    }
    let applied = if observed.group.spec.paused && !deleting {
        Ok(apply::Applied::paused(&observed))
    } else {
        Box::pin(apply::apply(context, &observed, &plan)).await
    };
    let (applied, failure) = match applied {
        Ok(applied) => (applied, None),
        Err(error) => (apply::Applied::failed(&observed, &error), Some(error)),
    };
    status::update(context, &observed, &plan, &applied).await?;
    if let Some(error) = failure {
        return Err(error);
    }
    let pause = if is_busy(&plan) { BUSY } else { context.poll };
    Ok(Action::requeue(pause))
}

fn is_busy(plan: &Plan) -> bool {
    let steady = matches!(plan.topology.activity, Activity::Steady | Activity::Stopped);
    !steady
        || plan.drain.is_some()
        || plan.record.is_some()
        || !plan.adopt.is_empty()
        || plan.rollout.outdated > 0
        || !plan.findings.is_empty()
        || matches!(
            plan.preload.state,
            crate::preload::State::Loading { .. } | crate::preload::State::Failed { .. }
        )
}
