//! Rejects: listed, discarded, replayed (R17).
//!
//! The caller's transaction is open; discarding and replaying hold the lane's writer row, so that
//! only the owner of the slot can act, and an owner that was just fenced cannot. The row itself says
//! which slots it has: its version may have moved on, by other slots that came or went.

use super::claim::{damaged, get, signed, unsigned};
use super::lane_session::{execute, miscounted};
use super::{Compiled, fault};
use crate::backend::flush::Fence;
use crate::backend::ownership::{fenced, slot_moved};
use crate::backend::reject::RejectEntry;
use crate::error::{BackendError, Reason};
use crate::plan::plan;
use bytes::Bytes;
use cachetier_model::{RootKey, SlotSet, codec};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

const ACT: &str = "read the rejects";

const COLUMNS: &str = "r.id, r.node, r.sequence, r.root_key, r.sqlstate, r.table_name, \
    r.constraint_name, r.message, r.detail, \
    extract(epoch FROM clock_timestamp() - r.created_at)::float8, \
    (SELECT count(*) FROM cachetier.reject f WHERE f.group_uid = r.group_uid \
     AND f.root_key = r.root_key AND f.id > r.id)";

pub(super) async fn list(
    client: &Client,
    group_uid: &str,
    limit: u32,
) -> Result<Vec<RejectEntry>, BackendError> {
    let limit = i64::from(limit);
    let text = format!(
        "SELECT {COLUMNS} FROM cachetier.reject r WHERE r.group_uid = $1 AND r.head \
         ORDER BY r.id LIMIT $2"
    );
    let rows = client
        .query_typed(&text, &[(&group_uid, Type::TEXT), (&limit, Type::INT8)])
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    rows.iter().map(entry).collect()
}

pub(super) async fn tail(client: &Client, id: u64) -> Result<Vec<RejectEntry>, BackendError> {
    let id = signed(id);
    let text = format!(
        "SELECT {COLUMNS}, r.changes FROM cachetier.reject r JOIN cachetier.reject h \
         ON h.group_uid = r.group_uid AND h.root_key = r.root_key \
         WHERE h.id = $1 AND h.head AND r.id >= h.id ORDER BY r.id"
    );
    let rows = client
        .query_typed(&text, &[(&id, Type::INT8)])
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    rows.iter()
        .map(|row| {
            let mut entry = entry(row)?;
            let changes: &[u8] = get(ACT, row, 11)?;
            entry.changes = codec::decode_changes(changes).map_err(|error| {
                BackendError::new(ACT, Reason::Internal, format!("a reject is unreadable: {error}"))
            })?;
            Ok(entry)
        })
        .collect()
}

fn entry(row: &Row) -> Result<RejectEntry, BackendError> {
    let key: &[u8] = get(ACT, row, 3)?;
    Ok(RejectEntry {
        id: unsigned(ACT, row, 0)?,
        node: get(ACT, row, 1)?,
        sequence: unsigned(ACT, row, 2)?,
        key: RootKey::from_bytes(Bytes::copy_from_slice(key)),
        sqlstate: get(ACT, row, 4)?,
        table: get(ACT, row, 5)?,
        constraint: get(ACT, row, 6)?,
        message: get(ACT, row, 7)?,
        detail: get(ACT, row, 8)?,
        age_seconds: get(ACT, row, 9)?,
        following: unsigned(ACT, row, 10)? as u32,
        changes: Vec::new(),
    })
}

/// Removes the tail; the number of transactions removed.
pub(super) async fn discard(client: &Client, id: u64, by: &Fence) -> Result<u32, BackendError> {
    let tail = owned_tail(client, id, by).await?;
    remove(client, &tail).await
}

/// Holds the writer row and reads the tail, if its slot is in the row.
async fn owned_tail(
    client: &Client,
    id: u64,
    by: &Fence,
) -> Result<Vec<RejectEntry>, BackendError> {
    let slots = hold_fence(client, by).await?;
    let tail = tail(client, id).await?;
    match tail.first() {
        Some(head) if !slots.contains(head.key.slot()) => Err(slot_moved(ACT)),
        _ => Ok(tail),
    }
}

/// Applies the tail in order and removes it.
pub(super) async fn replay(
    client: &Client,
    compiled: &Compiled,
    id: u64,
    by: &Fence,
) -> Result<u32, BackendError> {
    let tail = owned_tail(client, id, by).await?;
    // the lane waits for the fence meanwhile: a locked row is for another time
    client
        .batch_execute("SET LOCAL lock_timeout = '1s'")
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    for entry in &tail {
        let waves = plan(&compiled.schema, &entry.changes).map_err(|error| {
            let message = format!("a reject cannot be planned: {error}");
            BackendError::new("replay a reject", Reason::ValueRefused, message)
        })?;
        for statement in waves.iter().flat_map(|w| &w.statements) {
            let affected = execute(client, compiled, statement, true).await?;
            if affected != statement.rows.len() as u64 {
                return Err(miscounted(compiled, statement, affected));
            }
        }
    }
    remove(client, &tail).await
}

async fn remove(client: &Client, tail: &[RejectEntry]) -> Result<u32, BackendError> {
    let ids: Vec<i64> = tail.iter().map(|e| signed(e.id)).collect();
    if ids.is_empty() {
        return Err(BackendError::new(ACT, Reason::NotFound, "there is no such reject"));
    }
    let params: [(&(dyn ToSql + Sync), Type); 1] = [(&ids, Type::INT8_ARRAY)];
    let removed = client
        .execute_typed("DELETE FROM cachetier.reject WHERE id = ANY($1)", &params)
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    Ok(removed as u32)
}

/// Position and version may move on meanwhile: the token proves the right to act. Answers the slots
/// of the row.
async fn hold_fence(client: &Client, by: &Fence) -> Result<SlotSet, BackendError> {
    const ACT: &str = "hold the writer row";
    let (lanes, lane) = (i32::from(by.writer.lanes), i32::from(by.writer.lane));
    let token = signed(by.token);
    let rows = client
        .query_typed(
            "SELECT slots FROM cachetier.writer WHERE group_uid = $1 AND node = $2 \
             AND lanes = $3 AND lane = $4 AND token = $5 FOR UPDATE",
            &[
                (&by.writer.group_uid, Type::TEXT),
                (&by.writer.node, Type::TEXT),
                (&lanes, Type::INT4),
                (&lane, Type::INT4),
                (&token, Type::INT8),
            ],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    let row = rows.first().ok_or_else(|| fenced(ACT))?;
    SlotSet::from_bytes(get(ACT, row, 0)?).ok_or_else(|| damaged(ACT))
}
