//! Which database this is, and how far its log is.

use super::claim::get;
use super::fault;
use crate::backend::BackendIdentity;
use crate::backend::flush::{WalState, WriterId};
use crate::error::{BackendError, Reason};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

/// The timeline is in the name of the log file being written; the control file would name it only
/// after the first checkpoint that follows a promotion.
const TIMELINE: &str =
    "('x' || lpad(substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8), 16, '0'))::bit(64)::bigint";

pub(super) async fn identify(client: &Client) -> Result<BackendIdentity, BackendError> {
    const ACT: &str = "identify the backend";
    let text = format!(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()), \
         current_database()::text, {TIMELINE}, current_setting('server_version')"
    );
    let rows = client.query_typed(&text, &[]).await.map_err(|e| fault::from_driver(ACT, &e))?;
    let row = rows.first().ok_or_else(|| no_answer(ACT))?;
    Ok(BackendIdentity {
        system_identifier: get(ACT, row, 0)?,
        database: get(ACT, row, 1)?,
        timeline: timeline(get(ACT, row, 2)?),
        server_version: get(ACT, row, 3)?,
    })
}

/// One statement: its snapshot, and with it the position, is older than the points of the log.
pub(super) async fn wal_state(
    client: &Client,
    writer: &WriterId,
) -> Result<WalState, BackendError> {
    const ACT: &str = "read the log position";
    let text = format!(
        "SELECT (SELECT system_identifier::text FROM pg_control_system()), {TIMELINE}, \
         (pg_current_wal_insert_lsn() - '0/0')::int8, (pg_current_wal_flush_lsn() - '0/0')::int8, \
         (SELECT position FROM cachetier.writer WHERE group_uid = $1 AND node = $2 \
          AND lanes = $3 AND lane = $4)"
    );
    let (lanes, lane) = (i32::from(writer.lanes), i32::from(writer.lane));
    let params: [(&(dyn ToSql + Sync), Type); 4] = [
        (&writer.group_uid, Type::TEXT),
        (&writer.node, Type::TEXT),
        (&lanes, Type::INT4),
        (&lane, Type::INT4),
    ];
    let rows = client.query_typed(&text, &params).await.map_err(|e| fault::from_driver(ACT, &e))?;
    let row = rows.first().ok_or_else(|| no_answer(ACT))?;
    let position: Option<i64> = get(ACT, row, 4)?;
    Ok(WalState {
        position: position.and_then(|position| u64::try_from(position).ok()),
        system_identifier: get(ACT, row, 0)?,
        timeline: timeline(get(ACT, row, 1)?),
        inserted: super::claim::unsigned(ACT, row, 2)?,
        flushed: super::claim::unsigned(ACT, row, 3)?,
    })
}

fn timeline(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn no_answer(act: &'static str) -> BackendError {
    BackendError::new(act, Reason::Internal, "the backend answered without a row")
}
