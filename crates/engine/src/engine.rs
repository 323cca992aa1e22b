//! The store itself: what it is made of, and the sink committed transactions leave through.
//!
//! Locks, in the order in which they are taken: one slot (a second one only by trying), then a
//! shard of a lookup index or the tickets. The sink is called under the slot's lock.

mod again;
mod batch;
mod evict;
mod image;
mod load;
mod read;
mod scan;
mod start;
mod unique;
mod write;

use crate::layout::{KeyShape, Layout};
use crate::lookup::LookupIndex;
use crate::memory::Memory;
use crate::reservation::{ArenaProvider, ArenaReport, Reservation};
use crate::slot::{Slot, Target};
use crate::ticket::Tickets;
use crate::work::Rules;
use crate::{CommitRefused, EngineError};
use cachetier_model::{GroupSchema, Instance, RootKey, RowChange, SLOT_COUNT, SlotId};
pub use image::{LAYOUT_VERSION, PutBack, Restored, SlotCopy};
use parking_lot::{RwLock, RwLockWriteGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Budget in bytes for everything the store holds.
    pub capacity_bytes: u64,
}

/// Takes committed transactions, in the order of each slot.
pub trait CommitSink {
    /// Called under the slot's lock, after all checks and before anything is applied; must be
    /// quick and must not call the engine. Returns the transaction's sequence (never 0).
    fn commit(&self, commit: &Commit<'_>) -> Result<u64, CommitRefused>;
}

/// One transaction on its way into the journal.
pub struct Commit<'a> {
    pub slot: SlotId,
    pub key: &'a RootKey,
    /// Net effect per row: deletes children first, then inserts and updates parents first.
    pub changes: &'a [RowChange],
    /// Rows affected, per operation of the transaction.
    pub rows: &'a [u32],
    /// R16: to be answered after the backend accepted it.
    pub awaits_backend: bool,
    packed: Option<&'a [u8]>,
    layout: &'a Layout,
}

impl Commit<'_> {
    /// The whole instance after the change; without rows after a delete.
    pub fn image(&self) -> Instance {
        match self.packed {
            Some(packed) => self.layout.decode(packed),
            None => Instance::absent(self.layout.table_count()),
        }
    }

    /// Appends [`Commit::image`] as `cachetier_model::codec::encode_instance` writes it.
    pub fn encode_image(&self, out: &mut Vec<u8>) {
        cachetier_model::codec::encode_instance(&self.image(), out);
    }
}

/// The store. Shared by reference; every method may be called from any thread.
pub struct Engine {
    schema: Arc<GroupSchema>,
    layout: Layout,
    rules: Rules,
    root_shape: KeyShape,
    lookup_shapes: Vec<KeyShape>,
    slots: Box<[RwLock<Slot>]>,
    lookups: Vec<LookupIndex>,
    tickets: Tickets,
    memory: Memory,
    reservation: Option<Arc<Reservation>>,
    arena: ArenaReport,
    evicts: AtomicBool,
    evicted: AtomicU64,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

/// Room for records besides the empty slots and indexes, below which a budget makes no sense.
const RECORD_BYTES_MIN: usize = 64 << 10;

impl Engine {
    pub fn new(schema: Arc<GroupSchema>, options: EngineOptions) -> Result<Self, EngineError> {
        Self::with_provider(schema, options, &ArenaProvider::default())
    }

    /// A store whose records lie where the provider says, or in the next best thing;
    /// [`Engine::arena`] says in what.
    pub fn with_provider(
        schema: Arc<GroupSchema>,
        options: EngineOptions,
        provider: &ArenaProvider,
    ) -> Result<Self, EngineError> {
        let root =
            schema.root().ok_or_else(|| EngineError::Schema("it has no tables".to_owned()))?;
        if root.primary_key.is_empty() {
            return Err(EngineError::Schema(format!("table {} has no primary key", root.name)));
        }
        key_types(&schema)?;
        let base_bytes = base_bytes(schema.lookups.len());
        let minimum_bytes = Self::capacity_bytes_min(schema.lookups.len());
        if options.capacity_bytes < minimum_bytes {
            let capacity_bytes = options.capacity_bytes;
            return Err(EngineError::Capacity { capacity_bytes, minimum_bytes });
        }
        let (reservation, arena) = Reservation::open(provider, options.capacity_bytes);
        Ok(Self {
            layout: Layout::compile(&schema),
            rules: Rules::compile(&schema),
            root_shape: KeyShape::compile(&schema, &root.primary_key),
            lookup_shapes: schema
                .lookups
                .iter()
                .map(|lookup| KeyShape::compile(&schema, &lookup.columns))
                .collect(),
            slots: SlotId::all().map(|_| RwLock::new(Slot::new(reservation.clone()))).collect(),
            lookups: schema.lookups.iter().map(|_| LookupIndex::new()).collect(),
            tickets: Tickets::default(),
            memory: Memory::new(options.capacity_bytes, base_bytes, schema.tables.len()),
            schema,
            reservation,
            arena,
            evicts: AtomicBool::new(false),
            evicted: AtomicU64::new(0),
        })
    }

    /// The smallest budget of a store with so many lookup keys.
    pub fn capacity_bytes_min(lookups: usize) -> u64 {
        (base_bytes(lookups) + RECORD_BYTES_MIN) as u64
    }

    /// What the records lie in, and why it is not something better.
    pub fn arena(&self) -> &ArenaReport {
        &self.arena
    }

    pub fn schema(&self) -> &Arc<GroupSchema> {
        &self.schema
    }

    fn target<'a>(&'a self, key: &'a RootKey) -> Target<'a> {
        Target::new(key, &self.layout, &self.root_shape)
    }

    #[allow(clippy::indexing_slicing, reason = "4,096 slots; twelve bits")]
    fn slot_of(&self, hash: u64) -> &RwLock<Slot> {
        &self.slots[(hash >> 52) as usize]
    }

    #[allow(clippy::indexing_slicing, reason = "4,096 slots; SlotId is below that")]
    fn slot(&self, slot: SlotId) -> &RwLock<Slot> {
        &self.slots[slot.index()]
    }

    /// The slot of a key, to be changed; its bytes are accounted for when the guard goes.
    fn change(&self, target: Target<'_>) -> Changing<'_> {
        Changing::new(self.slot_of(target.hash).write(), &self.memory)
    }
}

/// What an empty store holds.
fn base_bytes(lookups: usize) -> usize {
    size_of::<RwLock<Slot>>() * usize::from(SLOT_COUNT) + LookupIndex::base_bytes() * lookups
}

/// Keys are found by their bytes, so equal ones must have one form.
fn key_types(schema: &GroupSchema) -> Result<(), EngineError> {
    let lookups = schema.lookups.iter().flat_map(|lookup| &lookup.columns);
    let root = schema.root().into_iter().flat_map(|root| lookups.clone().map(move |id| (root, id)));
    let keys = schema.tables.iter().flat_map(|t| {
        let parent = t.parent_key.iter().flat_map(|key| &key.columns);
        t.primary_key.iter().chain(&t.root_key).chain(parent).map(move |id| (t, id))
    });
    for (table, id) in root.chain(keys) {
        if let Some(column) = table.columns.get(*id).filter(|c| !c.column_type.can_be_key()) {
            return Err(EngineError::Schema(format!(
                "column {} of table {} is part of a key, which type {} cannot be here",
                column.name,
                table.name,
                column.column_type.sql_name()
            )));
        }
    }
    Ok(())
}

/// Write access to a slot. On drop the budget learns what the slot holds then.
struct Changing<'a> {
    slot: RwLockWriteGuard<'a, Slot>,
    memory: &'a Memory,
    bytes_before: usize,
}

impl<'a> Changing<'a> {
    fn new(slot: RwLockWriteGuard<'a, Slot>, memory: &'a Memory) -> Self {
        let bytes_before = slot.bytes();
        Self { slot, memory, bytes_before }
    }

    /// Tells the budget what the slot holds now.
    fn account(&mut self) {
        let bytes = self.slot.bytes();
        self.memory.resized(self.bytes_before, bytes);
        self.bytes_before = bytes;
    }
}

impl std::ops::Deref for Changing<'_> {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.slot
    }
}

impl std::ops::DerefMut for Changing<'_> {
    fn deref_mut(&mut self) -> &mut Slot {
        &mut self.slot
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.account();
    }
}

#[cfg(test)]
mod tests;
