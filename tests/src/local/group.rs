//! A cache group of real processes: PostgreSQL, certificates, nodes, and the operator's part
//! (pushing topologies) played by the test.

use super::{NodeProcess, eventually, hlr};
use anyhow::{Context, Result, ensure};
use cachetier_client::wire::{CompareProgress, CompareRequest, StatusResponse};
use cachetier_client::{AdminClient, Channels, Client, Endpoint, Options, TlsIdentity};
use cachetier_model::{Epoch, NodeEntry, Topology};
use futures::StreamExt;
use hlr_bench::stage::node::built_for_tests;
use hlr_bench::stage::{Certificates, Folder, Launch, Postgres, ServerSettings, ports};
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// Tables, what is in them, and what a node is told of them.
pub struct Dataset {
    /// Makes and fills the tables.
    pub sql: String,
    pub backend_schema: String,
    /// The `tables` part of a node's configuration.
    pub config: String,
}

/// How a group is made.
pub struct TestGroupOptions {
    pub nodes: usize,
    pub subscribers: i64,
    /// Other tables than the subscribers'.
    pub dataset: Option<Dataset>,
    /// Lines appended to every node's configuration, in YAML.
    pub extra: String,
}

impl Default for TestGroupOptions {
    fn default() -> Self {
        Self { nodes: 1, subscribers: 200, dataset: None, extra: String::new() }
    }
}

pub struct TestGroup {
    pub nodes: Vec<NodeProcess>,
    pub postgres: Postgres,
    pub database: tokio_postgres::Client,
    pub certificates: Certificates,
    pub topology: Option<Topology>,
    uid: String,
    backend_schema: String,
    tables: String,
    directory: Folder,
}

pub const DATABASE: &str = "telecom";
/// Start, claim and takeover of a debug build on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

impl TestGroup {
    /// Everything running, the first topology pushed, every node serving its slots.
    pub async fn start(options: TestGroupOptions) -> Result<Self> {
        let mut group = Self::without_topology(options).await?;
        group.scale(group.nodes.len()).await?;
        Ok(group)
    }

    /// The processes run, and wait for a topology.
    pub async fn without_topology(options: TestGroupOptions) -> Result<Self> {
        let directory = Folder::new()?;
        let certificates = Certificates::new(&directory.path().join("tls"))?;
        let postgres = Postgres::start(ServerSettings::of_tests()).await?;
        postgres.create_database(DATABASE).await?;
        let database = postgres.connect(DATABASE).await?;
        let dataset = options.dataset.unwrap_or_else(|| hlr::dataset(options.subscribers));
        database.batch_execute(&dataset.sql).await.context("making the tables")?;
        postgres.write_credentials(&directory.path().join("backend"), DATABASE)?;
        let uid = uuid::Uuid::new_v4().to_string();
        let mut group = Self {
            nodes: Vec::new(),
            postgres,
            database,
            certificates,
            topology: None,
            uid,
            backend_schema: dataset.backend_schema,
            tables: dataset.config,
            directory,
        };
        for n in 0..options.nodes {
            let node = group.make_node(&format!("hlr-{n}"), &options.extra)?;
            group.nodes.push(node);
        }
        for node in &mut group.nodes {
            node.start()?;
        }
        Ok(group)
    }

    /// A node's directory and configuration, not started.
    pub fn make_node(&self, name: &str, extra: &str) -> Result<NodeProcess> {
        let directory = self.directory.path().join(name);
        std::fs::create_dir_all(&directory)?;
        let node = NodeProcess::new(name, &directory, ports::free()?, ports::free()?);
        let tls = self.certificates.role("node")?;
        let config = self.config(&node, &tls, extra);
        std::fs::write(directory.join("node.yaml"), config)?;
        Ok(node)
    }

    fn config(&self, node: &NodeProcess, tls: &Path, extra: &str) -> String {
        format!(
            "group: {{name: telecom/hlr, uid: {uid}}}\n\
             backend: {{credentialsDir: {root}/backend, schema: {schema}, maxConnections: 8}}\n\
             tables: {tables}\n\
             journal: {{directory: {own}/journal, capacityBytes: 268435456}}\n\
             listen: {{grpc: '127.0.0.1:{grpc}', admin: '127.0.0.1:{admin}'}}\n\
             tls: {{directory: {tls}}}\n{extra}\n",
            uid = self.uid,
            root = self.directory.path().display(),
            schema = self.backend_schema,
            tables = self.tables,
            own = node.directory.display(),
            grpc = node.grpc_port,
            admin = node.admin_port,
            tls = tls.display(),
        )
    }

    /// The preload's process, not started: the first node's settings, a loader's certificate.
    pub fn preload(&self, load_id: &str, extra: &str) -> Result<Command> {
        let path = self.directory.path().join(format!("preload-{load_id}.yaml"));
        let tls = self.certificates.role("loader")?;
        std::fs::write(&path, self.config(self.node(0)?, &tls, extra))?;
        let nodes: Vec<String> = self.nodes.iter().map(|n| n.endpoint().address).collect();
        let mut command = Command::from(Launch::KILLED.command(built_for_tests()?));
        command.arg("preload").arg("--config").arg(path).args(["--load-id", load_id]);
        command.args(["--parallelism", "2", "--nodes", &nodes.join(",")]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        Ok(command)
    }

    /// Runs a whole preload.
    pub async fn load(&self, load_id: &str, extra: &str) -> Result<()> {
        let output = self.preload(load_id, extra)?.output().await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "the preload failed: {text}");
        Ok(())
    }

    pub fn options(&self, role: &str) -> Result<Options> {
        let tls = Some(TlsIdentity::Directory(self.certificates.role(role)?));
        Ok(Options { tls, ..Options::default() })
    }

    /// A client of the role `client`.
    pub async fn client(&self) -> Result<Client> {
        let seeds: Vec<Endpoint> = self.nodes.iter().map(NodeProcess::endpoint).collect();
        Ok(Client::connect(seeds, self.options("client")?).await?)
    }

    /// A client that asks only this node, as a gateway would.
    pub async fn client_of(&self, node: usize) -> Result<Client> {
        let mut options = self.options("client")?;
        options.routing = cachetier_client::Routing::Seeds;
        Ok(Client::connect([self.node(node)?.endpoint()], options).await?)
    }

    pub fn node(&self, node: usize) -> Result<&NodeProcess> {
        self.nodes.get(node).with_context(|| format!("there is no node {node}"))
    }

    /// Admin calls with a certificate of this role.
    pub fn admin_as(&self, role: &str, node: usize) -> Result<AdminClient> {
        let channels = Channels::new(self.options(role)?);
        Ok(AdminClient::new(channels.node(&self.node(node)?.endpoint())))
    }

    pub fn admin(&self, node: usize) -> Result<AdminClient> {
        self.admin_as("operator", node)
    }

    /// Pushes a topology in which the first `count` nodes share the slots, and waits until they
    /// serve them and the others hold none.
    pub async fn scale(&mut self, count: usize) -> Result<()> {
        self.push_topology(count).await?;
        self.settled(count).await
    }

    pub async fn push_topology(&mut self, count: usize) -> Result<()> {
        let entry =
            |n: &NodeProcess| NodeEntry { name: n.name.clone(), address: n.endpoint().address };
        let members: Vec<NodeEntry> = self.nodes.iter().take(count).map(entry).collect();
        let topology = match &self.topology {
            Some(held) => held.rebalanced(members)?,
            None => Topology::initial(&self.uid, Epoch(1), members)?,
        };
        for n in 0..self.nodes.len() {
            eventually("the node to take the topology", PATIENCE, || async {
                Ok(Some(self.admin(n)?.apply_topology(&topology).await?))
            })
            .await?;
        }
        self.topology = Some(topology);
        Ok(())
    }

    /// Waits until the first `count` nodes serve all their slots and the others hold none.
    pub async fn settled(&self, count: usize) -> Result<()> {
        for n in 0..self.nodes.len() {
            eventually(&format!("node {n} to hold its slots"), PATIENCE, || async move {
                let status = self.status(n).await?;
                let serving = status.slots_serving == status.slots_assigned;
                let fits = if n < count { status.slots_assigned > 0 } else { true };
                ensure!(
                    serving && fits && status.slots_leaving == 0,
                    "{} of {} served, {} leaving, {:?}",
                    status.slots_serving,
                    status.slots_assigned,
                    status.slots_leaving,
                    status.problems
                );
                Ok(Some(()))
            })
            .await?;
        }
        Ok(())
    }

    pub async fn status(&self, node: usize) -> Result<StatusResponse> {
        Ok(self.admin(node)?.status().await?)
    }

    /// Waits until nothing waits for the backend on any running node.
    pub async fn flushed(&self) -> Result<()> {
        for n in 0..self.nodes.len() {
            eventually("the queue to be empty", PATIENCE, || async move {
                let backlog = self.status(n).await?.backlog.unwrap_or_default();
                ensure!(backlog.transactions == 0, "{} wait", backlog.transactions);
                Ok(Some(()))
            })
            .await?;
        }
        Ok(())
    }

    /// Sums of a comparison of everything on every node.
    pub async fn compare(&self) -> Result<CompareProgress> {
        let mut sum = CompareProgress { done: true, ..Default::default() };
        for n in 0..self.nodes.len() {
            let mut progress = pin!(self.admin(n)?.compare(CompareRequest::default()).await?);
            let mut last = None;
            while let Some(step) = progress.next().await {
                last = Some(step?);
            }
            let last = last.filter(|l| l.done).context("the comparison did not end")?;
            sum.instances += last.instances;
            sum.rows += last.rows;
            sum.not_loaded += last.not_loaded;
            sum.differences += last.differences;
        }
        Ok(sum)
    }

    /// A subscriber's `vlr_location` in the backend.
    pub async fn vlr_in_backend(&self, id: i64) -> Result<i64> {
        let sql = "SELECT vlr_location FROM subscriber WHERE s_id = $1";
        Ok(self.database.query_one(sql, &[&id]).await?.get(0))
    }
}
