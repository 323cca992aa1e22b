//! A PostgreSQL of one test, on a free port of 127.0.0.1.

use super::{eventually, ports};
use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

const BINARIES: &str = "/usr/lib/postgresql/15/bin";
const USER: &str = "postgres";

/// A running server; stopped and removed with the value, and with the thread that started it.
pub struct Postgres {
    directory: tempfile::TempDir,
    port: u16,
    /// Set by `up`, taken by `down`.
    server: Mutex<Option<Child>>,
}

impl Postgres {
    pub async fn start() -> Result<Self> {
        ensure!(
            Path::new(BINARIES).join("initdb").exists(),
            "{BINARIES} is missing: apt-get install postgresql-15"
        );
        let directory = tempfile::Builder::new().prefix("cachetier-pg-").tempdir()?;
        run(Command::new("chown").arg(USER).arg(directory.path()))?;
        let server = Self { directory, port: ports::free()?, server: Mutex::default() };
        run(server.command("initdb").args(["-A", "trust", "--no-sync", "-D"]).arg(server.data()))?;
        let settings = format!(
            "port = {}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\n\
             max_connections = 200\nshared_buffers = 64MB\nfsync = off\nlog_min_messages = warning\n",
            server.port,
            server.directory.path().display()
        );
        let file = server.data().join("postgresql.auto.conf");
        std::fs::write(file, settings)?;
        server.up().await?;
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The server's programs refuse to run as root, and end with the test that is killed.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.current_dir(self.directory.path());
        command.args(["--reuid", USER, "--regid", USER, "--init-groups"]);
        command.args(["--pdeathsig", "QUIT", "--"]).arg(Path::new(BINARIES).join(program));
        command
    }

    /// Starts the server (again).
    pub async fn up(&self) -> Result<()> {
        let log = self.directory.path().join("log");
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

    /// Stops the server: `fast` ends its sessions, `immediate` is a crash.
    pub fn down(&self, mode: &str) -> Result<()> {
        let Some(mut server) = self.server().take() else { return Ok(()) };
        let stopped = run(self
            .command("pg_ctl")
            .args(["-w", "-s", "-m", mode, "-D"])
            .arg(self.data())
            .arg("stop"));
        server.wait()?;
        stopped
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
        let id = self.server().as_ref().map(Child::id).context("the server does not run")?;
        Pid::from_raw(id.try_into()?).context("the server has no process id")
    }

    fn children(&self) -> Result<Vec<Pid>> {
        let path = format!("/proc/{0}/task/{0}/children", self.postmaster()?.as_raw_nonzero());
        let text = std::fs::read_to_string(path)?;
        Ok(text.split_whitespace().filter_map(|id| Pid::from_raw(id.parse().ok()?)).collect())
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub async fn connect(&self, database: &str) -> Result<Client> {
        let settings = format!("host=127.0.0.1 port={} user={USER} dbname={database}", self.port);
        let (client, connection) = tokio_postgres::connect(&settings, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub async fn create_database(&self, name: &str) -> Result<Client> {
        let admin = self.connect("postgres").await?;
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await?;
        self.connect(name).await
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
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Err(error) = self.down("immediate") {
            eprintln!("a PostgreSQL was not stopped in order: {error:#}");
        }
    }
}

fn run(command: &mut Command) -> Result<()> {
    let Output { status, stdout, stderr } =
        command.output().with_context(|| format!("running {command:?}"))?;
    let text = [stdout, stderr].concat();
    ensure!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&text));
    Ok(())
}
