//! Who may claim, take and leave, from rows made by hand.

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
        holding: SlotSet::empty(),
        released: vec![Release {
            node: "n".to_owned(),
            slots: set(&[2, 3]),
            positions: vec![7],
            versions: Vec::new(),
        }],
    };
    let plan = plan_takeover(&request, &all).unwrap();
    assert_eq!(plan.owned, set(&[2, 8]));
    assert_eq!((plan.held.len(), plan.held[0].slots.clone()), (1, set(&[1])));
    assert_eq!(plan.rows, vec![(0, set(&[1, 3]), 1), (1, set(&[2, 8, 9]), 1)], "both see it");
    let stale = TakeoverRequest { epoch: 0, ..request.clone() };
    assert_eq!(plan_takeover(&stale, &all).err().unwrap().reason, Reason::StaleTopology);
    let fenced = TakeoverRequest { token: 9, ..request };
    assert_eq!(plan_takeover(&fenced, &all).err().unwrap().reason, Reason::Fenced);
}

/// Of slots that a failover took back, some were taken again and the answer was lost: their node hears of
/// them, and then asks for the others.
#[test]
fn r11_slots_that_are_in_the_takers_rows_already_wait_for_no_others() {
    let set = |slots: &[u16]| slots.iter().map(|n| SlotId::new(*n).unwrap()).collect::<SlotSet>();
    let me = Writer { node: "me".to_owned(), ..writer(1, set(&[1, 9])) };
    let request = TakeoverRequest {
        group_uid: "u".to_owned(),
        node: "me".to_owned(),
        token: 1,
        epoch: 2,
        slots: set(&[1]),
        holding: set(&[1, 2]),
        released: Vec::new(),
    };
    let all = [writer(3, set(&[2])), me];
    let plan = plan_takeover(&request, &all).unwrap();
    assert_eq!((plan.owned, plan.forgotten), (set(&[1]), set(&[2])));
    assert_eq!(
        (plan.rows, plan.versions.len()),
        (vec![(1, set(&[1, 9]), 0)], 1),
        "nothing changes"
    );
    let news = TakeoverRequest { slots: set(&[5]), ..request };
    let plan = plan_takeover(&news, &all).unwrap();
    assert_eq!((plan.owned, plan.forgotten), (SlotSet::empty(), set(&[2])));
    assert!(plan.rows.is_empty(), "a new version would hide what the rows lack");
}

#[test]
fn r23_slots_are_not_taken_from_a_row_that_lost_what_its_owner_had_flushed() {
    let mut me = writer(1, SlotSet::empty());
    me.node = "me".to_owned();
    let lane = |lane, position| {
        let slots = SlotSet::full().iter().filter(|s| lane_of(*s, 2) == lane).collect();
        Writer { lanes: 2, lane, position, ..writer(3, slots) }
    };
    let taken_as = |rows: [Writer; 2], positions: &[u64], versions: &[u64]| {
        let all = [rows.as_slice(), &[me.clone()]].concat();
        let released = Release {
            node: "n".to_owned(),
            slots: SlotSet::full(),
            positions: positions.to_vec(),
            versions: versions.to_vec(),
        };
        let request = TakeoverRequest {
            group_uid: "u".to_owned(),
            node: "me".to_owned(),
            token: 1,
            epoch: 2,
            slots: SlotSet::full(),
            holding: SlotSet::empty(),
            released: vec![released],
        };
        plan_takeover(&request, &all).unwrap().owned
    };
    let taken = |rows, positions: &[u64]| taken_as(rows, positions, &[]);
    let as_said = [lane(0, 7), lane(1, 9)];
    assert_eq!(taken(as_said.clone(), &[7, 9]), SlotSet::full());
    assert_eq!(taken(as_said.clone(), &[]), SlotSet::full(), "a node that does not say");
    let went_back = [lane(0, 7), lane(1, 8)];
    assert_eq!(taken(went_back, &[7, 9]), as_said[0].slots, "lane 1 sends again first");
    assert!(taken(as_said.clone(), &[7]).is_empty(), "said under another lane map");
    let version = as_said[0].version;
    assert_eq!(taken_as(as_said.clone(), &[7, 9], &[version; 2]), SlotSet::full());
    let looks_first = taken_as(as_said.clone(), &[7, 9], &[version, version + 1]);
    assert_eq!(looks_first, as_said[0].slots, "lane 1 lost a takeover and has to see it first");
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
