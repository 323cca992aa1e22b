//! Small batches of several lanes travel in one backend transaction.
//!
//! Owns who leads: the first lane with something to send calls the others, gives them a moment to
//! join, and sends everything. Who comes while it is on its way joins the next. Each lane settles its
//! own part. Must never decide what an outcome means for a lane's position.

use crate::backend::flush::Move;
use crate::pending::Pending;
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::{oneshot, watch};

pub(crate) struct Convoy {
    station: Mutex<Station>,
    /// Counts the calls of leaders.
    calls: watch::Sender<u64>,
}

#[derive(Default)]
struct Station {
    /// Somebody leads, until its transaction is over.
    led: bool,
    waiting: Vec<Passenger>,
    /// Counts those that waited.
    joined: u64,
}

/// What a lane hands to the one that leads.
pub(crate) struct Passenger {
    pub row: Move,
    pub batch: Vec<Pending>,
    /// Its commit must wait for the log.
    pub synced: bool,
    told: oneshot::Sender<Carried>,
    ticket: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    Committed {
        synced: bool,
    },
    /// Nothing happened. Not in company, then: nobody knows whose part was at fault.
    Alone,
    /// It may have happened: the writer row tells.
    InDoubt {
        synced: bool,
    },
    /// It was not taken along.
    Again,
}

pub(crate) enum Joined<'a> {
    Leads(Lead<'a>),
    Waits(Waiting<'a>),
}

/// A place in the next convoy.
pub(crate) struct Waiting<'a> {
    convoy: &'a Convoy,
    ticket: u64,
    answer: oneshot::Receiver<Carried>,
}

/// The right to send, until dropped.
pub(crate) struct Lead<'a> {
    convoy: &'a Convoy,
}

impl Default for Convoy {
    fn default() -> Self {
        Self { station: Mutex::default(), calls: watch::Sender::new(0) }
    }
}

impl Convoy {
    pub fn calls(&self) -> watch::Receiver<u64> {
        self.calls.subscribe()
    }

    /// Leads if nobody does, and calls the other lanes; else waits with what the lane has to send.
    pub fn join(&self, row: Move, batch: &[Pending], synced: bool) -> Joined<'_> {
        let mut station = self.station.lock();
        if !station.led {
            station.led = true;
            drop(station);
            self.calls.send_modify(|calls| *calls += 1);
            return Joined::Leads(Lead { convoy: self });
        }
        let (told, answer) = oneshot::channel();
        station.joined += 1;
        let ticket = station.joined;
        station.waiting.push(Passenger { row, batch: batch.to_vec(), synced, told, ticket });
        Joined::Waits(Waiting { convoy: self, ticket, answer })
    }
}

impl Waiting<'_> {
    /// What became of it. Who is not taken along within `patience` is told to go alone: the leader
    /// before may be held up by one statement for long.
    pub async fn arrive(mut self, patience: Duration) -> Carried {
        let told = match tokio::time::timeout(patience, &mut self.answer).await {
            Ok(told) => told,
            Err(_) if self.leave() => return Carried::Alone,
            // it is on its way
            Err(_) => self.answer.await,
        };
        // whoever led is gone: as if it had been told nothing
        told.unwrap_or(Carried::InDoubt { synced: false })
    }

    /// True if nobody had taken it along.
    fn leave(&self) -> bool {
        let waiting = &mut self.convoy.station.lock().waiting;
        let before = waiting.len();
        waiting.retain(|passenger| passenger.ticket != self.ticket);
        waiting.len() < before
    }
}

impl Lead<'_> {
    /// Those that wait now.
    pub fn passengers(&self) -> Vec<Passenger> {
        let mut passengers = std::mem::take(&mut self.convoy.station.lock().waiting);
        // a lane that was stopped meanwhile
        passengers.retain(|passenger| !passenger.told.is_closed());
        passengers
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let late = {
            let mut station = self.convoy.station.lock();
            station.led = false;
            std::mem::take(&mut station.waiting)
        };
        late.into_iter().for_each(|passenger| passenger.tell(Carried::Again));
    }
}

impl Passenger {
    pub fn tell(self, carried: Carried) {
        // a lane that was stopped meanwhile finds out at its next start
        let _ = self.told.send(carried);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::flush::{Fence, WriterId};

    const PATIENCE: Duration = Duration::from_millis(50);

    fn row(lane: u16) -> Move {
        let writer = WriterId { group_uid: "g".into(), node: "n".into(), lanes: 4, lane };
        Move { fence: Fence { writer, token: 1, version: 1, position: 5 }, next: 6 }
    }

    fn waits(joined: Joined<'_>) -> Waiting<'_> {
        match joined {
            Joined::Waits(waiting) => waiting,
            Joined::Leads(_) => panic!("it leads"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_leads_and_who_comes_late_is_told_to_come_again() {
        let convoy = Convoy::default();
        let mut calls = convoy.calls();
        calls.mark_unchanged();
        let Joined::Leads(lead) = convoy.join(row(0), &[], false) else { panic!("leads") };
        assert!(calls.has_changed().unwrap());
        let first = waits(convoy.join(row(1), &[], true));
        let mut passengers = lead.passengers();
        let passenger = passengers.pop().unwrap();
        assert!(passengers.is_empty());
        assert_eq!((passenger.row.fence.writer.lane, passenger.synced), (1, true));
        let late = waits(convoy.join(row(2), &[], false));
        passenger.tell(Carried::Committed { synced: true });
        drop(lead);
        assert_eq!(first.arrive(PATIENCE).await, Carried::Committed { synced: true });
        assert_eq!(late.arrive(PATIENCE).await, Carried::Again);
        assert!(matches!(convoy.join(row(2), &[], false), Joined::Leads(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_not_taken_along_in_time_goes_alone_and_who_is_on_its_way_waits() {
        let convoy = Convoy::default();
        let Joined::Leads(lead) = convoy.join(row(0), &[], false) else { panic!("leads") };
        let taken = waits(convoy.join(row(1), &[], false));
        let passenger = lead.passengers().pop().unwrap();
        let late = waits(convoy.join(row(2), &[], false));
        assert_eq!(late.arrive(PATIENCE).await, Carried::Alone);
        assert!(lead.passengers().is_empty(), "it is gone");
        let arrival = taken.arrive(PATIENCE);
        tokio::pin!(arrival);
        let early = tokio::time::timeout(PATIENCE * 20, &mut arrival).await;
        assert!(early.is_err(), "its row may be written any moment");
        passenger.tell(Carried::Committed { synced: false });
        assert_eq!(arrival.await, Carried::Committed { synced: false });
    }

    #[test]
    fn a_lane_that_was_stopped_is_not_taken_along() {
        let convoy = Convoy::default();
        let Joined::Leads(lead) = convoy.join(row(0), &[], false) else { panic!("leads") };
        drop(waits(convoy.join(row(1), &[], false)));
        assert!(lead.passengers().is_empty());
    }
}
