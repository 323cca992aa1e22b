//! Who may claim and who may take what: the decisions behind every change of the writer rows.
//!
//! Pure: takes the rows as they stand under the group's lock, answers what they must become. The
//! database side runs it inside its transaction, the double under its mutex.

use crate::backend::claim::{
    ClaimRequest, LaneChange, LaneClaim, Leave, Release, SlotHolder, TakeoverRequest,
};
use crate::error::{BackendError, Reason};
use crate::queue::lane_of;
use cachetier_model::SlotSet;
use std::collections::BTreeMap;

/// One writer row.
#[derive(Clone, Debug)]
pub(crate) struct Writer {
    pub node: String,
    pub lanes: u16,
    pub lane: u16,
    pub journal: String,
    pub attempt: String,
    pub token: u64,
    pub version: u64,
    pub epoch: u64,
    pub slots: SlotSet,
    pub position: u64,
}

pub(crate) fn fenced(act: &'static str) -> BackendError {
    BackendError::new(
        act,
        Reason::Fenced,
        "another start of this journal, or a copy of its volume, has claimed it",
    )
}

/// What is asked for belongs to a slot that the writer row does not have (any more).
pub(crate) fn slot_moved(act: &'static str) -> BackendError {
    BackendError::new(
        act,
        Reason::StaleTopology,
        "the slot was taken over by another node; that one decides",
    )
}

/// Decides whether this journal may claim (R8); answers the token found, 0 for a first claim.
pub(crate) fn admit(request: &ClaimRequest, mine: &[&Writer]) -> Result<u64, BackendError> {
    let found = mine.iter().map(|w| w.token).max().unwrap_or(0);
    let Some(first) = mine.first() else {
        return match request.held_token {
            None => Ok(0),
            Some(held) => Err(missing_rows(request, held)),
        };
    };
    let empty = mine.iter().all(|w| w.slots.is_empty());
    if first.journal != request.journal {
        // a node that owned nothing any more may come back with a new volume
        let accepted = request.accept_lost_journal.as_ref() == Some(&first.journal);
        if accepted || (empty && request.held_token.is_none()) {
            return Ok(found);
        }
        return Err(foreign_journal(request, mine));
    }
    if request.held_token == Some(found) || first.attempt == request.attempt {
        return Ok(found);
    }
    if cachetier_defects::on("r08-any-token") {
        return Ok(found);
    }
    Err(other_token(request, found))
}

fn missing_rows(request: &ClaimRequest, held: u64) -> BackendError {
    refuse(
        Reason::PositionMissing,
        format!(
            "the journal holds claim {held} but the bookkeeping has no writer row of node {}; is \
             this the right database, or a backup from before the claim?",
            request.node
        ),
    )
}

fn foreign_journal(request: &ClaimRequest, mine: &[&Writer]) -> BackendError {
    let found = mine.first().map(|w| w.journal.as_str()).unwrap_or_default();
    let position = mine.iter().map(|w| w.position).min().unwrap_or_default();
    let slots: usize = mine.iter().map(|w| w.slots.len()).sum();
    refuse(
        Reason::ForeignJournal,
        format!(
            "node {node} writes from journal {found}, this volume holds journal {here}; bring the \
             old volume back. If it is lost for good, what it acknowledged for its {slots} slots \
             after position {position} is lost with it: accept that explicitly with `cachectl \
             accept-loss {node} --journal {found}`",
            node = request.node,
            here = request.journal,
        ),
    )
}

fn other_token(request: &ClaimRequest, found: u64) -> BackendError {
    let held = request.held_token.unwrap_or(0);
    if held < found {
        return refuse(
            Reason::StaleJournal,
            format!(
                "this volume holds claim {held} of journal {}, but claim {found} was made since: \
                 it is an old copy and must not be started",
                request.journal
            ),
        );
    }
    refuse(
        Reason::PositionMissing,
        format!(
            "the journal holds claim {held} but the bookkeeping only knows {found}: the backend \
             was restored from an older state"
        ),
    )
}

fn refuse(reason: Reason, message: String) -> BackendError {
    BackendError::new("claim the group", reason, message)
}

pub(crate) fn tables_claimed(table: &str, name: &str, uid: &str) -> BackendError {
    BackendError {
        table: Some(table.into()),
        ..BackendError::new(
            "claim the group's tables",
            Reason::TablesClaimed,
            format!(
                "table {table} is cached by group {name} (incarnation {uid}); a table has one \
                 group: delete that group, or remove its bookkeeping if it is gone"
            ),
        )
    }
}

/// The lanes of a new lane map over these slots.
pub(crate) fn fresh_lanes(
    lanes: u16,
    version: u64,
    position: u64,
    slots: &SlotSet,
) -> Vec<LaneClaim> {
    (0..lanes.max(1))
        .map(|lane| LaneClaim {
            lane,
            version,
            position,
            slots: slots.iter().filter(|s| lane_of(*s, lanes) == lane).collect(),
        })
        .collect()
}

/// The rows of a new lane map, from this node's rows as they stand. `None` when a row does not
/// hold the position believed: its lane has something to send again first.
pub(crate) fn plan_lane_change(
    change: &LaneChange,
    mine: &[&Writer],
) -> Result<Option<Vec<LaneClaim>>, BackendError> {
    if mine.is_empty() || mine.iter().any(|w| w.token != change.token) {
        return Err(fenced("change the lane map"));
    }
    let believed = |w: &&Writer| change.believed.get(usize::from(w.lane)) == Some(&w.position);
    let as_believed = mine.len() == change.believed.len() && mine.iter().all(believed);
    // an earlier attempt whose answer was lost
    let done = mine.len() == usize::from(change.lanes)
        && mine.iter().all(|w| w.position == change.position);
    if !as_believed && !done {
        return Ok(None);
    }
    let mut slots = SlotSet::empty();
    mine.iter().for_each(|w| slots.union_with(&w.slots));
    let version = mine.iter().map(|w| w.version).max().unwrap_or(0) + 1;
    Ok(Some(fresh_lanes(change.lanes, version, change.position, &slots)))
}

/// What a takeover makes of the writer rows.
#[derive(Default)]
pub(crate) struct TakeoverPlan {
    pub owned: SlotSet,
    pub held: Vec<SlotHolder>,
    /// Of what the taker has, what its rows lack.
    pub forgotten: SlotSet,
    /// Rows to be written: index into the rows given, slots, and what is added to the version. A
    /// loser's version is bumped, so that its batch in flight fails as a whole; a taker's, so that a
    /// backend that lost the takeover is told from one that has it.
    pub rows: Vec<(usize, SlotSet, u64)>,
    /// The versions of the taker's rows afterwards, by lane.
    pub versions: Vec<(u16, u64)>,
}

pub(crate) fn plan_takeover(
    request: &TakeoverRequest,
    all: &[Writer],
) -> Result<TakeoverPlan, BackendError> {
    const ACT: &str = "take slots over";
    let mut mine = all.iter().filter(|w| w.node == request.node).peekable();
    if mine.peek().is_none() || mine.any(|w| w.token != request.token) {
        return Err(fenced(ACT));
    }
    let newest = all.iter().map(|w| w.epoch).max().unwrap_or(0);
    if newest > request.epoch {
        return Err(BackendError::new(
            ACT,
            Reason::StaleTopology,
            format!("topology {newest} is in force, this node acts on {}", request.epoch),
        ));
    }
    let (mut forgotten, mut news) = (request.holding.clone(), request.slots.clone());
    for writer in all.iter().filter(|w| w.node == request.node) {
        forgotten.subtract(&writer.slots);
        // what is in the rows already changes them in nothing: the answer to an earlier request was lost
        news.subtract(&writer.slots);
    }
    let mut again = request.slots.clone();
    again.intersect_with(&forgotten);
    if !forgotten.is_empty() && again.is_empty() && !news.is_empty() {
        // a newer version of the rows would hide from the lanes that they are of an older time
        return Ok(TakeoverPlan { forgotten, ..TakeoverPlan::default() });
    }
    let mut owned = request.slots.clone();
    let mut held = Vec::new();
    let mut taken_from: BTreeMap<&str, SlotSet> = BTreeMap::new();
    for theirs in holders(all).into_iter().filter(|h| h.node != request.node) {
        let mut taken = request.slots.clone();
        taken.intersect_with(&theirs.slots);
        let mut kept = taken.clone();
        let released = request.released.iter().filter(|r| r.node == theirs.node);
        released.for_each(|release| kept.subtract(&let_go(release, all)));
        taken.subtract(&kept);
        owned.subtract(&kept);
        if let Some(writer) = all.iter().find(|w| w.node == theirs.node) {
            taken_from.insert(&writer.node, taken);
        }
        if !kept.is_empty() {
            held.push(SlotHolder { slots: kept, ..theirs });
        }
    }
    let (mut rows, mut versions) = (Vec::new(), Vec::new());
    for (index, writer) in all.iter().enumerate() {
        let mut slots = writer.slots.clone();
        if writer.node == request.node {
            let share = owned.iter().filter(|s| lane_of(*s, writer.lanes) == writer.lane);
            slots.union_with(&share.collect());
            let bump = u64::from(slots != writer.slots);
            versions.push((writer.lane, writer.version + bump));
            rows.push((index, slots, bump));
        } else if let Some(taken) = taken_from.get(writer.node.as_str()) {
            slots.subtract(taken);
            if slots != writer.slots {
                rows.push((index, slots, 1));
            }
        }
    }
    forgotten.subtract(&owned);
    Ok(TakeoverPlan { owned, held, forgotten, rows, versions })
}

/// The slots of a release that its node's rows bear out: where a row holds less than the node had
/// confirmed, the backend lost commits that the node will send again first; where it is of an older
/// version, takeovers that the node must see first, which a new version would hide.
fn let_go(release: &Release, all: &[Writer]) -> SlotSet {
    let mut slots = release.slots.clone();
    for writer in all.iter().filter(|w| w.node == release.node) {
        let said = release.positions.get(usize::from(writer.lane));
        let known = release.versions.get(usize::from(writer.lane));
        let same_map = release.positions.len() == usize::from(writer.lanes);
        let behind = !same_map
            || said.is_some_and(|said| writer.position < *said)
            || known.is_some_and(|known| writer.version < *known);
        if !release.positions.is_empty() && behind {
            slots.subtract(&writer.slots);
        }
    }
    slots
}

/// Whether a node may leave, and who still holds slots beside it.
pub(crate) fn plan_leave(leave: &Leave, all: &[Writer]) -> Result<Vec<String>, BackendError> {
    if all.iter().any(|w| w.node == leave.node && w.token != leave.token) {
        return Err(fenced("leave the group"));
    }
    let others = holders(all).into_iter();
    let others = others.filter(|h| h.node != leave.node && !h.slots.is_empty());
    Ok(others.map(|h| h.node).collect())
}

/// Each node with its slots.
pub(crate) fn holders(all: &[Writer]) -> Vec<SlotHolder> {
    let mut nodes: BTreeMap<&str, SlotHolder> = BTreeMap::new();
    for writer in all {
        let holder = nodes.entry(&writer.node).or_insert_with(|| SlotHolder {
            node: writer.node.clone(),
            slots: SlotSet::empty(),
            position: u64::MAX,
            epoch: 0,
        });
        holder.slots.union_with(&writer.slots);
        holder.position = holder.position.min(writer.position);
        holder.epoch = holder.epoch.max(writer.epoch);
    }
    nodes.into_values().collect()
}

#[cfg(test)]
mod tests;
