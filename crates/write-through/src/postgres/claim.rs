//! Claims, takeovers and changes of the lane map: every transaction that changes who may write.
//!
//! All of them run under one advisory lock per group and commit synchronously, whatever the
//! server's default is. Flush transactions do not take that lock: they meet these on the writer
//! rows themselves.

use super::fault;
use super::sql::qualified;
use crate::backend::claim::{
    Claim, ClaimRequest, LaneChange, LaneClaim, Leave, SlotHolder, Takeover, TakeoverRequest,
};
use crate::backend::ownership::{
    self, TakeoverPlan, Writer, admit, fresh_lanes, plan_lane_change, plan_leave, plan_takeover,
    tables_claimed,
};
use crate::error::{BackendError, Reason};
use bytes::Bytes;
use cachetier_model::{RootKey, SlotId, SlotSet};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

type Params<'a> = [(&'a (dyn ToSql + Sync), Type)];

async fn query(
    client: &Client,
    act: &'static str,
    text: &str,
    params: &Params<'_>,
) -> Result<Vec<Row>, BackendError> {
    client.query_typed(text, params).await.map_err(|error| fault::from_driver(act, &error))
}

async fn execute(
    client: &Client,
    act: &'static str,
    text: &str,
    params: &Params<'_>,
) -> Result<u64, BackendError> {
    client.execute_typed(text, params).await.map_err(|error| fault::from_driver(act, &error))
}

pub(super) fn get<'a, T: tokio_postgres::types::FromSql<'a>>(
    act: &'static str,
    row: &'a Row,
    column: usize,
) -> Result<T, BackendError> {
    row.try_get(column).map_err(|error| fault::from_driver(act, &error))
}

pub(super) fn unsigned(act: &'static str, row: &Row, column: usize) -> Result<u64, BackendError> {
    let value: i64 = get(act, row, column)?;
    u64::try_from(value).map_err(|_| damaged(act))
}

fn small(act: &'static str, row: &Row, column: usize) -> Result<u16, BackendError> {
    let value: i32 = get(act, row, column)?;
    u16::try_from(value).map_err(|_| damaged(act))
}

pub(super) fn damaged(act: &'static str) -> BackendError {
    BackendError::new(act, Reason::PositionMissing, "a writer row of the bookkeeping is damaged")
}

/// Numbers of ours are far below the signed limit; see the journal's sequence.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

const WRITER_COLUMNS: &str =
    "node, lanes, lane, journal, attempt, token, version, epoch, slots, position";

/// Takes the group's lock, waits for the flush transactions of these nodes and keeps further ones
/// out, and reads all writer rows of the group.
async fn locked_writers(
    client: &Client,
    act: &'static str,
    group_uid: &str,
    nodes: &[&str],
) -> Result<Vec<Writer>, BackendError> {
    query(
        client,
        act,
        "SELECT pg_advisory_xact_lock(hashtext('cachetier'), hashtext($1))::text",
        &[(&group_uid, Type::TEXT)],
    )
    .await?;
    query(
        client,
        act,
        "SELECT node FROM cachetier.writer WHERE group_uid = $1 AND node = ANY($2) \
         ORDER BY node, lanes, lane FOR UPDATE",
        &[(&group_uid, Type::TEXT), (&nodes, Type::TEXT_ARRAY)],
    )
    .await?;
    writers(client, act, group_uid).await
}

async fn writers(
    client: &Client,
    act: &'static str,
    group_uid: &str,
) -> Result<Vec<Writer>, BackendError> {
    let text = format!(
        "SELECT {WRITER_COLUMNS} FROM cachetier.writer WHERE group_uid = $1 \
         ORDER BY node, lanes, lane"
    );
    let rows = query(client, act, &text, &[(&group_uid, Type::TEXT)]).await?;
    rows.iter()
        .map(|row| {
            let slots: &[u8] = get(act, row, 8)?;
            Ok(Writer {
                node: get(act, row, 0)?,
                lanes: small(act, row, 1)?,
                lane: small(act, row, 2)?,
                journal: get(act, row, 3)?,
                attempt: get(act, row, 4)?,
                token: unsigned(act, row, 5)?,
                version: unsigned(act, row, 6)?,
                epoch: unsigned(act, row, 7)?,
                slots: SlotSet::from_bytes(slots).ok_or_else(|| damaged(act))?,
                position: unsigned(act, row, 9)?,
            })
        })
        .collect()
}

pub(super) async fn claim(
    client: &Client,
    schema: &str,
    request: &ClaimRequest,
) -> Result<Claim, BackendError> {
    const ACT: &str = "claim the group";
    let group_uid = request.group.uid.as_str();
    let all = locked_writers(client, ACT, group_uid, &[request.node.as_str()]).await?;
    claim_tables(client, schema, request).await?;
    let mine: Vec<&Writer> = all.iter().filter(|w| w.node == request.node).collect();
    let found = admit(request, &mine)?;
    let token = found + 1;
    let lanes = match mine.first() {
        None => {
            let lanes = fresh_lanes(request.lanes, 1, 0, &SlotSet::empty());
            insert_lanes(client, ACT, request, token, request.epoch, &lanes).await?;
            lanes
        }
        Some(first) => {
            let text = "UPDATE cachetier.writer SET token = $3, attempt = $4, journal = $5, \
                        epoch = greatest(epoch, $6), position = CASE WHEN $7 THEN 0 ELSE position \
                        END, updated_at = now() WHERE group_uid = $1 AND node = $2";
            let (token, epoch) = (signed(token), signed(request.epoch));
            // another journal counts from its own beginning
            let reset = first.journal != request.journal;
            execute(
                client,
                ACT,
                text,
                &[
                    (&group_uid, Type::TEXT),
                    (&request.node, Type::TEXT),
                    (&token, Type::INT8),
                    (&request.attempt, Type::TEXT),
                    (&request.journal, Type::TEXT),
                    (&epoch, Type::INT8),
                    (&reset, Type::BOOL),
                ],
            )
            .await?;
            mine.iter()
                .map(|w| LaneClaim {
                    lane: w.lane,
                    version: w.version,
                    position: if reset { 0 } else { w.position },
                    slots: w.slots.clone(),
                })
                .collect()
        }
    };
    let epoch = mine.iter().map(|w| w.epoch).max().unwrap_or(0).max(request.epoch);
    let mut owned = SlotSet::empty();
    lanes.iter().for_each(|lane| owned.union_with(&lane.slots));
    let quarantined = quarantined(client, group_uid, &owned).await?;
    Ok(Claim { token, epoch, lanes, quarantined })
}

/// An attempt that is over admits nobody any more.
pub(super) async fn settle(
    client: &Client,
    group_uid: &str,
    node: &str,
    token: u64,
) -> Result<(), BackendError> {
    const ACT: &str = "settle the claim";
    let settled = execute(
        client,
        ACT,
        "UPDATE cachetier.writer SET attempt = '' WHERE group_uid = $1 AND node = $2 AND token = $3",
        &[(&group_uid, Type::TEXT), (&node, Type::TEXT), (&signed(token), Type::INT8)],
    )
    .await?;
    if settled > 0 { Ok(()) } else { Err(ownership::fenced(ACT)) }
}

/// R14: a table belongs to one group.
async fn claim_tables(
    client: &Client,
    schema: &str,
    request: &ClaimRequest,
) -> Result<(), BackendError> {
    const ACT: &str = "claim the group's tables";
    for table in &request.tables {
        let rows = query(
            client,
            ACT,
            "INSERT INTO cachetier.group_claim AS c \
               (database_schema, database_table, group_uid, group_name) VALUES ($1, $2, $3, $4) \
             ON CONFLICT (database_schema, database_table) DO UPDATE SET group_name = CASE WHEN \
               c.group_uid = excluded.group_uid THEN excluded.group_name ELSE c.group_name END \
             RETURNING group_uid, group_name",
            &[
                (&schema, Type::TEXT),
                (table, Type::TEXT),
                (&request.group.uid, Type::TEXT),
                (&request.group.name, Type::TEXT),
            ],
        )
        .await?;
        let Some(row) = rows.first() else { continue };
        let (uid, name): (String, String) = (get(ACT, row, 0)?, get(ACT, row, 1)?);
        if uid != request.group.uid {
            return Err(tables_claimed(&qualified(schema, table), &name, &uid));
        }
    }
    Ok(())
}

async fn insert_lanes(
    client: &Client,
    act: &'static str,
    request: &ClaimRequest,
    token: u64,
    epoch: u64,
    lanes: &[LaneClaim],
) -> Result<(), BackendError> {
    let count = lanes.len() as i32;
    for lane in lanes {
        let (number, slots) = (i32::from(lane.lane), lane.slots.to_bytes());
        let (token, version) = (signed(token), signed(lane.version));
        let (epoch, position) = (signed(epoch), signed(lane.position));
        execute(
            client,
            act,
            "INSERT INTO cachetier.writer (group_uid, node, lanes, lane, journal, attempt, token, \
             version, epoch, slots, position) VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11)",
            &[
                (&request.group.uid, Type::TEXT),
                (&request.node, Type::TEXT),
                (&count, Type::INT4),
                (&number, Type::INT4),
                (&request.journal, Type::TEXT),
                (&request.attempt, Type::TEXT),
                (&token, Type::INT8),
                (&version, Type::INT8),
                (&epoch, Type::INT8),
                (&slots, Type::BYTEA),
                (&position, Type::INT8),
            ],
        )
        .await?;
    }
    Ok(())
}

pub(super) async fn take_slots(
    client: &Client,
    request: &TakeoverRequest,
) -> Result<Takeover, BackendError> {
    const ACT: &str = "take slots over";
    let mut nodes: Vec<&str> = request.released.iter().map(|r| r.node.as_str()).collect();
    nodes.push(&request.node);
    let all = locked_writers(client, ACT, &request.group_uid, &nodes).await?;
    let plan = plan_takeover(request, &all)?;
    for (index, slots, bump) in &plan.rows {
        if let Some(writer) = all.get(*index) {
            set_slots(client, ACT, request, writer, slots, signed(*bump)).await?;
        }
    }
    let quarantined = quarantined(client, &request.group_uid, &plan.owned).await?;
    let TakeoverPlan { owned, held, forgotten, versions, .. } = plan;
    Ok(Takeover { owned, held, quarantined, forgotten, versions })
}

async fn set_slots(
    client: &Client,
    act: &'static str,
    request: &TakeoverRequest,
    writer: &Writer,
    slots: &SlotSet,
    bump: i64,
) -> Result<(), BackendError> {
    let (lanes, lane) = (i32::from(writer.lanes), i32::from(writer.lane));
    let (slots, epoch) = (slots.to_bytes(), signed(request.epoch));
    let changed = execute(
        client,
        act,
        "UPDATE cachetier.writer SET slots = $5, epoch = greatest(epoch, $6), \
         version = version + $7, updated_at = now() \
         WHERE group_uid = $1 AND node = $2 AND lanes = $3 AND lane = $4",
        &[
            (&request.group_uid, Type::TEXT),
            (&writer.node, Type::TEXT),
            (&lanes, Type::INT4),
            (&lane, Type::INT4),
            (&slots, Type::BYTEA),
            (&epoch, Type::INT8),
            (&bump, Type::INT8),
        ],
    )
    .await?;
    if changed == 1 { Ok(()) } else { Err(damaged(act)) }
}

pub(super) async fn holders(
    client: &Client,
    group_uid: &str,
) -> Result<Vec<SlotHolder>, BackendError> {
    Ok(ownership::holders(&writers(client, "read who owns the slots", group_uid).await?))
}

pub(super) async fn change_lanes(
    client: &Client,
    change: &LaneChange,
) -> Result<Option<Vec<LaneClaim>>, BackendError> {
    const ACT: &str = "change the lane map";
    let all = locked_writers(client, ACT, &change.group_uid, &[change.node.as_str()]).await?;
    let mine: Vec<&Writer> = all.iter().filter(|w| w.node == change.node).collect();
    let Some(lanes) = plan_lane_change(change, &mine)? else { return Ok(None) };
    let Some(first) = mine.first() else { return Ok(None) };
    execute(
        client,
        ACT,
        "DELETE FROM cachetier.writer WHERE group_uid = $1 AND node = $2",
        &[(&change.group_uid, Type::TEXT), (&change.node, Type::TEXT)],
    )
    .await?;
    let request = ClaimRequest {
        group: cachetier_model::node_config::GroupIdentity {
            name: String::new(),
            uid: change.group_uid.clone(),
        },
        node: change.node.clone(),
        journal: first.journal.clone(),
        held_token: Some(change.token),
        attempt: first.attempt.clone(),
        lanes: change.lanes,
        epoch: first.epoch,
        tables: Vec::new(),
        accept_lost_journal: None,
    };
    insert_lanes(client, ACT, &request, change.token, first.epoch, &lanes).await?;
    Ok(Some(lanes))
}

pub(super) async fn leave_group(
    client: &Client,
    leave: &Leave,
) -> Result<Vec<String>, BackendError> {
    const ACT: &str = "leave the group";
    let all = locked_writers(client, ACT, &leave.group_uid, &[leave.node.as_str()]).await?;
    let others = plan_leave(leave, &all)?;
    if others.is_empty() {
        forget_group(client, &leave.group_uid).await?;
        return Ok(others);
    }
    execute(
        client,
        ACT,
        "DELETE FROM cachetier.writer WHERE group_uid = $1 AND node = $2",
        &[(&leave.group_uid, Type::TEXT), (&leave.node, Type::TEXT)],
    )
    .await?;
    Ok(others)
}

pub(super) async fn forget_group(client: &Client, group_uid: &str) -> Result<(), BackendError> {
    const ACT: &str = "remove the group's bookkeeping";
    for table in ["group_claim", "writer", "reject", "load"] {
        let text = format!("DELETE FROM cachetier.{table} WHERE group_uid = $1");
        execute(client, ACT, &text, &[(&group_uid, Type::TEXT)]).await?;
    }
    Ok(())
}

/// Instances of these slots with open rejects.
async fn quarantined(
    client: &Client,
    group_uid: &str,
    slots: &SlotSet,
) -> Result<Vec<RootKey>, BackendError> {
    const ACT: &str = "read the quarantined instances";
    let rows = query(
        client,
        ACT,
        "SELECT slot, root_key FROM cachetier.reject WHERE group_uid = $1 AND head",
        &[(&group_uid, Type::TEXT)],
    )
    .await?;
    let mut keys = Vec::new();
    for row in &rows {
        let slot = SlotId::new(small(ACT, row, 0)?);
        if slot.is_some_and(|s| slots.contains(s)) {
            let key: &[u8] = get(ACT, row, 1)?;
            keys.push(RootKey::from_bytes(Bytes::copy_from_slice(key)));
        }
    }
    Ok(keys)
}
