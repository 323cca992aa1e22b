//! Cuts the root table into key ranges for a load.

use super::binary::{self, Raw};
use super::read::{no_tables, undecodable};
use super::{Compiled, fault, sql};
use crate::backend::load::KeyRange;
use crate::error::BackendError;
use cachetier_model::{ColumnType, TableSchema};
use tokio_postgres::Client;

const ACT: &str = "plan the chunks of a load";
/// Below this many rows the boundaries are taken from all keys, above from a sample.
const SAMPLE_ABOVE: u64 = 200_000;
/// Sampled keys per chunk wanted.
const SAMPLES_PER_CHUNK: f64 = 50.0;

/// Ranges of about equal size that together cover every possible key.
pub(super) async fn plan_chunks(
    client: &Client,
    compiled: &Compiled,
    chunks: u32,
    filter: &str,
    expected_roots: u64,
) -> Result<Vec<KeyRange>, BackendError> {
    let schema = &compiled.schema;
    let root = schema.root().ok_or_else(no_tables)?;
    let text = boundaries(compiled, root, chunks.max(1), filter, expected_roots);
    let rows = client.query_typed(&text, &[]).await.map_err(|e| fault::from_driver(ACT, &e))?;
    let mut ranges = Vec::with_capacity(rows.len() + 1);
    let mut from = None;
    for row in &rows {
        let mut values = Vec::new();
        for (place, column) in root.primary_key.iter().enumerate() {
            let column_type = &root.column(*column).ok_or_else(no_tables)?.column_type;
            let raw: Option<Raw<'_>> =
                row.try_get(place).map_err(|e| fault::from_driver(ACT, &e))?;
            let value = binary::decode(column_type, raw.map(|r| r.0))
                .map_err(|error| undecodable(ACT, &error.to_string()))?;
            values.push(value);
        }
        let key = schema
            .encode_root_key(&values)
            .map_err(|_| undecodable(ACT, "a root key has a NULL"))?;
        ranges.push(KeyRange { from: from.replace(key.clone()), to: Some(key) });
    }
    ranges.push(KeyRange { from, to: None });
    Ok(ranges)
}

/// The first key of every chunk but the first.
fn boundaries(
    compiled: &Compiled,
    root: &TableSchema,
    chunks: u32,
    filter: &str,
    expected_roots: u64,
) -> String {
    let sample = if expected_roots > SAMPLE_ABOVE {
        let percent = f64::from(chunks) * SAMPLES_PER_CHUNK * 100.0 / expected_roots as f64;
        format!(" TABLESAMPLE SYSTEM ({:.6})", percent.clamp(0.01, 100.0))
    } else {
        String::new()
    };
    let order: Vec<String> =
        root.primary_key.iter().map(|c| sql::ordered_key(root, "t", *c)).collect();
    let mut keys = Vec::new();
    for (n, column) in root.primary_key.iter().enumerate() {
        let name = sql::column_name(root, *column);
        let label =
            matches!(root.column(*column).map(|c| &c.column_type), Some(ColumnType::Enum { .. }));
        keys.push(format!("t.{name}{} AS k{n}", if label { "::text" } else { "" }));
    }
    let names: Vec<String> = (0..keys.len()).map(|n| format!("k{n}")).collect();
    let names = names.join(", ");
    let condition =
        if filter.trim().is_empty() { String::new() } else { format!(" WHERE ({filter})") };
    format!(
        "SELECT {names} FROM (SELECT {names}, n, tile, lag(tile) OVER (ORDER BY n) AS before FROM \
         (SELECT {}, row_number() OVER w AS n, \
         (row_number() OVER w - 1) * {chunks} / count(*) OVER () AS tile \
         FROM {} AS t{sample}{condition} WINDOW w AS (ORDER BY {})) a) b \
         WHERE tile <> before ORDER BY n",
        keys.join(", "),
        sql::qualified(&compiled.schema.backend_schema, &root.name),
        order.join(", ")
    )
}
