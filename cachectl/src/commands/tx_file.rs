//! A transaction from a YAML or JSON file.
//!
//! ```yaml
//! key: {root: [4711]}                 # or: key: {by: {sub_nbr: "000000000004711"}}
//! guards:
//! - {table: special_facility, where: {sf_type: 2}}
//! operations:
//! - update: {table: subscriber, set: {bit_1: 1}, expect: 1}
//! - insert: {table: call_forwarding, values: {sf_type: 2, start_time: 8, end_time: 12, numberx: "1"}}
//! - delete: {table: call_forwarding, where: {sf_type: 1}, expect: 1}
//! ```

use crate::arguments::KeyArguments;
use crate::values;
use anyhow::{Context, Result, bail};
use cachetier_client::{
    Answer, Condition, Delete, Guard, Insert, Key, Operation, Transact, Update,
};
use cachetier_model::{Comparison, GroupSchema, TableSchema, Value};
use serde::Deserialize;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    /// May be left out when the command line names the instance.
    #[serde(default)]
    key: Option<KeyRecord>,
    #[serde(default)]
    guards: Vec<GuardRecord>,
    operations: Vec<OperationRecord>,
    #[serde(default)]
    answer: AnswerRecord,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum KeyRecord {
    Root(Vec<Json>),
    By(BTreeMap<String, Json>),
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GuardRecord {
    table: String,
    #[serde(default, rename = "where")]
    conditions: BTreeMap<String, Json>,
    #[serde(default)]
    absent: bool,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
enum OperationRecord {
    Insert(RowRecord),
    Upsert(RowRecord),
    Update(UpdateRecord),
    Delete(DeleteRecord),
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct RowRecord {
    table: String,
    values: BTreeMap<String, Json>,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct UpdateRecord {
    table: String,
    #[serde(default, rename = "where")]
    conditions: BTreeMap<String, Json>,
    set: BTreeMap<String, Json>,
    #[serde(default)]
    expect: Option<u32>,
}

#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DeleteRecord {
    table: String,
    #[serde(default, rename = "where")]
    conditions: BTreeMap<String, Json>,
    #[serde(default)]
    expect: Option<u32>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase")]
enum AnswerRecord {
    #[default]
    Durable,
    Flushed,
}

pub fn read(schema: &GroupSchema, path: &Path, key: &KeyArguments) -> Result<Transact> {
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?;
    }
    parse(schema, &text, key).with_context(|| format!("{} is not a transaction", path.display()))
}

fn parse(schema: &GroupSchema, text: &str, key: &KeyArguments) -> Result<Transact> {
    let file: File = serde_saphyr::from_str(text)?;
    let named = !key.key.is_empty() || !key.by.is_empty();
    let key = match (file.key, named) {
        (Some(_), true) => bail!("name the instance on the command line or in the file, not twice"),
        (Some(record), false) => typed_key(schema, record)?,
        (None, _) => values::key(schema, &key.key, &key.by)?,
    };
    let operations = file.operations.into_iter().enumerate();
    let operations = operations
        .map(|(n, o)| operation(schema, o).with_context(|| format!("operation {}", n + 1)))
        .collect::<Result<Vec<_>>>()?;
    let mut transact = Transact::new(key, operations);
    for guard in file.guards {
        let table = values::table(schema, &guard.table)?;
        let conditions = conditions(table, guard.conditions)?;
        transact.guards.push(Guard { table: guard.table, conditions, absent: guard.absent });
    }
    transact.answer = match file.answer {
        AnswerRecord::Durable => Answer::Durable,
        AnswerRecord::Flushed => Answer::Flushed,
    };
    Ok(transact)
}

fn typed_key(schema: &GroupSchema, record: KeyRecord) -> Result<Key> {
    let plain = |value: &Json| match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    match record {
        KeyRecord::Root(given) => {
            values::key(schema, &given.iter().map(plain).collect::<Vec<_>>(), &[])
        }
        KeyRecord::By(columns) => {
            let by: Vec<String> =
                columns.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect();
            values::key(schema, &[], &by)
        }
    }
}

fn operation(schema: &GroupSchema, record: OperationRecord) -> Result<Operation> {
    Ok(match record {
        OperationRecord::Insert(row) => Operation::Insert(insert(schema, row)?),
        OperationRecord::Upsert(row) => Operation::Upsert(insert(schema, row)?),
        OperationRecord::Update(update) => {
            let table = values::table(schema, &update.table)?;
            Operation::Update(Update {
                conditions: conditions(table, update.conditions)?,
                set: typed(table, update.set)?,
                expect: update.expect,
                table: update.table,
            })
        }
        OperationRecord::Delete(delete) => {
            let table = values::table(schema, &delete.table)?;
            Operation::Delete(Delete {
                conditions: conditions(table, delete.conditions)?,
                expect: delete.expect,
                table: delete.table,
            })
        }
    })
}

fn insert(schema: &GroupSchema, row: RowRecord) -> Result<Insert> {
    let table = values::table(schema, &row.table)?;
    Ok(Insert { values: typed(table, row.values)?, table: row.table })
}

fn typed(table: &TableSchema, given: BTreeMap<String, Json>) -> Result<Vec<(String, Value)>> {
    given
        .iter()
        .map(|(name, value)| {
            Ok((name.clone(), values::from_json(values::column(table, name)?, value)?))
        })
        .collect()
}

/// Equality per column; null asks for NULL.
fn conditions(table: &TableSchema, given: BTreeMap<String, Json>) -> Result<Vec<Condition>> {
    typed(table, given).map(|typed| {
        typed
            .into_iter()
            .map(|(column, value)| match value {
                Value::Null => {
                    Condition { column, comparison: Comparison::IsNull, values: Vec::new() }
                }
                value => Condition::equal(column, value),
            })
            .collect()
    })
}
