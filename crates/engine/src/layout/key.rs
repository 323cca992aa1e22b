//! Canonical keys of packed instances, without decoding the rest of them.

use super::Layout;
use cachetier_model::{ColumnId, ColumnType, GroupSchema, LookupKey, RootKey, Value};
use smallvec::SmallVec;

/// How a key is read from root rows: which columns, and how they become canonical.
#[derive(Clone, Debug)]
pub(crate) struct KeyShape {
    columns: Vec<(ColumnId, ColumnType)>,
    /// A single integer column: compared and hashed without building key bytes.
    integer: Option<ColumnId>,
}

/// Canonical bytes of a key with one integer column, as `cachetier_model::key` writes them.
const INTEGER_TAG: u8 = 2;

impl KeyShape {
    pub(crate) fn compile(schema: &GroupSchema, columns: &[ColumnId]) -> Self {
        let columns: Vec<_> = columns
            .iter()
            .filter_map(|id| Some((*id, schema.root()?.columns.get(*id)?.column_type.clone())))
            .collect();
        let integer = match columns.as_slice() {
            [(id, ColumnType::Int2 | ColumnType::Int4 | ColumnType::Int8)] => Some(*id),
            _ => None,
        };
        Self { columns, integer }
    }

    /// Whether the packed instance has these canonical key bytes.
    pub(crate) fn matches(&self, layout: &Layout, packed: &[u8], key: &[u8]) -> bool {
        match self.integer {
            Some(column) => {
                match (layout.root_cell(packed, column), key.split_first_chunk::<9>()) {
                    (Value::Int(v), Some((bytes, []))) => *bytes == integer_key(v),
                    _ => false,
                }
            }
            None => self.values(layout, packed).is_some_and(|values| {
                LookupKey::encode(&values).is_ok_and(|own| own.as_bytes() == key)
            }),
        }
    }

    /// XXH3 of the canonical key bytes.
    pub(crate) fn hash(&self, layout: &Layout, packed: &[u8]) -> u64 {
        match (self.integer, self.integer.map(|column| layout.root_cell(packed, column))) {
            (Some(_), Some(Value::Int(v))) => hash_key(&integer_key(v)),
            _ => self.root_key(layout, packed).map_or(0, |key| hash_key(key.as_bytes())),
        }
    }

    pub(crate) fn root_key(&self, layout: &Layout, packed: &[u8]) -> Option<RootKey> {
        RootKey::encode(&self.values(layout, packed)?).ok()
    }

    /// `None` when a column of it is NULL.
    pub(crate) fn lookup_key(&self, layout: &Layout, packed: &[u8]) -> Option<LookupKey> {
        LookupKey::encode(&self.values(layout, packed)?).ok()
    }

    fn values(&self, layout: &Layout, packed: &[u8]) -> Option<SmallVec<[Value; 2]>> {
        self.columns
            .iter()
            .map(|(id, column_type)| match layout.root_cell(packed, *id) {
                Value::Null => None,
                value => Some(column_type.canonical_key(&value)),
            })
            .collect()
    }
}

fn integer_key(value: i64) -> [u8; 9] {
    let [a, b, c, d, e, f, g, h] = value.to_be_bytes();
    [INTEGER_TAG, a, b, c, d, e, f, g, h]
}

/// The hash that places keys: its top twelve bits are the slot.
#[inline]
pub(crate) fn hash_key(canonical: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(canonical)
}
