//! One lane's conversation with the backend: fence, flush, position, log position.

use crate::backend::BackendFuture;
use crate::error::{BackendError, Reason};
use crate::plan::Wave;
use cachetier_model::{RootKey, RowChange, SlotSet};
use std::sync::Arc;

/// Names one writer row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterId {
    pub group_uid: String,
    pub node: String,
    /// Number of lanes of the lane map in force.
    pub lanes: u16,
    pub lane: u16,
}

/// What must be found in the writer row for a transaction of ours to commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    pub writer: WriterId,
    pub token: u64,
    pub version: u64,
    pub position: u64,
}

/// The writer row as it stands.
#[derive(Clone, Debug)]
pub struct WriterRow {
    pub token: u64,
    pub version: u64,
    pub epoch: u64,
    pub position: u64,
    pub slots: SlotSet,
}

/// A writer row that moves: found as the fence says, left at `next`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    pub fence: Fence,
    pub next: u64,
}

/// What a snapshot must hold to be believed: the writer rows of a node at these positions, or beyond.
/// A standby that was promoted lacks commits for a while; what is read of it by then is older than
/// what was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AsOf {
    pub group_uid: String,
    pub node: String,
    /// By lane, of the lane map in force.
    pub positions: Vec<u64>,
    /// The same, of the rows' versions: whether slots that were taken are still there. Empty: not
    /// known.
    pub versions: Vec<u64>,
}

/// A writer row as a snapshot has it.
#[derive(Clone, Copy, Debug)]
pub struct RowMark {
    pub lane: u16,
    pub position: u64,
    pub version: u64,
}

impl AsOf {
    /// `rows`: the node's writer rows of the lane map of as many lanes, in any order.
    pub fn holds(&self, rows: &[RowMark]) -> bool {
        let held = |(lane, position): (usize, &u64)| {
            let version = self.versions.get(lane).copied().unwrap_or(0);
            let row = rows.iter().find(|row| usize::from(row.lane) == lane);
            row.is_some_and(|row| row.position >= *position && row.version >= version)
        };
        self.positions.iter().enumerate().all(held)
    }
}

/// Of a snapshot that does not.
pub(crate) fn commits_missing(act: &'static str) -> BackendError {
    BackendError::new(
        act,
        Reason::BackendNotReady,
        "the backend lacks commits that it had confirmed (a standby was promoted, or an older state \
         restored); nothing is read from it before they are there again",
    )
}

/// One flush transaction.
#[derive(Debug)]
pub struct FlushRequest<'a> {
    pub fence: Fence,
    /// The position written together with the rows.
    pub next: u64,
    /// Other lanes of the same node whose rows travel along: all move, or none.
    pub along: Vec<Move>,
    pub waves: Vec<Wave<'a>>,
    pub rejects: Vec<NewReject>,
    /// Wait for the log at commit.
    pub synced_commit: bool,
    /// Give up on locked rows soon.
    pub hasty: bool,
}

impl FlushRequest<'_> {
    /// Every writer row that moves with it, as (fence, next).
    pub fn moves(&self) -> impl Iterator<Item = (&Fence, u64)> {
        std::iter::once((&self.fence, self.next))
            .chain(self.along.iter().map(|m| (&m.fence, m.next)))
    }

    pub fn rows(&self) -> usize {
        self.waves.iter().flat_map(|w| &w.statements).map(|s| s.rows.len()).sum()
    }
}

/// A transaction to be set aside in the same backend transaction as the position.
#[derive(Clone, Debug)]
pub struct NewReject {
    pub sequence: u64,
    pub key: RootKey,
    pub changes: Arc<[RowChange]>,
    /// `None`: it follows an earlier reject of its instance.
    pub cause: Option<crate::events::RejectCause>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushOutcome {
    Committed,
    /// The writer row is not what the fence says; nothing happened.
    FenceMissed,
}

/// State of the backend's write-ahead log, and what the lane's row holds at that moment: behind a
/// pooler the session outlives the server, so only the row tells that commits were lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalState {
    /// Of the writer row, seen no later than the log's points were taken; `None` without a row.
    pub position: Option<u64>,
    pub system_identifier: String,
    pub timeline: u32,
    /// Every commit answered before this was taken lies at or below it.
    pub inserted: u64,
    pub flushed: u64,
}

/// A lane's open connection. After any error it must be dropped: what the transaction did is
/// unknown until [`LaneSession::writer`] of a new session says so.
pub trait LaneSession: Send + Sync {
    fn flush<'a>(&'a mut self, request: &'a FlushRequest<'a>) -> BackendFuture<'a, FlushOutcome>;

    /// The writer row, or `None` when there is none.
    fn writer(&mut self) -> BackendFuture<'_, Option<WriterRow>>;

    fn wal(&mut self) -> BackendFuture<'_, WalState>;
}
