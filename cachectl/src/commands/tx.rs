//! `tx`: one transaction on one instance.

use super::tx_file;
use crate::arguments::{Format, TxArguments};
use crate::exit::{Exit, InDoubt, misuse};
use crate::reach::Reach;
use crate::{output, values};
use anyhow::{Context, Result, bail};
use cachetier_client::{Answer, Delete, Insert, Operation, Transact, TransactAnswer, Update};
use cachetier_model::{GroupSchema, TableSchema, Value};
use serde_json::json;

pub async fn run(reach: &Reach, arguments: &TxArguments, format: Format) -> Result<Exit> {
    let client = reach.client().await?;
    let mut transact = typed(client.schema(), arguments).map_err(misuse)?;
    if arguments.flushed {
        transact.answer = Answer::Flushed;
    }
    transact.idempotency_key = arguments.idempotency_key.clone().map(Into::into);
    let answer = client.transact(&transact).await.map_err(|error| {
        let doubtful = error.in_doubt();
        let error = anyhow::Error::from(error);
        match doubtful {
            true => error.context(InDoubt),
            false => error.context("nothing was changed"),
        }
    })?;
    print(&answer, format)?;
    Ok(Exit::Done)
}

fn typed(schema: &GroupSchema, arguments: &TxArguments) -> Result<Transact> {
    match &arguments.file {
        Some(path) => tx_file::read(schema, path, &arguments.key),
        None => {
            let key = values::key(schema, &arguments.key.key, &arguments.key.by)?;
            Ok(Transact::new(key, vec![operation(schema, arguments)?]))
        }
    }
}

fn operation(schema: &GroupSchema, arguments: &TxArguments) -> Result<Operation> {
    let TxArguments { insert, upsert, update, delete, .. } = arguments;
    match (insert, upsert, update, delete) {
        (Some(name), ..) => Ok(Operation::Insert(row(schema, name, arguments)?)),
        (_, Some(name), ..) => Ok(Operation::Upsert(row(schema, name, arguments)?)),
        (_, _, Some(name), _) => {
            let table = values::table(schema, name)?;
            let set = assignments(table, arguments)?;
            let conditions = conditions(table, arguments)?;
            let expect = arguments.expect;
            Ok(Operation::Update(Update { table: name.clone(), conditions, set, expect }))
        }
        (.., Some(name)) => {
            let table = values::table(schema, name)?;
            let conditions = conditions(table, arguments)?;
            let expect = arguments.expect;
            Ok(Operation::Delete(Delete { table: name.clone(), conditions, expect }))
        }
        // refused when the arguments were read
        _ => bail!("there is nothing to do"),
    }
}

fn row(schema: &GroupSchema, name: &str, arguments: &TxArguments) -> Result<Insert> {
    let table = values::table(schema, name)?;
    Ok(Insert { table: name.to_owned(), values: assignments(table, arguments)? })
}

fn assignments(table: &TableSchema, arguments: &TxArguments) -> Result<Vec<(String, Value)>> {
    let mut set = Vec::new();
    for text in &arguments.set {
        let (name, value) = values::split_assignment(text)?;
        let column = values::column(table, name)?;
        set.push((column.name.clone(), values::parse(column, value)?));
    }
    for name in &arguments.set_null {
        set.push((values::column(table, name)?.name.clone(), Value::Null));
    }
    Ok(set)
}

fn conditions(
    table: &TableSchema,
    arguments: &TxArguments,
) -> Result<Vec<cachetier_client::Condition>> {
    arguments.conditions.iter().map(|c| values::condition(table, c).context("in --where")).collect()
}

fn print(answer: &TransactAnswer, format: Format) -> Result<()> {
    match format {
        Format::Json => {
            let position = answer.position.as_ref();
            let position = position.map(|p| json!({"journal": p.journal, "sequence": p.sequence}));
            output::print_json(&json!({"rows": answer.rows, "position": position}))
        }
        Format::Table => {
            let rows: Vec<String> = answer.rows.iter().map(u32::to_string).collect();
            match &answer.position {
                Some(position) => say!("committed: {} rows, position {position}", rows.join(" + ")),
                None => {
                    say!("{} rows matched, already as asked: nothing changed", rows.join(" + "))
                }
            }
            Ok(())
        }
    }
}
