//! A throw-away PostgreSQL on a free port of 127.0.0.1.

use super::launch::run;
use super::{Folder, Launch, Processors, cpu, eventually, ports};
use crate::backend::connect;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

const BINARIES: &str = "/usr/lib/postgresql/15/bin";
const USER: &str = "postgres";
/// A server that was told to end and has not is killed after this.
const END_LIMIT: Duration = Duration::from_secs(60);

/// Pages of one subscriber with its children and their indexes, generously.
const BUFFER_BYTES_PER_SUBSCRIBER: u64 = 3_000;
/// The experiment keeps a cached and a direct copy of the population.
const COPIES: u64 = 2;
const BUFFER_BYTES_MIN: u64 = 256 << 20;

/// How a server is set up beyond its address.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    pub processors: Option<Processors>,
    /// Lines of `postgresql.conf`.
    pub lines: String,
}

impl ServerSettings {
    /// Small, and careless of power failures.
    pub fn of_tests() -> Self {
        Self { processors: None, lines: "shared_buffers = 64MB\nfsync = off\n".to_owned() }
    }

    /// As in production, with `shared_buffers` that hold two copies of the population.
    pub fn of_experiment(processors: &Processors, subscribers: u64) -> Self {
        let buffers =
            BUFFER_BYTES_MIN.max(subscribers * COPIES * BUFFER_BYTES_PER_SUBSCRIBER) >> 20;
        let lines = format!(
            "shared_buffers = {buffers}MB\nsynchronous_commit = on\nfsync = on\n\
             full_page_writes = on\nmax_wal_size = 8GB\ncheckpoint_timeout = 15min\n\
             track_wal_io_timing = on\n"
        );
        Self { processors: Some(processors.clone()), lines }
    }
}

/// A running server; stopped and removed with the value, and stopped with the thread that started
/// it.
pub struct Postgres {
    folder: Folder,
    port: u16,
    processors: Option<Processors>,
    /// Set by `up`; taken by `stop`, `crash` and `kill`.
    server: Mutex<Option<Child>>,
}

impl Postgres {
    pub async fn start(settings: ServerSettings) -> Result<Self> {
        ensure!(
            Path::new(BINARIES).join("initdb").exists(),
            "{BINARIES} is missing: apt-get install postgresql-15"
        );
        let ServerSettings { processors, lines } = settings;
        let (folder, port) = (Folder::new()?, ports::free()?);
        if geteuid().is_root() {
            run(Command::new("chown").arg(USER).arg(folder.path()))?;
        }
        let server = Self { folder, port, processors, server: Mutex::default() };
        let mut initdb = server.command("initdb");
        run(initdb.args(["-A", "trust", "-U", USER, "--no-sync", "-D"]).arg(server.data()))?;
        let address = format!(
            "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\n\
             max_connections = 200\nlog_min_messages = warning\n",
            server.folder.path().display()
        );
        std::fs::write(server.data().join("postgresql.auto.conf"), address + &lines)?;
        server.up().await?;
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The server's programs refuse to run as root.
    fn command(&self, program: &str) -> Command {
        let launch = Launch {
            end_signal: "QUIT",
            processors: self.processors.as_ref(),
            user: geteuid().is_root().then_some(USER),
        };
        let mut command = launch.command(Path::new(BINARIES).join(program));
        command.current_dir(self.folder.path());
        command
    }

    /// Starts the server (again).
    pub async fn up(&self) -> Result<()> {
        let log = self.folder.path().join("log");
        let log = File::options().create(true).append(true).open(log)?;
        let mut server = self.command("postgres");
        server.arg("-D").arg(self.data()).stdout(log.try_clone()?).stderr(log);
        *self.server() = Some(server.spawn().context("starting postgres")?);
        eventually("PostgreSQL to answer", Duration::from_secs(30), || async {
            self.connect("postgres").await.map(Some)
        })
        .await
        .map(drop)
    }

    /// Ends its sessions, writes everything and stops.
    pub fn stop(&self) -> Result<()> {
        self.end(Signal::INT)
    }

    /// Stops at once, without order; the next start recovers.
    pub fn crash(&self) -> Result<()> {
        self.end(Signal::QUIT)
    }

    fn end(&self, how: Signal) -> Result<()> {
        let Some(mut server) = self.server().take() else { return Ok(()) };
        // it may have ended by itself
        let _ = kill_process(pid_of(&server)?, how);
        let asked = Instant::now();
        while server.try_wait()?.is_none() {
            if asked.elapsed() > END_LIMIT {
                server.kill()?;
                server.wait()?;
                bail!("PostgreSQL did not end within {} s and was killed", END_LIMIT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kill -9 of the server and all its processes, as the kernel does when memory is short.
    pub fn kill(&self) -> Result<()> {
        let children = self.children()?;
        let Some(mut server) = self.server().take() else { return Ok(()) };
        // the postmaster first, so that it replaces nobody
        server.kill()?;
        for child in children {
            // it may have ended by itself
            let _ = kill_process(child, Signal::KILL);
        }
        server.wait()?;
        Ok(())
    }

    /// Stops all of the server's processes without ending them; [`Postgres::thaw`] undoes it.
    pub fn freeze(&self) -> Result<()> {
        self.signal_all(Signal::STOP)
    }

    pub fn thaw(&self) -> Result<()> {
        self.signal_all(Signal::CONT)
    }

    fn signal_all(&self, signal: Signal) -> Result<()> {
        kill_process(self.postmaster()?, signal)?;
        for child in self.children()? {
            // it may have ended by itself
            let _ = kill_process(child, signal);
        }
        Ok(())
    }

    fn postmaster(&self) -> Result<Pid> {
        pid_of(self.server().as_ref().context("PostgreSQL does not run")?)
    }

    fn children(&self) -> Result<Vec<Pid>> {
        let children = cpu::children(self.postmaster()?.as_raw_nonzero().get().unsigned_abs())?;
        Ok(children.into_iter().filter_map(|id| Pid::from_raw(id.try_into().ok()?)).collect())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn uri(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    pub async fn connect(&self, database: &str) -> Result<Client> {
        connect(&self.uri(database)).await
    }

    pub async fn create_database(&self, name: &str) -> Result<()> {
        let admin = self.connect("postgres").await?;
        Ok(admin.batch_execute(&format!("CREATE DATABASE {name}")).await?)
    }

    /// A copy of a database that nobody is connected to.
    pub async fn copy_database(&self, from: &str, to: &str) -> Result<()> {
        let admin = self.connect("postgres").await?;
        let create = format!("CREATE DATABASE {to} TEMPLATE {from}");
        admin.batch_execute(&create).await.with_context(|| format!("copying database {from}"))
    }

    pub async fn drop_database(&self, name: &str) -> Result<()> {
        let admin = self.connect("postgres").await?;
        Ok(admin.batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)")).await?)
    }

    /// Writes the connection's parts as files, as a mounted Secret has them.
    pub fn write_credentials(&self, directory: &Path, database: &str) -> Result<()> {
        std::fs::create_dir_all(directory)?;
        let port = self.port.to_string();
        let parts = [
            ("host", "127.0.0.1"),
            ("port", &port),
            ("dbname", database),
            ("username", USER),
            ("password", ""),
        ];
        for (name, value) in parts {
            std::fs::write(directory.join(name), value)?;
        }
        Ok(())
    }

    /// Processor time of all its processes so far, observers left out.
    pub fn cpu(&self, observers: &BTreeSet<u32>) -> Result<Duration> {
        cpu::of_server(self.postmaster()?.as_raw_nonzero().get().unsigned_abs(), observers)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // a frozen server would not hear that it is to end
        let _ = self.thaw();
        if let Err(error) = self.crash() {
            #[allow(clippy::print_stderr, reason = "there is nobody to return it to")]
            {
                eprintln!("a PostgreSQL was not stopped in order: {error:#}");
            }
        }
    }
}

fn pid_of(child: &Child) -> Result<Pid> {
    Pid::from_raw(child.id().try_into()?).context("the server has no process id")
}
