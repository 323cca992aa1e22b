//! The compiled description of a group's tables, as the backend's catalogs define them.
//!
//! Produced by the write-through crate's catalog reader, consumed by everyone; persisted in the
//! journal as JSON under its version (a digest of the content).

use crate::instance::Row;
use crate::key::{KeyError, LookupKey, RootKey};
use crate::value::{ColumnType, Value};
use serde::{Deserialize, Serialize};

/// Index of a table in [`GroupSchema::tables`]; the root is 0.
pub type TableId = usize;
/// Index of a column in [`TableSchema::columns`].
pub type ColumnId = usize;
/// Index of a lookup key in [`GroupSchema::lookups`].
pub type LookupId = usize;

/// All tables of a group. Parents stand before their children, the root first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GroupSchema {
    /// Schema (namespace) of the tables in the backend, e.g. `public`.
    pub backend_schema: String,
    pub tables: Vec<TableSchema>,
    /// Declared unique keys of the root table by which instances are found.
    pub lookups: Vec<LookupSchema>,
}

/// One declared lookup key: columns of the root table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LookupSchema {
    pub columns: Vec<ColumnId>,
    /// Name of the unique constraint or index in the backend that guarantees it.
    pub constraint: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TableSchema {
    pub name: String,
    /// `None` for the root table only.
    pub parent: Option<TableId>,
    pub columns: Vec<Column>,
    /// Primary key, in constraint order.
    pub primary_key: Vec<ColumnId>,
    /// Name of the primary key constraint, for error messages.
    pub primary_key_constraint: String,
    /// Columns that hold the root key, in the order of the root table's primary key; for the root
    /// itself equal to `primary_key`. A child table without them is refused at validation.
    pub root_key: Vec<ColumnId>,
    /// The foreign key to the parent; `None` for the root.
    pub parent_key: Option<ParentKey>,
    /// Further unique constraints; an operation that takes or releases one waits for the backend.
    pub unique_keys: Vec<UniqueKey>,
    /// Foreign keys to tables outside the group; operations that set one wait for the backend.
    pub external_keys: Vec<ExternalKey>,
}

/// Foreign key of a child to its parent: `columns[i]` references `parent_columns[i]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParentKey {
    pub constraint: String,
    pub columns: Vec<ColumnId>,
    pub parent_columns: Vec<ColumnId>,
    pub on_delete: ReferentialAction,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReferentialAction {
    NoAction,
    Restrict,
    Cascade,
    SetNull,
    SetDefault,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UniqueKey {
    pub constraint: String,
    pub columns: Vec<ColumnId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExternalKey {
    pub constraint: String,
    pub columns: Vec<ColumnId>,
    pub references: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Column {
    pub name: String,
    #[serde(rename = "type")]
    pub column_type: ColumnType,
    pub not_null: bool,
    /// The backend fills it when an insert omits it. Such an insert is refused by the engine
    /// ("name the column"), because the cache could not know the value.
    pub has_default: bool,
    /// Text columns: the column's collation orders by bytes (`C`, `POSIX`), so that `<` and `>`
    /// mean the same here as in the backend. Where it does not, range comparisons are refused.
    #[serde(default)]
    pub orders_by_bytes: bool,
}

impl GroupSchema {
    pub fn root(&self) -> Option<&TableSchema> {
        self.tables.first()
    }

    pub fn table_id(&self, name: &str) -> Option<TableId> {
        self.tables.iter().position(|t| t.name == name)
    }

    pub fn table(&self, id: TableId) -> Option<&TableSchema> {
        self.tables.get(id)
    }

    /// Children of a table, in declaration order.
    pub fn children(&self, parent: TableId) -> impl Iterator<Item = TableId> + '_ {
        (0..self.tables.len())
            .filter(move |id| self.tables.get(*id).is_some_and(|t| t.parent == Some(parent)))
    }

    /// A digest of the content: equal schemas have equal versions on every node.
    pub fn version(&self) -> u64 {
        let json = serde_json::to_vec(self).unwrap_or_default();
        xxhash_rust::xxh3::xxh3_64(&json)
    }

    /// The key of the instance to which a row of the table belongs.
    pub fn root_key_of_row(&self, table: TableId, row: &Row) -> Result<RootKey, KeyError> {
        let table = self.table(table).ok_or(KeyError::Malformed)?;
        RootKey::encode(&table.canonical(&table.root_key, row)?)
    }

    /// The lookup key of a root row; [`KeyError::Null`] when a column of it is NULL, which makes
    /// the row invisible to this lookup.
    pub fn lookup_key(&self, lookup: LookupId, root_row: &Row) -> Result<LookupKey, KeyError> {
        let (root, lookup) =
            self.root().zip(self.lookups.get(lookup)).ok_or(KeyError::Malformed)?;
        LookupKey::encode(&root.canonical(&lookup.columns, root_row)?)
    }

    /// A root key from values given by a caller, in the order of the root's primary key.
    pub fn encode_root_key(&self, values: &[Value]) -> Result<RootKey, KeyError> {
        let root = self.root().ok_or(KeyError::Malformed)?;
        RootKey::encode(&root.checked(&root.primary_key, values)?)
    }

    /// A lookup key from values given by a caller, in the order of the lookup's columns.
    pub fn encode_lookup_key(
        &self,
        lookup: LookupId,
        values: &[Value],
    ) -> Result<LookupKey, KeyError> {
        let (root, lookup) =
            self.root().zip(self.lookups.get(lookup)).ok_or(KeyError::Malformed)?;
        LookupKey::encode(&root.checked(&lookup.columns, values)?)
    }

    /// The lookup declared over exactly these root columns.
    pub fn lookup_by_columns(&self, names: &[&str]) -> Option<LookupId> {
        let root = self.root()?;
        self.lookups.iter().position(|l| {
            l.columns.len() == names.len()
                && l.columns
                    .iter()
                    .zip(names)
                    .all(|(c, n)| root.columns.get(*c).is_some_and(|c| c.name == *n))
        })
    }
}

impl TableSchema {
    pub fn column_id(&self, name: &str) -> Option<ColumnId> {
        self.columns.iter().position(|c| c.name == name)
    }

    pub fn column(&self, id: ColumnId) -> Option<&Column> {
        self.columns.get(id)
    }

    /// The primary key of a row, canonical: equal exactly when the backend calls the keys equal.
    pub fn key_of(&self, row: &Row) -> Result<Vec<Value>, KeyError> {
        self.canonical(&self.primary_key, row)
    }

    /// Canonical forms of some columns of a row.
    pub fn canonical(&self, columns: &[ColumnId], row: &Row) -> Result<Vec<Value>, KeyError> {
        let cell = |id: &ColumnId| {
            let (column, value) = self.columns.get(*id).zip(row.get(*id))?;
            Some(column.column_type.canonical_key(value))
        };
        columns.iter().map(|id| cell(id).ok_or(KeyError::Malformed)).collect()
    }

    fn checked(&self, columns: &[ColumnId], values: &[Value]) -> Result<Vec<Value>, KeyError> {
        if columns.len() != values.len() {
            return Err(KeyError::Arity { expected: columns.len(), given: values.len() });
        }
        let mut key = Vec::with_capacity(values.len());
        for (position, (id, value)) in columns.iter().zip(values).enumerate() {
            let column_type = &self.columns.get(*id).ok_or(KeyError::Malformed)?.column_type;
            let value =
                column_type.check(value).map_err(|source| KeyError::Value { position, source })?;
            key.push(column_type.canonical_key(&value));
        }
        Ok(key)
    }
}
