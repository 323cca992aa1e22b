//! The ledger of loads: which chunks there are, who has them, which are done.
//!
//! It is progress, not truth: what is covered is known by the nodes alone (R20).

use super::claim::{get, unsigned};
use super::fault;
use crate::backend::load::{Chunk, KeyRange, LoadInfo, LoadSpec};
use crate::error::BackendError;
use bytes::Bytes;
use cachetier_model::RootKey;
use std::time::Duration;
use tokio_postgres::Client;
use tokio_postgres::types::Type;

const ACT: &str = "keep the ledger of a load";

fn bytes_of(key: Option<&RootKey>) -> Option<&[u8]> {
    key.map(|k| k.as_bytes().as_ref())
}

/// Creates load and chunks in the caller's transaction, unless another pod was first.
pub(super) async fn create(client: &Client, spec: &LoadSpec) -> Result<(), BackendError> {
    let total = i32::try_from(spec.chunks.len()).unwrap_or(i32::MAX);
    let created = client
        .execute_typed(
            "INSERT INTO cachetier.load (group_uid, load_id, filter, chunks_total) \
             VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING",
            &[
                (&spec.group_uid, Type::TEXT),
                (&spec.load_id, Type::TEXT),
                (&spec.filter, Type::TEXT),
                (&total, Type::INT4),
            ],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    if created == 0 {
        return Ok(());
    }
    let from: Vec<Option<&[u8]>> = spec.chunks.iter().map(|c| bytes_of(c.from.as_ref())).collect();
    let to: Vec<Option<&[u8]>> = spec.chunks.iter().map(|c| bytes_of(c.to.as_ref())).collect();
    client
        .execute_typed(
            "INSERT INTO cachetier.load_chunk (group_uid, load_id, chunk, from_key, to_key) \
             SELECT $1, $2, (u.n - 1)::integer, u.f, u.t \
             FROM unnest($3, $4) WITH ORDINALITY AS u(f, t, n)",
            &[
                (&spec.group_uid, Type::TEXT),
                (&spec.load_id, Type::TEXT),
                (&from, Type::BYTEA_ARRAY),
                (&to, Type::BYTEA_ARRAY),
            ],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    Ok(())
}

pub(super) async fn info(
    client: &Client,
    group_uid: &str,
    load_id: &str,
) -> Result<Option<LoadInfo>, BackendError> {
    let rows = client
        .query_typed(
            "SELECT l.filter, l.chunks_total::int8, \
               count(*) FILTER (WHERE c.done), \
               coalesce(sum(c.instances) FILTER (WHERE c.done), 0)::int8 \
             FROM cachetier.load l JOIN cachetier.load_chunk c USING (group_uid, load_id) \
             WHERE l.group_uid = $1 AND l.load_id = $2 GROUP BY l.filter, l.chunks_total",
            &[(&group_uid, Type::TEXT), (&load_id, Type::TEXT)],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    let Some(row) = rows.first() else { return Ok(None) };
    Ok(Some(LoadInfo {
        load_id: load_id.to_owned(),
        filter: get(ACT, row, 0)?,
        chunks_total: unsigned(ACT, row, 1)? as u32,
        chunks_done: unsigned(ACT, row, 2)? as u32,
        instances: unsigned(ACT, row, 3)?,
    }))
}

pub(super) async fn take(
    client: &Client,
    group_uid: &str,
    load_id: &str,
    worker: &str,
    lease: Duration,
) -> Result<Option<Chunk>, BackendError> {
    let lease = lease.as_secs_f64();
    let rows = client
        .query_typed(
            "UPDATE cachetier.load_chunk AS c SET worker = $3, attempts = attempts + 1, \
               lease_until = now() + make_interval(secs => $4) \
             WHERE (group_uid, load_id, chunk) = (SELECT group_uid, load_id, chunk \
               FROM cachetier.load_chunk WHERE group_uid = $1 AND load_id = $2 AND NOT done \
               AND (lease_until IS NULL OR lease_until < now()) \
               ORDER BY chunk LIMIT 1 FOR UPDATE SKIP LOCKED) \
             RETURNING chunk::int8, from_key, to_key, attempts::int8",
            &[
                (&group_uid, Type::TEXT),
                (&load_id, Type::TEXT),
                (&worker, Type::TEXT),
                (&lease, Type::FLOAT8),
            ],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    let Some(row) = rows.first() else { return Ok(None) };
    let key = |place| -> Result<Option<RootKey>, BackendError> {
        let raw: Option<&[u8]> = get(ACT, row, place)?;
        Ok(raw.map(|bytes| RootKey::from_bytes(Bytes::copy_from_slice(bytes))))
    };
    Ok(Some(Chunk {
        group_uid: group_uid.to_owned(),
        load_id: load_id.to_owned(),
        number: unsigned(ACT, row, 0)? as u32,
        range: KeyRange { from: key(1)?, to: key(2)? },
        worker: worker.to_owned(),
        attempt: unsigned(ACT, row, 3)? as u32,
    }))
}

/// What a worker does with a chunk that it holds.
pub(super) enum Act {
    Renew(Duration),
    Finish(u64),
    GiveBack,
}

/// False when the chunk is no longer this worker's.
pub(super) async fn on_chunk(
    client: &Client,
    chunk: &Chunk,
    act: Act,
) -> Result<bool, BackendError> {
    let (set, lease, instances) = match act {
        Act::Renew(lease) => {
            ("lease_until = now() + make_interval(secs => $6)", lease.as_secs_f64(), 0)
        }
        Act::Finish(instances) => ("done = true, instances = $7", 0.0, instances),
        Act::GiveBack => ("lease_until = NULL, worker = NULL", 0.0, 0),
    };
    let text = format!(
        "UPDATE cachetier.load_chunk SET {set} WHERE group_uid = $1 AND load_id = $2 \
         AND chunk = $3 AND worker = $4 AND attempts = $5 AND NOT done \
         AND $6::float8 >= 0 AND $7::int8 >= 0"
    );
    let (number, attempt) = (chunk.number as i32, chunk.attempt as i32);
    let instances = super::claim::signed(instances);
    let changed = client
        .execute_typed(
            &text,
            &[
                (&chunk.group_uid, Type::TEXT),
                (&chunk.load_id, Type::TEXT),
                (&number, Type::INT4),
                (&chunk.worker, Type::TEXT),
                (&attempt, Type::INT4),
                (&lease, Type::FLOAT8),
                (&instances, Type::INT8),
            ],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    Ok(changed == 1)
}
