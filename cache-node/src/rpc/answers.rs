//! Answers of the group in the wire's messages.

use cachetier_group::{
    BacklogFigures, ChunkOutcome, CompareProgress, InstanceDifference, LoadBegun, LoadFigures,
    Phase, Position, Refreshed, RejectFigure, RejectedTransaction, Status, TableRowsFigure,
    Transacted,
};
use cachetier_model::{ChangeKind, GroupSchema, TableSchema};
use cachetier_proto::v1;

pub fn transacted(answer: Transacted) -> v1::TransactResponse {
    v1::TransactResponse { position: Some(position(answer.position)), rows: answer.rows }
}

pub fn position(position: Position) -> v1::Position {
    v1::Position { journal: position.journal.to_string(), sequence: position.sequence }
}

pub fn backlog(figures: &BacklogFigures) -> v1::Backlog {
    v1::Backlog {
        transactions: figures.transactions,
        bytes: figures.bytes,
        oldest_seconds: figures.oldest.as_secs_f64(),
        flush_rows_per_second: figures.flush_rows_per_second,
    }
}

pub fn load_begun(begun: LoadBegun) -> v1::BeginLoadResponse {
    let (node, positions, versions) =
        begun.as_of.map(|as_of| (as_of.node, as_of.positions, as_of.versions)).unwrap_or_default();
    v1::BeginLoadResponse {
        ticket: begun.ticket,
        slots_needed: begun.slots_needed.to_bytes().into(),
        topology_version: begun.topology_version,
        chunks_done: begun.chunks_done,
        node,
        positions,
        versions,
    }
}

pub fn chunk(outcome: ChunkOutcome) -> v1::LoadResponse {
    v1::LoadResponse {
        inserted: outcome.inserted,
        skipped: outcome.skipped,
        broken: outcome.broken,
        foreign: outcome.foreign,
        chunk_done: outcome.chunk_done,
        stopped_by_memory: outcome.stopped_by_memory,
    }
}

pub fn compare(progress: CompareProgress) -> v1::CompareProgress {
    let tables = progress.tables.into_iter().map(|t| v1::TableDifference {
        table: t.table,
        rows: t.rows,
        only_in_cache: t.only_in_cache,
        only_in_backend: t.only_in_backend,
        different: t.different,
    });
    v1::CompareProgress {
        instances: progress.instances,
        rows: progress.rows,
        not_loaded: progress.not_loaded,
        differences: progress.differences,
        tables: tables.collect(),
        done: progress.done,
        expected_instances: progress.expected_instances,
        found: progress.found.into_iter().map(differing).collect(),
        repaired: progress.repaired,
    }
}

pub fn refreshed(outcome: Refreshed) -> v1::Refreshed {
    match outcome {
        Refreshed::Done => v1::Refreshed::Done,
        Refreshed::NotLoaded => v1::Refreshed::NotLoaded,
        Refreshed::Pending => v1::Refreshed::Pending,
        Refreshed::Quarantined => v1::Refreshed::Quarantined,
        Refreshed::NotOwner => v1::Refreshed::NotOwner,
    }
}

fn differing(found: InstanceDifference) -> v1::InstanceDifference {
    let tables = found.tables.into_iter().map(|t| v1::InstanceTable {
        table: t.table,
        only_in_cache: t.only_in_cache,
        only_in_backend: t.only_in_backend,
        different: t.different,
        columns: t.columns,
    });
    let (key_hash, repaired, left) = (found.key_hash, found.repaired, found.left);
    v1::InstanceDifference { key_hash, tables: tables.collect(), repaired, left }
}

pub fn reject(figure: RejectFigure) -> v1::Reject {
    v1::Reject {
        id: figure.id,
        node: figure.node,
        sequence: figure.sequence,
        sqlstate: figure.sqlstate,
        table: figure.table,
        constraint: figure.constraint,
        message: figure.message,
        age_seconds: figure.age.as_secs_f64(),
        following: figure.following,
        key_hash: figure.key_hash,
    }
}

pub fn rejected_transaction(transaction: RejectedTransaction) -> v1::RejectedTransaction {
    let kind = |kind| match kind {
        ChangeKind::Insert => "insert",
        ChangeKind::Update => "update",
        ChangeKind::Delete => "delete",
    };
    let changes = transaction.changes.into_iter().map(|change| v1::RejectedChange {
        table: change.table,
        kind: kind(change.kind).to_owned(),
        columns: change.columns,
    });
    v1::RejectedTransaction { sequence: transaction.sequence, changes: changes.collect() }
}

fn table_load(figure: TableRowsFigure) -> v1::TableLoad {
    v1::TableLoad { table: figure.table, rows: figure.rows, expected_rows: figure.expected_rows }
}

fn load(figures: LoadFigures) -> v1::LoadStatus {
    v1::LoadStatus {
        load_id: figures.load_id,
        chunks_done: figures.chunks_done,
        chunks_total: figures.chunks_total,
        tables: figures.tables.into_iter().map(table_load).collect(),
        inserted: figures.inserted,
        skipped: figures.skipped,
        rows_per_second: figures.rows_per_second,
        stopped_by_memory: figures.stopped_by_memory,
    }
}

fn phase(phase: Phase) -> v1::NodePhase {
    match phase {
        Phase::Starting => v1::NodePhase::Starting,
        Phase::AwaitingTopology => v1::NodePhase::AwaitingTopology,
        Phase::TakingSlots => v1::NodePhase::TakingSlots,
        Phase::Serving => v1::NodePhase::Serving,
        Phase::Draining => v1::NodePhase::Draining,
        Phase::Latched => v1::NodePhase::Latched,
        Phase::Fenced => v1::NodePhase::Fenced,
    }
}

pub fn status(status: Status) -> v1::StatusResponse {
    let problems = status.problems.into_iter().map(|p| v1::Problem {
        reason: p.reason,
        message: p.message,
        degraded: p.degraded,
    });
    v1::StatusResponse {
        node: status.node,
        group_uid: status.group_uid,
        journal: status.journal.to_string(),
        generation: status.generation,
        phase: phase(status.phase).into(),
        ready: status.ready,
        topology_version: status.topology_version,
        slots_assigned: status.slots_assigned,
        slots_serving: status.slots_serving,
        slots_covered: status.slots_covered,
        slots_leaving: status.slots_leaving,
        backlog: Some(backlog(&status.backlog)),
        instances: status.instances,
        memory_bytes: status.memory_bytes,
        memory_capacity_bytes: status.memory_capacity_bytes,
        journal_bytes: status.journal_bytes,
        journal_capacity_bytes: status.journal_capacity_bytes,
        rejects: status.rejects,
        oldest_reject_seconds: status.oldest_reject_seconds,
        backend_reachable: status.backend_reachable,
        problems: problems.collect(),
        load: status.load.map(load),
        appended: status.appended,
        durable: status.durable,
        flushed: status.flushed,
        writes_stopped: status.writes_stopped,
        schema_version: status.schema_version,
        flushing_paused: status.flushing_paused,
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

pub fn description(schema: &GroupSchema, group: &str, node: &str) -> v1::DescribeResponse {
    let names = |table: &TableSchema, ids: &[usize]| -> Vec<String> {
        ids.iter().filter_map(|id| table.column(*id)).map(|c| c.name.clone()).collect()
    };
    let tables = schema.tables.iter().map(|table| v1::TableDescription {
        name: table.name.clone(),
        parent: table
            .parent
            .and_then(|p| schema.table(p))
            .map(|p| p.name.clone())
            .unwrap_or_default(),
        columns: table
            .columns
            .iter()
            .map(|column| v1::ColumnDescription {
                name: column.name.clone(),
                r#type: column.column_type.sql_name().to_string(),
                not_null: column.not_null,
            })
            .collect(),
        primary_key: names(table, &table.primary_key),
        root_key: names(table, &table.root_key),
    });
    let lookups = schema.lookups.iter().map(|lookup| v1::LookupDescription {
        columns: schema.root().map(|root| names(root, &lookup.columns)).unwrap_or_default(),
    });
    v1::DescribeResponse {
        group: group.to_owned(),
        node: node.to_owned(),
        schema_version: schema.version(),
        tables: tables.collect(),
        lookups: lookups.collect(),
        schema: serde_json::to_vec(schema).unwrap_or_default().into(),
    }
}
