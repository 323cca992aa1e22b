//! The client's requests to the wire, and answers back.

use super::error::ConvertError;
use super::names;
use super::values::{value_from_wire, value_to_wire};
use crate::request::{
    Answer, Condition, Guard, Insert, Key, Operation, Position, Read, ReadAnswer, Source,
    TableRead, TableRows, Transact, TransactAnswer,
};
use cachetier_model::{Column, Comparison, GroupSchema, Row, Value};
use cachetier_proto::v1;
use cachetier_proto::v1::operation::Kind;

pub fn read_to_wire(read: &Read) -> v1::ReadRequest {
    v1::ReadRequest {
        key: Some(key(&read.key)),
        tables: read.tables.iter().map(table_read).collect(),
        forwarded: false,
        no_bypass: read.no_bypass,
        min_position: read.min_position.as_ref().map(position_to_wire),
    }
}

pub fn transact_to_wire(transact: &Transact) -> v1::TransactRequest {
    let answer = match transact.answer {
        Answer::Durable => v1::Answer::Durable,
        Answer::Flushed => v1::Answer::Flushed,
    };
    v1::TransactRequest {
        key: Some(key(&transact.key)),
        guards: transact.guards.iter().map(guard).collect(),
        operations: transact.operations.iter().map(operation).collect(),
        answer: answer.into(),
        forwarded: false,
        idempotency_key: transact.idempotency_key.clone().unwrap_or_default(),
    }
}

fn key(key: &Key) -> v1::Key {
    let by = match key {
        Key::Root(values) => v1::key::By::Root(v1::KeyValues { values: values_of(values) }),
        Key::Lookup { columns, values } => v1::key::By::Lookup(v1::LookupKey {
            columns: columns.clone(),
            values: values_of(values),
        }),
    };
    v1::Key { by: Some(by) }
}

fn values_of(values: &[Value]) -> Vec<v1::Value> {
    values.iter().map(value_to_wire).collect()
}

fn table_read(read: &TableRead) -> v1::TableRead {
    v1::TableRead {
        table: read.table.clone(),
        columns: read.columns.clone(),
        conditions: read.conditions.iter().map(condition).collect(),
    }
}

fn condition(condition: &Condition) -> v1::Condition {
    let comparison = match condition.comparison {
        Comparison::Equal => v1::Comparison::Equal,
        Comparison::NotEqual => v1::Comparison::NotEqual,
        Comparison::Less => v1::Comparison::Less,
        Comparison::LessOrEqual => v1::Comparison::LessOrEqual,
        Comparison::Greater => v1::Comparison::Greater,
        Comparison::GreaterOrEqual => v1::Comparison::GreaterOrEqual,
        Comparison::In => v1::Comparison::In,
        Comparison::IsNull => v1::Comparison::IsNull,
        Comparison::IsNotNull => v1::Comparison::IsNotNull,
    };
    v1::Condition {
        column: condition.column.clone(),
        comparison: comparison.into(),
        values: values_of(&condition.values),
    }
}

fn guard(guard: &Guard) -> v1::Guard {
    v1::Guard {
        table: guard.table.clone(),
        conditions: guard.conditions.iter().map(condition).collect(),
        absent: guard.absent,
    }
}

fn operation(operation: &Operation) -> v1::Operation {
    let kind = match operation {
        Operation::Insert(row) => Kind::Insert(insert(row)),
        Operation::Upsert(row) => Kind::Upsert(insert(row)),
        Operation::Update(update) => Kind::Update(v1::Update {
            table: update.table.clone(),
            conditions: update.conditions.iter().map(condition).collect(),
            set: assignments(&update.set),
            expect_rows: update.expect,
        }),
        Operation::Delete(delete) => Kind::Delete(v1::Delete {
            table: delete.table.clone(),
            conditions: delete.conditions.iter().map(condition).collect(),
            expect_rows: delete.expect,
        }),
    };
    v1::Operation { kind: Some(kind) }
}

fn insert(insert: &Insert) -> v1::Insert {
    v1::Insert { table: insert.table.clone(), values: assignments(&insert.values) }
}

fn assignments(values: &[(String, Value)]) -> Vec<v1::ColumnValue> {
    values
        .iter()
        .map(|(column, value)| v1::ColumnValue {
            column: column.clone(),
            value: Some(value_to_wire(value)),
        })
        .collect()
}

/// `tables` are the request's, so that projected rows get their types.
pub fn read_answer_from_wire(
    schema: &GroupSchema,
    tables: &[TableRead],
    wire: v1::ReadResponse,
) -> Result<ReadAnswer, ConvertError> {
    let source = match wire.source() {
        v1::Source::Bypass => Source::Bypass,
        v1::Source::ReadThrough => Source::ReadThrough,
        v1::Source::Cache | v1::Source::Unspecified => Source::Cache,
    };
    let decoded =
        wire.decode_tables().map_err(|_| ConvertError::Shape("rows that do not decode"))?;
    let answered = decoded
        .into_iter()
        .enumerate()
        .map(|(position, rows)| {
            let projection = tables.get(position).map_or(&[][..], |t| &t.columns);
            table_rows(schema, projection, rows)
        })
        .collect::<Result<_, _>>()?;
    let confirmed = wire.confirmed.map(position);
    Ok(ReadAnswer { found: wire.found, tables: answered, source, confirmed })
}

fn table_rows(
    schema: &GroupSchema,
    projection: &[String],
    wire: v1::TableRows,
) -> Result<TableRows, ConvertError> {
    let (_, table) = names::table(schema, &wire.table)?;
    let columns: Vec<&Column> = match projection {
        [] => table.columns.iter().collect(),
        names => names
            .iter()
            .map(|name| names::column(table, name).map(|(_, column)| column))
            .collect::<Result<_, _>>()?,
    };
    let row = |wire: &v1::Row| -> Result<Row, ConvertError> {
        if wire.values.len() != columns.len() {
            return Err(ConvertError::Shape("a row has not one value per column"));
        }
        columns.iter().zip(&wire.values).map(|(c, v)| value_from_wire(table, c, v)).collect()
    };
    let rows = wire.rows.iter().map(row).collect::<Result<_, _>>()?;
    Ok(TableRows { table: wire.table, rows })
}

pub fn transact_answer_from_wire(wire: v1::TransactResponse) -> TransactAnswer {
    let position = wire.position.filter(|p| p.sequence > 0).map(position);
    TransactAnswer { position, rows: wire.rows }
}

pub fn position_to_wire(position: &Position) -> v1::Position {
    v1::Position { journal: position.journal.clone(), sequence: position.sequence }
}

fn position(wire: v1::Position) -> Position {
    Position { journal: wire.journal, sequence: wire.sequence }
}
