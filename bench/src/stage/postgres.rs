//! A throw-away PostgreSQL with the settings of the experiment.

use super::{Pinning, cpu, eventually, free_port, run};
use crate::backend::connect;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio_postgres::Client;

const BINARIES: &str = "/usr/lib/postgresql/15/bin";
const USER: &str = "postgres";

/// Pages of one subscriber with its children and their indexes, generously.
const BUFFER_BYTES_PER_SUBSCRIBER: u64 = 3_000;
/// The experiment keeps a cached and a direct copy of the population.
const COPIES: u64 = 2;
const BUFFER_BYTES_MIN: u64 = 256 << 20;

/// A running server; stopped and removed with the value.
pub struct Postgres {
    directory: tempfile::TempDir,
    port: u16,
    pinning: Pinning,
}

impl Postgres {
    /// A fresh server whose `shared_buffers` hold two copies of the population.
    pub async fn start(pinning: &Pinning, subscribers: u64) -> Result<Self> {
        ensure!(
            Path::new(BINARIES).join("initdb").exists(),
            "{BINARIES} is missing: apt-get install postgresql-15"
        );
        let directory = tempfile::Builder::new().prefix("hlr-bench-pg-").tempdir()?;
        run(Command::new("chown").arg(USER).arg(directory.path()))?;
        let server = Self { directory, port: free_port()?, pinning: pinning.clone() };
        run(server.command("initdb").args(["-A", "trust", "--no-sync", "-D"]).arg(server.data()))?;
        let buffers =
            BUFFER_BYTES_MIN.max(subscribers * COPIES * BUFFER_BYTES_PER_SUBSCRIBER) >> 20;
        let settings = format!(
            "port = {}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\n\
             max_connections = 200\nshared_buffers = {buffers}MB\nsynchronous_commit = on\n\
             fsync = on\nfull_page_writes = on\nmax_wal_size = 8GB\ncheckpoint_timeout = 15min\n\
             track_wal_io_timing = on\nlog_min_messages = warning\n",
            server.port,
            server.directory.path().display()
        );
        std::fs::write(server.data().join("postgresql.auto.conf"), settings)?;
        let log = server.directory.path().join("log");
        run(server
            .command("pg_ctl")
            .args(["-w", "-s", "-D"])
            .arg(server.data())
            .arg("-l")
            .arg(log)
            .arg("start"))?;
        eventually("PostgreSQL to answer", Duration::from_secs(30), || async {
            connect(&server.uri("postgres")).await.map(Some)
        })
        .await?;
        Ok(server)
    }

    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// The server's programs refuse to run as root.
    fn command(&self, program: &str) -> Command {
        let program = Path::new(BINARIES).join(program);
        let mut command = match rustix::process::geteuid().is_root() {
            true => {
                let mut command = self.pinning.server_command(Path::new("runuser"));
                command.args(["-u", USER, "--"]).arg(program);
                command
            }
            false => self.pinning.server_command(&program),
        };
        command.current_dir(self.directory.path());
        command
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

    fn postmaster(&self) -> Result<u32> {
        let path = self.data().join("postmaster.pid");
        let text = std::fs::read_to_string(&path).context("PostgreSQL does not run any more")?;
        let first = text.lines().next().and_then(|line| line.trim().parse().ok());
        first.context("postmaster.pid has no process id")
    }

    /// Processor time of all its processes so far, observers left out.
    pub fn cpu(&self, observers: &BTreeSet<u32>) -> Result<Duration> {
        cpu::of_server(self.postmaster()?, observers)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let mut stop = self.command("pg_ctl");
        stop.args(["-w", "-s", "-m", "immediate", "-D"]).arg(self.data()).arg("stop");
        // It may not run: then there is nothing to stop.
        let _ = run(&mut stop);
    }
}
