//! Tickets of loads (R19).

/// Right to install what is read from the backend after it was opened. Close it with
/// [`crate::Engine::close_ticket`] when the load is over; an open one costs a mark per deletion.
#[derive(Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) id: u64,
}
