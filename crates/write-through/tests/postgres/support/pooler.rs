//! A pooler that hands out sessions by transaction, in front of a server.

use super::server::{PASSWORD, end_with_tests, free_port, own_directory};
use std::path::{Path, PathBuf};
use std::process::Child;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

const PROGRAM: &str = "/usr/sbin/pgbouncer";
/// Fewer than the sessions of a test, so that they do share.
const SERVER_SESSIONS: u16 = 2;

pub struct Pooler {
    pub port: u16,
    directory: PathBuf,
    process: Child,
}

impl Pooler {
    /// In front of the server on this port.
    pub async fn start(server: u16) -> Pooler {
        assert!(Path::new(PROGRAM).exists(), "Debian's pgbouncer is not installed");
        let directory = own_directory();
        let port = free_port();
        write_settings(&directory, port, server);
        let users = format!("\"postgres\" \"{PASSWORD}\"\n");
        std::fs::write(directory.join("users"), users).unwrap();
        let log = std::fs::File::create(directory.join("log")).unwrap();
        let mut command = end_with_tests(PROGRAM);
        command.arg(directory.join("pgbouncer.ini")).stderr(log);
        let process = command.spawn().unwrap();
        let pooler = Pooler { port, directory, process };
        let deadline = std::time::Instant::now() + super::PATIENCE;
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            assert!(std::time::Instant::now() < deadline, "the pooler does not start");
            tokio::task::yield_now().await;
        }
        pooler
    }

    /// Its clients wait from here on; answers once no session of a server is in use.
    pub async fn pause(&self) {
        self.admin("PAUSE").await;
    }

    pub async fn resume(&self) {
        self.admin("RESUME").await;
    }

    /// Other sessions go to this server; a pause lets none of the old ones be in use.
    pub async fn point_to(&self, server: u16) {
        write_settings(&self.directory, self.port, server);
        self.admin("RELOAD").await;
    }

    async fn admin(&self, word: &str) {
        let messages = self.client("pgbouncer").await.simple_query(word).await.unwrap();
        assert!(messages.iter().any(|m| matches!(m, SimpleQueryMessage::CommandComplete(_))));
    }

    pub async fn client(&self, database: &str) -> Client {
        let config = format!(
            "host=127.0.0.1 port={} user=postgres password='{PASSWORD}' dbname={database}",
            self.port
        );
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn write_settings(directory: &Path, port: u16, server: u16) {
    let at = directory.display();
    let text = format!(
        "[databases]\n* = host=127.0.0.1 port={server}\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
         pool_mode = transaction\ndefault_pool_size = {SERVER_SESSIONS}\n\
         auth_type = scram-sha-256\nauth_file = {at}/users\nadmin_users = postgres\n\
         server_login_retry = 0.2\n"
    );
    std::fs::write(directory.join("pgbouncer.ini"), text).unwrap();
}
