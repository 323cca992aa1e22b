//! The processes under torture: one node, one PostgreSQL, a proxy before each, a small volume.

use super::TortureOptions;
use super::proxy::Proxy;
use super::volume::Volume;
use crate::local::group::DATABASE;
use crate::local::{TestGroup, TestGroupOptions, eventually};
use anyhow::{Context, Result};
use cachetier_client::{Client, Endpoint, Options, Routing};
use hlr_bench::stage::ports;
use std::path::Path;
use std::time::Duration;

/// Restart, claim, replay and reconnect on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
const CONNECT_PATIENCE: Duration = Duration::from_secs(60);
/// A frozen node must not hold a writer longer than a round.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// Sixteen segments of the smallest size.
const JOURNAL_BYTES: u64 = 16 << 20;

pub struct Stage {
    /// Its one node is number 0.
    pub group: TestGroup,
    pub backend_proxy: Proxy,
    pub node_proxy: Proxy,
    // declared after the group: the node ends before its volume goes
    pub volume: Volume,
    pub postgres_down: bool,
}

impl Stage {
    pub async fn start(options: &TortureOptions) -> Result<Self> {
        let groups =
            TestGroupOptions { nodes: 0, subscribers: options.counters, ..Default::default() };
        let mut group = TestGroup::without_topology(groups).await?;
        prepare_rows(&group.database).await?;
        let extra = format!(
            "writeThrough: {{lanes: 4, maxDelayMs: 20, maxBatchRows: 500, backendCommit: {}}}",
            options.backend_commit
        );
        let node = group.make_node("hlr-0", &extra)?;
        small_journal(&node.directory.join("node.yaml"))?;
        let volume = Volume::mount(&node.directory.join("journal"))?;
        let backend_proxy = Proxy::start(ports::free()?, group.postgres.port()).await?;
        let root = node.directory.parent().context("the node's directory has a parent")?;
        std::fs::write(root.join("backend/port"), backend_proxy.port().to_string())?;
        let node_proxy = Proxy::start(ports::free()?, node.grpc_port).await?;
        group.nodes.push(node);
        group.nodes[0].start()?;
        group.scale(1).await?;
        Ok(Self { group, backend_proxy, node_proxy, volume, postgres_down: false })
    }

    /// Clients that reach the node through its proxy alone.
    pub async fn clients(&self, count: usize) -> Result<Vec<Client>> {
        let mut clients = Vec::new();
        // a few share a connection, so that one cut meets several of them
        for _ in 0..count.div_ceil(4) {
            let endpoint = Endpoint::new(format!("127.0.0.1:{}", self.node_proxy.port()));
            let client = eventually("a client to connect", CONNECT_PATIENCE, || async {
                let options = Options {
                    routing: Routing::Seeds,
                    read_timeout: CALL_TIMEOUT,
                    write_timeout: CALL_TIMEOUT,
                    retry_for: Duration::from_secs(1),
                    ..self.group.options("client")?
                };
                Ok(Some(Client::connect([endpoint.clone()], options).await?))
            })
            .await?;
            clients.extend((0..4).map(|_| client.clone()));
        }
        clients.truncate(count);
        Ok(clients)
    }

    /// Everything up and connected, the node serving.
    pub async fn heal(&mut self) -> Result<()> {
        self.volume.free()?;
        self.backend_proxy.refuse(false);
        self.node_proxy.refuse(false);
        self.start_postgres().await?;
        self.start_node()?;
        let settled = async {
            eventually("the node to serve again", PATIENCE, || async {
                self.group.settled(1).await.map(Some)
            })
            .await
        };
        settled.await
    }

    pub async fn start_postgres(&mut self) -> Result<()> {
        if !self.postgres_down {
            return Ok(());
        }
        // memory of the killed server may be in use for a moment
        eventually("PostgreSQL to start again", PATIENCE, || async {
            self.group.postgres.up().await.map(Some)
        })
        .await?;
        self.postgres_down = false;
        self.group.database = self.group.postgres.connect(DATABASE).await?;
        Ok(())
    }

    /// Starts the node when it does not run, for whatever reason.
    pub fn start_node(&mut self) -> Result<()> {
        let node = &mut self.group.nodes[0];
        if node.is_running() {
            return Ok(());
        }
        // reaps one that ended by itself, such as one whose journal failed
        let _ = node.kill();
        node.start()
    }

    pub async fn flushed(&self) -> Result<()> {
        eventually("the queue to be empty", PATIENCE, || async {
            let backlog = self.group.status(0).await?.backlog.unwrap_or_default();
            Ok((backlog.transactions == 0).then_some(()))
        })
        .await
    }

    pub fn keep_logs(&self, directory: &Path) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        std::fs::write(directory.join("node.log"), self.group.nodes[0].log())?;
        Ok(())
    }
}

/// A journal of many small segments: it needs a new one every few seconds, and a full volume is
/// noticed.
fn small_journal(config: &Path) -> Result<()> {
    let text = std::fs::read_to_string(config)?;
    let (before, rest) = text.split_once("capacityBytes: ").context("no journal in node.yaml")?;
    let rest = rest.trim_start_matches(|c: char| c.is_ascii_digit());
    Ok(std::fs::write(config, format!("{before}capacityBytes: {JOURNAL_BYTES}{rest}"))?)
}

/// Every counter starts at 0 with no events; the generated rows of table `access_info` go.
async fn prepare_rows(database: &tokio_postgres::Client) -> Result<()> {
    let sql = "UPDATE subscriber SET vlr_location = 0; DELETE FROM access_info;";
    Ok(database.batch_execute(sql).await?)
}
