//! A lane's connection: one flush transaction after the other, each in two round trips.
//!
//! First trip: BEGIN, the fence, every statement, all sent at once. If the fence holds and every
//! statement affected as many rows as were sent (R12), the second trip commits.

use super::binary::ArrayParam;
use super::claim::{get, signed, unsigned};
use super::{Compiled, PostgresOptions, connect, fault, sql, triggers};
use crate::backend::BackendFuture;
use crate::backend::flush::{
    Fence, FlushOutcome, FlushRequest, LaneSession, NewReject, WalState, WriterId, WriterRow,
};
use crate::error::{BackendError, Disposition, Reason};
use crate::plan::Statement;
use cachetier_model::{ChangeKind, SlotSet, TableId, codec};
use futures::future::join_all;
use std::collections::HashSet;
use std::sync::Arc;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

const ACT: &str = "flush";
/// Said after the usual bounds, for a request that only asks whether rows are locked.
const HASTY: &str = "; SET LOCAL lock_timeout = '500ms'";
/// The same for a transaction of several lanes, of which one must not hold up the others.
const IN_COMPANY: &str =
    "; SET LOCAL lock_timeout = '500ms'; SET LOCAL statement_timeout = '1500ms'";

pub(super) struct PostgresLane {
    pub client: Client,
    pub writer: WriterId,
    pub options: Arc<PostgresOptions>,
    pub schema: Arc<Compiled>,
    /// Tables whose triggers may store something else than is sent; looked for whenever the
    /// writer row is read.
    pub triggered: HashSet<TableId>,
}

impl LaneSession for PostgresLane {
    fn flush<'a>(&'a mut self, request: &'a FlushRequest<'a>) -> BackendFuture<'a, FlushOutcome> {
        Box::pin(async move {
            let exchange =
                flush(&self.client, &self.options, &self.schema, &self.triggered, request);
            connect::within(&self.options, ACT, exchange).await
        })
    }

    fn writer(&mut self) -> BackendFuture<'_, Option<WriterRow>> {
        Box::pin(async move {
            let exchange = look(&self.client, &self.options, &self.schema, &self.writer);
            let (row, triggered) =
                connect::within(&self.options, "read position", exchange).await?;
            self.triggered = triggered;
            Ok(row)
        })
    }

    fn wal(&mut self) -> BackendFuture<'_, WalState> {
        Box::pin(async move {
            let exchange = super::identity::wal_state(&self.client, &self.writer);
            connect::within(&self.options, "read the log position", exchange).await
        })
    }
}

async fn flush(
    client: &Client,
    options: &PostgresOptions,
    compiled: &Compiled,
    triggered: &HashSet<TableId>,
    request: &FlushRequest<'_>,
) -> Result<FlushOutcome, BackendError> {
    match run(client, options, compiled, triggered, request).await {
        Ok(true) => {}
        Ok(false) => {
            rollback(client).await?;
            return Ok(FlushOutcome::FenceMissed);
        }
        Err(error) => {
            // only after a refusal is the session used again
            if error.disposition() == Disposition::Reject {
                rollback(client).await?;
            }
            return Err(error);
        }
    }
    // a deferred constraint may still refuse here; then nothing of the transaction stays
    client.batch_execute("COMMIT").await.map_err(|error| fault::from_driver(ACT, &error))?;
    Ok(FlushOutcome::Committed)
}

async fn rollback(client: &Client) -> Result<(), BackendError> {
    client.batch_execute("ROLLBACK").await.map_err(|error| fault::from_driver(ACT, &error))
}

/// First trip. True when the fence held and everything was done as sent.
async fn run(
    client: &Client,
    options: &PostgresOptions,
    compiled: &Compiled,
    triggered: &HashSet<TableId>,
    request: &FlushRequest<'_>,
) -> Result<bool, BackendError> {
    let commit = if request.synced_commit { "on" } else { "off" };
    let hasty = match (request.along.is_empty(), request.hasty) {
        (false, _) => IN_COMPANY,
        (true, true) => HASTY,
        (true, false) => "",
    };
    let rest = format!("SET LOCAL synchronous_commit = {commit}{hasty}");
    let begin = connect::begin(options, "READ WRITE", &rest);
    // each future sends when first polled: in this order, without waiting for one another
    let statements: Vec<&Statement<'_>> =
        request.waves.iter().flat_map(|w| &w.statements).collect();
    let work = async {
        let rows = join_all(statements.iter().map(|s| {
            let verified = triggered.contains(&s.table);
            execute(client, compiled, s, verified)
        }));
        let rejects = join_all(request.rejects.iter().map(|r| set_aside(client, request, r)));
        futures::join!(rows, rejects)
    };
    // in the order in which takeovers lock the rows
    let mut moves: Vec<(&Fence, u64)> = request.moves().collect();
    moves.sort_by_key(|(fence, _)| fence.writer.lane);
    let fences = join_all(moves.iter().map(|(fence, next)| compare_and_set(client, fence, *next)));
    let (began, fences, (rows, rejects)) =
        futures::join!(client.batch_execute(&begin), fences, work);
    let mut failures: Vec<BackendError> = Vec::new();
    failures.extend(began.err().map(|error| fault::from_begin(ACT, &error)));
    let mut fence_held = true;
    for fence in fences {
        match fence {
            Ok(changed) => fence_held &= changed == 1,
            Err(error) => {
                failures.push(error);
                fence_held = false;
            }
        }
    }
    let mut mismatch = None;
    for (statement, affected) in statements.iter().zip(rows) {
        match affected {
            Ok(affected) if affected == statement.rows.len() as u64 => {}
            Ok(affected) => {
                mismatch.get_or_insert_with(|| miscounted(compiled, statement, affected));
            }
            Err(error) => failures.push(error),
        }
    }
    failures.extend(rejects.into_iter().filter_map(Result::err));
    let first =
        failures.into_iter().find(|e| e.sqlstate.as_deref() != Some(fault::IN_FAILED_TRANSACTION));
    match (first, fence_held, mismatch) {
        // a missed fence explains whatever else went wrong in the same transaction, unless the
        // connection itself broke
        (Some(error), true, _) => Err(error),
        (Some(error), false, _) if error.disposition() != Disposition::Reject => Err(error),
        (_, false, _) => Ok(false),
        (None, true, Some(mismatch)) => Err(mismatch),
        (None, true, None) => Ok(true),
    }
}

async fn compare_and_set(client: &Client, fence: &Fence, next: u64) -> Result<u64, BackendError> {
    let Fence { writer, token, version, position } = fence;
    let (lanes, lane) = (i32::from(writer.lanes), i32::from(writer.lane));
    let (token, version) = (signed(*token), signed(*version));
    let (position, next) = (signed(*position), signed(next));
    client
        .execute_typed(
            "UPDATE cachetier.writer SET position = $8, updated_at = now() WHERE group_uid = $1 \
             AND node = $2 AND lanes = $3 AND lane = $4 AND token = $5 AND version = $6 \
             AND position = $7",
            &[
                (&writer.group_uid, Type::TEXT),
                (&writer.node, Type::TEXT),
                (&lanes, Type::INT4),
                (&lane, Type::INT4),
                (&token, Type::INT8),
                (&version, Type::INT8),
                (&position, Type::INT8),
                (&next, Type::INT8),
            ],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))
}

/// One set-based statement; answers the rows affected. With `verified`, what was stored is
/// compared with what was sent.
pub(super) async fn execute(
    client: &Client,
    compiled: &Compiled,
    statement: &Statement<'_>,
    verified: bool,
) -> Result<u64, BackendError> {
    let schema = &compiled.schema;
    let unknown = || BackendError::new(ACT, Reason::Internal, "a change does not fit the schema");
    let table = schema.table(statement.table).ok_or_else(unknown)?;
    let text = sql::compile(schema, table, statement);
    let mut arrays = Vec::with_capacity(text.columns.len());
    for column in &text.columns {
        let column_type = &table.column(*column).ok_or_else(unknown)?.column_type;
        arrays.push(ArrayParam { column_type, rows: &statement.rows, column: *column });
    }
    let params: Vec<(&(dyn ToSql + Sync), Type)> =
        arrays.iter().map(|a| a as &(dyn ToSql + Sync)).zip(text.types(table)).collect();
    let named = |error: &tokio_postgres::Error| {
        let mut error = fault::from_driver(ACT, error);
        error.table.get_or_insert_with(|| table.name.as_str().into());
        error
    };
    if !verified || statement.kind == ChangeKind::Delete {
        return client.execute_typed(&text.text, &params).await.map_err(|error| named(&error));
    }
    let columns = triggers::written(table, statement);
    let alias =
        if statement.kind == ChangeKind::Insert { sql::ident(&table.name) } else { "t".to_owned() };
    let text = format!("{}{}", text.text, triggers::returning(table, &columns, &alias));
    let stored = client.query_typed(&text, &params).await.map_err(|error| named(&error))?;
    triggers::check_stored(table, &columns, statement, &stored)
}

pub(super) fn miscounted(
    compiled: &Compiled,
    statement: &Statement<'_>,
    affected: u64,
) -> BackendError {
    let table = compiled.schema.table(statement.table).map(|t| t.name.as_str().into());
    BackendError {
        table,
        ..BackendError::new(
            ACT,
            Reason::RowCountMismatch,
            format!(
                "{} rows were sent and {affected} affected: a row was deleted by others, or a \
                 trigger or row security swallowed it",
                statement.rows.len()
            ),
        )
    }
}

async fn set_aside(
    client: &Client,
    request: &FlushRequest<'_>,
    reject: &NewReject,
) -> Result<(), BackendError> {
    let mut changes = Vec::new();
    codec::encode_changes(&reject.changes, &mut changes);
    let (sequence, key) = (signed(reject.sequence), reject.key.as_bytes().as_ref());
    let (slot, head) = (i32::from(reject.key.slot().number()), reject.cause.is_some());
    let empty = crate::events::RejectCause {
        reason: Reason::Internal,
        sqlstate: String::new(),
        table: String::new(),
        constraint: String::new(),
        message: "follows an earlier reject of its instance".to_owned(),
        detail: String::new(),
    };
    let cause = reject.cause.as_ref().unwrap_or(&empty);
    // NUL cannot be stored in text
    let detail = cause.detail.replace('\0', "");
    client
        .execute_typed(
            "INSERT INTO cachetier.reject (group_uid, node, sequence, root_key, slot, head, \
             sqlstate, table_name, constraint_name, message, detail, changes) \
             VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12)",
            &[
                (&request.fence.writer.group_uid, Type::TEXT),
                (&request.fence.writer.node, Type::TEXT),
                (&sequence, Type::INT8),
                (&key, Type::BYTEA),
                (&slot, Type::INT4),
                (&head, Type::BOOL),
                (&cause.sqlstate, Type::TEXT),
                (&cause.table, Type::TEXT),
                (&cause.constraint, Type::TEXT),
                (&cause.message, Type::TEXT),
                (&detail, Type::TEXT),
                (&changes, Type::BYTEA),
            ],
        )
        .await
        .map(|_| ())
        .map_err(|error| fault::from_driver("set a transaction aside", &error))
}

/// The writer row and the tables whose triggers must be watched. Read where it could be written: a
/// standby that is still catching up holds positions that it will not hold once it is promoted.
async fn look(
    client: &Client,
    options: &PostgresOptions,
    compiled: &Compiled,
    writer: &WriterId,
) -> Result<(Option<WriterRow>, HashSet<TableId>), BackendError> {
    const ACT: &str = "read position";
    let begin = connect::begin(options, "READ WRITE", "");
    let (began, row, triggered, ended) = futures::join!(
        client.batch_execute(&begin),
        read_writer(client, writer),
        triggers::tables(client, compiled),
        client.batch_execute("COMMIT")
    );
    began.map_err(|error| fault::from_begin(ACT, &error))?;
    let answer = (row?, triggered?);
    ended.map_err(|error| fault::from_driver(ACT, &error))?;
    Ok(answer)
}

async fn read_writer(
    client: &Client,
    writer: &WriterId,
) -> Result<Option<WriterRow>, BackendError> {
    const ACT: &str = "read position";
    let (lanes, lane) = (i32::from(writer.lanes), i32::from(writer.lane));
    let rows = client
        .query_typed(
            "SELECT token, version, epoch, position, slots FROM cachetier.writer \
             WHERE group_uid = $1 AND node = $2 AND lanes = $3 AND lane = $4",
            &[
                (&writer.group_uid, Type::TEXT),
                (&writer.node, Type::TEXT),
                (&lanes, Type::INT4),
                (&lane, Type::INT4),
            ],
        )
        .await
        .map_err(|error| fault::from_driver(ACT, &error))?;
    let Some(row) = rows.first() else { return Ok(None) };
    let slots: &[u8] = get(ACT, row, 4)?;
    let slots = SlotSet::from_bytes(slots).ok_or_else(|| {
        BackendError::new(ACT, Reason::PositionMissing, "the writer row is damaged")
    })?;
    Ok(Some(WriterRow {
        token: unsigned(ACT, row, 0)?,
        version: unsigned(ACT, row, 1)?,
        epoch: unsigned(ACT, row, 2)?,
        position: unsigned(ACT, row, 3)?,
        slots,
    }))
}
