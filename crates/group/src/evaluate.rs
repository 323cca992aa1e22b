//! Reads over an instance that is in hand and not in the store: what a bypass, or a miss without
//! room in memory, answers from.
//!
//! Owns nothing. The same meaning as the engine's own reads: rows that satisfy all conditions, in
//! primary key order, projected.

use std::cmp::Ordering;

use cachetier_model::{
    Comparison, Condition, GroupSchema, Instance, ReadPlan, Row, TableRead, TableSchema, Value,
};

use crate::error::{GroupError, RefusalReason};

/// Rows per entry of the plan; per table of the schema for an empty plan.
pub(crate) fn read_plan(
    schema: &GroupSchema,
    instance: &Instance,
    plan: &ReadPlan,
) -> Result<Vec<Vec<Row>>, GroupError> {
    if plan.tables.is_empty() {
        return Ok(instance.tables.clone());
    }
    plan.tables.iter().map(|read| read_table(schema, instance, read)).collect()
}

fn read_table(
    schema: &GroupSchema,
    instance: &Instance,
    read: &TableRead,
) -> Result<Vec<Row>, GroupError> {
    let unknown = || GroupError::refused(RefusalReason::Schema, "the read names an unknown table");
    let table = schema.table(read.table).ok_or_else(unknown)?;
    let rows = instance.tables.get(read.table).ok_or_else(unknown)?;
    Ok(rows
        .iter()
        .filter(|row| read.conditions.iter().all(|c| holds(table, row, c)))
        .map(|row| project(row, &read.columns))
        .collect())
}

fn project(row: &Row, columns: &[usize]) -> Row {
    if columns.is_empty() {
        return row.clone();
    }
    columns.iter().map(|c| row.get(*c).cloned().unwrap_or(Value::Null)).collect()
}

/// True if the condition holds for the row; comparisons with NULL never do.
pub(crate) fn holds(table: &TableSchema, row: &Row, condition: &Condition) -> bool {
    let (Some(column), Some(value)) = (table.column(condition.column), row.get(condition.column))
    else {
        return false;
    };
    let compare = |other: &Value| column.column_type.compare(value, other);
    let first = || condition.values.first().and_then(compare);
    match condition.comparison {
        Comparison::IsNull => value.is_null(),
        Comparison::IsNotNull => !value.is_null(),
        Comparison::In => condition.values.iter().any(|v| compare(v) == Some(Ordering::Equal)),
        Comparison::Equal => first() == Some(Ordering::Equal),
        Comparison::NotEqual => first().is_some_and(Ordering::is_ne),
        Comparison::Less => first().is_some_and(Ordering::is_lt),
        Comparison::LessOrEqual => first().is_some_and(Ordering::is_le),
        Comparison::Greater => first().is_some_and(Ordering::is_gt),
        Comparison::GreaterOrEqual => first().is_some_and(Ordering::is_ge),
    }
}
