//! When two changes may not be summed up in one wave.
//!
//! Within a wave deletes run first, then updates, then inserts. That is wrong in three cases, all
//! rare, and each starts a new wave: a unique value that passes from one updated row to another
//! (the backend checks each row as it goes), a row that changes its parent (its old parent may
//! be deleted in the same batch), and a row that is deleted and comes back under another parent.

use cachetier_model::{ChangeKind, ColumnId, GroupSchema, Row, RowChange, TableSchema};

/// Columns of one table that matter for the order.
#[derive(Clone, Debug, Default)]
pub(super) struct Sensitive {
    unique: Vec<ColumnId>,
    references: Vec<ColumnId>,
}

impl Sensitive {
    pub(super) fn of(schema: &GroupSchema, table: &TableSchema) -> Self {
        let lookups = schema
            .lookups
            .iter()
            .filter(|_| table.parent.is_none())
            .flat_map(|l| l.columns.iter().copied());
        let unique = table
            .unique_keys
            .iter()
            .flat_map(|k| k.columns.iter().copied())
            .chain(lookups)
            .filter(|c| !table.primary_key.contains(c))
            .collect();
        let inside = table
            .external_keys
            .iter()
            .filter(|k| schema.table_id(&k.references).is_some())
            .flat_map(|k| k.columns.iter().copied());
        let references =
            table.parent_key.iter().flat_map(|k| k.columns.iter().copied()).chain(inside).collect();
        Self { unique, references }
    }

    /// The change writes a unique value into a row that exists in the backend already.
    pub(super) fn moves_unique(&self, change: &RowChange, deleted_before: bool) -> bool {
        match change.kind {
            ChangeKind::Update => change.changed.iter().any(|c| self.unique.contains(c)),
            ChangeKind::Insert => deleted_before && !self.unique.is_empty(),
            ChangeKind::Delete => false,
        }
    }

    /// A row that was deleted comes back under another parent: as an update it would come after the
    /// delete of the old one.
    pub(super) fn returns_elsewhere(&self, before: &Row, change: &RowChange) -> bool {
        change.kind == ChangeKind::Insert
            && self.references.iter().any(|c| before.get(*c) != change.row.get(*c))
    }

    /// The change gives a row another parent.
    pub(super) fn moves_parent(&self, change: &RowChange) -> bool {
        change.kind == ChangeKind::Update
            && change.changed.iter().any(|c| self.references.contains(c))
    }
}
