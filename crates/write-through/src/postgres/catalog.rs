//! Discovery: what the catalogs say about the tables of a group.
//!
//! Reads raw facts; what they mean, and what is refused, is decided in `build`, which is pure.

mod build;
mod column_types;

use super::claim::{get, unsigned};
use super::fault;
use crate::error::BackendError;
use cachetier_model::GroupSchema;
use cachetier_model::node_config::TableConfig;
use std::collections::BTreeMap;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

const ACT: &str = "discover tables";

/// The catalogs' facts about the tables asked for.
#[derive(Clone, Debug, Default)]
struct Facts {
    tables: Vec<TableFacts>,
}

#[derive(Clone, Debug, Default)]
struct TableFacts {
    name: String,
    kind: String,
    row_security: bool,
    rewrite_rules: bool,
    /// Of SELECT, INSERT, UPDATE, DELETE.
    missing_privileges: Vec<String>,
    columns: Vec<ColumnFacts>,
    constraints: Vec<ConstraintFacts>,
    /// Unique indexes that are no constraints.
    unique_indexes: Vec<UniqueIndexFacts>,
}

#[derive(Clone, Debug, Default)]
struct ColumnFacts {
    name: String,
    /// `attnum`: the catalogs' number, with gaps where columns were dropped.
    number: i16,
    /// Of the base type, for a domain.
    type_name: String,
    type_schema: String,
    type_kind: String,
    /// As a person writes it.
    type_text: String,
    modifier: i32,
    not_null: bool,
    has_default: bool,
    identity: String,
    generated: String,
    collation_deterministic: bool,
    labels: Vec<String>,
    enum_name: String,
    orders_by_bytes: bool,
}

#[derive(Clone, Debug, Default)]
struct ConstraintFacts {
    name: String,
    kind: String,
    columns: Vec<i16>,
    references_schema: String,
    references: String,
    references_columns: Vec<i16>,
    on_delete: String,
    validated: bool,
}

#[derive(Clone, Debug, Default)]
struct UniqueIndexFacts {
    name: String,
    /// Columns it depends on, also through expressions and its predicate.
    columns: Vec<i16>,
    /// Neither partial nor over expressions.
    plain: bool,
}

pub(super) async fn discover(
    client: &Client,
    schema: &str,
    tables: &[TableConfig],
) -> Result<GroupSchema, BackendError> {
    let names: Vec<&str> = tables.iter().map(|t| t.name.as_str()).collect();
    let mut found: BTreeMap<String, TableFacts> = BTreeMap::new();
    for row in query(client, TABLES, schema, &names).await? {
        let name: String = get(ACT, &row, 0)?;
        found.insert(
            name.clone(),
            TableFacts {
                name,
                kind: get(ACT, &row, 1)?,
                row_security: get(ACT, &row, 2)?,
                rewrite_rules: get(ACT, &row, 3)?,
                missing_privileges: get(ACT, &row, 4)?,
                ..TableFacts::default()
            },
        );
    }
    for row in query(client, COLUMNS, schema, &names).await? {
        let table: String = get(ACT, &row, 0)?;
        if let Some(facts) = found.get_mut(&table) {
            facts.columns.push(column(&row)?);
        }
    }
    for row in query(client, CONSTRAINTS, schema, &names).await? {
        let table: String = get(ACT, &row, 0)?;
        if let Some(facts) = found.get_mut(&table) {
            facts.constraints.push(constraint(&row)?);
        }
    }
    for row in query(client, UNIQUE_INDEXES, schema, &names).await? {
        let table: String = get(ACT, &row, 0)?;
        if let Some(facts) = found.get_mut(&table) {
            facts.unique_indexes.push(UniqueIndexFacts {
                name: get(ACT, &row, 1)?,
                columns: get(ACT, &row, 2)?,
                plain: get(ACT, &row, 3)?,
            });
        }
    }
    let facts = Facts { tables: found.into_values().collect() };
    build::build(schema, tables, &facts)
}

async fn query(
    client: &Client,
    text: &str,
    schema: &str,
    names: &[&str],
) -> Result<Vec<Row>, BackendError> {
    let params: [(&(dyn ToSql + Sync), Type); 2] =
        [(&schema, Type::TEXT), (&names, Type::TEXT_ARRAY)];
    client.query_typed(text, &params).await.map_err(|error| fault::from_driver(ACT, &error))
}

fn column(row: &Row) -> Result<ColumnFacts, BackendError> {
    Ok(ColumnFacts {
        name: get(ACT, row, 1)?,
        number: get(ACT, row, 2)?,
        type_name: get(ACT, row, 3)?,
        type_schema: get(ACT, row, 4)?,
        type_kind: get(ACT, row, 5)?,
        type_text: get(ACT, row, 6)?,
        modifier: get(ACT, row, 7)?,
        not_null: get(ACT, row, 8)?,
        has_default: get(ACT, row, 9)?,
        identity: get(ACT, row, 10)?,
        generated: get(ACT, row, 11)?,
        collation_deterministic: get(ACT, row, 12)?,
        labels: get(ACT, row, 13)?,
        enum_name: get(ACT, row, 14)?,
        orders_by_bytes: get(ACT, row, 15)?,
    })
}

fn constraint(row: &Row) -> Result<ConstraintFacts, BackendError> {
    Ok(ConstraintFacts {
        name: get(ACT, row, 1)?,
        kind: get(ACT, row, 2)?,
        columns: get(ACT, row, 3)?,
        references_schema: get(ACT, row, 4)?,
        references: get(ACT, row, 5)?,
        references_columns: get(ACT, row, 6)?,
        on_delete: get(ACT, row, 7)?,
        validated: get(ACT, row, 8)?,
    })
}

/// Rows per table as the statistics have them; counted where there are none yet.
pub(super) async fn expected_rows(
    client: &Client,
    schema: &GroupSchema,
) -> Result<Vec<u64>, BackendError> {
    const ACT: &str = "estimate rows";
    let mut rows = Vec::new();
    for table in &schema.tables {
        let found = client
            .query_typed(
                "SELECT greatest(coalesce(sum(c.reltuples) FILTER (WHERE c.reltuples >= 0), 0), \
                 coalesce(sum(pg_stat_get_live_tuples(c.oid)), 0))::int8 \
                 FROM pg_class p JOIN pg_namespace n ON n.oid = p.relnamespace \
                 JOIN LATERAL (SELECT p.oid UNION SELECT relid FROM pg_partition_tree(p.oid)) t \
                 ON true JOIN pg_class c ON c.oid = t.oid \
                 WHERE n.nspname = $1 AND p.relname = $2 AND c.relkind = 'r'",
                &[(&schema.backend_schema, Type::TEXT), (&table.name, Type::TEXT)],
            )
            .await
            .map_err(|error| fault::from_driver(ACT, &error))?;
        let mut estimate = found.first().map_or(Ok(0), |row| unsigned(ACT, row, 0))?;
        if estimate == 0 {
            estimate = count(client, schema, &table.name).await?;
        }
        rows.push(estimate);
    }
    Ok(rows)
}

/// A table without statistics is new, hence small; still bounded by the statement timeout.
async fn count(client: &Client, schema: &GroupSchema, table: &str) -> Result<u64, BackendError> {
    const ACT: &str = "count rows";
    let name = super::sql::qualified(&schema.backend_schema, table);
    let text = format!("SELECT count(*) FROM {name}");
    let rows = client.query_typed(&text, &[]).await.map_err(|e| fault::from_driver(ACT, &e))?;
    rows.first().map_or(Ok(0), |row| unsigned(ACT, row, 0))
}

const TABLES: &str = "\
SELECT c.relname::text, c.relkind::text, row_security_active(c.oid),
  EXISTS (SELECT FROM pg_rewrite r WHERE r.ev_class = c.oid AND r.ev_type <> '1'),
  ARRAY(SELECT p FROM unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) p
        WHERE NOT has_table_privilege(c.oid, p))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = ANY($2) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')";

const COLUMNS: &str = "\
SELECT c.relname::text, a.attname::text, a.attnum, b.typname::text, bn.nspname::text,
  b.typtype::text, format_type(a.atttypid, a.atttypmod)::text, d.modifier,
  a.attnotnull OR d.not_null, a.atthasdef OR a.attidentity <> '' OR d.has_default,
  a.attidentity::text, a.attgenerated::text,
  coalesce((SELECT l.collisdeterministic FROM pg_collation l WHERE l.oid = a.attcollation), true),
  ARRAY(SELECT e.enumlabel::text FROM pg_enum e WHERE e.enumtypid = b.oid ORDER BY e.enumsortorder),
  (quote_ident(bn.nspname) || '.' || quote_ident(b.typname))::text,
  coalesce((SELECT CASE WHEN l.collname = 'default' AND l.collprovider = 'd'
      THEN (SELECT db.datcollate FROM pg_database db WHERE db.datname = current_database())
      ELSE l.collcollate END IN ('C', 'POSIX')
    FROM pg_collation l WHERE l.oid = a.attcollation), false)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN LATERAL (
  WITH RECURSIVE base(oid, modifier, not_null, has_default) AS (
    SELECT a.atttypid, a.atttypmod, false, false
    UNION ALL
    SELECT t.typbasetype, CASE WHEN t.typtypmod >= 0 THEN t.typtypmod ELSE base.modifier END,
      base.not_null OR t.typnotnull, base.has_default OR t.typdefault IS NOT NULL
    FROM base JOIN pg_type t ON t.oid = base.oid AND t.typtype = 'd'
  )
  SELECT base.* FROM base JOIN pg_type t ON t.oid = base.oid WHERE t.typtype <> 'd'
) d ON true
JOIN pg_type b ON b.oid = d.oid
JOIN pg_namespace bn ON bn.oid = b.typnamespace
WHERE n.nspname = $1 AND c.relname = ANY($2)
ORDER BY c.relname, a.attnum";

const CONSTRAINTS: &str = "\
SELECT c.relname::text, k.conname::text, k.contype::text, k.conkey,
  coalesce(fn.nspname, '')::text, coalesce(f.relname, '')::text,
  coalesce(k.confkey, '{}'), k.confdeltype::text, k.convalidated
FROM pg_constraint k
JOIN pg_class c ON c.oid = k.conrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class f ON f.oid = k.confrelid
LEFT JOIN pg_namespace fn ON fn.oid = f.relnamespace
WHERE n.nspname = $1 AND c.relname = ANY($2) AND k.contype IN ('p', 'u', 'x', 'f')
  AND k.conkey IS NOT NULL
  -- a key that references a partitioned table has one row more per partition
  AND NOT (k.contype = 'f' AND k.conparentid <> 0 AND EXISTS (
    SELECT FROM pg_constraint p WHERE p.oid = k.conparentid AND p.conrelid = k.conrelid))
ORDER BY c.relname, k.conname";

const UNIQUE_INDEXES: &str = "\
SELECT c.relname::text, i.relname::text,
  ARRAY(SELECT DISTINCT d.refobjsubid::int2 FROM pg_depend d
        WHERE d.classid = 'pg_class'::regclass AND d.objid = i.oid
          AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid AND d.refobjsubid > 0),
  x.indpred IS NULL AND x.indexprs IS NULL
FROM pg_index x
JOIN pg_class i ON i.oid = x.indexrelid
JOIN pg_class c ON c.oid = x.indrelid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = $1 AND c.relname = ANY($2) AND x.indisunique
  AND NOT EXISTS (SELECT FROM pg_constraint k WHERE k.conindid = i.oid AND k.contype IN ('p','u','x'))
ORDER BY c.relname, i.relname";
