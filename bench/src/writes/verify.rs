//! Proves from the log that every acknowledged counter write is in the backend.

use super::log::{self, KeyHistory};
use crate::backend::connect;
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;
use tokio::time::Instant;

const POLL: Duration = Duration::from_millis(250);

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Verified {
    pub ok: bool,
    pub acknowledged_writes: u64,
    pub keys: u64,
    /// Keys whose backend value is none that the log allows: a write was lost, doubled or
    /// reordered.
    pub wrong_keys: u64,
    /// Keys whose two tables disagree: a transaction was torn.
    pub torn_keys: u64,
    /// Keys the backend does not have at all.
    pub missing_keys: u64,
    /// Violations the writers saw themselves.
    pub violations: u64,
}

/// Compares, again and again until it fits or `wait` is over.
pub async fn verify(path: &Path, uri: &str, schema: &str, wait: Duration) -> Result<Verified> {
    let keys = log::read(path)?;
    let until = Instant::now() + wait;
    loop {
        let found = read_backend(&keys, uri, schema).await?;
        let verified = judge(&keys, &found);
        if verified.ok || Instant::now() >= until {
            return Ok(verified);
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Counter, and least and greatest facility value, of a key.
type Found = BTreeMap<i64, (i64, i16, i16)>;

async fn read_backend(keys: &BTreeMap<i64, KeyHistory>, uri: &str, schema: &str) -> Result<Found> {
    let client = connect(uri).await?;
    let ids: Vec<i64> = keys.keys().copied().collect();
    let query = format!(
        "SELECT s.s_id, s.msc_location, min(f.error_cntrl), max(f.error_cntrl) \
         FROM {schema}.subscriber s JOIN {schema}.special_facility f USING (s_id) \
         WHERE s.s_id = ANY($1) GROUP BY s.s_id"
    );
    let rows = client.query(&query, &[&ids]).await?;
    Ok(rows.iter().map(|r| (r.get(0), (r.get(1), r.get(2), r.get(3)))).collect())
}

fn judge(keys: &BTreeMap<i64, KeyHistory>, found: &Found) -> Verified {
    let mut result = Verified { keys: keys.len() as u64, ..Verified::default() };
    for (key, history) in keys {
        result.acknowledged_writes += history.acknowledgements;
        result.violations += history.violations;
        let Some((value, least, greatest)) = found.get(key) else {
            result.missing_keys += 1;
            continue;
        };
        result.wrong_keys += u64::from(!history.allows(*value));
        let expected = log::facility_value(*value);
        let whole = i64::from(*least) == expected && i64::from(*greatest) == expected;
        result.torn_keys += u64::from(history.acknowledged.is_some() && !whole);
    }
    result.ok = result.wrong_keys + result.torn_keys + result.missing_keys + result.violations == 0;
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_a_torn_and_a_missing_write_are_each_told_apart() {
        let acknowledged = |value| KeyHistory {
            acknowledged: Some(value),
            acknowledgements: 1,
            ..KeyHistory::default()
        };
        let keys = BTreeMap::from([
            (1, acknowledged(300)),
            (2, acknowledged(300)),
            (3, acknowledged(300)),
            (4, acknowledged(300)),
        ]);
        let found = BTreeMap::from([(1, (300, 44, 44)), (2, (299, 43, 43)), (3, (300, 43, 44))]);
        let result = judge(&keys, &found);
        assert!(!result.ok);
        assert_eq!((result.wrong_keys, result.torn_keys, result.missing_keys), (1, 1, 1));
        let all = keys.keys().map(|k| (*k, (300, 44, 44))).collect();
        assert!(judge(&keys, &all).ok);
    }
}
