//! Canonical keys of packed instances, without decoding the rest of them.

use super::{Layout, Scratch};
use cachetier_model::key::canonical_bytes;
use cachetier_model::{ColumnId, ColumnType, GroupSchema, LookupKey, RootKey};

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
        let nullable = columns.iter().any(|(id, _)| {
            schema.root().and_then(|r| r.columns.get(*id)).is_none_or(|c| !c.not_null)
        });
        Self { columns, integer: integer.filter(|_| !nullable) }
    }

    /// Whether the packed instance has these canonical key bytes.
    #[inline]
    pub(crate) fn matches(&self, layout: &Layout, packed: &[u8], key: &[u8]) -> bool {
        if let Some(column) = self.integer {
            let own = layout.root_integer(packed, column).map(integer_key);
            return own.is_some_and(|own| own.as_slice() == key);
        }
        let mut rest = Some(key);
        let whole = self.each_piece(layout, packed, &mut |piece| {
            rest = rest.and_then(|rest| rest.strip_prefix(piece));
        });
        whole.is_some() && rest.is_some_and(<[u8]>::is_empty)
    }

    /// XXH3 of the canonical key bytes.
    pub(crate) fn hash(&self, layout: &Layout, packed: &[u8]) -> u64 {
        match self.integer.and_then(|column| layout.root_integer(packed, column)) {
            Some(value) => hash_key(&integer_key(value)),
            None => self.bytes(layout, packed).map_or(0, |key| hash_key(&key)),
        }
    }

    pub(crate) fn root_key(&self, layout: &Layout, packed: &[u8]) -> Option<RootKey> {
        self.bytes(layout, packed).map(|key| RootKey::from_bytes(key.into()))
    }

    /// `None` when a column of it is NULL.
    pub(crate) fn lookup_key(&self, layout: &Layout, packed: &[u8]) -> Option<LookupKey> {
        self.bytes(layout, packed).map(|key| LookupKey::from_bytes(key.into()))
    }

    fn bytes(&self, layout: &Layout, packed: &[u8]) -> Option<Vec<u8>> {
        if let Some(value) = self.integer.and_then(|column| layout.root_integer(packed, column)) {
            return Some(integer_key(value).to_vec());
        }
        let mut key = Vec::with_capacity(self.columns.len() * 24);
        self.each_piece(layout, packed, &mut |piece| key.extend_from_slice(piece))?;
        key.shrink_to_fit();
        Some(key)
    }

    /// The canonical key bytes, piece by piece; `None` when a column is NULL.
    fn each_piece(
        &self,
        layout: &Layout,
        packed: &[u8],
        push: &mut impl FnMut(&[u8]),
    ) -> Option<()> {
        let mut scratch = Scratch::new();
        for (id, column_type) in &self.columns {
            let value = column_type.canonical_ref(layout.root_value(packed, *id, &mut scratch));
            canonical_bytes(value, push)?;
        }
        Some(())
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
