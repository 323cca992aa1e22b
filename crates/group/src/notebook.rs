//! What a node must remember beside its frames: typed access to the journal's control attributes.
//!
//! Owns the names and encodings of those attributes. Values are JSON except the slot map; each is
//! replaced whole and durable when the call returns. Never holds subscriber data.

use std::collections::BTreeMap;

use cachetier_journal::Journal;
use cachetier_model::{GroupSchema, SlotSet, Topology};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::ends::Ends;
use crate::error::{GroupError, in_full};
use crate::host::Labour;
use crate::tenure::TenureNote;

/// Whose journal this is (R5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Home {
    pub group_uid: String,
    pub group_name: String,
    pub node: String,
}

/// The database the frames belong to (R5).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BackendHome {
    pub system_identifier: String,
    pub database: String,
}

/// The last claim of this journal (R8).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ClaimNote {
    /// Token the backend confirmed; `None` before the first claim.
    pub token: Option<u64>,
    /// Nonce of a claim that was sent and whose answer is not stored yet.
    pub attempt: Option<String>,
}

/// How far the lanes are in the backend, each by lane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LanesNote {
    /// Confirmed.
    pub positions: Vec<u64>,
    /// Of the rows, the newest known; `None` leaves what was noted before.
    pub versions: Option<Vec<u64>>,
    /// Up to where the journal holds every word about what became of its frames; likewise.
    pub settled: Option<Vec<u64>>,
}

const HOME: &str = "home";
const BACKEND: &str = "backend";
const CLAIM: &str = "claim";
const LANES: &str = "lanes";
const VERSIONS: &str = "versions";
const SETTLED: &str = "settled";
const TOPOLOGY: &str = "topology";
const ADDRESSES: &str = "addresses";
const SLOTS: &str = "slots";
const TENURES: &str = "tenures";
const ENDS: &str = "ends";
const SCHEMA: &str = "schema";
const LEFT: &str = "left";
const LOST_JOURNAL: &str = "lostJournal";

#[derive(Clone)]
pub(crate) struct Notebook {
    journal: Journal,
    labour: Labour,
}

impl Notebook {
    pub(crate) fn new(journal: Journal, labour: Labour) -> Self {
        Self { journal, labour }
    }

    pub(crate) fn home(&self) -> Result<Option<Home>, GroupError> {
        self.read(HOME)
    }

    pub(crate) async fn set_home(&self, home: &Home) -> Result<(), GroupError> {
        self.write(HOME, home).await
    }

    pub(crate) fn backend(&self) -> Result<Option<BackendHome>, GroupError> {
        self.read(BACKEND)
    }

    pub(crate) async fn set_backend(&self, backend: &BackendHome) -> Result<(), GroupError> {
        self.write(BACKEND, backend).await
    }

    pub(crate) fn claim(&self) -> Result<ClaimNote, GroupError> {
        Ok(self.read(CLAIM)?.unwrap_or_default())
    }

    pub(crate) async fn set_claim(&self, claim: &ClaimNote) -> Result<(), GroupError> {
        self.write(CLAIM, claim).await
    }

    /// The confirmed position of each lane in the backend; empty before the first claim.
    pub(crate) fn lanes(&self) -> Result<Vec<u64>, GroupError> {
        Ok(self.read(LANES)?.unwrap_or_default())
    }

    /// The newest version that the writer row of each lane is known to have had; empty: not known.
    pub(crate) fn versions(&self) -> Result<Vec<u64>, GroupError> {
        Ok(self.read(VERSIONS)?.unwrap_or_default())
    }

    /// The position of each lane up to which this journal holds every word about what became of
    /// its frames.
    pub(crate) fn settled(&self) -> Result<Vec<u64>, GroupError> {
        Ok(self.read(SETTLED)?.unwrap_or_default())
    }

    pub(crate) async fn set_lanes(&self, note: &LanesNote) -> Result<(), GroupError> {
        let mut values = vec![(LANES, json(&note.positions)?)];
        if let Some(versions) = &note.versions {
            values.push((VERSIONS, json(versions)?));
        }
        if let Some(settled) = &note.settled {
            values.push((SETTLED, json(settled)?));
        }
        self.write_all(values).await
    }

    /// The last frame that each start of a process found.
    pub(crate) fn ends(&self) -> Result<Option<Ends>, GroupError> {
        self.read(ENDS)
    }

    pub(crate) fn topology(&self) -> Result<Option<Topology>, GroupError> {
        self.read(TOPOLOGY)
    }

    /// The topology, and the addresses of every node that ever was in one.
    pub(crate) async fn set_topology(
        &self,
        topology: &Topology,
        addresses: &BTreeMap<String, String>,
    ) -> Result<(), GroupError> {
        self.write(ADDRESSES, addresses).await?;
        self.write(TOPOLOGY, topology).await
    }

    pub(crate) fn addresses(&self) -> Result<BTreeMap<String, String>, GroupError> {
        Ok(self.read(ADDRESSES)?.unwrap_or_default())
    }

    /// The slots last known to be in this node's writer row.
    pub(crate) fn slots(&self) -> SlotSet {
        let bytes = self.journal.attribute(SLOTS).unwrap_or_default();
        SlotSet::from_bytes(&bytes).unwrap_or_default()
    }

    /// The slots, together with their stays.
    pub(crate) async fn set_slots(
        &self,
        slots: &SlotSet,
        stays: &TenureNote,
    ) -> Result<(), GroupError> {
        self.write_all(vec![(SLOTS, slots.to_bytes()), (TENURES, json(stays)?)]).await
    }

    /// See `tenure`.
    pub(crate) fn tenures(&self) -> Result<Option<TenureNote>, GroupError> {
        self.read(TENURES)
    }

    /// What a start notes before anything else.
    pub(crate) async fn set_start(
        &self,
        stays: &TenureNote,
        ends: &Ends,
    ) -> Result<(), GroupError> {
        self.write_all(vec![(TENURES, json(stays)?), (ENDS, json(ends)?)]).await
    }

    /// The schema the frames were written under.
    pub(crate) fn schema(&self) -> Result<Option<GroupSchema>, GroupError> {
        self.read(SCHEMA)
    }

    pub(crate) async fn set_schema(&self, schema: &GroupSchema) -> Result<(), GroupError> {
        self.write(SCHEMA, schema).await
    }

    /// This node left its group, drained: nothing in the journal is worth anything any more.
    pub(crate) fn left(&self) -> bool {
        self.journal.attribute(LEFT).is_some()
    }

    pub(crate) async fn set_left(&self) -> Result<(), GroupError> {
        self.write(LEFT, &true).await
    }

    /// The journal whose place this one takes, by an administrator's word.
    pub(crate) fn lost_journal(&self) -> Result<Option<String>, GroupError> {
        self.read(LOST_JOURNAL)
    }

    pub(crate) async fn set_lost_journal(&self, journal: &str) -> Result<(), GroupError> {
        self.write(LOST_JOURNAL, &journal).await
    }

    fn read<T: DeserializeOwned>(&self, key: &'static str) -> Result<Option<T>, GroupError> {
        let Some(bytes) = self.journal.attribute(key) else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| {
            GroupError::internal(format!("journal attribute {key} is unreadable: {error}"))
        })
    }

    async fn write<T: Serialize>(&self, key: &'static str, value: &T) -> Result<(), GroupError> {
        self.write_all(vec![(key, json(value)?)]).await
    }

    /// All of them or none.
    async fn write_all(&self, values: Vec<(&'static str, Vec<u8>)>) -> Result<(), GroupError> {
        let journal = self.journal.clone();
        let keys = values.iter().map(|(key, _)| *key).collect::<Vec<_>>().join(", ");
        let noted = self.labour.run(move || {
            let changes: Vec<(&str, Option<&[u8]>)> =
                values.iter().map(|(key, bytes)| (*key, Some(bytes.as_slice()))).collect();
            journal.set_attributes(&changes)
        });
        noted.await.map_err(GroupError::internal)?.map_err(|error| GroupError::Latched {
            reason: format!("cannot note {keys} in the journal: {}", in_full(&error)).into(),
        })
    }
}

fn json<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, GroupError> {
    serde_json::to_vec(value).map_err(GroupError::internal)
}
