//! What the seven transactions run against.
//!
//! Both sides answer the same [`Input`] with the same [`Outcome`]; which rows count as found is
//! decided here once per side, so that hit rates are comparable.

pub mod backend;
pub mod cache;
pub mod connect;
pub mod planted;

use crate::traffic::Input;
use backend::BackendTarget;
use cache::CacheTarget;
use cachetier_client::Position;
use planted::Planted;

/// How one attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It found its rows, or inserted.
    Hit,
    /// Nothing there, or a refused insert: a logical miss, rolled back.
    Miss,
    /// It failed; the text classifies the failure and names no subscriber.
    Failed(String),
}

impl Outcome {
    fn of(found: bool) -> Self {
        if found { Self::Hit } else { Self::Miss }
    }
}

/// What an attempt brought, beside how it ended.
#[derive(Clone, Debug)]
pub struct Answer {
    pub outcome: Outcome,
    /// Columns of a subscriber row that was read.
    pub seen: Option<Seen>,
    /// Of a write to the cache.
    pub position: Option<Position>,
}

/// The columns of a subscriber row that the workload changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    pub bit_1: i64,
    pub vlr_location: i64,
}

impl Answer {
    pub fn of(found: bool) -> Self {
        Self::ended(Outcome::of(found))
    }

    fn ended(outcome: Outcome) -> Self {
        Self { outcome, seen: None, position: None }
    }

    fn row(seen: Option<Seen>) -> Self {
        Self { seen, ..Self::of(seen.is_some()) }
    }
}

/// One client's connection to one side.
pub enum Target {
    Backend(Box<BackendTarget>),
    Cache(CacheTarget),
    /// A side with a fault that the checks must find.
    Planted(Box<Planted>),
}

impl Target {
    pub async fn execute(&self, input: &Input) -> Answer {
        match self {
            Self::Backend(target) => target.execute(input).await,
            Self::Cache(target) => target.execute(input).await,
            Self::Planted(target) => target.execute(input).await,
        }
    }
}
