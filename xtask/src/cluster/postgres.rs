//! PostgreSQL 15 from Debian's packages as the backend: its own data folder under the run folder,
//! synchronous commits as in production, on loopback and on the address that pods reach.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;

use super::certificates::secret;
use super::daemon;
use super::layout::{Ports, RunDir};
use crate::process::{capture, command, feed, wait_until};

const BIN: &str = "/usr/lib/postgresql/15/bin";
const DATABASE: &str = "hlr";
/// Superuser, for tests and for loading.
const ADMIN: &str = "admin";
/// What the product logs in as.
const ROLE: &str = "cachetier";
const START_LIMIT: Duration = Duration::from_secs(60);

/// How to reach one PostgreSQL.
#[derive(Clone, Debug)]
pub struct Server<'a> {
    pub run: &'a RunDir,
    pub ports: Ports,
    /// Address that clients use, pods included.
    pub host: &'a str,
}

impl Server<'_> {
    /// Creates the database on first use, then starts the server unless it runs.
    pub fn start(&self) -> Result<()> {
        let data = self.run.join("postgres/data");
        let fresh = !data.join("cachetier-ready").exists();
        if fresh {
            self.initialise()?;
        }
        let mut server = daemon::program(self.run, format!("{BIN}/postgres"));
        server.arg("-D").arg(&data);
        as_postgres(&mut server)?;
        daemon::port_free(self.run, "postgres", self.ports.postgres())?;
        daemon::start(self.run, "postgres", &mut server)?;
        let ready = wait_until("PostgreSQL to accept connections", START_LIMIT, || {
            self.psql("postgres", "select 1").is_ok()
                || daemon::running(self.run, "postgres").is_none()
        });
        daemon::check(self.run, "postgres")?;
        ready?;
        if fresh {
            self.populate()?;
            fs::write(data.join("cachetier-ready"), "")?;
        }
        Ok(())
    }

    /// Ends the server as an operator would for a restart: sessions are cut, data is written.
    pub fn stop(&self) -> Result<()> {
        daemon::stop(self.run, "postgres", Signal::INT)
    }

    /// Connection string of the superuser.
    pub fn admin_uri(&self) -> Result<String> {
        self.uri(ADMIN)
    }

    /// Connection string of the product's role.
    pub fn role_uri(&self) -> Result<String> {
        self.uri(ROLE)
    }

    fn uri(&self, user: &str) -> Result<String> {
        let password = self.password(user)?;
        Ok(format!(
            "postgres://{user}:{password}@{}:{}/{DATABASE}",
            self.host,
            self.ports.postgres()
        ))
    }

    fn password(&self, user: &str) -> Result<String> {
        let path = self.run.join(&format!("postgres/{user}.password"));
        let text = fs::read_to_string(&path)
            .with_context(|| format!("reading {}: is PostgreSQL set up?", path.display()))?;
        Ok(text.trim().to_owned())
    }

    fn initialise(&self) -> Result<()> {
        let folder = self.run.join("postgres");
        // what is there comes from an interrupted first start
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder)?;
        let (user, group) = postgres_ids()?;
        chown(&folder, Some(user), Some(group))?;
        for user in [ADMIN, ROLE] {
            secret(&folder.join(format!("{user}.password")), &random_word()?)?;
        }
        let data = folder.join("data");
        let mut initdb = command(format!("{BIN}/initdb"), &["--encoding=UTF8", "--locale=C"]);
        initdb.args(["--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync"]);
        initdb.arg("-D").arg(&data);
        as_postgres(&mut initdb)?;
        capture(&mut initdb).context("creating the database's data folder")?;
        for (from, to) in [("crt", "server.crt"), ("key", "server.key")] {
            let path = data.join(to);
            let source = self.run.join(&format!("pki/postgres.{from}"));
            if source.exists() {
                fs::copy(source, &path)?;
                fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
                chown(&path, Some(user), Some(group))?;
            }
        }
        let mut settings = fs::read_to_string(data.join("postgresql.conf"))?;
        settings += &self.settings(data.join("server.key").exists());
        fs::write(data.join("postgresql.conf"), settings)?;
        let access = "local all all trust\n\
                      host all all all scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), access)?;
        Ok(())
    }

    fn settings(&self, tls: bool) -> String {
        let addresses = match self.host {
            "127.0.0.1" => "127.0.0.1".to_owned(),
            host => format!("127.0.0.1,{host}"),
        };
        format!(
            "\nlisten_addresses = '{addresses}'\nport = {}\n\
             unix_socket_directories = '{}'\nssl = {}\n\
             max_connections = 300\nshared_buffers = 512MB\nfsync = on\n\
             synchronous_commit = on\nmax_wal_size = 4GB\ncheckpoint_timeout = 15min\n\
             log_checkpoints = off\nlog_line_prefix = '%m [%p] %u '\n",
            self.ports.postgres(),
            self.run.text("postgres"),
            if tls { "on" } else { "off" },
        )
    }

    /// Roles, database and the rights that the product asks a database administrator for.
    fn populate(&self) -> Result<()> {
        let (admin, role) = (self.password(ADMIN)?, self.password(ROLE)?);
        self.psql(
            "postgres",
            &format!(
                "create role {ADMIN} superuser login password '{admin}';\n\
                 create role {ROLE} login password '{role}';\n\
                 create database {DATABASE} owner {ADMIN};\n"
            ),
        )?;
        self.psql(
            DATABASE,
            &format!(
                "grant create on database {DATABASE} to {ROLE};\n\
                 grant usage on schema public to {ROLE};\n\
                 alter default privileges for role {ADMIN} in schema public\n\
                 grant select, insert, update, delete on tables to {ROLE};\n"
            ),
        )?;
        Ok(())
    }

    fn psql(&self, database: &str, statements: &str) -> Result<String> {
        let port = self.ports.postgres().to_string();
        let socket = self.run.text("postgres");
        let mut psql = command(
            format!("{BIN}/psql"),
            &["-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", &socket, "-p", &port, "-U", "postgres"],
        );
        psql.args(["-d", database, "-f", "-"]);
        feed(&mut psql, statements)
    }
}

/// Makes a command run as the system user of the database server, which refuses to run as root.
fn as_postgres(command: &mut Command) -> Result<()> {
    let (user, group) = postgres_ids()?;
    command.uid(user).gid(group).current_dir("/");
    Ok(())
}

fn postgres_ids() -> Result<(u32, u32)> {
    let id = |flag: &str| -> Result<u32> {
        let text = capture(&mut command("id", &[flag, "postgres"]))?;
        text.trim().parse().context("reading the id of the system user postgres")
    };
    Ok((id("-u")?, id("-g")?))
}

/// A password nobody chose.
fn random_word() -> Result<String> {
    let mut bytes = [0u8; 16];
    std::io::Read::read_exact(&mut fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
