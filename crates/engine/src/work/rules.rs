//! R16: which changes a node must not decide alone.
//!
//! Those that take or release a unique key (insert or delete of a root, a change of a lookup key,
//! a further unique constraint) and those that depend on a foreign key to a table outside the
//! group. They are answered after the backend accepted them.

use cachetier_model::{ChangeKind, ColumnId, GroupSchema, Row, RowChange, TableId, Value};

/// Per table: the column sets that matter, compiled from the schema.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    tables: Vec<TableRules>,
    /// Root columns of the lookup keys.
    lookup_columns: Vec<ColumnId>,
}

#[derive(Clone, Debug, Default)]
struct TableRules {
    /// Every insert and delete: the root, and tables whose primary key does not contain the root
    /// key and is therefore unique across instances.
    rows: bool,
    /// Unique keys: taken by an insert, released by a delete, both by an update.
    unique: Vec<Vec<ColumnId>>,
    /// Foreign keys outside: relied on by an insert and by an update of their columns.
    external: Vec<Vec<ColumnId>>,
    /// Per column: no key of the group is made of it.
    plain: Vec<bool>,
}

impl Rules {
    pub(crate) fn compile(schema: &GroupSchema) -> Self {
        let table = |(id, table): (usize, &cachetier_model::TableSchema)| {
            let mut unique: Vec<Vec<ColumnId>> =
                table.unique_keys.iter().map(|key| key.columns.clone()).collect();
            if id == 0 {
                unique.extend(schema.lookups.iter().map(|lookup| lookup.columns.clone()));
            }
            TableRules {
                rows: id == 0 || !table.root_key.iter().all(|c| table.primary_key.contains(c)),
                unique,
                external: table.external_keys.iter().map(|key| key.columns.clone()).collect(),
                plain: (0..table.columns.len()).map(|c| !in_a_key(schema, id, c)).collect(),
            }
        };
        Self {
            tables: schema.tables.iter().enumerate().map(table).collect(),
            lookup_columns: schema.lookups.iter().flat_map(|l| l.columns.clone()).collect(),
        }
    }

    /// Whether lookup keys may come, go or change.
    pub(crate) fn moves_lookups(&self, changes: &[RowChange]) -> bool {
        changes.iter().filter(|change| change.table == 0).any(|change| match change.kind {
            ChangeKind::Insert | ChangeKind::Delete => true,
            ChangeKind::Update => change.changed.iter().any(|c| self.lookup_columns.contains(c)),
        })
    }

    /// Whether the column is part of no primary, root or foreign key within the group.
    pub(crate) fn is_plain(&self, table: TableId, column: ColumnId) -> bool {
        self.tables.get(table).and_then(|t| t.plain.get(column)).copied().unwrap_or(false)
    }

    pub(crate) fn awaits_backend(&self, changes: &[RowChange]) -> bool {
        changes.iter().any(|change| self.tables.get(change.table).is_some_and(|t| t.awaits(change)))
    }
}

impl TableRules {
    fn awaits(&self, change: &RowChange) -> bool {
        let full = |columns: &Vec<ColumnId>| has_all(&change.row, columns);
        let touched = |columns: &Vec<ColumnId>| columns.iter().any(|c| change.changed.contains(c));
        match change.kind {
            ChangeKind::Insert => {
                self.rows || self.unique.iter().any(full) || self.external.iter().any(full)
            }
            ChangeKind::Delete => self.rows || self.unique.iter().any(full),
            ChangeKind::Update => {
                self.unique.iter().any(touched)
                    || self.external.iter().any(|c| touched(c) && full(c))
            }
        }
    }
}

fn in_a_key(schema: &GroupSchema, id: TableId, column: ColumnId) -> bool {
    let Some(table) = schema.table(id) else { return true };
    let names = |columns: &[ColumnId]| columns.contains(&column);
    let below = schema.children(id).filter_map(|child| schema.table(child)?.parent_key.as_ref());
    names(&table.primary_key)
        || names(&table.root_key)
        || table.parent_key.as_ref().is_some_and(|key| names(&key.columns))
        || below.into_iter().any(|key| names(&key.parent_columns))
}

/// A key with a NULL in it constrains nothing.
fn has_all(row: &Row, columns: &[ColumnId]) -> bool {
    columns.iter().all(|id| row.get(*id).is_some_and(|v: &Value| !v.is_null()))
}
