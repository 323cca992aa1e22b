//! Loads: tickets, and installing what the backend has (R18–R20).

use super::{Changing, Engine};
use crate::slot::Target;
use crate::ticket::{Released, Ticket};
use crate::work::by_primary_key;
use crate::{EngineError, Installed};
use cachetier_model::{Instance, RootKey};

/// What a lookup index may grow by, per lookup.
pub(super) const LOOKUP_GROWTH: usize = 1_024;
const STATE_BYTES: usize = 512;

impl Engine {
    /// To be taken before the snapshot is opened from which instances will be installed.
    pub fn open_ticket(&self) -> Result<Ticket, EngineError> {
        self.tickets.open()
    }

    pub fn close_ticket(&self, ticket: Ticket) {
        let Released { marks, learned } = self.tickets.close(&ticket);
        for (mark, key) in marks {
            let mut slot = self.change(self.target(&key));
            let Some(state) = slot.states.get_mut(&key) else { continue };
            if state.marked == mark {
                state.marked = 0;
                if state.learned == 0 && !state.is_unflushed() {
                    state.absent = false;
                }
            }
            slot.settle(&key);
        }
        for key in learned {
            let mut slot = self.change(self.target(&key));
            let Some(state) = slot.states.get_mut(&key) else { continue };
            if state.learned == ticket.id {
                state.learned = 0;
                if state.marked == 0 && !state.is_unflushed() {
                    state.absent = false;
                }
            }
            slot.settle(&key);
        }
    }

    /// Installs what the backend has for this key (`None`: nothing, which lets an insert go on
    /// while the ticket is open), unless something newer is known here.
    pub fn install(
        &self,
        ticket: &Ticket,
        key: &RootKey,
        instance: Option<Instance>,
    ) -> Result<Installed, EngineError> {
        self.install_with(ticket, key, instance, false)
    }

    /// [`Engine::install`] of an instance that was asked for: with eviction on, a full budget makes
    /// room for it. A load of everything should not, or it would push out what it just brought.
    pub fn install_wanted(
        &self,
        ticket: &Ticket,
        key: &RootKey,
        instance: Option<Instance>,
    ) -> Result<Installed, EngineError> {
        self.install_with(ticket, key, instance, self.evicts())
    }

    fn install_with(
        &self,
        ticket: &Ticket,
        key: &RootKey,
        instance: Option<Instance>,
        evict: bool,
    ) -> Result<Installed, EngineError> {
        let target = self.target(key);
        let packed = instance.filter(Instance::exists).map(|i| self.pack(key, i)).transpose()?;
        let mut slot = self.change(target);
        if self.tickets.is_broken(ticket) || slot.cleared_at > ticket.id {
            return Ok(Installed::Broken);
        }
        if slot.record(target).is_some() {
            return Ok(Installed::Present);
        }
        if let Some(state) = slot.state(key) {
            // a pending change over an instance that is not loaded waits for what is below it
            let base_known = state.absent || state.pending.is_none();
            if state.quarantined || state.dirty != 0 || (state.pending.is_some() && base_known) {
                return Ok(Installed::Present);
            }
            if state.marked > ticket.id {
                return Ok(Installed::Broken);
            }
        }
        Ok(match packed {
            Some(packed) => self.install_record(&mut slot, target, &packed, evict),
            None => self.install_absence(&mut slot, target, ticket),
        })
    }

    fn install_record(
        &self,
        slot: &mut Changing<'_>,
        target: Target<'_>,
        packed: &[u8],
        evict: bool,
    ) -> Installed {
        let besides = LOOKUP_GROWTH * self.lookups.len();
        let fits = if evict {
            self.make_room(slot, target.key, packed.len(), besides)
        } else {
            self.memory.admits(slot.growth_for(packed.len()) + besides)
        };
        if !fits {
            return Installed::MemoryFull;
        }
        self.enter(target, &self.lookup_moves(None, Some(packed)));
        self.apply(slot, target, Some(packed));
        if let Some(state) = slot.states.get_mut(target.key) {
            state.absent = false;
            state.learned = 0;
            slot.settle(target.key);
        }
        Installed::Inserted
    }

    fn install_absence(
        &self,
        slot: &mut Changing<'_>,
        target: Target<'_>,
        ticket: &Ticket,
    ) -> Installed {
        if !self.memory.admits(STATE_BYTES) {
            return Installed::MemoryFull;
        }
        let state = slot.state_mut(target.key);
        state.absent = true;
        state.learned = state.learned.max(ticket.id);
        self.tickets.learned_absent(ticket, target.key);
        Installed::Inserted
    }

    /// Packs an existing instance, after checking that it is this one and fits the schema.
    pub(super) fn pack(
        &self,
        key: &RootKey,
        mut instance: Instance,
    ) -> Result<Vec<u8>, EngineError> {
        if instance.tables.len() != self.schema.tables.len() {
            return Err(EngineError::Unknown(format!(
                "{} tables in an instance, the group has {}",
                instance.tables.len(),
                self.schema.tables.len()
            )));
        }
        for (id, (rows, schema)) in instance.tables.iter_mut().zip(&self.schema.tables).enumerate()
        {
            let belongs = |row: &Vec<_>| {
                row.len() == schema.columns.len()
                    && self.schema.root_key_of_row(id, row).is_ok_and(|own| own == *key)
            };
            if !rows.iter().all(belongs) || (id == 0 && rows.len() != 1) {
                return Err(EngineError::WrongInstance { table: schema.name.clone() });
            }
            if !rows.is_sorted_by(|a, b| by_primary_key(schema, a, b).is_le()) {
                rows.sort_by(|a, b| by_primary_key(schema, a, b));
            }
        }
        let mut packed = Vec::with_capacity(256);
        self.layout.encode(&instance, &mut packed).map_err(|misfit| misfit.error(&self.schema))?;
        Ok(packed)
    }
}
