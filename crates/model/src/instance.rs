//! Decoded rows and whole cache instances.

use crate::value::Value;

/// One row: a value per column of its table, in column order.
pub type Row = Vec<Value>;

/// One root row and all rows below it, decoded. `tables[t]` holds the rows of table `t` in primary
/// key order; `tables[0]` holds exactly one row, or none when the instance does not exist.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Instance {
    pub tables: Vec<Vec<Row>>,
}

impl Instance {
    /// An instance without any row, for a schema of `tables` tables.
    pub fn absent(tables: usize) -> Self {
        Self { tables: vec![Vec::new(); tables] }
    }

    pub fn exists(&self) -> bool {
        self.tables.first().is_some_and(|rows| !rows.is_empty())
    }

    pub fn row_count(&self) -> usize {
        self.tables.iter().map(Vec::len).sum()
    }
}
