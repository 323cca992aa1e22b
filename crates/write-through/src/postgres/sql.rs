//! SQL texts, compiled once from the schema.
//!
//! Pure. Every statement is unnamed and has fixed parameter types, so that it needs one round trip
//! and works behind a pooler that hands out sessions by transaction.

use super::binary::array_type;
use crate::plan::Statement;
use cachetier_model::{ChangeKind, ColumnId, ColumnType, GroupSchema, TableSchema};
use tokio_postgres::types::Type;

/// A quoted identifier.
pub(super) fn ident(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `"schema"."table"`
pub(super) fn qualified(schema: &str, table: &str) -> String {
    format!("{}.{}", ident(schema), ident(table))
}

pub(super) fn column_name(table: &TableSchema, column: ColumnId) -> String {
    table.column(column).map(|c| ident(&c.name)).unwrap_or_default()
}

/// `t."a", t."b"::text, …`: all columns in order, labels as text.
pub(super) fn select_list(table: &TableSchema, alias: &str) -> String {
    let column = |c: &cachetier_model::Column| {
        let cast = if matches!(c.column_type, ColumnType::Enum { .. }) { "::text" } else { "" };
        format!("{alias}.{}{cast}", ident(&c.name))
    };
    table.columns.iter().map(column).collect::<Vec<_>>().join(", ")
}

/// What makes `expression` of a travelling type the column's own.
fn cast(column_type: &ColumnType, expression: &str) -> String {
    match column_type {
        ColumnType::Enum { name, .. } => format!("{expression}::{name}"),
        ColumnType::Array { .. } => format!("{expression}::{}", column_type.sql_name()),
        _ => expression.to_owned(),
    }
}

/// A set-based statement and the columns whose arrays are its parameters, in order.
#[derive(Debug, PartialEq)]
pub(super) struct Compiled {
    pub text: String,
    pub columns: Vec<ColumnId>,
}

impl Compiled {
    pub(super) fn types(&self, table: &TableSchema) -> Vec<Type> {
        let of = |c: &ColumnId| table.column(*c).map(|c| array_type(&c.column_type));
        self.columns.iter().filter_map(of).collect()
    }
}

pub(super) fn compile(schema: &GroupSchema, table: &TableSchema, s: &Statement<'_>) -> Compiled {
    let target = qualified(&schema.backend_schema, &table.name);
    match s.kind {
        ChangeKind::Insert => {
            let columns: Vec<ColumnId> = (0..table.columns.len()).collect();
            let names: Vec<_> = columns.iter().map(|c| column_name(table, *c)).collect();
            let values: Vec<_> = columns.iter().map(|c| value(table, &columns, *c)).collect();
            let text = format!(
                "INSERT INTO {target} ({}) SELECT {} FROM {}",
                names.join(", "),
                values.join(", "),
                unnest(&columns)
            );
            Compiled { text, columns }
        }
        ChangeKind::Update => {
            let extra = s.set.iter().filter(|c| !table.primary_key.contains(c));
            let columns: Vec<ColumnId> = table.primary_key.iter().chain(extra).copied().collect();
            let set: Vec<_> = s
                .set
                .iter()
                .map(|c| format!("{} = {}", column_name(table, *c), value(table, &columns, *c)))
                .collect();
            let text = format!(
                "UPDATE {target} AS t SET {} FROM {} WHERE {}",
                set.join(", "),
                unnest(&columns),
                on_key(table, &columns, &table.primary_key)
            );
            Compiled { text, columns }
        }
        ChangeKind::Delete => {
            let columns = table.primary_key.clone();
            let text = format!(
                "DELETE FROM {target} AS t USING {} WHERE {}",
                unnest(&columns),
                on_key(table, &columns, &table.primary_key)
            );
            Compiled { text, columns }
        }
    }
}

/// `unnest($1, $2) AS u(c0, c1)`
pub(super) fn unnest(columns: &[ColumnId]) -> String {
    let parameters: Vec<_> = (1..=columns.len()).map(|n| format!("${n}")).collect();
    let names: Vec<_> = (0..columns.len()).map(|n| format!("c{n}")).collect();
    format!("unnest({}) AS u({})", parameters.join(", "), names.join(", "))
}

/// The travelling value of a column within `columns`.
fn value(table: &TableSchema, columns: &[ColumnId], column: ColumnId) -> String {
    let at = columns.iter().position(|c| *c == column).unwrap_or_default();
    match table.column(column) {
        Some(c) => cast(&c.column_type, &format!("u.c{at}")),
        None => String::new(),
    }
}

/// `t."k" = u.c0 AND …` for the key columns.
pub(super) fn on_key(table: &TableSchema, columns: &[ColumnId], key: &[ColumnId]) -> String {
    let equal =
        |c: &ColumnId| format!("t.{} = {}", column_name(table, *c), value(table, columns, *c));
    key.iter().map(equal).collect::<Vec<_>>().join(" AND ")
}

/// `t."k"`, ordered by bytes where it is text: what ranges and pages are cut by.
pub(super) fn ordered_key(table: &TableSchema, alias: &str, column: ColumnId) -> String {
    let name = format!("{alias}.{}", column_name(table, column));
    match table.column(column).map(|c| &c.column_type) {
        Some(ColumnType::Char { .. } | ColumnType::Varchar { .. } | ColumnType::Text) => {
            format!("{name} COLLATE \"C\"")
        }
        _ => name,
    }
}

/// Parameter `$n` as a value of the column's type.
pub(super) fn parameter(table: &TableSchema, column: ColumnId, n: usize) -> String {
    match table.column(column).map(|c| &c.column_type) {
        Some(column_type) => cast(column_type, &format!("${n}")),
        None => format!("${n}"),
    }
}
