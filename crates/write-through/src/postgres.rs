//! The PostgreSQL side of the backend trait.
//!
//! Owns connections, SQL texts and the driver's types. Nothing outside this file and `postgres/`
//! names them.

use std::path::PathBuf;
use std::time::Duration;

/// How to reach the database, and how much of it to use.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// Directory with `uri`, or `host`, `port`, `dbname`, `username`, `password`; optional
    /// `ca.crt`, `tls.crt`, `tls.key`. Read again at every connect.
    pub credentials_dir: PathBuf,
    /// Schema of the cached tables.
    pub schema: String,
    /// Connections of this process at most, lanes included.
    pub connections_max: u32,
    /// How many of them the lanes take.
    pub lanes: u16,
    /// Shown in the backend's list of sessions.
    pub application_name: String,
    pub connect_timeout: Duration,
    /// Longest time of one statement.
    pub statement_timeout: Duration,
    pub lock_timeout: Duration,
    /// Longest time a transaction of ours may stand still while it holds the fence (R13).
    pub idle_in_transaction_timeout: Duration,
}

impl PostgresOptions {
    pub fn new(credentials_dir: impl Into<PathBuf>) -> Self {
        Self {
            credentials_dir: credentials_dir.into(),
            schema: "public".to_owned(),
            connections_max: 8,
            lanes: 4,
            application_name: "cachetier".to_owned(),
            connect_timeout: Duration::from_secs(5),
            statement_timeout: Duration::from_secs(60),
            lock_timeout: Duration::from_secs(10),
            idle_in_transaction_timeout: Duration::from_secs(10),
        }
    }
}
