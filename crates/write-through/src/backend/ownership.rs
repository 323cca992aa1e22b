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
pub(crate) struct TakeoverPlan {
    pub owned: SlotSet,
    pub held: Vec<SlotHolder>,
    /// Rows to be written: index into the rows given, slots, and what is added to the version. A
    /// loser's version is bumped, so that its batch in flight fails as a whole.
    pub rows: Vec<(usize, SlotSet, u64)>,
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
    let mut rows = Vec::new();
    for (index, writer) in all.iter().enumerate() {
        let mut slots = writer.slots.clone();
        if writer.node == request.node {
            let share = owned.iter().filter(|s| lane_of(*s, writer.lanes) == writer.lane);
            slots.union_with(&share.collect());
            rows.push((index, slots, 0));
        } else if let Some(taken) = taken_from.get(writer.node.as_str()) {
            slots.subtract(taken);
            if slots != writer.slots {
                rows.push((index, slots, 1));
            }
        }
    }
    Ok(TakeoverPlan { owned, held, rows })
}

/// The slots of a release that its node's rows bear out: where a row holds less than the node had
/// confirmed, the backend lost commits that the node will send again first.
fn let_go(release: &Release, all: &[Writer]) -> SlotSet {
    let mut slots = release.slots.clone();
    for writer in all.iter().filter(|w| w.node == release.node) {
        let said = release.positions.get(usize::from(writer.lane));
        let same_map = release.positions.len() == usize::from(writer.lanes);
        let behind = !same_map || said.is_some_and(|said| writer.position < *said);
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
mod tests {
    use super::*;
    use cachetier_model::SlotId;
    use cachetier_model::node_config::GroupIdentity;

    fn request(held_token: Option<u64>, attempt: &str) -> ClaimRequest {
        ClaimRequest {
            group: GroupIdentity { name: "ns/g".to_owned(), uid: "u".to_owned() },
            node: "n".to_owned(),
            journal: "j".to_owned(),
            held_token,
            attempt: attempt.to_owned(),
            lanes: 1,
            epoch: 1,
            tables: Vec::new(),
            accept_lost_journal: None,
        }
    }

    fn writer(token: u64, slots: SlotSet) -> Writer {
        Writer {
            node: "n".to_owned(),
            lanes: 1,
            lane: 0,
            journal: "j".to_owned(),
            attempt: "a".to_owned(),
            token,
            version: 1,
            epoch: 1,
            slots,
            position: 7,
        }
    }

    fn reason(request: &ClaimRequest, row: &Writer) -> Reason {
        admit(request, &[row]).unwrap_err().reason
    }

    #[test]
    fn d18_a_journal_claims_only_under_the_token_that_it_holds() {
        let row = writer(5, SlotSet::full());
        assert_eq!(admit(&request(Some(5), "b"), &[&row]).unwrap(), 5);
        assert_eq!(admit(&request(Some(4), "a"), &[&row]).unwrap(), 5, "our own lost answer");
        assert_eq!(reason(&request(Some(4), "b"), &row), Reason::StaleJournal);
        assert_eq!(reason(&request(None, "b"), &row), Reason::StaleJournal);
        assert_eq!(reason(&request(Some(6), "b"), &row), Reason::PositionMissing);
        let gone = admit(&request(Some(5), "b"), &[]).unwrap_err();
        assert_eq!(gone.reason, Reason::PositionMissing);
    }

    #[test]
    fn a_new_volume_is_accepted_only_where_nothing_can_be_lost_or_loss_was_accepted() {
        let mut fresh = request(None, "b");
        fresh.journal = "new".to_owned();
        assert_eq!(reason(&fresh, &writer(5, SlotSet::full())), Reason::ForeignJournal);
        assert_eq!(admit(&fresh, &[&writer(5, SlotSet::empty())]).unwrap(), 5);
        let other = ClaimRequest { accept_lost_journal: Some("x".to_owned()), ..fresh.clone() };
        assert_eq!(reason(&other, &writer(5, SlotSet::full())), Reason::ForeignJournal);
        fresh.accept_lost_journal = Some("j".to_owned());
        assert_eq!(admit(&fresh, &[&writer(5, SlotSet::full())]).unwrap(), 5);
    }

    #[test]
    fn r10_lanes_change_only_where_every_row_holds_the_position_believed() {
        let row = |lane, position| Writer { lane, position, ..writer(4, SlotSet::empty()) };
        let change = LaneChange {
            group_uid: "u".to_owned(),
            node: "n".to_owned(),
            token: 4,
            lanes: 3,
            position: 9,
            believed: vec![9, 7],
        };
        let positions = |rows: &[Writer]| {
            let rows: Vec<&Writer> = rows.iter().collect();
            let planned = plan_lane_change(&change, &rows).unwrap();
            planned.map(|lanes| lanes.iter().map(|l| l.position).collect::<Vec<_>>())
        };
        assert_eq!(positions(&[row(0, 9), row(1, 7)]), Some(vec![9; 3]));
        assert_eq!(positions(&[row(0, 9), row(1, 3)]), None, "the backend went back");
        assert_eq!(positions(&[row(0, 9)]), None, "a row is gone");
        let done = [row(0, 9), row(1, 9), row(2, 9)];
        assert_eq!(positions(&done), Some(vec![9; 3]), "our own lost answer");
        let fenced = plan_lane_change(&LaneChange { token: 5, ..change }, &[&row(0, 9)]);
        assert_eq!(fenced.unwrap_err().reason, Reason::Fenced);
    }

    #[test]
    fn r24_nobody_is_given_slots_that_their_owner_has_not_let_go() {
        let slot = |n| SlotId::new(n).unwrap();
        let set = |slots: &[u16]| slots.iter().map(|n| slot(*n)).collect::<SlotSet>();
        let mut me = writer(1, set(&[9]));
        me.node = "me".to_owned();
        let all = [writer(3, set(&[1, 2, 3])), me];
        let request = TakeoverRequest {
            group_uid: "u".to_owned(),
            node: "me".to_owned(),
            token: 1,
            epoch: 2,
            slots: set(&[1, 2, 8]),
            released: vec![Release {
                node: "n".to_owned(),
                slots: set(&[2, 3]),
                positions: vec![7],
            }],
        };
        let plan = plan_takeover(&request, &all).unwrap();
        assert_eq!(plan.owned, set(&[2, 8]));
        assert_eq!((plan.held.len(), plan.held[0].slots.clone()), (1, set(&[1])));
        assert_eq!(plan.rows, vec![(0, set(&[1, 3]), 1), (1, set(&[2, 8, 9]), 0)]);
        let stale = TakeoverRequest { epoch: 0, ..request.clone() };
        assert_eq!(plan_takeover(&stale, &all).err().unwrap().reason, Reason::StaleTopology);
        let fenced = TakeoverRequest { token: 9, ..request };
        assert_eq!(plan_takeover(&fenced, &all).err().unwrap().reason, Reason::Fenced);
    }

    #[test]
    fn r23_slots_are_not_taken_from_a_row_that_lost_what_its_owner_had_flushed() {
        let mut me = writer(1, SlotSet::empty());
        me.node = "me".to_owned();
        let lane = |lane, position| {
            let slots = SlotSet::full().iter().filter(|s| lane_of(*s, 2) == lane).collect();
            Writer { lanes: 2, lane, position, ..writer(3, slots) }
        };
        let taken = |rows: [Writer; 2], positions: &[u64]| {
            let all = [rows.as_slice(), &[me.clone()]].concat();
            let released = Release {
                node: "n".to_owned(),
                slots: SlotSet::full(),
                positions: positions.to_vec(),
            };
            let request = TakeoverRequest {
                group_uid: "u".to_owned(),
                node: "me".to_owned(),
                token: 1,
                epoch: 2,
                slots: SlotSet::full(),
                released: vec![released],
            };
            plan_takeover(&request, &all).unwrap().owned
        };
        let as_said = [lane(0, 7), lane(1, 9)];
        assert_eq!(taken(as_said.clone(), &[7, 9]), SlotSet::full());
        assert_eq!(taken(as_said.clone(), &[]), SlotSet::full(), "a node that does not say");
        let went_back = [lane(0, 7), lane(1, 8)];
        assert_eq!(taken(went_back, &[7, 9]), as_said[0].slots, "lane 1 sends again first");
        assert!(taken(as_said, &[7]).is_empty(), "said under another lane map");
    }

    #[test]
    fn a_group_is_forgotten_by_the_last_of_its_nodes_that_held_slots() {
        let leave = Leave { group_uid: "u".to_owned(), node: "n".to_owned(), token: 3 };
        let other = |slots| Writer { node: "other".to_owned(), ..writer(8, slots) };
        let mine = writer(3, SlotSet::full());
        let left = |all: &[Writer]| plan_leave(&leave, all).unwrap();
        assert_eq!(left(&[mine.clone(), other(SlotSet::full())]), ["other"]);
        assert!(left(&[mine, other(SlotSet::empty())]).is_empty());
        assert!(left(&[]).is_empty(), "our own lost answer");
        let fenced = plan_leave(&leave, &[writer(4, SlotSet::empty())]).unwrap_err();
        assert_eq!(fenced.reason, Reason::Fenced);
    }
}
