//! Tickets of loads (R19): a load installs only what nothing touched since its ticket was taken.
//!
//! Owns the clock that orders tickets and removals, and the list of marks to be taken away once no
//! ticket older than them is open. Its lock is a leaf: taken after a slot's, never before one.

use crate::EngineError;
use cachetier_model::RootKey;
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};

/// Loads and read-throughs open at the same time.
pub(crate) const OPEN_MAX: usize = 65_536;
/// Marks kept for open tickets; when more are needed, all open tickets are broken instead. At
/// about 150 bytes each this bounds them to 150 MB.
const MARKS_MAX: usize = 1 << 20;

/// Right to install what is read from the backend after it was opened. Close it with
/// [`crate::Engine::close_ticket`] when the load is over; while it is open, every flushed delete
/// costs a mark.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) id: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Tickets {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    clock: u64,
    /// Open tickets and the keys learned absent under each.
    open: BTreeMap<u64, Vec<RootKey>>,
    /// Tickets up to this one are broken: marks they would have needed were given up.
    broken_upto: u64,
    /// Removals, oldest first.
    marks: VecDeque<(u64, RootKey)>,
}

/// What closing a ticket sets free.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// Marks that no open ticket needs any more.
    pub(crate) marks: Vec<(u64, RootKey)>,
    /// Keys learned absent under the closed ticket.
    pub(crate) learned: Vec<RootKey>,
}

impl Tickets {
    pub(crate) fn open(&self) -> Result<Ticket, EngineError> {
        let mut inner = self.inner.lock();
        if inner.open.len() >= OPEN_MAX {
            return Err(EngineError::TooManyTickets(OPEN_MAX));
        }
        inner.clock += 1;
        let id = inner.clock;
        inner.open.insert(id, Vec::new());
        Ok(Ticket { id })
    }

    pub(crate) fn close(&self, ticket: &Ticket) -> Released {
        let mut inner = self.inner.lock();
        let learned = inner.open.remove(&ticket.id).unwrap_or_default();
        let oldest = inner.oldest_unbroken();
        let mut marks = Vec::new();
        while let Some(mark) = inner.marks.pop_front_if(|(at, _)| oldest.is_none_or(|o| *at < o)) {
            marks.push(mark);
        }
        Released { marks, learned }
    }

    pub(crate) fn is_broken(&self, ticket: &Ticket) -> bool {
        ticket.id <= self.inner.lock().broken_upto
    }

    /// Something known about the key goes away: the time to mark it with, or `None` when no open
    /// ticket cares.
    pub(crate) fn mark(&self, key: &RootKey) -> Option<u64> {
        let mut inner = self.inner.lock();
        inner.oldest_unbroken()?;
        inner.clock += 1;
        let now = inner.clock;
        if inner.marks.len() >= MARKS_MAX {
            inner.broken_upto = now;
            return None;
        }
        inner.marks.push_back((now, key.clone()));
        Some(now)
    }

    /// A time after every ticket opened so far.
    pub(crate) fn now(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.clock += 1;
        inner.clock
    }

    pub(crate) fn learned_absent(&self, ticket: &Ticket, key: &RootKey) {
        if let Some(keys) = self.inner.lock().open.get_mut(&ticket.id) {
            keys.push(key.clone());
        }
    }
}

impl Inner {
    fn oldest_unbroken(&self) -> Option<u64> {
        self.open.range(self.broken_upto + 1..).next().map(|(id, _)| *id)
    }
}
