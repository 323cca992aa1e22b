//! The server process and its databases.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

const BIN: &str = "/usr/lib/postgresql/15/bin";
const PREFIX: &str = "cachetier-wt-";
pub const PASSWORD: &str = "correct horse";

/// One running server.
pub struct Server {
    pub port: u16,
    pub data: PathBuf,
    pub pid: u32,
}

static SHARED: OnceLock<Server> = OnceLock::new();
static DATABASES: AtomicU32 = AtomicU32::new(0);

pub fn shared() -> &'static Server {
    SHARED.get_or_init(|| Server::start(&[]))
}

/// Directories of test processes that are gone: a server outlives nothing that could remove it.
fn remove_leftovers() {
    let Ok(all) = std::fs::read_dir(std::env::temp_dir()) else { return };
    for entry in all.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A directory of the server's own user.
pub fn own_directory() -> PathBuf {
    remove_leftovers();
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir().unwrap().keep();
    let given = Command::new("chown").arg("postgres").arg(&dir).status();
    assert!(given.is_ok());
    dir
}

fn signal(pid: &str, signal: &str) {
    let _ = Command::new("kill").args([signal, pid]).stderr(std::process::Stdio::null()).status();
}

pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn as_postgres(program: &str) -> Command {
    end_with_tests(&format!("{BIN}/{program}"))
}

/// Runs as the server's own user, as it refuses to run as root; and ends when the thread that
/// started it does.
pub fn end_with_tests(path: &str) -> Command {
    let root = std::fs::metadata("/proc/self").map(|m| std::os::unix::fs::MetadataExt::uid(&m));
    if !matches!(root, Ok(0)) {
        return Command::new(path);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
    command.args(["--pdeathsig", "QUIT", "--", path]);
    command
}

impl Server {
    pub fn start(settings: &[&str]) -> Server {
        Server::start_in(settings, |_| {})
    }

    /// With this certificate and key, PEM.
    pub fn start_with_tls(certificate: &str, key: &str) -> Server {
        Server::start_in(&["ssl=on"], |data| {
            for (name, text) in [("server.crt", certificate), ("server.key", key)] {
                let path = data.join(name);
                std::fs::write(&path, text).unwrap();
                let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                std::fs::set_permissions(&path, private).unwrap();
                let _ = Command::new("chown").arg("postgres").arg(&path).status();
            }
        })
    }

    /// A streaming standby of the server that this port leads to.
    pub fn standby_behind(port: u16) -> Server {
        let data = own_directory().join("data");
        let copied = as_postgres("pg_basebackup")
            .env("PGPASSWORD", PASSWORD)
            .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres"])
            .args(["--write-recovery-conf", "--no-sync", "--checkpoint=fast", "-D"])
            .arg(&data)
            .output()
            .unwrap();
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        Server::launch_on(data, &[])
    }

    /// Tells a standby to become a primary; returns when it is one.
    pub fn promote(&self) {
        let told = as_postgres("pg_ctl").args(["promote", "-w", "-D"]).arg(&self.data).output();
        let told = told.unwrap();
        assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    }

    fn start_in(settings: &[&str], prepare: impl FnOnce(&Path)) -> Server {
        let dir = own_directory();
        let data = dir.join("data");
        let password = dir.join("password");
        std::fs::write(&password, PASSWORD).unwrap();
        let made = as_postgres("initdb")
            .args(["-U", "postgres", "-A", "scram-sha-256", "-E", "UTF8", "--locale=C.UTF-8"])
            .args(["--no-sync", "-D"])
            .arg(&data)
            .arg(format!("--pwfile={}", password.display()))
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        prepare(&data);
        Server::launch_on(data, settings)
    }

    fn launch_on(data: PathBuf, settings: &[&str]) -> Server {
        let port = free_port();
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        let pid = launch(&data, port, &settings);
        let server = Server { port, data, pid };
        server.wait_ready();
        server
    }

    /// Kills every process of the server at once.
    pub fn crash(&self) {
        loop {
            let left = self.processes();
            // the next start needs the shared memory that the last process gives back
            if left.is_empty() {
                return;
            }
            left.iter().for_each(|pid| signal(pid, "-9"));
            std::thread::yield_now();
        }
    }

    /// Processor time of all its processes so far, in hundredths at best.
    pub fn cpu_seconds(&self) -> f64 {
        let of = |pid: &String| -> u64 {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            let after = stat.rsplit(')').next().unwrap_or_default();
            after.split_whitespace().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum()
        };
        self.processes().iter().map(of).sum::<u64>() as f64 / 100.0
    }

    /// Stops the process that flushes the log behind asynchronous commits.
    pub fn freeze_wal_writer(&self) {
        for pid in self.processes() {
            let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            if line.contains("walwriter") {
                signal(&pid, "-STOP");
                return;
            }
        }
        panic!("the server has no walwriter");
    }

    fn processes(&self) -> Vec<String> {
        let Ok(all) = std::fs::read_dir("/proc") else { return Vec::new() };
        all.flatten()
            .filter(|p| std::fs::read_link(p.path().join("cwd")).is_ok_and(|c| c == self.data))
            .map(|p| p.file_name().to_string_lossy().into_owned())
            .collect()
    }

    pub fn restart(&self, settings: &[&str]) {
        let _ = std::fs::remove_file(self.data.join("postmaster.pid"));
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        launch(&self.data, self.port, &settings);
        self.wait_ready();
    }

    fn wait_ready(&self) {
        let deadline = std::time::Instant::now() + super::PATIENCE;
        loop {
            let ready = Command::new(format!("{BIN}/pg_isready"))
                .args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()])
                .status();
            if ready.is_ok_and(|s| s.success()) {
                return;
            }
            assert!(std::time::Instant::now() < deadline, "the server does not start");
            std::thread::yield_now();
        }
    }

    pub async fn connect(&self, dbname: &str) -> Client {
        let config = format!(
            "host=127.0.0.1 port={} user=postgres password='{PASSWORD}' dbname={dbname}",
            self.port
        );
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    pub async fn database(&self) -> Database {
        let number = DATABASES.fetch_add(1, Ordering::Relaxed);
        let name = format!("t{number}");
        let admin = self.connect("postgres").await;
        // template databases are copied through the log, which a crash keeps
        admin.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        let credentials = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            std::fs::write(credentials.path().join(file), text).unwrap();
        };
        write("host", "127.0.0.1");
        write("port", &self.port.to_string());
        write("dbname", &name);
        write("username", "postgres");
        write("password", PASSWORD);
        let client = self.connect(&name).await;
        Database { name, credentials, client }
    }
}

/// The parent of the server is a thread that lives as long as the process.
fn launch(data: &Path, port: u16, settings: &[String]) -> u32 {
    let (data, settings) = (data.to_owned(), settings.to_vec());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(data.with_file_name("log"))
            .unwrap();
        let mut command = as_postgres("postgres");
        command.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        command.args(["-c", "shared_buffers=64MB", "-c", "max_connections=200"]);
        command.args(["-c", "wal_writer_delay=50ms"]);
        settings.iter().for_each(|s| {
            command.args(["-c", s]);
        });
        let mut child = command.stderr(log).spawn().unwrap();
        tell.send(child.id()).unwrap();
        let _ = child.wait();
        // stay: the server's death signal hangs on this thread
        loop {
            std::thread::park();
        }
    });
    told.recv().unwrap()
}

/// One database and how to reach it.
pub struct Database {
    pub name: String,
    pub credentials: TempDir,
    pub client: Client,
}

impl Database {
    pub async fn run(&self, sql: &str) {
        self.client.batch_execute(sql).await.unwrap();
    }

    pub async fn number(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Where its clients connect from now on.
    pub fn move_to(&self, port: u16) {
        std::fs::write(self.credentials.path().join("port"), port.to_string()).unwrap();
    }

    pub async fn texts(&self, sql: &str) -> Vec<String> {
        let rows = self.client.query(sql, &[]).await.unwrap();
        rows.iter().map(|r| r.get(0)).collect()
    }
}
