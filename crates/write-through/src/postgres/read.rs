//! Read-through: whole instances by root key, and root keys by lookup key.
//!
//! All tables of a read come from one REPEATABLE READ snapshot (R18), sent as one burst.

use super::binary::{ArrayParam, Raw, ScalarParam, array_type, decode, element_type};
use super::claim::{get, unsigned};
use super::{Compiled, PostgresOptions, connect, fault, sql};
use crate::backend::bypass::{BypassRead, WriterMark};
use crate::backend::flush::{AsOf, RowMark, commits_missing};
use crate::error::{BackendError, Reason};
use cachetier_model::{GroupSchema, Instance, LookupId, RootKey, Row, TableId, TableSchema, Value};
use futures::future::join_all;
use std::cmp::Ordering;
use std::collections::HashMap;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

const ACT: &str = "read instances";

/// `SELECT … FROM unnest($1) AS u(c0) JOIN table t ON t.root_key = u.c0`
pub(super) fn select_by_root_key(schema: &GroupSchema, table: &TableSchema) -> String {
    let root = match schema.root() {
        Some(root) => root,
        None => table,
    };
    format!(
        "SELECT {} FROM {} JOIN {} AS t ON {}",
        sql::select_list(table, "t"),
        sql::unnest(&root.primary_key),
        sql::qualified(&schema.backend_schema, &table.name),
        sql::on_key(table, &table.root_key, &table.root_key)
    )
}

pub(super) async fn read_instances(
    client: &Client,
    options: &PostgresOptions,
    compiled: &Compiled,
    keys: &[RootKey],
    as_of: Option<&AsOf>,
) -> Result<Vec<Option<Instance>>, BackendError> {
    let held = holds_all(client, as_of);
    let (found, held) = in_one_snapshot(client, options, compiled, keys, held).await?;
    if held { Ok(found) } else { Err(commits_missing(ACT)) }
}

pub(super) async fn read_past(
    client: &Client,
    options: &PostgresOptions,
    compiled: &Compiled,
    key: &RootKey,
    group_uid: &str,
) -> Result<BypassRead, BackendError> {
    let marks = writer_marks(client, group_uid, key);
    let keys = std::slice::from_ref(key);
    let (found, marks) = in_one_snapshot(client, options, compiled, keys, marks).await?;
    let (writers, set_aside) = marks;
    Ok(BypassRead { instance: found.into_iter().next().flatten(), writers, set_aside })
}

/// Whole instances and what `beside` asks for on the same connection.
async fn in_one_snapshot<T>(
    client: &Client,
    options: &PostgresOptions,
    compiled: &Compiled,
    keys: &[RootKey],
    beside: impl Future<Output = Result<T, BackendError>>,
) -> Result<(Vec<Option<Instance>>, T), BackendError> {
    let schema = &compiled.schema;
    let root = schema.root().ok_or_else(no_tables)?;
    let mut wanted: Vec<Row> = Vec::with_capacity(keys.len());
    for key in keys {
        let values = key
            .decode()
            .map_err(|_| BackendError::new(ACT, Reason::ValueRefused, "a root key is malformed"))?;
        wanted.push(values);
    }
    let rows: Vec<&Row> = wanted.iter().collect();
    let mut arrays = Vec::new();
    for (place, column) in root.primary_key.iter().enumerate() {
        let column_type = &root.column(*column).ok_or_else(no_tables)?.column_type;
        arrays.push(ArrayParam { column_type, rows: &rows, column: place });
    }
    let params: Vec<(&(dyn ToSql + Sync), Type)> =
        arrays.iter().map(|a| (a as &(dyn ToSql + Sync), array_type(a.column_type))).collect();
    let begin = connect::begin_snapshot(options, "");
    let reads = join_all(compiled.reads.iter().map(|text| client.query_typed(text, &params)));
    let (began, beside, tables, ended) =
        futures::join!(client.batch_execute(&begin), beside, reads, client.batch_execute("COMMIT"));
    began.map_err(|error| fault::from_begin(ACT, &error))?;
    let beside = beside?;
    let mut instances = Assembly::new(schema);
    for (table, rows) in tables.into_iter().enumerate() {
        for row in rows.map_err(|error| fault::from_driver(ACT, &error))? {
            instances.add(table, decode_row(schema, table, &row)?)?;
        }
    }
    ended.map_err(|error| fault::from_driver(ACT, &error))?;
    let mut found = instances.finish();
    Ok((keys.iter().map(|key| found.remove(key).filter(Instance::exists)).collect(), beside))
}

/// Of every node of the group the row of the lane that the key's slot is in, and whether something of
/// this key is set aside.
async fn writer_marks(
    client: &Client,
    group_uid: &str,
    key: &RootKey,
) -> Result<(Vec<WriterMark>, bool), BackendError> {
    let bit = key.slot().index() as i64;
    let rows = client
        .query_typed(
            "SELECT journal, position, get_bit(slots, $2) = 1, EXISTS (SELECT FROM \
             cachetier.reject r WHERE r.group_uid = $1 AND r.root_key = $3) \
             FROM cachetier.writer WHERE group_uid = $1 AND lane = $2 % lanes",
            &[
                (&group_uid, Type::TEXT),
                (&bit, Type::INT8),
                (&key.as_bytes().as_ref(), Type::BYTEA),
            ],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    let mut marks = Vec::with_capacity(rows.len());
    let mut set_aside = false;
    for row in &rows {
        let (journal, has_slot) = (get(ACT, row, 0)?, get(ACT, row, 2)?);
        marks.push(WriterMark { journal, position: unsigned(ACT, row, 1)?, has_slot });
        set_aside |= get::<bool>(ACT, row, 3)?;
    }
    Ok((marks, set_aside))
}

async fn holds_all(client: &Client, as_of: Option<&AsOf>) -> Result<bool, BackendError> {
    match as_of {
        Some(as_of) => holds(client, as_of).await,
        None => Ok(true),
    }
}

/// Whether the snapshot holds the commits that were confirmed.
pub(super) async fn holds(client: &Client, as_of: &AsOf) -> Result<bool, BackendError> {
    let lanes = as_of.positions.len() as i32;
    let rows = client
        .query_typed(
            "SELECT lane, position, version FROM cachetier.writer \
             WHERE group_uid = $1 AND node = $2 AND lanes = $3",
            &[(&as_of.group_uid, Type::TEXT), (&as_of.node, Type::TEXT), (&lanes, Type::INT4)],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    let row = |row: &tokio_postgres::Row| {
        let lane: i32 = get(ACT, row, 0)?;
        let (position, version) = (unsigned(ACT, row, 1)?, unsigned(ACT, row, 2)?);
        Ok(RowMark { lane: lane as u16, position, version })
    };
    let rows = rows.iter().map(row).collect::<Result<Vec<RowMark>, BackendError>>()?;
    Ok(as_of.holds(&rows))
}

pub(super) async fn resolve_lookup(
    client: &Client,
    options: &PostgresOptions,
    compiled: &Compiled,
    lookup: LookupId,
    values: &[Value],
    as_of: Option<&AsOf>,
) -> Result<Option<RootKey>, BackendError> {
    const ACT: &str = "resolve a lookup key";
    let schema = &compiled.schema;
    let root = schema.root().ok_or_else(no_tables)?;
    let declared = schema.lookups.get(lookup).ok_or_else(|| {
        BackendError::new(ACT, Reason::Internal, "there is no such lookup key in the schema")
    })?;
    let key: Vec<String> = root
        .primary_key
        .iter()
        .map(|c| {
            let name = sql::column_name(root, *c);
            match root.column(*c).map(|c| &c.column_type) {
                Some(cachetier_model::ColumnType::Enum { .. }) => format!("t.{name}::text"),
                _ => format!("t.{name}"),
            }
        })
        .collect();
    let conditions: Vec<String> = declared
        .columns
        .iter()
        .enumerate()
        .map(|(n, c)| {
            format!("t.{} = {}", sql::column_name(root, *c), sql::parameter(root, *c, n + 1))
        })
        .collect();
    let text = format!(
        "SELECT {} FROM {} AS t WHERE {} LIMIT 1",
        key.join(", "),
        sql::qualified(&schema.backend_schema, &root.name),
        conditions.join(" AND ")
    );
    let mut scalars = Vec::new();
    for (column, value) in declared.columns.iter().zip(values) {
        let column_type = &root.column(*column).ok_or_else(no_tables)?.column_type;
        scalars.push(ScalarParam { column_type, value });
    }
    let params: Vec<(&(dyn ToSql + Sync), Type)> =
        scalars.iter().map(|s| (s as &(dyn ToSql + Sync), element_type(s.column_type))).collect();
    let simple = |error| fault::from_driver(ACT, &error);
    let begin = connect::begin_snapshot(options, "");
    let (began, held, rows, ended) = futures::join!(
        client.batch_execute(&begin),
        holds_all(client, as_of),
        client.query_typed(&text, &params),
        client.batch_execute("COMMIT")
    );
    began.map_err(|error| fault::from_begin(ACT, &error))?;
    let (held, rows) = (held?, rows.map_err(simple)?);
    ended.map_err(simple)?;
    if !held {
        return Err(commits_missing(ACT));
    }
    let Some(row) = rows.first() else { return Ok(None) };
    let mut key = Vec::new();
    for (place, column) in root.primary_key.iter().enumerate() {
        let column_type = &root.column(*column).ok_or_else(no_tables)?.column_type;
        key.push(decode_column(ACT, column_type, row, place)?);
    }
    schema.encode_root_key(&key).map(Some).map_err(|_| drift(ACT, &root.name))
}

pub(super) fn decode_row(
    schema: &GroupSchema,
    table: TableId,
    row: &tokio_postgres::Row,
) -> Result<Row, BackendError> {
    let columns = schema.table(table).map(|t| t.columns.as_slice()).unwrap_or_default();
    columns
        .iter()
        .enumerate()
        .map(|(place, column)| decode_column(ACT, &column.column_type, row, place))
        .collect()
}

fn decode_column(
    act: &'static str,
    column_type: &cachetier_model::ColumnType,
    row: &tokio_postgres::Row,
    place: usize,
) -> Result<Value, BackendError> {
    let raw: Option<Raw<'_>> =
        row.try_get(place).map_err(|error| fault::from_driver(act, &error))?;
    decode(column_type, raw.map(|r| r.0)).map_err(|error| undecodable(act, &error.to_string()))
}

pub(super) fn undecodable(act: &'static str, what: &str) -> BackendError {
    BackendError::new(
        act,
        Reason::SchemaDrift,
        format!("the backend's rows are not of the types that were discovered: {what}"),
    )
}

fn drift(act: &'static str, table: &str) -> BackendError {
    BackendError {
        table: Some(table.into()),
        ..BackendError::new(act, Reason::SchemaDrift, "a row has no valid root key")
    }
}

pub(super) fn no_tables() -> BackendError {
    BackendError::new("use the schema", Reason::Internal, "the schema has no such table or column")
}

/// Puts rows of several tables together to instances.
pub(super) struct Assembly<'a> {
    schema: &'a GroupSchema,
    found: HashMap<RootKey, Instance>,
}

impl<'a> Assembly<'a> {
    pub(super) fn new(schema: &'a GroupSchema) -> Self {
        Self { schema, found: HashMap::new() }
    }

    pub(super) fn add(&mut self, table: TableId, row: Row) -> Result<RootKey, BackendError> {
        let name = || self.schema.table(table).map_or("", |t| t.name.as_str());
        let key = self.schema.root_key_of_row(table, &row).map_err(|_| drift(ACT, name()))?;
        let tables = self.schema.tables.len();
        let instance = self.found.entry(key.clone()).or_insert_with(|| Instance::absent(tables));
        if let Some(rows) = instance.tables.get_mut(table) {
            rows.push(row);
        }
        Ok(key)
    }

    /// The instances, each with its rows in primary key order.
    pub(super) fn finish(mut self) -> HashMap<RootKey, Instance> {
        for instance in self.found.values_mut() {
            for (table, rows) in self.schema.tables.iter().zip(&mut instance.tables) {
                rows.sort_by(|a, b| by_primary_key(table, a, b));
            }
        }
        self.found
    }
}

fn by_primary_key(table: &TableSchema, a: &Row, b: &Row) -> Ordering {
    for column in &table.primary_key {
        let (Some(c), Some(x), Some(y)) = (table.column(*column), a.get(*column), b.get(*column))
        else {
            continue;
        };
        match c.column_type.compare(x, y) {
            Some(Ordering::Equal) | None => {}
            Some(other) => return other,
        }
    }
    Ordering::Equal
}
