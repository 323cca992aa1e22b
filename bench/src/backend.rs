//! Connections to the backend, for loading, checking and the direct side of a comparison.

use anyhow::{Context, Result};
use tokio_postgres::{Client, NoTls};

/// Opens one connection; its driver task ends when the client is dropped.
pub async fn connect(uri: &str) -> Result<Client> {
    let config: tokio_postgres::Config =
        uri.parse().context("the backend URI is not of the form postgres://user@host:port/db")?;
    let (client, connection) = config.connect(NoTls).await.with_context(|| {
        let at = config.get_hosts().first().map(|h| format!("{h:?}")).unwrap_or_default();
        format!("cannot connect to the backend at {at}; is PostgreSQL running there?")
    })?;
    tokio::spawn(async move {
        // The client sees the same error on its next call and reports it.
        let _ = connection.await;
    });
    Ok(client)
}

/// Server settings that decide what a measurement means, for the report.
pub async fn settings(client: &Client) -> Result<Vec<(String, String)>> {
    const NAMES: [&str; 9] = [
        "server_version",
        "shared_buffers",
        "synchronous_commit",
        "fsync",
        "full_page_writes",
        "wal_sync_method",
        "max_wal_size",
        "max_connections",
        "commit_delay",
    ];
    let mut found = Vec::new();
    for name in NAMES {
        let row = client.query_one("SELECT current_setting($1)", &[&name]).await?;
        found.push((name.to_owned(), row.get(0)));
    }
    Ok(found)
}
