//! Transactions: names resolved, rows completed.

use super::error::ConvertError;
use super::reads::conditions;
use super::{names, values::value_from_wire};
use cachetier_model::{
    Column, GroupSchema, Guard, Operation, Row, TableSchema, Transaction, Value,
};
use cachetier_proto::v1;
use cachetier_proto::v1::operation::Kind;

/// The domain's form of a request on the instance with this root key. Root key columns an insert
/// leaves out are filled from `root_key`.
pub fn transaction(
    schema: &GroupSchema,
    root_key: &[Value],
    request: &v1::TransactRequest,
) -> Result<Transaction, ConvertError> {
    let guards = request.guards.iter().map(|g| guard(schema, g)).collect::<Result<_, _>>()?;
    let operations = request
        .operations
        .iter()
        .map(|o| operation(schema, root_key, o))
        .collect::<Result<_, _>>()?;
    Ok(Transaction { guards, operations })
}

fn guard(schema: &GroupSchema, wire: &v1::Guard) -> Result<Guard, ConvertError> {
    let (id, table) = names::table(schema, &wire.table)?;
    let conditions = conditions(table, &wire.conditions)?;
    Ok(match wire.absent {
        true => Guard::Absent { table: id, conditions },
        false => Guard::Exists { table: id, conditions },
    })
}

fn operation(
    schema: &GroupSchema,
    root_key: &[Value],
    wire: &v1::Operation,
) -> Result<Operation, ConvertError> {
    match wire.kind.as_ref().ok_or(ConvertError::Missing { what: "the kind of an operation" })? {
        Kind::Insert(insert) => {
            let (table, row) = row(schema, root_key, insert)?;
            Ok(Operation::Insert { table, row })
        }
        Kind::Upsert(insert) => {
            let (table, row) = row(schema, root_key, insert)?;
            Ok(Operation::Upsert { table, row })
        }
        Kind::Update(update) => {
            let (id, table) = names::table(schema, &update.table)?;
            let set = update
                .set
                .iter()
                .map(|assignment| {
                    let (column_id, column) = names::column(table, &assignment.column)?;
                    let value = given_value(table, column, assignment)?;
                    Ok((column_id, value))
                })
                .collect::<Result<_, ConvertError>>()?;
            let conditions = conditions(table, &update.conditions)?;
            Ok(Operation::Update { table: id, conditions, set, expect: update.expect_rows })
        }
        Kind::Delete(delete) => {
            let (id, table) = names::table(schema, &delete.table)?;
            let conditions = conditions(table, &delete.conditions)?;
            Ok(Operation::Delete { table: id, conditions, expect: delete.expect_rows })
        }
    }
}

fn row(
    schema: &GroupSchema,
    root_key: &[Value],
    insert: &v1::Insert,
) -> Result<(usize, Row), ConvertError> {
    let (id, table) = names::table(schema, &insert.table)?;
    let mut given: Vec<Option<Value>> = vec![None; table.columns.len()];
    for assignment in &insert.values {
        let (column_id, column) = names::column(table, &assignment.column)?;
        let value = given_value(table, column, assignment)?;
        let place = given.get_mut(column_id).ok_or(ConvertError::Shape("column id"))?;
        if place.replace(value).is_some() {
            let (table, column) = (table.name.clone(), assignment.column.clone());
            return Err(ConvertError::NamedTwice { table, column });
        }
    }
    for (column_id, value) in table.root_key.iter().zip(root_key) {
        if let Some(place @ None) = given.get_mut(*column_id) {
            *place = Some(value.clone());
        }
    }
    complete(table, given).map(|row| (id, row))
}

fn given_value(
    table: &TableSchema,
    column: &Column,
    assignment: &v1::ColumnValue,
) -> Result<Value, ConvertError> {
    value_from_wire(table, column, assignment.value.as_ref().unwrap_or(&v1::Value { kind: None }))
}

fn complete(table: &TableSchema, given: Vec<Option<Value>>) -> Result<Row, ConvertError> {
    table
        .columns
        .iter()
        .zip(given)
        .map(|(column, value)| match value {
            Some(value) => Ok(value),
            None if column.has_default => Err(ConvertError::Omitted {
                table: table.name.clone(),
                column: column.name.clone(),
            }),
            None => Ok(Value::Null),
        })
        .collect()
}
