//! One cache-node process over a database of the stage, with the clients that talk to it.

use super::launch::succeeded;
use super::{Certificates, Folder, Launch, Pinning, Postgres, Processors, cpu, eventually, ports};
use crate::population::tables::TABLES;
use anyhow::{Context, Result, anyhow, bail, ensure};
use cachetier_client::wire::StatusResponse;
use cachetier_client::{AdminClient, Channels, Client, Endpoint, Options, TlsIdentity};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Start and load of a large population on a busy machine.
const PATIENCE: Duration = Duration::from_secs(600);

/// What the experiment varies.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// `Sync` or `Relaxed`, as in the node's configuration.
    pub durability: &'static str,
    /// `Sync` or `Async`: the flush transactions' commits.
    pub backend_commit: &'static str,
    pub lanes: u16,
    pub max_batch_rows: u32,
    pub max_delay_ms: u64,
    pub memory_bytes: u64,
    /// Subscribers above this are left to the backend.
    pub cached_up_to: u64,
    /// Mutual TLS as in production, or plain text.
    pub tls: bool,
    /// HTTP/2 connections of the driver.
    pub connections: usize,
    /// The program.
    pub binary: PathBuf,
    /// The node's folder, with its journal, is made in it.
    pub volume: PathBuf,
}

/// A running node; killed and removed with the value.
pub struct Node {
    // the process ends before its folder goes, since `drop` comes before the fields
    directory: Folder,
    child: Child,
    servers: Processors,
    settings: NodeSettings,
    certificates: Certificates,
    grpc_port: u16,
}

impl Node {
    /// Starts the node on an empty journal and loads the cached share into it.
    pub async fn start(
        pinning: &Pinning,
        postgres: &Postgres,
        database: &str,
        settings: NodeSettings,
    ) -> Result<Self> {
        let directory = Folder::below(&settings.volume)?;
        let certificates = Certificates::new(&directory.path().join("tls"))?;
        postgres.write_credentials(&directory.path().join("backend"), database)?;
        let (grpc_port, admin_port) = (ports::free()?, ports::free()?);
        for role in ["node", "loader"] {
            certificates.role(role)?;
            let text = config(directory.path(), &settings, role, database, grpc_port, admin_port);
            std::fs::write(directory.path().join(format!("{role}.yaml")), text)?;
        }
        let servers = pinning.servers.clone();
        let child = launch(directory.path(), &servers, &settings.binary, grpc_port)?;
        let node = Self { directory, child, servers, settings, certificates, grpc_port };
        node.serving().await.with_context(|| node.last_words())?;
        node.load().await.context("loading the cached subscribers")?;
        Ok(node)
    }

    /// Tells the process to end, and waits; how long that took.
    pub fn end(&mut self) -> Result<Duration> {
        let (begun, id) = (Instant::now(), Pid::from_raw(self.child.id().try_into()?));
        kill_process(id.context("no process id")?, Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "the node ended with {status}; {}", self.last_words());
        Ok(begun.elapsed())
    }

    /// Starts the process on what the one before left; returns once every slot is served.
    pub async fn start_again(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        let (folder, binary) = (self.directory.path(), &self.settings.binary);
        self.child = launch(folder, &self.servers, binary, self.grpc_port)?;
        let all = u32::from(cachetier_model::SLOT_COUNT);
        while begun.elapsed() < PATIENCE {
            ensure!(!self.has_ended()?, "the node ended; {}", self.last_words());
            if self.status().await.is_ok_and(|status| status.slots_serving == all) {
                return Ok(begun.elapsed());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        bail!("the node does not serve every slot again; {}", self.last_words())
    }

    /// Where the slot images are.
    pub fn images(&self) -> PathBuf {
        self.directory.path().join("journal").join("images")
    }

    async fn serving(&self) -> Result<()> {
        eventually("the node to serve every slot", PATIENCE, || async {
            if self.has_ended()? {
                return Ok(Some(Err(anyhow!("the node's program ended"))));
            }
            let status = self.status().await?;
            let all = u32::from(cachetier_model::SLOT_COUNT);
            ensure!(status.slots_serving == all, "{:?}", status.problems);
            Ok(Some(Ok(())))
        })
        .await?
    }

    /// Whether the process is gone; it stays to be waited for.
    fn has_ended(&self) -> Result<bool> {
        let id = Pid::from_raw(self.child.id().try_into()?).context("no process id")?;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(WaitId::Pid(id), look)?.is_some())
    }

    async fn load(&self) -> Result<()> {
        let mut command = Launch::KILLED.command(&self.settings.binary);
        command.arg("preload").arg("--config").arg(self.directory.path().join("loader.yaml"));
        command.args(["--load-id", "bench", "--nodes", &self.endpoint().address]);
        let mut command = tokio::process::Command::from(command);
        let output = command.kill_on_drop(true).output().await.context("starting the preload")?;
        succeeded(command.as_std(), &output)
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::new(format!("127.0.0.1:{}", self.grpc_port))
    }

    fn options(&self, role: &str) -> Result<Options> {
        let identity = || self.certificates.role(role).map(TlsIdentity::Directory);
        Ok(Options {
            tls: self.settings.tls.then(identity).transpose()?,
            connections_per_node: self.settings.connections,
            ..Options::default()
        })
    }

    pub async fn client(&self) -> Result<Client> {
        Ok(Client::connect([self.endpoint()], self.options("client")?).await?)
    }

    pub fn admin(&self) -> Result<AdminClient> {
        let channels = Channels::new(self.options("operator")?);
        Ok(AdminClient::new(channels.node(&self.endpoint())))
    }

    pub async fn status(&self) -> Result<StatusResponse> {
        Ok(self.admin()?.status().await?)
    }

    /// Processor time of the process so far.
    pub fn cpu(&self) -> Result<Duration> {
        cpu::of_process(self.child.id())
    }

    fn last_words(&self) -> String {
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().rev().take(5).collect();
        format!("the node's last lines, newest first:\n{}", lines.join("\n"))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(folder: &Path, servers: &Processors, binary: &Path, grpc_port: u16) -> Result<Child> {
    let log = File::options().create(true).append(true).open(folder.join("log"))?;
    let launch = Launch { processors: Some(servers), ..Launch::KILLED };
    launch
        .command(binary)
        .arg("--config")
        .arg(folder.join("node.yaml"))
        .args(["--node-name", "hlr-0", "--advertise", &format!("127.0.0.1:{grpc_port}")])
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting cache-node")
}

/// The program to run: this one, or the one beside this program.
pub fn program(given: Option<&Path>) -> Result<PathBuf> {
    let path = match given {
        Some(path) => path.to_owned(),
        None => std::env::current_exe()?.with_file_name("cache-node"),
    };
    let runs =
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0);
    ensure!(runs, "{} is no program; build cache-node or give --node-binary", path.display());
    Ok(path)
}

/// The program under test: of `CACHETIER_BIN_DIR`, or built now beside this test.
pub fn built_for_tests() -> Result<&'static Path> {
    static BINARY: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = BINARY.get_or_init(|| find().map_err(|e| format!("{e:#}")));
    found.as_deref().map_err(|e| anyhow::anyhow!("{e}"))
}

fn find() -> Result<PathBuf> {
    if let Some(directory) = std::env::var_os("CACHETIER_BIN_DIR") {
        return Ok(PathBuf::from(directory).join("cache-node"));
    }
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", "cache-node", "--bin", "cache-node"])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(".."))
        .status()?;
    ensure!(status.success(), "building cache-node failed");
    let test = std::env::current_exe()?;
    let target = test.parent().and_then(Path::parent).context("no target directory")?;
    Ok(target.join("cache-node"))
}

fn config(
    root: &Path,
    settings: &NodeSettings,
    role: &str,
    database: &str,
    grpc_port: u16,
    admin_port: u16,
) -> String {
    let root = root.display();
    let [subscriber, access_info, special_facility, call_forwarding] = TABLES;
    let NodeSettings { durability, backend_commit, lanes, max_batch_rows, .. } = settings;
    let NodeSettings { max_delay_ms, memory_bytes, cached_up_to, tls, .. } = settings;
    let tls = match tls {
        true => format!("tls: {{directory: {root}/tls/{role}}}\n"),
        false => String::new(),
    };
    format!(
        "group: {{name: telecom/hlr, uid: {database}}}\n\
         backend: {{credentialsDir: {root}/backend, schema: public, maxConnections: {connections}}}\n\
         tables:\n\
         - {{name: {subscriber}, lookupKeys: [[sub_nbr]]}}\n\
         - {{name: {access_info}, parent: {subscriber}}}\n\
         - {{name: {special_facility}, parent: {subscriber}}}\n\
         - {{name: {call_forwarding}, parent: {special_facility}}}\n\
         journal: {{directory: {root}/journal, durability: {durability}}}\n\
         memory: {{capacityBytes: {memory_bytes}}}\n\
         writeThrough: {{lanes: {lanes}, maxBatchRows: {max_batch_rows}, \
         maxDelayMs: {max_delay_ms}, backendCommit: {backend_commit}}}\n\
         preload: {{mode: Background, where: 's_id <= {cached_up_to}'}}\n\
         listen: {{grpc: '127.0.0.1:{grpc_port}', admin: '127.0.0.1:{admin_port}'}}\n\
         topology: Standalone\n{tls}",
        connections = lanes + 6,
    )
}
