//! A PostgreSQL of one test, on a free port of 127.0.0.1.

use super::{eventually, ports};
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tokio_postgres::{Client, NoTls};

const BINARIES: &str = "/usr/lib/postgresql/15/bin";
const USER: &str = "postgres";

/// A running server; stopped and removed with the value.
pub struct Postgres {
    directory: tempfile::TempDir,
    port: u16,
}

impl Postgres {
    pub async fn start() -> Result<Self> {
        ensure!(
            Path::new(BINARIES).join("initdb").exists(),
            "{BINARIES} is missing: apt-get install postgresql-15"
        );
        let directory = tempfile::Builder::new().prefix("cachetier-pg-").tempdir()?;
        run(Command::new("chown").arg(USER).arg(directory.path()))?;
        let server = Self { directory, port: ports::free()? };
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

    /// The server's programs refuse to run as root.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new("runuser");
        command.current_dir(self.directory.path());
        command.args(["-u", USER, "--"]).arg(Path::new(BINARIES).join(program));
        command
    }

    /// Starts the server (again).
    pub async fn up(&self) -> Result<()> {
        let log = self.directory.path().join("log");
        run(self
            .command("pg_ctl")
            .args(["-w", "-s", "-D"])
            .arg(self.data())
            .arg("-l")
            .arg(log)
            .arg("start"))?;
        eventually("PostgreSQL to answer", Duration::from_secs(30), || async {
            self.connect("postgres").await.map(Some)
        })
        .await
        .map(drop)
    }

    /// Stops the server: `fast` ends its sessions, `immediate` is a crash.
    pub fn down(&self, mode: &str) -> Result<()> {
        run(self
            .command("pg_ctl")
            .args(["-w", "-s", "-m", mode, "-D"])
            .arg(self.data())
            .arg("stop"))
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
            // already down is the usual case
            let _ = error;
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
