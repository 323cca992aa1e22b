//! The naive model: an instance is lists of rows, a transaction works on a copy of all of it.

use crate::TransactError;
use crate::work::by_primary_key;
use cachetier_model::schema::ReferentialAction;
use cachetier_model::{
    ChangeKind, Comparison, Condition, GroupSchema, Guard, Instance, Operation, RootKey, Row,
    RowChange, TableSchema, Transaction, Value,
};
use std::cmp::Ordering;

pub(super) fn kind(error: &TransactError) -> &'static str {
    match error {
        TransactError::NotLoaded => "not loaded",
        TransactError::Quarantined => "quarantined",
        TransactError::AwaitingBackend => "awaiting",
        TransactError::GuardFailed { .. } => "guard",
        TransactError::PrimaryKey { .. } => "primary key",
        TransactError::ForeignKey { .. } => "foreign key",
        TransactError::NotNull { .. } => "not null",
        TransactError::Value { .. } => "value",
        TransactError::KeyChange { .. } => "key change",
        TransactError::WrongInstance { .. } => "wrong instance",
        TransactError::RowCount { .. } => "row count",
        TransactError::LookupTaken { .. } => "lookup",
        TransactError::MemoryFull => "memory",
        TransactError::Refused(_) => "refused",
        TransactError::Request(_) => "request",
    }
}

pub(super) fn holds(table: &TableSchema, row: &Row, conditions: &[Condition]) -> bool {
    conditions.iter().all(|c| {
        let order = |v: &Value| table.columns[c.column].column_type.compare(&row[c.column], v);
        let first = || c.values.first().and_then(order);
        match c.comparison {
            Comparison::Equal => first() == Some(Ordering::Equal),
            Comparison::NotEqual => matches!(first(), Some(Ordering::Less | Ordering::Greater)),
            Comparison::Less => first() == Some(Ordering::Less),
            Comparison::LessOrEqual => matches!(first(), Some(Ordering::Less | Ordering::Equal)),
            Comparison::Greater => first() == Some(Ordering::Greater),
            Comparison::GreaterOrEqual => {
                matches!(first(), Some(Ordering::Greater | Ordering::Equal))
            }
            Comparison::In => c.values.iter().any(|v| order(v) == Some(Ordering::Equal)),
            Comparison::IsNull => row[c.column] == Value::Null,
            Comparison::IsNotNull => row[c.column] != Value::Null,
        }
    })
}

fn names(child: &TableSchema, row: &Row, parent: &Row) -> bool {
    let key = child.parent_key.as_ref().unwrap();
    (0..key.columns.len()).all(|n| {
        let column = key.columns[n];
        let order =
            child.columns[column].column_type.compare(&row[column], &parent[key.parent_columns[n]]);
        order == Some(Ordering::Equal)
    })
}

fn parent_there(schema: &GroupSchema, instance: &Instance, table: usize, row: &Row) -> bool {
    let Some(parent) = schema.tables[table].parent else { return true };
    let key = schema.tables[table].parent_key.as_ref().unwrap();
    key.columns.iter().any(|c| row[*c] == Value::Null)
        || instance.tables[parent].iter().any(|p| names(&schema.tables[table], row, p))
}

fn checked(table: &TableSchema, row: &Row) -> Result<Row, &'static str> {
    let cell = |(column, value): (&cachetier_model::Column, &Value)| {
        if column.not_null && *value == Value::Null {
            return Err("not null");
        }
        column.column_type.check(value).map_err(|_| "value")
    };
    table.columns.iter().zip(row).map(cell).collect()
}

fn remove(
    schema: &GroupSchema,
    instance: &mut Instance,
    table: usize,
    gone: &dyn Fn(&Row) -> bool,
) -> Result<u32, &'static str> {
    let (removed, kept): (Vec<Row>, Vec<Row>) =
        std::mem::take(&mut instance.tables[table]).into_iter().partition(|r| gone(r));
    instance.tables[table] = kept;
    for (child, child_schema) in schema.tables.iter().enumerate() {
        if child_schema.parent != Some(table) {
            continue;
        }
        let orphan = |row: &Row| removed.iter().any(|parent| names(child_schema, row, parent));
        if !instance.tables[child].iter().any(orphan) {
            continue;
        }
        let key = child_schema.parent_key.as_ref().unwrap();
        match key.on_delete {
            ReferentialAction::Cascade => {
                remove(schema, instance, child, &orphan)?;
            }
            ReferentialAction::SetNull => {
                if key.columns.iter().any(|c| child_schema.columns[*c].not_null) {
                    return Err("not null");
                }
                for row in instance.tables[child].iter_mut().filter(|row| orphan(row)) {
                    key.columns.iter().for_each(|c| row[*c] = Value::Null);
                }
            }
            _ => return Err("foreign key"),
        }
    }
    Ok(removed.len() as u32)
}

fn apply(
    schema: &GroupSchema,
    key: &RootKey,
    instance: &mut Instance,
    operation: &Operation,
) -> Result<u32, &'static str> {
    match operation {
        Operation::Insert { table, row } | Operation::Upsert { table, row } => {
            let shape = &schema.tables[*table];
            let mut row = checked(shape, row)?;
            if schema.root_key_of_row(*table, &row).ok().as_ref() != Some(key) {
                return Err("wrong instance");
            }
            let there =
                instance.tables[*table].iter().position(|r| by_primary_key(shape, r, &row).is_eq());
            match (there, operation) {
                (Some(_), Operation::Insert { .. }) => Err("primary key"),
                (Some(at), _) => {
                    for c in shape.primary_key.iter().chain(&shape.root_key) {
                        row[*c] = instance.tables[*table][at][*c].clone();
                    }
                    instance.tables[*table][at] = row;
                    Ok(1)
                }
                (None, _) => {
                    if !parent_there(schema, instance, *table, &row) {
                        return Err("foreign key");
                    }
                    instance.tables[*table].push(row);
                    instance.tables[*table].sort_by(|a, b| by_primary_key(shape, a, b));
                    Ok(1)
                }
            }
        }
        Operation::Update { table, conditions, set, expect } => {
            let shape = &schema.tables[*table];
            let mut found = 0;
            for row in &mut instance.tables[*table] {
                if !holds(shape, row, conditions) {
                    continue;
                }
                found += 1;
                for (column, value) in set {
                    if shape.columns[*column].not_null && *value == Value::Null {
                        return Err("not null");
                    }
                    let column_type = &shape.columns[*column].column_type;
                    let value = column_type.check(value).map_err(|_| "value")?;
                    if !shape.primary_key.contains(column) {
                        row[*column] = value;
                    } else if column_type.compare(&row[*column], &value) != Some(Ordering::Equal) {
                        return Err("key change");
                    }
                }
            }
            if expect.is_some_and(|e| e != found) { Err("row count") } else { Ok(found) }
        }
        Operation::Delete { table, conditions, expect } => {
            let shape = &schema.tables[*table];
            let found = remove(schema, instance, *table, &|row| holds(shape, row, conditions))?;
            if expect.is_some_and(|e| e != found) { Err("row count") } else { Ok(found) }
        }
    }
}

/// The instance after the transaction and the rows affected, or why it does not happen.
pub(super) fn transact(
    schema: &GroupSchema,
    key: &RootKey,
    instance: &Instance,
    transaction: &Transaction,
) -> Result<(Instance, Vec<u32>), &'static str> {
    let mut after = instance.clone();
    for guard in &transaction.guards {
        let (table, conditions, wanted) = match guard {
            Guard::Exists { table, conditions } => (*table, conditions, true),
            Guard::Absent { table, conditions } => (*table, conditions, false),
        };
        let shape = &schema.tables[table];
        if after.tables[table].iter().any(|row| holds(shape, row, conditions)) != wanted {
            return Err("guard");
        }
    }
    let rows = transaction
        .operations
        .iter()
        .map(|operation| apply(schema, key, &mut after, operation))
        .collect::<Result<_, _>>()?;
    if !after.exists() && after.row_count() > 0 {
        return Err("foreign key");
    }
    Ok((after, rows))
}

/// What the backend has after these row changes; each must meet the row it is about.
pub(super) fn replay(schema: &GroupSchema, before: &Instance, changes: &[RowChange]) -> Instance {
    let mut after = before.clone();
    for change in changes {
        let shape = &schema.tables[change.table];
        let rows = &mut after.tables[change.table];
        let at = rows.binary_search_by(|r| by_primary_key(shape, r, &change.row));
        match change.kind {
            ChangeKind::Insert => rows.insert(at.unwrap_err(), change.row.clone()),
            ChangeKind::Delete => {
                rows.remove(at.unwrap());
            }
            ChangeKind::Update => {
                assert!(!change.changed.is_empty());
                let row = &mut rows[at.unwrap()];
                change.changed.iter().for_each(|c| row[*c] = change.row[*c].clone());
            }
        }
    }
    after
}
