//! The engine's interface.

use crate::{
    CommitRefused, Committed, EngineError, Installed, ReadAnswer, Resolved, Ticket, TransactError,
    Usage,
};
use cachetier_model::{
    GroupSchema, Instance, LookupId, LookupKey, ReadPlan, RootKey, RowChange, SlotId, Transaction,
};
use std::sync::Arc;

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
#[derive(Debug)]
pub struct Commit<'a> {
    pub slot: SlotId,
    pub key: &'a RootKey,
    /// Net effect per row: deletes children first, then inserts and updates parents first.
    pub changes: &'a [RowChange],
    /// R16: to be answered after the backend accepted it.
    pub awaits_backend: bool,
    pub(crate) after: &'a Instance,
}

impl Commit<'_> {
    /// Appends the whole instance after the change ([`cachetier_model::codec::encode_instance`]);
    /// an instance without rows after a delete.
    pub fn encode_image(&self, out: &mut Vec<u8>) {
        cachetier_model::codec::encode_instance(self.after, out);
    }
}

/// The store. Shared by reference; every method may be called from any thread.
#[derive(Debug)]
pub struct Engine {
    schema: Arc<GroupSchema>,
}

impl Engine {
    pub fn new(schema: Arc<GroupSchema>, options: EngineOptions) -> Result<Self, EngineError> {
        let _ = options;
        Ok(Self { schema })
    }

    pub fn schema(&self) -> &Arc<GroupSchema> {
        &self.schema
    }

    /// Rows of one instance.
    pub fn read(&self, key: &RootKey, plan: &ReadPlan) -> Result<ReadAnswer, EngineError> {
        let _ = (key, plan);
        Ok(ReadAnswer::NotLoaded)
    }

    /// The loaded instance with this lookup key. A miss says nothing about the backend.
    pub fn resolve(&self, lookup: LookupId, key: &LookupKey) -> Resolved {
        let _ = (lookup, key);
        Resolved::default()
    }

    /// All or nothing on one instance. A transaction without effect commits nothing.
    pub fn transact(
        &self,
        key: &RootKey,
        transaction: &Transaction,
        sink: &dyn CommitSink,
    ) -> Result<Committed, TransactError> {
        let _ = (key, transaction, sink);
        Err(TransactError::NotLoaded)
    }

    /// The backend has every change of the instance up to and including this sequence.
    pub fn flushed(&self, key: &RootKey, upto: u64) {
        let _ = (key, upto);
    }

    /// R16: the backend accepted (now visible) or refused (the instance is not loaded any more)
    /// the transaction of this sequence.
    pub fn decided(&self, key: &RootKey, sequence: u64, accepted: bool) {
        let _ = (key, sequence, accepted);
    }

    /// Takes the instance out of service until [`Engine::forget`].
    pub fn quarantine(&self, key: &RootKey) {
        let _ = key;
    }

    /// Makes the instance not loaded; false (and nothing happens) when it is dirty and not
    /// quarantined.
    pub fn forget(&self, key: &RootKey) -> bool {
        let _ = key;
        false
    }

    /// To be taken before the snapshot is opened from which instances will be installed.
    pub fn open_ticket(&self) -> Result<Ticket, EngineError> {
        Ok(Ticket { id: 0 })
    }

    pub fn close_ticket(&self, ticket: Ticket) {
        let _ = ticket.id;
    }

    /// Installs what the backend has for this key (`None`: nothing, which lets an insert go on
    /// while the ticket is open), unless something newer is known here.
    pub fn install(
        &self,
        ticket: &Ticket,
        key: &RootKey,
        instance: Option<Instance>,
    ) -> Result<Installed, EngineError> {
        let _ = (ticket, key, instance);
        Ok(Installed::MemoryFull)
    }

    /// At start, in order of sequence: a journaled transaction the backend may not have yet.
    /// `awaits_backend` as it was committed: readers do not see it before it is decided.
    pub fn restore(
        &self,
        key: &RootKey,
        image: &[u8],
        sequence: u64,
        awaits_backend: bool,
    ) -> Result<(), EngineError> {
        let _ = (key, image, sequence, awaits_backend);
        Ok(())
    }

    /// Drops everything in the slot, dirty or not.
    pub fn clear_slot(&self, slot: SlotId) {
        let _ = slot;
    }

    /// Instances of the slot with a change the backend does not have yet.
    pub fn slot_dirty(&self, slot: SlotId) -> usize {
        let _ = slot;
        0
    }

    /// Every visible instance of the slot, under its lock, in no particular order; the flag says
    /// whether it is dirty. The callback must not call the engine.
    pub fn scan_slot(&self, slot: SlotId, each: &mut dyn FnMut(&RootKey, &Instance, bool)) {
        let _ = (slot, each);
    }

    pub fn usage(&self) -> Usage {
        Usage::default()
    }
}
