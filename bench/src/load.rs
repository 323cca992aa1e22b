//! Makes the four tables and fills them by binary COPY, with a progress bar.

use crate::backend::connect;
use crate::population::copy::CopyBuffers;
use crate::population::{Population, tables};
use anyhow::{Context, Result, bail};
use futures::{SinkExt, TryStreamExt, stream};
use indicatif::{ProgressBar, ProgressStyle};
use std::pin::pin;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

/// Subscribers per COPY round: about 8 MB of rows over the four tables.
const BATCH_SUBSCRIBERS: u64 = 10_000;

/// Bytes handed to the connection at once.
const PIECE_BYTES: usize = 256 << 10;

#[derive(Clone, Debug)]
pub struct LoadOptions {
    pub uri: String,
    pub schema: String,
    pub population: Population,
    pub connections: usize,
    /// Drop tables that exist.
    pub replace: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    pub rows: [u64; 4],
    pub elapsed: Duration,
}

pub async fn load(options: &LoadOptions) -> Result<Loaded> {
    let started = Instant::now();
    let client = connect(&options.uri).await?;
    prepare(&client, options).await?;
    let bar = progress(options.population.subscribers);
    let last = options.population.subscribers;
    let batches = (0..last.div_ceil(BATCH_SUBSCRIBERS)).map(|n| {
        let first = n * BATCH_SUBSCRIBERS + 1;
        Ok::<_, anyhow::Error>((first, last.min(first + BATCH_SUBSCRIBERS - 1)))
    });
    let rows = stream::iter(batches)
        .map_ok(|(first, last)| {
            let bar = bar.clone();
            async move {
                let rows = copy_batch(options, first, last).await?;
                bar.inc(last - first + 1);
                Ok(rows)
            }
        })
        .try_buffer_unordered(options.connections.max(1))
        .try_fold([0_u64; 4], |mut total, rows| async move {
            total.iter_mut().zip(rows).for_each(|(t, r)| *t += r);
            Ok(total)
        })
        .await?;
    bar.set_message("keys and foreign keys");
    for (what, statement) in tables::constrain(&options.schema) {
        client.batch_execute(&statement).await.with_context(|| format!("cannot add the {what}"))?;
    }
    bar.set_message("statistics");
    for table in tables::TABLES {
        client.batch_execute(&format!("ANALYZE {}.{table}", options.schema)).await?;
    }
    bar.finish_and_clear();
    Ok(Loaded { rows, elapsed: started.elapsed() })
}

async fn prepare(client: &Client, options: &LoadOptions) -> Result<()> {
    if options.replace {
        for statement in tables::drop(&options.schema) {
            client.batch_execute(&statement).await?;
        }
    }
    let qualified = format!("{}.subscriber", options.schema);
    let row = client.query_one("SELECT to_regclass($1)::text", &[&qualified]).await?;
    if row.get::<_, Option<String>>(0).is_some() {
        bail!("{qualified} exists already; add --replace to drop the four tables first");
    }
    for statement in tables::create(&options.schema) {
        client.batch_execute(&statement).await.context("cannot create the tables")?;
    }
    Ok(())
}

/// One range of subscribers, all four tables in one transaction.
async fn copy_batch(options: &LoadOptions, first: u64, last: u64) -> Result<[u64; 4]> {
    let mut client = connect(&options.uri).await?;
    let population = options.population;
    let mut buffers = tokio::task::spawn_blocking(move || {
        let mut buffers = CopyBuffers::default();
        for s_id in first..=last {
            buffers.add(&population.subscriber(s_id));
        }
        buffers
    })
    .await?;
    let transaction = client.transaction().await?;
    let mut rows = [0; 4];
    for ((table, buffer), count) in tables::TABLES.iter().zip(&mut buffers.tables).zip(&mut rows) {
        buffer.end();
        let mut bytes = buffer.take();
        let statement = format!(
            "COPY {}.{table} ({}) FROM STDIN (FORMAT binary)",
            options.schema,
            tables::columns(table).join(", ")
        );
        let sink = transaction.copy_in::<_, bytes::Bytes>(&statement).await?;
        let mut sink = pin!(sink);
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            sink.send(piece).await?;
        }
        *count = sink.finish().await.with_context(|| format!("COPY into {table} failed"))?;
    }
    transaction.commit().await?;
    Ok(rows)
}

fn progress(length: u64) -> ProgressBar {
    let style = ProgressStyle::with_template(
        "{spinner} {human_pos}/{human_len} subscribers {wide_bar} {per_sec} eta {eta} {msg}",
    );
    ProgressBar::new(length).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
