//! A throw-away PostgreSQL: own directory, own port on 127.0.0.1, stopped when dropped.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

const BIN: &str = "/usr/lib/postgresql/15/bin";

pub struct Postgres {
    dir: tempfile::TempDir,
    pub port: u16,
    server: Mutex<Option<Child>>,
}

/// As user postgres when we are root, which PostgreSQL refuses to run as.
fn command(program: &str) -> Command {
    let path = format!("{BIN}/{program}");
    let root = Command::new("id").arg("-u").output().is_ok_and(|o| o.stdout.starts_with(b"0"));
    if !root {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(path);
    command
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn own_by_postgres(path: &Path) {
    let _not_root = Command::new("chown").args(["-R", "postgres:postgres"]).arg(path).output();
}

/// One initialised directory per build, copied for each instance.
fn template() -> &'static PathBuf {
    static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("pg15-template");
        if kept.join("PG_VERSION").exists() {
            return kept;
        }
        let scratch = tempfile::tempdir().unwrap();
        own_by_postgres(scratch.path());
        let data = scratch.path().join("data");
        run(command("initdb").arg("-D").arg(&data).args([
            "-U",
            "tester",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C.UTF-8",
            "-N",
        ]));
        let fresh = kept.with_extension(std::process::id().to_string());
        run(Command::new("cp").arg("-a").arg(&data).arg(&fresh));
        if std::fs::rename(&fresh, &kept).is_err() {
            let _other_was_first = std::fs::remove_dir_all(&fresh);
        }
        kept
    })
}

impl Postgres {
    pub async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        run(Command::new("cp").arg("-a").arg(template()).arg(dir.path().join("data")));
        own_by_postgres(dir.path());
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let postgres = Self { dir, port, server: Mutex::new(None) };
        postgres.up().await;
        postgres
    }

    /// Starts the server and waits until it answers.
    pub async fn up(&self) {
        let log = std::fs::File::create(self.dir.path().join("log")).unwrap();
        let child = command("postgres")
            .arg("-D")
            .arg(self.dir.path().join("data"))
            .args(["-p", &self.port.to_string(), "-h", "127.0.0.1", "-c", "fsync=off"])
            .args(["-c", "max_connections=60", "-c", "shared_buffers=32MB"])
            .arg("-k")
            .arg(self.dir.path())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        *self.server.lock().unwrap() = Some(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while tokio_postgres::connect(&self.uri(), NoTls).await.is_err() {
            assert!(Instant::now() < deadline, "PostgreSQL does not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Stops the server at once, breaking every connection.
    pub fn down(&self) {
        if let Some(mut server) = self.server.lock().unwrap().take() {
            let _gone = Command::new("kill").args(["-INT", &server.id().to_string()]).status();
            server.wait().unwrap();
        }
    }

    pub fn uri(&self) -> String {
        format!("postgresql://tester@127.0.0.1:{}/postgres?connect_timeout=5", self.port)
    }

    pub async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.uri(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    pub async fn execute(&self, sql: &str) {
        self.client().await.batch_execute(sql).await.unwrap();
    }

    /// First column of the first row, as a number.
    pub async fn number(&self, sql: &str) -> i64 {
        let row = self.client().await.query_one(sql, &[]).await.unwrap();
        row.get(0)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.down();
    }
}
