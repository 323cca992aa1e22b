//! What the engine answers.

use cachetier_model::{RootKey, Row, TableId, ValueRef};

/// Answer to a read of one instance.
#[derive(Clone, Debug, PartialEq)]
pub enum ReadAnswer {
    /// One list of rows per entry of the plan; for an empty plan one per table of the group.
    /// `as_of` is the sequence of the instance's last unflushed change, 0 when it has none.
    Found { tables: Vec<Vec<Row>>, as_of: u64 },
    /// Known not to exist: deleted here, or just learned from the backend.
    Absent { as_of: u64 },
    /// Nothing is known here; ask the backend.
    NotLoaded,
    /// A change of it was refused by the backend for good; only an administrator's act helps.
    Quarantined,
}

/// [`ReadAnswer`] of a read whose rows went into a [`RowSink`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStatus {
    Found {
        as_of: u64,
    },
    Absent {
        as_of: u64,
    },
    NotLoaded,
    Quarantined,
    /// It exists and does not have the lookup key by which it was found.
    OtherKey {
        as_of: u64,
    },
}

/// Takes the rows of a read one value at a time, straight from where they are packed.
///
/// Called under the lock of the instance's slot: it must be quick, must not wait and must not call
/// the engine. It is called for found instances only, and what it took must be thrown away unless
/// the read says [`ReadStatus::Found`].
pub trait RowSink {
    /// The rows of the next entry of the plan follow (for an empty plan: of the next table).
    fn table(&mut self, table: TableId);
    /// A row begins; so many values follow.
    fn row(&mut self, values: usize);
    fn value(&mut self, value: ValueRef<'_>);
    /// The row is complete.
    fn row_end(&mut self) {}
    /// The table is complete.
    fn table_end(&mut self) {}
}

/// A sink that keeps the rows.
#[derive(Debug, Default)]
pub struct CollectRows {
    /// One list per entry of the plan.
    pub tables: Vec<Vec<Row>>,
    row: Row,
}

impl RowSink for CollectRows {
    fn table(&mut self, _: TableId) {
        self.tables.push(Vec::new());
    }

    fn row(&mut self, values: usize) {
        self.row = Row::with_capacity(values);
    }

    fn value(&mut self, value: ValueRef<'_>) {
        self.row.push(value.to_value());
    }

    fn row_end(&mut self) {
        if let Some(rows) = self.tables.last_mut() {
            rows.push(std::mem::take(&mut self.row));
        }
    }
}

/// Answer to a lookup: the root key of the instance that has this lookup key, if one is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    pub root: Option<RootKey>,
    /// Sequence that must be durable before this answer may leave; 0: none.
    pub as_of: u64,
}

/// A committed transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// As given by the sink; 0 when nothing changed, and then nothing was committed.
    pub sequence: u64,
    /// Rows affected, per operation.
    pub rows: Vec<u32>,
    /// R16: not visible to readers before [`crate::Engine::decided`] says it was accepted.
    pub awaits_backend: bool,
}

/// Outcome of installing an instance read from the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    Inserted,
    /// It is here already, and what is here is never older.
    Present,
    /// Something happened to it since the ticket was taken: read it again under a new ticket.
    Broken,
    MemoryFull,
}

/// What the store holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes held by records, indexes and states, allocation slack included.
    pub bytes: u64,
    pub capacity_bytes: u64,
    pub instances: u64,
    /// Instances with an unflushed change.
    pub dirty_instances: u64,
    pub quarantined_instances: u64,
    pub tables: Vec<TableUsage>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableUsage {
    pub name: String,
    pub rows: u64,
}
