//! Is the direct side's database a fair one? All keys valid, settings honest, no scan of a whole
//! table while it was measured.

use crate::backend::{connect, settings};
use crate::population::tables::TABLES;
use anyhow::Result;
use std::collections::BTreeSet;

/// `table(columns)` of each unique index the workload needs, per table in the order of the tables.
const UNIQUE: [&[&str]; 4] =
    [&["s_id", "sub_nbr"], &["s_id,ai_type"], &["s_id,sf_type"], &["s_id,sf_type,start_time"]];

/// What makes the database an unfair opponent; empty when nothing does.
pub async fn unfair(uri: &str) -> Result<Vec<String>> {
    let client = connect(uri).await?;
    let mut findings = Vec::new();
    for (table, wanted) in TABLES.into_iter().zip(UNIQUE) {
        let sql = "SELECT (SELECT string_agg(a.attname, ',' ORDER BY k.n) \
                     FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n) \
                     JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum) \
                   FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid \
                   WHERE t.relname = $1 AND i.indisunique AND i.indisvalid \
                   AND i.indpred IS NULL AND t.relnamespace = 'public'::regnamespace";
        let rows = client.query(sql, &[&table]).await?;
        let found: BTreeSet<String> = rows.iter().filter_map(|r| r.get(0)).collect();
        for columns in wanted.iter().filter(|c| !found.contains(**c)) {
            findings.push(format!("{table} has no unique index on ({columns})"));
        }
    }
    for (name, value) in settings(&client).await? {
        let wanted = match name.as_str() {
            "fsync" | "synchronous_commit" | "full_page_writes" => "on",
            _ => continue,
        };
        if value != wanted {
            findings.push(format!("{name} is {value} instead of {wanted}"));
        }
    }
    Ok(findings)
}
