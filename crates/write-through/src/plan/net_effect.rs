//! What several changes of one row come to.

use cachetier_model::{ChangeKind, ColumnId, Row, RowChange, TableSchema};

/// The sum of the changes of one row within a wave. `None` of it: the row came and went.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Net<'a> {
    pub kind: ChangeKind,
    /// Row after the changes; for a delete, the row before the last of them.
    pub row: &'a Row,
    /// Columns an update sets, ascending.
    pub set: Vec<ColumnId>,
}

/// Two changes of one row that cannot follow each other.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Impossible;

impl<'a> Net<'a> {
    pub(super) fn of(change: &'a RowChange) -> Self {
        let set = match change.kind {
            ChangeKind::Update => sorted(&change.changed),
            ChangeKind::Insert | ChangeKind::Delete => Vec::new(),
        };
        Self { kind: change.kind, row: &change.row, set }
    }

    /// The effect of this and then `change`; `Ok(None)` when nothing is left to do.
    pub(super) fn then(
        self,
        change: &'a RowChange,
        table: &TableSchema,
    ) -> Result<Option<Self>, Impossible> {
        use ChangeKind::{Delete, Insert, Update};
        let row = &change.row;
        Ok(match (self.kind, change.kind) {
            (Insert, Update) => Some(Self { kind: Insert, row, set: Vec::new() }),
            (Insert, Delete) => None,
            (Update, Update) => {
                let set = sorted(&[self.set, change.changed.clone()].concat());
                Some(Self { kind: Update, row, set })
            }
            (Update, Delete) => Some(Self { kind: Delete, row, set: Vec::new() }),
            (Delete, Insert) => {
                let set = replaced_columns(table, self.row, row);
                Some(Self { kind: Update, row, set })
            }
            (Insert, Insert) | (Update, Insert) | (Delete, Update | Delete) => {
                return Err(Impossible);
            }
        })
    }
}

/// Deleted and inserted again under the same key: every other column is set, and a key column
/// only where it is equal to the backend and yet written differently (`1.0` and `1.00`).
fn replaced_columns(table: &TableSchema, before: &Row, after: &Row) -> Vec<ColumnId> {
    (0..table.columns.len())
        .filter(|c| !table.primary_key.contains(c) || before.get(*c) != after.get(*c))
        .collect()
}

fn sorted(columns: &[ColumnId]) -> Vec<ColumnId> {
    let mut columns = columns.to_vec();
    columns.sort_unstable();
    columns.dedup();
    columns
}
