//! What the seven transactions run against.
//!
//! Both sides answer the same [`Input`] with the same [`Outcome`]; which rows count as found is
//! decided here once per side, so that hit rates are comparable.

pub mod backend;
pub mod cache;
pub mod connect;

use crate::traffic::Input;
use backend::BackendTarget;
use cache::CacheTarget;

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

/// One client's connection to one side.
pub enum Target {
    Backend(Box<BackendTarget>),
    Cache(CacheTarget),
}

impl Target {
    pub async fn execute(&self, input: &Input) -> Outcome {
        match self {
            Self::Backend(target) => target.execute(input).await,
            Self::Cache(target) => target.execute(input).await,
        }
    }
}
