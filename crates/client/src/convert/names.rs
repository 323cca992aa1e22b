//! Names of tables and columns to ids.

use super::error::ConvertError;
use cachetier_model::{Column, ColumnId, GroupSchema, TableId, TableSchema};

pub(super) fn table<'s>(
    schema: &'s GroupSchema,
    name: &str,
) -> Result<(TableId, &'s TableSchema), ConvertError> {
    let unknown = || ConvertError::UnknownTable {
        table: name.to_owned(),
        known: schema.tables.iter().map(|t| t.name.as_str()).collect::<Vec<_>>().join(", "),
    };
    let id = schema.table_id(name).ok_or_else(unknown)?;
    let table = schema.table(id).ok_or_else(unknown)?;
    Ok((id, table))
}

pub(super) fn column<'s>(
    table: &'s TableSchema,
    name: &str,
) -> Result<(ColumnId, &'s Column), ConvertError> {
    let unknown =
        || ConvertError::UnknownColumn { table: table.name.clone(), column: name.to_owned() };
    let id = table.column_id(name).ok_or_else(unknown)?;
    let column = table.column(id).ok_or_else(unknown)?;
    Ok((id, column))
}
