//! Snapshot scans: instances of a key range, page by page, by binary COPY.
//!
//! One connection, one REPEATABLE READ transaction. A page is the next roots in key order; then
//! every child table is copied for exactly their key range. Memory is bounded by the page.

use super::binary;
use super::copy::{CopyDamaged, CopyReader};
use super::read::{self, Assembly, no_tables, undecodable};
use super::{Compiled, PostgresOptions, connect, fault, sql};
use crate::backend::BackendFuture;
use crate::backend::flush::commits_missing;
use crate::backend::load::{Scan, ScanRequest};
use crate::error::{BackendError, Disposition, Reason};
use cachetier_model::{Instance, RootKey, Row, TableId, TableSchema, Value};
use futures::StreamExt;
use std::sync::Arc;
use tokio_postgres::Client;

const ACT: &str = "scan the backend";

pub(super) struct PostgresScan {
    client: Client,
    options: Arc<PostgresOptions>,
    compiled: Arc<Compiled>,
    /// Keeps this scan's place in the connection budget.
    _permit: tokio::sync::OwnedSemaphorePermit,
    request: ScanRequest,
    /// Last root key of the page before.
    after: Option<Vec<Value>>,
    ended: bool,
}

pub(super) async fn open(
    client: Client,
    permit: tokio::sync::OwnedSemaphorePermit,
    options: Arc<PostgresOptions>,
    compiled: Arc<Compiled>,
    request: ScanRequest,
) -> Result<PostgresScan, BackendError> {
    // the first statement that reads takes the snapshot; make it now and not at the first page
    let begin = connect::begin_snapshot(
        &options,
        // a scan is slow when its reader is: the receiver of its rows paces it
        "SET LOCAL idle_in_transaction_session_timeout = 300000; SELECT txid_current_snapshot()",
    );
    client.batch_execute(&begin).await.map_err(|error| fault::from_begin(ACT, &error))?;
    for as_of in &request.as_of {
        if !read::holds(&client, as_of).await? {
            return Err(commits_missing(ACT));
        }
    }
    Ok(PostgresScan {
        client,
        options,
        compiled,
        _permit: permit,
        request,
        after: None,
        ended: false,
    })
}

/// The server parses and types the condition, and then looks at no row.
pub(super) async fn check_filter(
    client: &Client,
    compiled: &Compiled,
    filter: &str,
) -> Result<(), BackendError> {
    const ACT: &str = "check the condition of loads";
    if filter.trim().is_empty() {
        return Ok(());
    }
    let schema = &compiled.schema;
    let root = schema.root().ok_or_else(no_tables)?;
    let table = sql::qualified(&schema.backend_schema, &root.name);
    let text = format!("SELECT FROM {table} AS t WHERE ({filter}) LIMIT 0");
    let Err(error) = client.query_typed(&text, &[]).await else { return Ok(()) };
    let mut refused = fault::from_driver(ACT, &error);
    if refused.disposition() != Disposition::Retry {
        // nothing but the condition can be quoted: no row was looked at
        let words = refused.detail.as_deref().unwrap_or(&refused.message);
        refused.message = format!("preload.where is no condition on table {}: {words}", root.name);
        refused.reason = Reason::Configuration;
    }
    Err(refused)
}

impl Scan for PostgresScan {
    fn next(&mut self) -> BackendFuture<'_, Option<Vec<(RootKey, Instance)>>> {
        Box::pin(async move {
            if self.ended {
                return Ok(None);
            }
            let options = Arc::clone(&self.options);
            let page = connect::within(&options, ACT, self.page()).await?;
            if page.is_empty() {
                self.ended = true;
                let end = self.client.batch_execute("COMMIT").await;
                end.map_err(|error| fault::from_driver(ACT, &error))?;
                return Ok(None);
            }
            Ok(Some(page))
        })
    }
}

impl PostgresScan {
    async fn page(&mut self) -> Result<Vec<(RootKey, Instance)>, BackendError> {
        let compiled = Arc::clone(&self.compiled);
        let schema = &compiled.schema;
        let root = schema.root().ok_or_else(no_tables)?;
        let (from, to) = self.bounds()?;
        let limit = self.request.page.max(1);
        let mut condition = range(root, &root.primary_key, "t", from.as_ref(), to.as_ref())?;
        if !self.request.filter.trim().is_empty() {
            condition.push(format!("({})", self.request.filter));
        }
        let order: Vec<String> =
            root.primary_key.iter().map(|c| sql::ordered_key(root, "t", *c)).collect();
        let text = format!(
            "COPY (SELECT {} FROM {} AS t{} ORDER BY {} LIMIT {limit}) TO STDOUT (FORMAT binary)",
            sql::select_list(root, "t"),
            sql::qualified(&schema.backend_schema, &root.name),
            filter_clause(&condition),
            order.join(", ")
        );
        let roots = copy(&self.client, &compiled, 0, &text).await?;
        let Some(last) = roots.last() else { return Ok(Vec::new()) };
        let last = (key_values(root, last), true);
        let mut assembly = Assembly::new(schema);
        let mut keys = Vec::with_capacity(roots.len());
        let whole_page = roots.len() == limit as usize;
        for row in roots {
            keys.push(assembly.add(0, row)?);
        }
        for table in 1..schema.tables.len() {
            let text = self.child_text(table, from.as_ref(), &last)?;
            for row in copy(&self.client, &compiled, table, &text).await? {
                assembly.add(table, row)?;
            }
        }
        self.ended = !whole_page;
        self.after = Some(last.0);
        let mut found = assembly.finish();
        let instances = keys.into_iter().filter_map(|key| found.remove_entry(&key));
        Ok(instances.collect())
    }

    /// Lower bound (value, inclusive) and upper bound (value, inclusive) of what is left.
    fn bounds(&self) -> Result<(Option<Bound>, Option<Bound>), BackendError> {
        let from = match (&self.after, &self.request.range.from) {
            (Some(after), _) => Some((after.clone(), false)),
            (None, Some(key)) => Some((decode_key(key)?, true)),
            (None, None) => None,
        };
        let to = match &self.request.range.to {
            Some(key) => Some((decode_key(key)?, false)),
            None => None,
        };
        Ok((from, to))
    }

    /// Rows of a child table whose roots are in the page.
    fn child_text(
        &self,
        table: TableId,
        from: Option<&Bound>,
        last: &Bound,
    ) -> Result<String, BackendError> {
        let schema = &self.compiled.schema;
        let root = schema.root().ok_or_else(no_tables)?;
        let child = schema.table(table).ok_or_else(no_tables)?;
        let mut condition = range(child, &child.root_key, "c", from, Some(last))?;
        if !self.request.filter.trim().is_empty() {
            let joined: Vec<String> = root
                .primary_key
                .iter()
                .zip(&child.root_key)
                .map(|(r, c)| {
                    format!("t.{} = c.{}", sql::column_name(root, *r), sql::column_name(child, *c))
                })
                .collect();
            condition.push(format!(
                "EXISTS (SELECT FROM {} AS t WHERE {} AND ({}))",
                sql::qualified(&schema.backend_schema, &root.name),
                joined.join(" AND "),
                self.request.filter
            ));
        }
        Ok(format!(
            "COPY (SELECT {} FROM {} AS c{}) TO STDOUT (FORMAT binary)",
            sql::select_list(child, "c"),
            sql::qualified(&schema.backend_schema, &child.name),
            filter_clause(&condition)
        ))
    }
}

/// Key values and whether they belong to the range themselves.
type Bound = (Vec<Value>, bool);

fn decode_key(key: &RootKey) -> Result<Vec<Value>, BackendError> {
    key.decode()
        .map_err(|_| BackendError::new(ACT, Reason::ValueRefused, "a range's key is malformed"))
}

fn key_values(table: &TableSchema, row: &Row) -> Vec<Value> {
    table.primary_key.iter().filter_map(|c| row.get(*c).cloned()).collect()
}

fn filter_clause(conditions: &[String]) -> String {
    if conditions.is_empty() {
        return String::new();
    }
    format!(" WHERE {}", conditions.join(" AND "))
}

/// Conditions that the key columns lie within the bounds, in the order pages are cut by.
fn range(
    table: &TableSchema,
    columns: &[usize],
    alias: &str,
    from: Option<&Bound>,
    to: Option<&Bound>,
) -> Result<Vec<String>, BackendError> {
    let mut conditions = Vec::new();
    let mut bound = |(values, inclusive): &Bound, sign: &str| -> Result<(), BackendError> {
        let names: Vec<String> =
            columns.iter().map(|c| sql::ordered_key(table, alias, *c)).collect();
        let mut literals = Vec::new();
        for (column, value) in columns.iter().zip(values) {
            let column_type = &table.column(*column).ok_or_else(no_tables)?.column_type;
            literals.push(literal(column_type, value)?);
        }
        let equal = if *inclusive { "=" } else { "" };
        conditions.push(format!("({}) {sign}{equal} ({})", names.join(", "), literals.join(", ")));
        Ok(())
    };
    if let Some(from) = from {
        bound(from, ">")?;
    }
    if let Some(to) = to {
        bound(to, "<")?;
    }
    Ok(conditions)
}

/// COPY takes no parameters: a key value as an SQL literal of its type.
fn literal(
    column_type: &cachetier_model::ColumnType,
    value: &Value,
) -> Result<String, BackendError> {
    if value.is_null() {
        return Err(BackendError::new(ACT, Reason::ValueRefused, "a range's key has a NULL"));
    }
    let text = column_type.format(value).replace('\'', "''");
    let escaped = if text.contains('\\') {
        format!("E'{}'", text.replace('\\', "\\\\"))
    } else {
        format!("'{text}'")
    };
    let sql_type = match column_type {
        // a length would pad or cut the literal
        cachetier_model::ColumnType::Char { .. } => "bpchar".to_owned(),
        cachetier_model::ColumnType::Varchar { .. } => "varchar".to_owned(),
        cachetier_model::ColumnType::Numeric { .. } => "numeric".to_owned(),
        other => other.sql_name(),
    };
    Ok(format!("{escaped}::{sql_type}"))
}

async fn copy(
    client: &Client,
    compiled: &Compiled,
    table: TableId,
    text: &str,
) -> Result<Vec<Row>, BackendError> {
    let columns = compiled.schema.table(table).map(|t| t.columns.as_slice()).unwrap_or_default();
    let stream = client.copy_out(text).await.map_err(|e| fault::from_driver(ACT, &e))?;
    let mut stream = std::pin::pin!(stream);
    let mut reader = CopyReader::default();
    let mut rows = Vec::new();
    let damaged = |_| undecodable(ACT, "the binary copy cannot be read");
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|error| fault::from_driver(ACT, &error))?;
        reader.feed(&chunk);
        let decode = |place: usize, field: Option<&[u8]>| {
            let column = columns.get(place).ok_or(CopyDamaged)?;
            binary::decode(&column.column_type, field).map_err(|_| CopyDamaged)
        };
        while let Some(row) = reader.next_row(decode).map_err(damaged)? {
            rows.push(row);
        }
    }
    if !reader.is_complete() {
        return Err(undecodable(ACT, "the binary copy ended early"));
    }
    Ok(rows)
}
