//! The proof at the end: every row of the backend is one that the acknowledged writes allow, and
//! every cached row is the backend's.

use super::rows::{self, Rows};
use crate::ledger::Ledger;
use crate::population::Population;
use anyhow::{Context, Result};
use cachetier_client::{Client, Key, Read, Source};
use cachetier_model::Value;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Subscribers per query.
const PAGE: u64 = 2_000;
/// Reads of the cache in flight.
const READS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verified {
    pub subscribers: u64,
    pub rows: u64,
    /// Backend rows that the acknowledged writes do not allow.
    pub not_as_acknowledged: u64,
    /// Rows that differ between cache and backend.
    pub cache_and_backend: u64,
    /// Subscribers that the cache had to fetch, though they were loaded.
    pub not_cached: u64,
}

impl Verified {
    pub fn differences(&self) -> u64 {
        self.not_as_acknowledged + self.cache_and_backend
    }
}

/// Compares all subscribers of the backend, and those up to `cached_up_to` with the cache if there
/// is one. Nothing may be on its way.
pub async fn verify(
    backend: &tokio_postgres::Client,
    cache: Option<&Client>,
    population: Population,
    ledger: &Ledger,
    cached_up_to: u64,
) -> Result<Verified> {
    let mut verified = Verified::default();
    for first in (1..=population.subscribers).step_by(PAGE as usize) {
        let last = population.subscribers.min(first + PAGE - 1);
        let found = rows::of_backend(backend, first as i64, last as i64).await?;
        let nothing = Rows::new();
        for id in first..=last {
            let held = found.get(&(id as i64)).unwrap_or(&nothing);
            let expected = expected(population, ledger, id, held);
            verified.subscribers += 1;
            verified.rows += held.len() as u64;
            verified.not_as_acknowledged += rows::differences(&expected, held);
        }
        if let Some(cache) = cache {
            compare_cache(cache, first..=last.min(cached_up_to), &found, &mut verified).await?;
        }
    }
    Ok(verified)
}

/// The generated rows with every written column as the backend has it, where that is allowed.
fn expected(population: Population, ledger: &Ledger, id: u64, held: &Rows) -> Rows {
    let generated = rows::of_generator(&population.subscriber(id));
    let mut expected = generated.clone();
    for (column, allowed) in ledger.allowed(id) {
        let untouched = rows::held(&generated, column);
        let is = rows::held(held, column);
        // A value that is not allowed stays different, unless it is the generated one: that is
        // made different below.
        if allowed.iter().any(|value| value.or(untouched) == is) {
            rows::take_over(&mut expected, held, column);
        } else if is == untouched {
            rows::spoil(&mut expected, column);
        }
    }
    expected
}

async fn compare_cache(
    cache: &Client,
    ids: std::ops::RangeInclusive<u64>,
    backend: &BTreeMap<i64, Rows>,
    verified: &mut Verified,
) -> Result<()> {
    let reads = stream::iter(ids).map(|id| async move {
        let mut read = Read::whole(Key::root([Value::Int(id as i64)]));
        read.no_bypass = true;
        let answer = cache.read(&read).await.context("reading a subscriber back")?;
        anyhow::Ok((id, answer))
    });
    let mut answers = std::pin::pin!(reads.buffer_unordered(READS));
    let nothing = Rows::new();
    while let Some((id, answer)) = answers.try_next().await? {
        let held = backend.get(&(id as i64)).unwrap_or(&nothing);
        verified.cache_and_backend += rows::differences(&rows::of_cache(&answer), held);
        verified.not_cached += u64::from(answer.source != Source::Cache);
    }
    Ok(())
}
