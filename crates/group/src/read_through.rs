//! Misses: one backend query per key at a time, batched across keys, bounded in number (R15, R18,
//! R19).
//!
//! Owns the flights (who waits for which key) and the workers that fetch. What is fetched is
//! installed in the engine under a ticket that was opened before the query; the ticket stays open
//! until the last waiter let go, so that an insert that follows "not there" can rely on it. Must
//! never answer for a key whose ticket broke: it is read again.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cachetier_engine::{Engine, Installed, Ticket};
use cachetier_model::{Instance, RootKey, SlotSet};
use cachetier_write_through::{BackendError, Reason, WriteThrough};
use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

use crate::error::GroupError;
use crate::ownership::SlotState;
use crate::shared::Shared;

/// Keys per backend query.
const BATCH_KEYS_MAX: usize = 64;
/// Keys waiting for a worker, at most.
const QUEUE_KEYS_MAX: usize = 65_536;
/// A key whose ticket broke this often is given up: someone writes it without pause, so it is
/// loaded.
const ATTEMPTS_MAX: u32 = 16;
/// A backend that is not ready, or lacks commits, is asked again so often, after so long.
const LOOKS_MAX: u32 = 10;
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// The longest a caller waits for the backend.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// What the backend holds for a key, as of a moment after the call began.
#[derive(Clone)]
pub(crate) struct Fetched {
    pub instance: Option<Arc<Instance>>,
    /// True when the store has it (or knows that it is absent) now.
    pub installed: bool,
    /// Keeps the ticket open; see the module's words.
    _ticket: Arc<OpenTicket>,
}

/// How often a backend that lacks what it had confirmed was looked at.
#[derive(Default)]
pub(crate) struct Looks(u32);

impl Looks {
    /// Returns when the backend should be asked again; errs where that is of no use any more.
    pub(crate) async fn again(
        &mut self,
        lanes: &WriteThrough,
        error: &BackendError,
    ) -> Result<(), GroupError> {
        if error.reason != Reason::BackendNotReady || self.0 >= LOOKS_MAX {
            return Err(GroupError::BackendAway { reason: error.to_string().into() });
        }
        self.0 += 1;
        lanes.look();
        tokio::time::sleep(LOOK_PAUSE).await;
        Ok(())
    }
}

/// What was read may be of a time before slots came here that are not taken again yet.
pub(crate) fn lacks_takeovers() -> BackendError {
    let message = "the backend lacks takeovers that it had confirmed; they are made again first";
    BackendError::new("read past the store", Reason::BackendNotReady, message)
}

/// An engine ticket that closes itself.
pub(crate) struct OpenTicket {
    engine: Arc<Engine>,
    ticket: Option<Ticket>,
}

impl OpenTicket {
    pub(crate) fn open(engine: &Arc<Engine>) -> Result<Self, GroupError> {
        let ticket = engine.open_ticket().map_err(|_| GroupError::Busy {
            what: "loads and misses under way",
            retry_after: Duration::from_millis(100),
        })?;
        Ok(Self { engine: Arc::clone(engine), ticket: Some(ticket) })
    }

    pub(crate) fn get(&self) -> Option<&Ticket> {
        self.ticket.as_ref()
    }
}

impl Drop for OpenTicket {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.engine.close_ticket(ticket);
        }
    }
}

type Landing = Option<Result<Fetched, GroupError>>;

pub(crate) struct ReadThrough {
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    lanes: WriteThrough,
    /// One entry per key being fetched; made by the first waiter, removed by the worker.
    flights: DashMap<RootKey, watch::Sender<Landing>>,
    queue: Mutex<VecDeque<RootKey>>,
    work: Notify,
}

impl ReadThrough {
    /// Starts `workers` workers, each with at most one query under way.
    pub(crate) fn start(
        shared: &Arc<Shared>,
        engine: &Arc<Engine>,
        lanes: &WriteThrough,
        workers: usize,
    ) -> Arc<Self> {
        let misses = Arc::new(Self {
            shared: Arc::clone(shared),
            engine: Arc::clone(engine),
            lanes: lanes.clone(),
            flights: DashMap::new(),
            queue: Mutex::default(),
            work: Notify::new(),
        });
        for _ in 0..workers.max(1) {
            let worker = Arc::clone(&misses);
            shared.spawn("read-through", async move { worker.work().await });
        }
        misses
    }

    /// Fetches one instance and installs it; joins a fetch of the same key that is under way.
    pub(crate) async fn fetch(&self, key: &RootKey) -> Result<Fetched, GroupError> {
        let mut landing = self.join(key)?;
        let landed = tokio::time::timeout(WAIT_MAX, landing.wait_for(Option::is_some)).await;
        match landed {
            Ok(Ok(landed)) => landed.clone().unwrap_or_else(|| Err(gave_up())),
            Ok(Err(_)) => Err(GroupError::BackendAway { reason: "this node stops".into() }),
            Err(_) => Err(GroupError::BackendAway {
                reason: "a read-through was not answered in time".into(),
            }),
        }
    }

    fn join(&self, key: &RootKey) -> Result<watch::Receiver<Landing>, GroupError> {
        match self.flights.entry(key.clone()) {
            Entry::Occupied(flight) => Ok(flight.get().subscribe()),
            Entry::Vacant(place) => {
                let mut queue = self.queue.lock();
                if queue.len() >= QUEUE_KEYS_MAX {
                    return Err(GroupError::Busy {
                        what: "misses waiting for the backend",
                        retry_after: Duration::from_millis(100),
                    });
                }
                queue.push_back(key.clone());
                drop(queue);
                let (sender, receiver) = watch::channel(None);
                place.insert(sender);
                self.work.notify_one();
                Ok(receiver)
            }
        }
    }

    async fn work(&self) {
        loop {
            let batch = self.take_batch();
            if batch.is_empty() {
                tokio::select! {
                    () = self.work.notified() => continue,
                    () = self.shared.shutdown.cancelled() => return,
                }
            }
            self.fetch_batch(batch).await;
        }
    }

    fn take_batch(&self) -> Vec<RootKey> {
        let mut queue = self.queue.lock();
        let count = queue.len().min(BATCH_KEYS_MAX);
        let batch = queue.drain(..count).collect();
        if !queue.is_empty() {
            self.work.notify_one();
        }
        batch
    }

    async fn fetch_batch(&self, mut keys: Vec<RootKey>) {
        for _ in 0..ATTEMPTS_MAX {
            match self.try_batch(&keys).await {
                Ok(broken) => keys = broken,
                Err(error) => {
                    self.shared.tally.read_throughs_failed.fetch_add(1, Ordering::Relaxed);
                    return keys.iter().for_each(|key| self.land(key, Err(error.clone())));
                }
            }
            if keys.is_empty() {
                return;
            }
        }
        keys.iter().for_each(|key| self.land(key, Err(gave_up())));
    }

    /// Asks the backend, and nothing that lacks what it had confirmed: the lanes look at it at once,
    /// and send again what it lacks.
    async fn ask(&self, keys: &[RootKey]) -> Result<Vec<Option<Instance>>, GroupError> {
        let mut looks = Looks::default();
        let slots: SlotSet = keys.iter().map(RootKey::slot).collect();
        loop {
            let trusted = self.lanes.trust(&slots);
            let as_of = self.lanes.as_of().filter(|_| !cachetier_defects::on("r11-older-is-read"));
            let error = match self.shared.backend.read_instances(keys, as_of.as_ref()).await {
                Ok(found) if trusted.is_some() && trusted == self.lanes.trust(&slots) => {
                    return Ok(found);
                }
                Ok(_) => lacks_takeovers(),
                Err(error) => error,
            };
            looks.again(&self.lanes, &error).await?;
        }
    }

    /// Lands what could be installed; answers the keys whose ticket broke.
    async fn try_batch(&self, keys: &[RootKey]) -> Result<Vec<RootKey>, GroupError> {
        let mut ticket = Arc::new(OpenTicket::open(&self.engine)?);
        let found = self.ask(keys).await?;
        if cachetier_defects::on("r19-late-ticket") {
            ticket = Arc::new(OpenTicket::open(&self.engine)?);
        }
        let mut broken = Vec::new();
        for (key, instance) in keys.iter().zip(found) {
            let instance = instance.map(Arc::new);
            match self.install(&ticket, key, instance.as_deref()) {
                Ok(Some(Installed::Broken)) => broken.push(key.clone()),
                Ok(installed) => {
                    let stored =
                        matches!(installed, Some(Installed::Inserted | Installed::Present));
                    let fetched = Fetched { instance, installed: stored, _ticket: ticket.clone() };
                    self.land(key, Ok(fetched));
                }
                Err(error) => self.land(key, Err(error)),
            }
        }
        Ok(broken)
    }

    /// A deliberate defect's: calls an instance absent that nobody looked for.
    pub(crate) fn assume_absent(&self, key: &RootKey) -> Result<(), GroupError> {
        let ticket = OpenTicket::open(&self.engine)?;
        self.install(&ticket, key, None)?;
        std::mem::forget(ticket);
        Ok(())
    }

    /// `None`: not a slot of ours any more, nothing was installed.
    fn install(
        &self,
        ticket: &OpenTicket,
        key: &RootKey,
        instance: Option<&Instance>,
    ) -> Result<Option<Installed>, GroupError> {
        if self.shared.slots.state(key.slot()) != SlotState::Serving {
            return Ok(None);
        }
        let Some(ticket) = ticket.get() else { return Ok(None) };
        let installed = self.engine.install_wanted(ticket, key, instance.cloned());
        installed.map(Some).map_err(GroupError::internal)
    }

    fn land(&self, key: &RootKey, landing: Result<Fetched, GroupError>) {
        if let Some((_, flight)) = self.flights.remove(key) {
            flight.send_replace(Some(landing));
        }
    }
}

fn gave_up() -> GroupError {
    GroupError::Busy {
        what: "changes of this instance while it was read",
        retry_after: Duration::from_millis(50),
    }
}
