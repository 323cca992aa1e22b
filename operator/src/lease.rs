//! Elects the replica that acts, by a Lease that the operator creates itself.
//!
//! The holder renews well before the term ends and stops acting when it could not; a standby takes
//! over only after it has itself watched a whole term pass without a renewal. Clocks of replicas are
//! never compared: each measures on its own clock how long the Lease has stayed the same.

use crate::metrics::Metrics;
use k8s_openapi::api::coordination::v1::{Lease as LeaseObject, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use std::future::Future;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const NAME: &str = "cachetier-operator";
const TERM: Duration = Duration::from_secs(30);
const RENEW: Duration = Duration::from_secs(5);
/// The holder stops this long before a standby could begin.
const MARGIN: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    #[error("the lease was lost; the process starts again as a standby")]
    Lost,
}

pub struct Lease {
    api: Api<LeaseObject>,
    namespace: String,
    holder: String,
}

/// What a standby has seen, on its own clock.
struct Seen {
    version: Option<String>,
    since: Instant,
}

impl Lease {
    pub fn new(client: kube::Client, namespace: &str, holder: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            holder: holder.to_owned(),
        }
    }

    /// Waits for the Lease, then runs `act` for as long as it is held.
    pub async fn while_held(
        self,
        metrics: &Metrics,
        act: impl Future<Output = ()>,
        shutdown: CancellationToken,
    ) -> Result<(), LeaseError> {
        tokio::select! {
            () = self.acquire() => {}
            () = shutdown.cancelled() => return Ok(()),
        }
        metrics.leader.set(1);
        tracing::info!(holder = self.holder, "lease acquired");
        let mut act = std::pin::pin!(act);
        let outcome = tokio::select! {
            () = &mut act => Ok(()),
            () = self.keep() => Err(LeaseError::Lost),
        };
        metrics.leader.set(0);
        if outcome.is_ok() {
            self.release().await;
        }
        outcome
    }

    async fn acquire(&self) {
        let mut seen = Seen { version: None, since: Instant::now() };
        loop {
            match self.try_acquire(&mut seen).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "lease not reachable"),
            }
            tokio::time::sleep(RENEW).await;
        }
    }

    async fn try_acquire(&self, seen: &mut Seen) -> Result<bool, kube::Error> {
        let Some(found) = self.api.get_opt(NAME).await? else {
            let created = self.api.create(&PostParams::default(), &self.object(None)).await;
            return conflict_is_no(created.map(drop));
        };
        let version = found.metadata.resource_version.clone();
        if seen.version != version {
            *seen = Seen { version, since: Instant::now() };
        }
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.clone());
        let free = holder.is_none_or(|holder| holder.is_empty() || holder == self.holder);
        if !free && seen.since.elapsed() < TERM {
            return Ok(false);
        }
        let object = self.object(found.metadata.resource_version);
        conflict_is_no(self.api.replace(NAME, &PostParams::default(), &object).await.map(drop))
    }

    /// Renews until that has failed for too long.
    async fn keep(&self) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(RENEW).await;
            let started = Instant::now();
            match tokio::time::timeout(RENEW, self.renew()).await {
                Ok(Ok(true)) => renewed = started,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::warn!(%error, "lease not renewed"),
                Err(_) => tracing::warn!("lease not renewed in time"),
            }
            if renewed.elapsed() + MARGIN >= TERM {
                return;
            }
        }
    }

    async fn renew(&self) -> Result<bool, kube::Error> {
        let found = self.api.get(NAME).await?;
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        if holder != Some(self.holder.as_str()) {
            return Ok(false);
        }
        let object = self.object(found.metadata.resource_version);
        conflict_is_no(self.api.replace(NAME, &PostParams::default(), &object).await.map(drop))
    }

    /// Lets a successor begin at once.
    async fn release(&self) {
        let Ok(mut found) = self.api.get(NAME).await else { return };
        let holder = found.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
        if holder != Some(self.holder.as_str()) {
            return;
        }
        if let Some(spec) = &mut found.spec {
            spec.holder_identity = Some(String::new());
        }
        if let Err(error) = self.api.replace(NAME, &PostParams::default(), &found).await {
            tracing::debug!(%error, "lease not released; it runs out by itself");
        }
    }

    fn object(&self, resource_version: Option<String>) -> LeaseObject {
        LeaseObject {
            metadata: ObjectMeta {
                name: Some(NAME.to_owned()),
                namespace: Some(self.namespace.clone()),
                resource_version,
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(self.holder.clone()),
                lease_duration_seconds: i32::try_from(TERM.as_secs()).ok(),
                renew_time: Some(MicroTime(jiff::Timestamp::now())),
                ..LeaseSpec::default()
            }),
        }
    }
}

fn conflict_is_no(result: Result<(), kube::Error>) -> Result<bool, kube::Error> {
    match result {
        Ok(()) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}
