//! The PostgreSQL side of the backend trait.
//!
//! Owns connections, SQL texts and the driver's types. Nothing outside this file and `postgres/`
//! names them. This file says which act needs which transaction; the acts are below.

mod binary;
mod bookkeeping;
mod catalog;
mod chunks;
mod claim;
mod connect;
mod copy;
mod credentials;
mod fault;
mod identity;
mod lane_session;
mod ledger;
mod read;
mod rejects;
mod scan;
mod sql;
mod tls;
mod triggers;

pub use bookkeeping::{ddl, grants};

use crate::backend::bypass::BypassRead;
use crate::backend::claim::{
    Claim, ClaimRequest, LaneChange, LaneClaim, Leave, SlotHolder, Takeover, TakeoverRequest,
};
use crate::backend::flush::{AsOf, Fence, LaneSession, WriterId};
use crate::backend::load::{Chunk, KeyRange, LoadInfo, LoadSpec, Scan, ScanRequest};
use crate::backend::reject::RejectEntry;
use crate::backend::{Backend, BackendFuture, BackendIdentity};
use crate::error::{BackendError, Reason};
use cachetier_model::node_config::{NodeConfig, TableConfig};
use cachetier_model::{GroupSchema, Instance, LookupId, RootKey, Value};
use connect::{Pool, Pooled};
use parking_lot::RwLock;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How to reach the database, and how much of it to use.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Directory with `uri`, or `host`, `port`, `dbname`, `username`, `password`; optional
    /// `ca.crt`, `tls.crt`, `tls.key`. Read again at every connect.
    pub credentials_dir: PathBuf,
    /// Schema of the cached tables.
    pub schema: String,
    /// Connections of this process at most, lanes included.
    pub connections_max: u32,
    /// How many of them the lanes take; 0 for a process without lanes.
    pub lanes: u16,
    /// Shown in the backend's list of sessions.
    pub application_name: String,
    /// Longest time until a connection is open, everything included: what the first caller waits
    /// when the backend has gone silent.
    pub connect_timeout: Duration,
    /// Longest time of one statement.
    pub statement_timeout: Duration,
    pub lock_timeout: Duration,
    /// Longest time a transaction of ours may stand still while it holds the fence (R13).
    pub idle_in_transaction_timeout: Duration,
}

impl PostgresOptions {
    pub fn new(credentials_dir: impl Into<PathBuf>) -> Self {
        Self {
            credentials_dir: credentials_dir.into(),
            schema: "public".to_owned(),
            connections_max: 8,
            lanes: 4,
            application_name: "cachetier".to_owned(),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(60),
            lock_timeout: Duration::from_secs(10),
            idle_in_transaction_timeout: Duration::from_secs(10),
        }
    }

    pub fn from_config(config: &NodeConfig, node: &str) -> Self {
        Self {
            schema: config.backend.schema.clone(),
            connections_max: config.backend.max_connections,
            lanes: config.write_through.lanes.max(1),
            application_name: format!("cachetier {} {node}", config.group.name),
            ..Self::new(&config.backend.credentials_dir)
        }
    }
}

/// The schema in use, with the texts compiled from it.
struct Compiled {
    schema: Arc<GroupSchema>,
    /// Per table: its rows for an array of root keys.
    reads: Vec<String>,
}

pub struct PostgresBackend {
    options: Arc<PostgresOptions>,
    pool: Pool,
    compiled: RwLock<Option<Arc<Compiled>>>,
}

impl PostgresBackend {
    /// Opens nothing yet. Fails when the lanes alone would exceed the connection budget.
    pub fn new(options: PostgresOptions) -> Result<Self, BackendError> {
        let options = Arc::new(options);
        let pool = Pool::new(Arc::clone(&options))?;
        Ok(Self { options, pool, compiled: RwLock::new(None) })
    }

    fn compiled(&self) -> Result<Arc<Compiled>, BackendError> {
        self.compiled.read().clone().ok_or_else(|| {
            BackendError::new("use the schema", Reason::Internal, "no schema was set yet")
        })
    }

    /// Runs `act` inside one transaction that commits synchronously.
    async fn transaction<T>(
        &self,
        name: &'static str,
        act: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let commit = "SET LOCAL synchronous_commit = on";
        self.within(name, connect::begin(&self.options, "READ WRITE", commit), act).await
    }

    /// Runs `act` on one snapshot, of a primary.
    async fn snapshot<T>(
        &self,
        name: &'static str,
        act: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        self.within(name, connect::begin_snapshot(&self.options, ""), act).await
    }

    async fn within<T>(
        &self,
        name: &'static str,
        begin: String,
        act: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let pooled = self.pool.take().await?;
        let exchange = async {
            let client = pooled.client()?;
            let simple = |error| fault::from_driver(name, &error);
            let began = client.batch_execute(&begin).await;
            began.map_err(|error| fault::from_begin(name, &error))?;
            let answer = act(client).await?;
            client.batch_execute("COMMIT").await.map_err(simple)?;
            Ok(answer)
        };
        let answer = connect::within(&self.options, name, exchange).await?;
        pooled.give_back();
        Ok(answer)
    }

    /// Runs `act` on a pooled connection; the transactions are its own.
    async fn plain<T>(
        &self,
        name: &'static str,
        act: impl AsyncFnOnce(&tokio_postgres::Client) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let pooled: Pooled = self.pool.take().await?;
        let answer = connect::within(&self.options, name, async { act(pooled.client()?).await });
        let answer = answer.await?;
        pooled.give_back();
        Ok(answer)
    }
}

impl Backend for PostgresBackend {
    fn identify(&self) -> BackendFuture<'_, BackendIdentity> {
        Box::pin(self.plain("identify the backend", identity::identify))
    }

    fn discover<'a>(&'a self, tables: &'a [TableConfig]) -> BackendFuture<'a, GroupSchema> {
        Box::pin(self.snapshot("discover tables", async |client: &tokio_postgres::Client| {
            catalog::discover(client, &self.options.schema, tables).await
        }))
    }

    fn use_schema(&self, schema: Arc<GroupSchema>) {
        let reads = schema.tables.iter().map(|t| read::select_by_root_key(&schema, t)).collect();
        *self.compiled.write() = Some(Arc::new(Compiled { schema, reads }));
    }

    fn prepare_bookkeeping(&self) -> BackendFuture<'_, ()> {
        Box::pin(self.plain("prepare the bookkeeping schema", bookkeeping::prepare))
    }

    fn claim(&self, request: ClaimRequest) -> BackendFuture<'_, Claim> {
        Box::pin(self.transaction("claim the group", async move |client| {
            claim::claim(client, &self.options.schema, &request).await
        }))
    }

    fn settle_claim<'a>(
        &'a self,
        group_uid: &'a str,
        node: &'a str,
        token: u64,
    ) -> BackendFuture<'a, ()> {
        Box::pin(self.transaction("settle the claim", async move |client| {
            claim::settle(client, group_uid, node, token).await
        }))
    }

    fn take_slots(&self, request: TakeoverRequest) -> BackendFuture<'_, Takeover> {
        Box::pin(self.transaction("take slots over", async move |client| {
            claim::take_slots(client, &request).await
        }))
    }

    fn holders<'a>(&'a self, group_uid: &'a str) -> BackendFuture<'a, Vec<SlotHolder>> {
        Box::pin(self.snapshot("read who owns the slots", async move |client| {
            claim::holders(client, group_uid).await
        }))
    }

    fn change_lanes(&self, change: LaneChange) -> BackendFuture<'_, Option<Vec<LaneClaim>>> {
        Box::pin(self.transaction("change the lane map", async move |client| {
            claim::change_lanes(client, &change).await
        }))
    }

    fn forget_group<'a>(&'a self, group_uid: &'a str) -> BackendFuture<'a, ()> {
        Box::pin(self.transaction("remove the group's bookkeeping", async move |client| {
            claim::forget_group(client, group_uid).await
        }))
    }

    fn leave_group(&self, leave: Leave) -> BackendFuture<'_, Vec<String>> {
        Box::pin(self.transaction("leave the group", async move |client| {
            claim::leave_group(client, &leave).await
        }))
    }

    fn open_lane(&self, writer: WriterId) -> BackendFuture<'_, Box<dyn LaneSession>> {
        Box::pin(async move {
            let schema = self.compiled()?;
            let client = connect::open(&self.options).await?;
            let options = Arc::clone(&self.options);
            let triggered = std::collections::HashSet::new();
            let lane = lane_session::PostgresLane { client, writer, options, schema, triggered };
            Ok(Box::new(lane) as Box<dyn LaneSession>)
        })
    }

    fn read_instances<'a>(
        &'a self,
        keys: &'a [RootKey],
        as_of: Option<&'a AsOf>,
    ) -> BackendFuture<'a, Vec<Option<Instance>>> {
        Box::pin(self.plain("read instances", async move |client| {
            let compiled = self.compiled()?;
            read::read_instances(client, &self.options, &compiled, keys, as_of).await
        }))
    }

    fn read_past<'a>(
        &'a self,
        key: &'a RootKey,
        group_uid: &'a str,
    ) -> BackendFuture<'a, BypassRead> {
        Box::pin(self.plain("read past the store", async move |client| {
            let compiled = self.compiled()?;
            read::read_past(client, &self.options, &compiled, key, group_uid).await
        }))
    }

    fn resolve_lookup<'a>(
        &'a self,
        lookup: LookupId,
        values: &'a [Value],
        as_of: Option<&'a AsOf>,
    ) -> BackendFuture<'a, Option<RootKey>> {
        Box::pin(self.plain("resolve a lookup key", async move |client| {
            let compiled = self.compiled()?;
            read::resolve_lookup(client, &self.options, &compiled, lookup, values, as_of).await
        }))
    }

    fn expected_rows(&self) -> BackendFuture<'_, Vec<u64>> {
        Box::pin(self.snapshot("estimate rows", async move |client| {
            let compiled = self.compiled()?;
            catalog::expected_rows(client, &compiled.schema).await
        }))
    }

    fn plan_chunks<'a>(&'a self, chunks: u32, filter: &'a str) -> BackendFuture<'a, Vec<KeyRange>> {
        Box::pin(self.snapshot("plan the chunks of a load", async move |client| {
            let compiled = self.compiled()?;
            let expected = catalog::expected_rows(client, &compiled.schema).await?;
            let roots = expected.first().copied().unwrap_or(0);
            chunks::plan_chunks(client, &compiled, chunks, filter, roots).await
        }))
    }

    fn check_filter<'a>(&'a self, filter: &'a str) -> BackendFuture<'a, ()> {
        Box::pin(self.snapshot("check the condition of loads", async move |client| {
            let compiled = self.compiled()?;
            scan::check_filter(client, &compiled, filter).await
        }))
    }

    fn open_scan(&self, request: ScanRequest) -> BackendFuture<'_, Box<dyn Scan>> {
        Box::pin(async move {
            let compiled = self.compiled()?;
            let (client, permit) = self.pool.take().await?.keep()?;
            let options = Arc::clone(&self.options);
            let opening = scan::open(client, permit, options, compiled, request);
            let scan = connect::within(&self.options, "scan the backend", opening).await?;
            Ok(Box::new(scan) as Box<dyn Scan>)
        })
    }

    fn create_load(&self, spec: LoadSpec) -> BackendFuture<'_, LoadInfo> {
        Box::pin(self.transaction("create a load", async move |client| {
            ledger::create(client, &spec).await?;
            let info = ledger::info(client, &spec.group_uid, &spec.load_id).await?;
            info.ok_or_else(|| {
                BackendError::new("create a load", Reason::Internal, "the load is not there")
            })
        }))
    }

    fn load_info<'a>(
        &'a self,
        group_uid: &'a str,
        load_id: &'a str,
    ) -> BackendFuture<'a, Option<LoadInfo>> {
        Box::pin(self.snapshot("read a load", async move |client| {
            ledger::info(client, group_uid, load_id).await
        }))
    }

    fn take_chunk<'a>(
        &'a self,
        group_uid: &'a str,
        load_id: &'a str,
        worker: &'a str,
        lease: Duration,
    ) -> BackendFuture<'a, Option<Chunk>> {
        Box::pin(self.transaction("take a chunk", async move |client| {
            ledger::take(client, group_uid, load_id, worker, lease).await
        }))
    }

    fn renew_chunk<'a>(&'a self, chunk: &'a Chunk, lease: Duration) -> BackendFuture<'a, bool> {
        Box::pin(self.transaction("renew a chunk", async move |client| {
            ledger::on_chunk(client, chunk, ledger::Act::Renew(lease)).await
        }))
    }

    fn finish_chunk<'a>(&'a self, chunk: &'a Chunk, instances: u64) -> BackendFuture<'a, bool> {
        Box::pin(self.transaction("finish a chunk", async move |client| {
            ledger::on_chunk(client, chunk, ledger::Act::Finish(instances)).await
        }))
    }

    fn give_back_chunk<'a>(&'a self, chunk: &'a Chunk) -> BackendFuture<'a, ()> {
        Box::pin(self.transaction("give a chunk back", async move |client| {
            ledger::on_chunk(client, chunk, ledger::Act::GiveBack).await.map(|_| ())
        }))
    }

    fn list_rejects<'a>(
        &'a self,
        group_uid: &'a str,
        limit: u32,
    ) -> BackendFuture<'a, Vec<RejectEntry>> {
        Box::pin(self.snapshot("list rejects", async move |client| {
            rejects::list(client, group_uid, limit).await
        }))
    }

    fn reject_tail(&self, id: u64) -> BackendFuture<'_, Vec<RejectEntry>> {
        Box::pin(
            self.snapshot("read a reject", async move |client| rejects::tail(client, id).await),
        )
    }

    fn discard_reject<'a>(&'a self, id: u64, by: &'a Fence) -> BackendFuture<'a, u32> {
        Box::pin(self.transaction("discard a reject", async move |client| {
            rejects::discard(client, id, by).await
        }))
    }

    fn replay_reject<'a>(&'a self, id: u64, by: &'a Fence) -> BackendFuture<'a, u32> {
        Box::pin(self.transaction("replay a reject", async move |client| {
            let compiled = self.compiled()?;
            rejects::replay(client, &compiled, id, by).await
        }))
    }
}
