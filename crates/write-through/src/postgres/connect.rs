//! Opens connections and runs their driver; the bounded pool for everything that is not a lane.
//!
//! The node's budget: lanes have one connection each, the rest of `connections_max` is the pool.

use super::PostgresOptions;
use super::{credentials, fault, tls};
use crate::error::{BackendError, Reason};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::Client;
use tokio_postgres::config::TargetSessionAttrs;

/// Addresses of one server, or servers, that silence of the ones before leaves time for.
const ADDRESSES_TRIED: u32 = 2;
/// Above the statement timeout: after this the connection is given up.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);
/// Bytes that the peer does not acknowledge for this long end the connection.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(15);
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Opens one connection with the credentials as they are now. Name lookup, every address tried, TLS
/// and authentication together take no longer than the connect timeout: a miss waits for this.
pub(super) async fn open(options: &PostgresOptions) -> Result<Client, BackendError> {
    const ACT: &str = "connect to the backend";
    let credentials = credentials::read(&options.credentials_dir)?;
    let mut config = credentials.config;
    config
        .application_name(&options.application_name)
        .connect_timeout(options.connect_timeout / ADDRESSES_TRIED)
        .tcp_user_timeout(UNACKNOWLEDGED_MAX)
        .keepalives(true)
        .keepalives_idle(KEEPALIVE_IDLE)
        .keepalives_interval(KEEPALIVE_INTERVAL)
        .keepalives_retries(KEEPALIVE_RETRIES);
    if config.get_hosts().len() > 1 {
        // one of them is the primary, and which one changes
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    }
    let connector = tls::connector(&credentials.tls)?;
    let connecting = config.connect(connector);
    let (client, connection) = tokio::time::timeout(options.connect_timeout, connecting)
        .await
        .map_err(|_| fault::timed_out(ACT))?
        .map_err(|error| fault::from_driver(ACT, &error))?;
    tokio::spawn(async move {
        // its error reaches whoever uses the client; here it only ends the driver
        if connection.await.is_err() {
            tracing::debug!("a backend connection ended with an error");
        }
    });
    Ok(client)
}

/// Bounds any exchange by the statement timeout plus a margin.
pub(super) async fn within<T>(
    options: &PostgresOptions,
    act: &'static str,
    exchange: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    tokio::time::timeout(options.statement_timeout + ANSWER_MARGIN, exchange)
        .await
        .unwrap_or_else(|_| Err(fault::timed_out(act)))
}

/// Starts a transaction with our bounds on it. Set per transaction and not per session, so that
/// it also holds behind a pooler that hands out sessions by transaction.
pub(super) fn begin(options: &PostgresOptions, mode: &str, rest: &str) -> String {
    format!(
        "BEGIN {mode}; SET LOCAL statement_timeout = {}; SET LOCAL lock_timeout = {}; \
         SET LOCAL idle_in_transaction_session_timeout = {}; {rest}",
        options.statement_timeout.as_millis(),
        options.lock_timeout.as_millis(),
        options.idle_in_transaction_timeout.as_millis(),
    )
}

/// One snapshot to read from, of a primary: a standby refuses to begin what may write, also where
/// a pooler hides that the server is one now.
pub(super) fn begin_snapshot(options: &PostgresOptions, rest: &str) -> String {
    let rest = format!("SET TRANSACTION READ ONLY; {rest}");
    begin(options, "ISOLATION LEVEL REPEATABLE READ READ WRITE", &rest)
}

pub(super) struct Pool {
    options: Arc<PostgresOptions>,
    permits: Arc<Semaphore>,
    idle: Arc<Mutex<Vec<Client>>>,
}

impl Pool {
    pub(super) fn new(options: Arc<PostgresOptions>) -> Result<Self, BackendError> {
        let lanes = u32::from(options.lanes);
        if options.connections_max <= lanes {
            return Err(BackendError::new(
                "configure the backend",
                Reason::Configuration,
                format!(
                    "maxConnections is {} but the lanes alone take {lanes}; raise maxConnections \
                     or lower writeThrough.lanes",
                    options.connections_max
                ),
            ));
        }
        let permits = Arc::new(Semaphore::new((options.connections_max - lanes) as usize));
        Ok(Self { options, permits, idle: Arc::default() })
    }

    /// Waits for a free place, no longer than a statement may take, and gives a connection.
    pub(super) async fn take(&self) -> Result<Pooled, BackendError> {
        const ACT: &str = "connect to the backend";
        let place = Arc::clone(&self.permits).acquire_owned();
        let place = tokio::time::timeout(self.options.statement_timeout, place).await;
        let busy = |_| {
            let message = "all connections stayed in use; raise maxConnections if this goes on";
            BackendError::new(ACT, Reason::BackendBusy, message)
        };
        let closed = |_| BackendError::new(ACT, Reason::Internal, "the pool is closed");
        let permit = place.map_err(busy)?.map_err(closed)?;
        let idle = loop {
            let candidate = self.idle.lock().pop();
            match candidate {
                Some(client) if client.is_closed() => {}
                other => break other,
            }
        };
        let client = match idle {
            Some(client) => client,
            None => open(&self.options).await?,
        };
        Ok(Pooled { client: Some(client), idle: Arc::clone(&self.idle), permit })
    }
}

/// A connection of the pool. Goes back only by [`Pooled::give_back`], when nothing is open on it;
/// dropped otherwise, which ends whatever transaction it was in.
pub(super) struct Pooled {
    client: Option<Client>,
    idle: Arc<Mutex<Vec<Client>>>,
    permit: OwnedSemaphorePermit,
}

impl Pooled {
    pub(super) fn client(&self) -> Result<&Client, BackendError> {
        self.client.as_ref().ok_or_else(|| {
            BackendError::new("use a connection", Reason::Internal, "the connection was given back")
        })
    }

    /// Takes the connection out for good, with its place in the budget.
    pub(super) fn keep(self) -> Result<(Client, OwnedSemaphorePermit), BackendError> {
        let Self { client, permit, .. } = self;
        let client = client.ok_or_else(|| {
            BackendError::new("use a connection", Reason::Internal, "the connection was given back")
        })?;
        Ok((client, permit))
    }

    pub(super) fn give_back(mut self) {
        if let Some(client) = self.client.take().filter(|c| !c.is_closed()) {
            self.idle.lock().push(client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_connection_that_never_comes_back_is_told_so() {
        let options = PostgresOptions { connections_max: 1, lanes: 0, ..PostgresOptions::new("x") };
        let pool = Pool::new(Arc::new(options)).unwrap();
        let _held = Arc::clone(&pool.permits).try_acquire_owned().unwrap();
        let waited = tokio::time::timeout(Duration::from_secs(3_600), pool.take()).await;
        assert_eq!(waited.unwrap().err().unwrap().reason, Reason::BackendBusy);
    }

    #[tokio::test]
    async fn a_backend_that_accepts_and_stays_silent_costs_no_more_than_the_connect_timeout() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port().to_string();
        let folder = tempfile::tempdir().unwrap();
        let files = [("host", "127.0.0.1"), ("dbname", "d"), ("username", "u"), ("password", "p")];
        for (name, text) in files.into_iter().chain([("port", port.as_str())]) {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let connect_timeout = Duration::from_millis(200);
        let options = PostgresOptions { connect_timeout, ..PostgresOptions::new(folder.path()) };
        let opened = tokio::time::timeout(Duration::from_secs(4), open(&options)).await;
        assert_eq!(opened.unwrap().err().unwrap().reason, Reason::BackendUnreachable);
    }
}
