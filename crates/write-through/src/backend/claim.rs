//! Claims at a process start and takeovers of slots (R8, R9, R14).

use cachetier_model::node_config::GroupIdentity;
use cachetier_model::{RootKey, SlotSet};

/// A process start claims its journal.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub group: GroupIdentity,
    pub node: String,
    /// Identity of the journal.
    pub journal: String,
    /// The token the journal holds; `None` when it never claimed.
    pub held_token: Option<u64>,
    /// A nonce that is **durable in the journal before this call**, and is renewed only after a
    /// claim's token was stored. It tells a claim of ours whose answer was lost from a claim by a
    /// copy of the volume.
    pub attempt: String,
    /// Lanes wanted for a first claim; an existing lane map is answered as it is.
    pub lanes: u16,
    /// Version of the topology this process knows, 0 for none.
    pub epoch: u64,
    /// Names of the cached tables.
    pub tables: Vec<String>,
    /// An administrator's word that what this journal held and the backend does not have is lost,
    /// and that the claiming one takes its place.
    pub accept_lost_journal: Option<String>,
}

/// What a claim found and set.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The token of this process; store it in the journal.
    pub token: u64,
    /// Highest epoch in the writer rows of this node.
    pub epoch: u64,
    /// One per lane, by number. Their count is the lane map in force.
    pub lanes: Vec<LaneClaim>,
    /// Instances with open rejects in this node's slots.
    pub quarantined: Vec<RootKey>,
}

impl Claim {
    pub fn slots(&self) -> SlotSet {
        let mut all = SlotSet::empty();
        self.lanes.iter().for_each(|lane| all.union_with(&lane.slots));
        all
    }

    pub fn lane_count(&self) -> u16 {
        u16::try_from(self.lanes.len()).unwrap_or(u16::MAX)
    }
}

#[derive(Clone, Debug)]
pub struct LaneClaim {
    pub lane: u16,
    /// Bumped by whoever takes slots away.
    pub version: u64,
    /// Everything of this lane at or below it is in the backend or set aside.
    pub position: u64,
    pub slots: SlotSet,
}

/// The new owner takes slots.
#[derive(Clone, Debug)]
pub struct TakeoverRequest {
    pub group_uid: String,
    pub node: String,
    pub token: u64,
    /// Version of the topology that gives the slots to this node.
    pub epoch: u64,
    pub slots: SlotSet,
    /// What this node has and serves. A backend that lacks some of it lost a takeover: it is told of
    /// that first, and of nothing else.
    pub holding: SlotSet,
    /// What owners let go; only that, and what nobody owns, is taken.
    pub released: Vec<Release>,
}

/// An owner answered that these slots are refused and flushed there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Release {
    pub node: String,
    pub slots: SlotSet,
    /// How far each of its lanes was in the backend when it answered, by number. A writer row that
    /// holds less says that the backend lost commits since: those slots are not taken. Empty when
    /// the owner did not say.
    pub positions: Vec<u64>,
    /// The newest version that each of these rows is known to have had; a lower one says the same.
    pub versions: Vec<u64>,
}

/// A node leaves its group for good.
#[derive(Clone, Debug)]
pub struct Leave {
    pub group_uid: String,
    pub node: String,
    pub token: u64,
}

/// Which slots are ours now.
#[derive(Clone, Debug)]
pub struct Takeover {
    /// The requested slots that are in this node's writer rows now.
    pub owned: SlotSet,
    /// The requested slots that others own still.
    pub held: Vec<SlotHolder>,
    /// Instances with open rejects in the slots owned.
    pub quarantined: Vec<RootKey>,
    /// Of what the node has, what its rows lack. Nothing was taken then, unless it is of these.
    pub forgotten: SlotSet,
    /// What the versions of this node's writer rows are now, by lane.
    pub versions: Vec<(u16, u64)>,
}

#[derive(Clone, Debug)]
pub struct SlotHolder {
    pub node: String,
    pub slots: SlotSet,
    /// Lowest position of its lanes.
    pub position: u64,
    pub epoch: u64,
}

/// Replaces the lane map: allowed only when everything up to `position` is flushed in every lane,
/// and the rows still say so.
#[derive(Clone, Debug)]
pub struct LaneChange {
    pub group_uid: String,
    pub node: String,
    pub token: u64,
    pub lanes: u16,
    pub position: u64,
    /// The position believed to be in each row of the old map, by lane.
    pub believed: Vec<u64>,
}
