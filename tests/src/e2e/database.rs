//! One PostgreSQL database per scene, filled with an HLR population.

use super::command::{bench, setting};
use anyhow::{Context, Result};
use std::future::Future;
use tokio_postgres::{Client, NoTls, Row};

/// A database of its own on the local cluster's PostgreSQL; dropped with the value.
pub struct Database {
    pub name: String,
    admin: String,
    /// Connection string of the role that the product uses.
    pub uri: String,
    /// Connection string of the superuser, for looking at what arrived.
    pub admin_uri: String,
    runtime: tokio::runtime::Runtime,
}

impl Database {
    pub fn create(name: &str, subscribers: u64) -> Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let database = Self {
            name: name.to_owned(),
            admin: setting("CACHETIER_PG_ADMIN")?,
            uri: with_database(&setting("CACHETIER_PG")?, name),
            admin_uri: with_database(&setting("CACHETIER_PG_ADMIN")?, name),
            runtime,
        };
        database.on(&database.admin, &format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))?;
        database.on(&database.admin, &format!("CREATE DATABASE {name}"))?;
        database.execute("GRANT ALL ON DATABASE CURRENT_CATALOG TO cachetier").ok();
        bench(&[
            "load",
            "--backend",
            &database.admin_uri,
            "--subscribers",
            &subscribers.to_string(),
        ])
        .context("filling the database")?;
        database.execute(&format!("GRANT CREATE ON DATABASE {name} TO cachetier"))?;
        database.execute(
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO cachetier",
        )?;
        Ok(database)
    }

    pub fn execute(&self, sql: &str) -> Result<()> {
        self.on(&self.admin_uri, sql)
    }

    pub fn rows(&self, sql: &str) -> Result<Vec<Row>> {
        self.block_on(async {
            let client = connect(&self.admin_uri).await?;
            Ok(client.query(sql, &[]).await?)
        })
    }

    /// The first column of the first row as a 64-bit integer.
    pub fn number(&self, sql: &str) -> Result<i64> {
        let rows = self.rows(sql)?;
        Ok(rows.first().context("no row")?.try_get(0)?)
    }

    fn on(&self, uri: &str, sql: &str) -> Result<()> {
        self.block_on(async {
            let client = connect(uri).await?;
            Ok(client.batch_execute(sql).await?)
        })
    }

    fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(future)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let sql = format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name);
        if let Err(error) = self.on(&self.admin, &sql) {
            eprintln!("database {} was left behind: {error:#}", self.name);
        }
    }
}

async fn connect(uri: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(uri, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The same connection string with another database name.
fn with_database(uri: &str, name: &str) -> String {
    let (base, query) = uri.split_once('?').map_or((uri, None), |(b, q)| (b, Some(q)));
    let base = base.rsplit_once('/').map_or(base, |(head, _)| head);
    match query {
        Some(query) => format!("{base}/{name}?{query}"),
        None => format!("{base}/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn the_database_name_is_exchanged_and_the_rest_kept() {
        assert_eq!(with_database("postgres://u:p@h:1/old", "new"), "postgres://u:p@h:1/new");
        assert_eq!(with_database("postgres://h/old?a=b", "new"), "postgres://h/new?a=b");
    }
}
