//! `get`: the rows of one instance.

use crate::arguments::{Format, GetArguments};
use crate::exit::{Exit, misuse};
use crate::output::Fields;
use crate::reach::Reach;
use crate::{output, values};
use anyhow::Result;
use cachetier_client::{Position, Read, ReadAnswer, Source, TableRead};
use cachetier_model::{Column, GroupSchema};
use serde::Serialize;
use serde_json::{Value as Json, json};

pub async fn run(reach: &Reach, arguments: &GetArguments, format: Format) -> Result<Exit> {
    let client = reach.client().await?;
    let schema = client.schema();
    let read = typed(schema, arguments).map_err(misuse)?;
    let answer = client.read(&read).await?;
    match format {
        Format::Json => output::print_json(&to_json(schema, &read, &answer)?)?,
        Format::Table => print(schema, &read, &answer)?,
    }
    Ok(Exit::Done)
}

fn typed(schema: &GroupSchema, arguments: &GetArguments) -> Result<Read> {
    let key = values::key(schema, &arguments.key.key, &arguments.key.by)?;
    let mut read = Read::tables(key, tables(schema, arguments)?);
    read.no_bypass = arguments.no_bypass;
    read.min_position.clone_from(&arguments.min_position);
    Ok(read)
}

fn tables(schema: &GroupSchema, arguments: &GetArguments) -> Result<Vec<TableRead>> {
    let read = |name: &String| {
        let table = values::table(schema, name)?;
        for column in &arguments.columns {
            values::column(table, column)?;
        }
        let conditions = arguments.conditions.iter().map(|c| values::condition(table, c));
        Ok(TableRead {
            table: name.clone(),
            columns: arguments.columns.clone(),
            conditions: conditions.collect::<Result<_>>()?,
        })
    };
    arguments.tables.iter().map(read).collect()
}

/// The columns of a table in the order of the answer's rows.
fn columns<'a>(schema: &'a GroupSchema, read: &Read, table: &str) -> Result<Vec<&'a Column>> {
    let described = values::table(schema, table)?;
    let asked = read.tables.iter().find(|t| t.table == table).map(|t| &t.columns);
    match asked {
        Some(names) if !names.is_empty() => {
            names.iter().map(|n| values::column(described, n)).collect()
        }
        _ => Ok(described.columns.iter().collect()),
    }
}

/// The answer as JSON, tables and columns in the schema's order.
#[derive(Serialize)]
struct Answer {
    found: bool,
    source: &'static str,
    tables: Fields<Vec<Fields<Json>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    confirmed: Option<Json>,
}

fn to_json(schema: &GroupSchema, read: &Read, answer: &ReadAnswer) -> Result<Answer> {
    let mut tables = Vec::new();
    for table in &answer.tables {
        let columns = columns(schema, read, &table.table)?;
        let rows = table.rows.iter().map(|row| {
            let fields = columns.iter().zip(row);
            let fields = fields.map(|(c, v)| (c.name.clone(), values::to_json(&c.column_type, v)));
            Fields(fields.collect())
        });
        tables.push((table.table.clone(), rows.collect()));
    }
    let confirmed = answer.confirmed.as_ref();
    Ok(Answer {
        found: answer.found,
        source: source(answer.source),
        tables: Fields(tables),
        confirmed: confirmed.map(|p| json!({"journal": p.journal, "sequence": p.sequence})),
    })
}

fn source(source: Source) -> &'static str {
    match source {
        Source::Cache => "cache",
        Source::ReadThrough => "read-through",
        Source::Bypass => "bypass",
    }
}

fn past_the_owner(confirmed: Option<&Position>) -> String {
    let begin = "straight from the backend, because the owner is away";
    match confirmed {
        Some(at) => {
            format!("{begin}: what it acknowledged after {}:{} is missing", at.journal, at.sequence)
        }
        None => format!("{begin}: its latest writes may be missing"),
    }
}

fn print(schema: &GroupSchema, read: &Read, answer: &ReadAnswer) -> Result<()> {
    if !answer.found {
        say!("not found");
        return Ok(());
    }
    for table in &answer.tables {
        let columns = columns(schema, read, &table.table)?;
        say!("{} ({} rows)", table.table, table.rows.len());
        // A single wide row reads better as a list.
        if let ([row], true) = (table.rows.as_slice(), columns.len() > 12) {
            let mut list = output::table(["column", "value"]);
            for (column, value) in columns.iter().zip(row) {
                list.add_row([column.name.clone(), values::to_text(&column.column_type, value)]);
            }
            output::print_table(&list);
        } else if !table.rows.is_empty() {
            let mut grid = output::table(columns.iter().map(|c| c.name.as_str()));
            for row in &table.rows {
                let cells = columns.iter().zip(row);
                let cells = cells.map(|(c, v)| values::to_text(&c.column_type, v));
                grid.add_row(cells.collect::<Vec<_>>());
            }
            output::print_table(&grid);
        }
        say!("");
    }
    match answer.source {
        Source::Cache => {}
        Source::ReadThrough => say!("(loaded from the backend just now)"),
        Source::Bypass => say!("({})", past_the_owner(answer.confirmed.as_ref())),
    }
    Ok(())
}
