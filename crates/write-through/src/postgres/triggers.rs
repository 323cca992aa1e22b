//! Triggers that may change a row before it is stored.
//!
//! Where a table has one, its statements return what was stored, and anything else than what was
//! sent is refused: the cache and the backend would differ from then on.

use super::binary::{self, Raw};
use super::{Compiled, fault};
use crate::error::{BackendError, Reason};
use crate::plan::Statement;
use bytes::{Bytes, BytesMut};
use cachetier_model::{ChangeKind, ColumnId, ColumnType, Row, TableId, TableSchema};
use std::collections::{HashMap, HashSet};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

/// Tables with an enabled BEFORE … FOR EACH ROW trigger on insert or update.
pub(super) async fn tables(
    client: &Client,
    compiled: &Compiled,
) -> Result<HashSet<TableId>, BackendError> {
    const ACT: &str = "look for triggers";
    let schema = &compiled.schema;
    let names: Vec<&str> = schema.tables.iter().map(|t| t.name.as_str()).collect();
    let params: [(&(dyn ToSql + Sync), Type); 2] =
        [(&schema.backend_schema, Type::TEXT), (&names, Type::TEXT_ARRAY)];
    // bits of tgtype: 1 row, 2 before, 4 insert, 16 update
    let rows = client
        .query_typed(
            "SELECT DISTINCT c.relname::text FROM pg_trigger g \
             JOIN pg_class c ON c.oid = g.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = $1 AND c.relname = ANY($2) AND NOT g.tgisinternal \
             AND g.tgenabled <> 'D' AND g.tgtype & 3 = 3 AND g.tgtype & 20 <> 0",
            &params,
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    let mut found = HashSet::new();
    for row in &rows {
        let name: String = super::claim::get(ACT, row, 0)?;
        found.extend(schema.table_id(&name));
    }
    Ok(found)
}

/// Columns to be returned: the key, and what the statement writes.
pub(super) fn written(table: &TableSchema, statement: &Statement<'_>) -> Vec<ColumnId> {
    match statement.kind {
        ChangeKind::Delete => Vec::new(),
        ChangeKind::Insert => (0..table.columns.len()).collect(),
        ChangeKind::Update => {
            let mut columns = table.primary_key.clone();
            columns.extend(statement.set.iter().filter(|c| !table.primary_key.contains(c)));
            columns
        }
    }
}

pub(super) fn returning(table: &TableSchema, columns: &[ColumnId], alias: &str) -> String {
    let one = |c: &ColumnId| {
        let label =
            matches!(table.column(*c).map(|c| &c.column_type), Some(ColumnType::Enum { .. }));
        let cast = if label { "::text" } else { "" };
        format!("{alias}.{}{cast}", super::sql::column_name(table, *c))
    };
    let list: Vec<String> = columns.iter().map(one).collect();
    format!(" RETURNING {}", list.join(", "))
}

/// Refuses when a stored row is not the one that was sent; answers how many were stored.
pub(super) fn check_stored(
    table: &TableSchema,
    columns: &[ColumnId],
    statement: &Statement<'_>,
    stored: &[tokio_postgres::Row],
) -> Result<u64, BackendError> {
    let changed = |column: Option<ColumnId>| {
        let name = column.and_then(|c| table.column(c)).map_or("its key", |c| c.name.as_str());
        BackendError {
            table: Some(table.name.as_str().into()),
            ..BackendError::new(
                "flush",
                Reason::RowChangedByTrigger,
                format!(
                    "a BEFORE trigger of table {} stored another value in column {name} than was \
                     sent; the cache would differ from the backend",
                    table.name
                ),
            )
        }
    };
    let mut sent: HashMap<Vec<Bytes>, &Row> = HashMap::new();
    for row in &statement.rows {
        sent.insert(key_bytes(table, row)?, row);
    }
    let key_places: Vec<usize> =
        table.primary_key.iter().filter_map(|k| columns.iter().position(|c| c == k)).collect();
    for row in stored {
        let mut key = Vec::new();
        for place in &key_places {
            key.push(raw(row, *place)?.map_or_else(Bytes::new, Bytes::copy_from_slice));
        }
        let Some(wanted) = sent.get(&key) else { return Err(changed(None)) };
        for (place, column) in columns.iter().enumerate() {
            if raw(row, place)? != wire(table, wanted, *column)?.as_deref() {
                return Err(changed(Some(*column)));
            }
        }
    }
    Ok(stored.len() as u64)
}

fn key_bytes(table: &TableSchema, row: &Row) -> Result<Vec<Bytes>, BackendError> {
    let one = |c: &ColumnId| Ok(wire(table, row, *c)?.unwrap_or_default());
    table.primary_key.iter().map(one).collect()
}

fn raw(row: &tokio_postgres::Row, place: usize) -> Result<Option<&[u8]>, BackendError> {
    let value: Option<Raw<'_>> =
        row.try_get(place).map_err(|error| fault::from_driver("flush", &error))?;
    Ok(value.map(|r| r.0))
}

/// A value as it goes over the wire.
fn wire(table: &TableSchema, row: &Row, column: ColumnId) -> Result<Option<Bytes>, BackendError> {
    let (Some(facts), Some(value)) = (table.column(column), row.get(column)) else {
        return Ok(None);
    };
    if value.is_null() {
        return Ok(None);
    }
    let mut out = BytesMut::new();
    binary::encode(&facts.column_type, value, &mut out)
        .map_err(|error| BackendError::new("flush", Reason::ValueRefused, error.to_string()))?;
    Ok(Some(out.freeze()))
}
