//! Read plans and rows.

use super::error::ConvertError;
use super::names;
use super::values::{value_from_wire, value_to_wire};
use cachetier_model::{
    Comparison, Condition, GroupSchema, Instance, ReadPlan, Row, TableRead, TableSchema,
};
use cachetier_proto::v1;

/// What to read, with names resolved.
pub fn read_plan(schema: &GroupSchema, tables: &[v1::TableRead]) -> Result<ReadPlan, ConvertError> {
    let tables = tables
        .iter()
        .map(|read| {
            let (id, table) = names::table(schema, &read.table)?;
            let columns = read
                .columns
                .iter()
                .map(|name| names::column(table, name).map(|(id, _)| id))
                .collect::<Result<_, _>>()?;
            Ok(TableRead { table: id, columns, conditions: conditions(table, &read.conditions)? })
        })
        .collect::<Result<_, ConvertError>>()?;
    Ok(ReadPlan { tables })
}

pub(super) fn conditions(
    table: &TableSchema,
    wire: &[v1::Condition],
) -> Result<Vec<Condition>, ConvertError> {
    wire.iter().map(|c| condition(table, c)).collect()
}

fn condition(table: &TableSchema, wire: &v1::Condition) -> Result<Condition, ConvertError> {
    let comparison = match wire.comparison() {
        v1::Comparison::Equal => Comparison::Equal,
        v1::Comparison::NotEqual => Comparison::NotEqual,
        v1::Comparison::Less => Comparison::Less,
        v1::Comparison::LessOrEqual => Comparison::LessOrEqual,
        v1::Comparison::Greater => Comparison::Greater,
        v1::Comparison::GreaterOrEqual => Comparison::GreaterOrEqual,
        v1::Comparison::In => Comparison::In,
        v1::Comparison::IsNull => Comparison::IsNull,
        v1::Comparison::IsNotNull => Comparison::IsNotNull,
    };
    let (id, column) = names::column(table, &wire.column)?;
    let found = wire.values.len();
    let (fits, expected) = match comparison {
        Comparison::In => (true, "any number of values"),
        Comparison::IsNull | Comparison::IsNotNull => (found == 0, "no value"),
        _ => (found == 1, "one value"),
    };
    if !fits {
        let (table, column) = (table.name.clone(), wire.column.clone());
        return Err(ConvertError::Operands { table, column, expected, found });
    }
    let values = wire
        .values
        .iter()
        .map(|value| value_from_wire(table, column, value))
        .collect::<Result<_, _>>()?;
    Ok(Condition { column: id, comparison, values })
}

/// Rows as the plan asked for them (an empty plan: every table), in the wire's form.
pub fn tables_to_wire(
    schema: &GroupSchema,
    plan: &ReadPlan,
    tables: &[Vec<Row>],
) -> Vec<v1::TableRows> {
    let name = |position: usize| {
        let id = match plan.tables.get(position) {
            Some(read) => read.table,
            None => position,
        };
        schema.table(id).map(|t| t.name.clone()).unwrap_or_default()
    };
    tables
        .iter()
        .enumerate()
        .map(|(position, rows)| v1::TableRows {
            table: name(position),
            rows: rows.iter().map(row_to_wire).collect(),
        })
        .collect()
}

fn row_to_wire(row: &Row) -> v1::Row {
    v1::Row { values: row.iter().map(value_to_wire).collect() }
}

/// A whole row of a table.
pub(super) fn row_from_wire(table: &TableSchema, wire: &v1::Row) -> Result<Row, ConvertError> {
    if wire.values.len() != table.columns.len() {
        return Err(ConvertError::Shape("a row has not one value per column"));
    }
    table
        .columns
        .iter()
        .zip(&wire.values)
        .map(|(column, value)| value_from_wire(table, column, value))
        .collect()
}

pub fn instance_to_wire(schema: &GroupSchema, instance: &Instance) -> v1::LoadInstance {
    v1::LoadInstance { tables: tables_to_wire(schema, &ReadPlan::default(), &instance.tables) }
}

pub fn instance_from_wire(
    schema: &GroupSchema,
    wire: &v1::LoadInstance,
) -> Result<Instance, ConvertError> {
    let mut instance = Instance::absent(schema.tables.len());
    for rows in &wire.tables {
        let (id, table) = names::table(schema, &rows.table)?;
        let decoded =
            rows.rows.iter().map(|r| row_from_wire(table, r)).collect::<Result<_, _>>()?;
        if let Some(place) = instance.tables.get_mut(id) {
            *place = decoded;
        }
    }
    Ok(instance)
}
