//! Between the text a person types and the exact values of columns, and back to JSON.
//!
//! Pure; knows the group's schema and nothing else.

use anyhow::{Context, Result, bail};
use cachetier_client::{Condition, Key};
use cachetier_model::{Column, ColumnType, Comparison, GroupSchema, TableSchema, Value};
use serde_json::Value as Json;

pub fn table<'a>(schema: &'a GroupSchema, name: &str) -> Result<&'a TableSchema> {
    schema.tables.iter().find(|t| t.name == name).with_context(|| {
        let known: Vec<&str> = schema.tables.iter().map(|t| t.name.as_str()).collect();
        format!("the group has no table {name}; it has {}", known.join(", "))
    })
}

pub fn column<'a>(table: &'a TableSchema, name: &str) -> Result<&'a Column> {
    table.columns.iter().find(|c| c.name == name).with_context(|| {
        let known: Vec<&str> = table.columns.iter().map(|c| c.name.as_str()).collect();
        format!("table {} has no column {name}; it has {}", table.name, known.join(", "))
    })
}

/// A typed value from its text.
pub fn parse(column: &Column, text: &str) -> Result<Value> {
    column.column_type.parse_text(text).with_context(|| {
        format!(
            "{text:?} is no value for column {} ({})",
            column.name,
            column.column_type.sql_name()
        )
    })
}

/// The key of an instance: values of the root key, or `column=value` of a lookup key.
pub fn key(schema: &GroupSchema, values: &[String], by: &[String]) -> Result<Key> {
    let root = schema.root().context("the group has no tables")?;
    if !by.is_empty() {
        let (mut columns, mut typed) = (Vec::new(), Vec::new());
        for text in by {
            let (name, value) = split_assignment(text)?;
            typed.push(parse(column(root, name)?, value)?);
            columns.push(name.to_owned());
        }
        return Ok(Key::Lookup { columns, values: typed });
    }
    let key: Vec<&Column> = root.primary_key.iter().filter_map(|id| root.column(*id)).collect();
    if key.len() != values.len() {
        let names: Vec<&str> = key.iter().map(|c| c.name.as_str()).collect();
        bail!(
            "name the instance by its root key ({}), or by a lookup key (--by column=value)",
            names.join(" ")
        );
    }
    let values = key.iter().zip(values).map(|(c, v)| parse(c, v)).collect::<Result<_>>()?;
    Ok(Key::Root(values))
}

pub fn split_assignment(text: &str) -> Result<(&str, &str)> {
    text.split_once('=').with_context(|| format!("{text:?} is not of the form column=value"))
}

/// `column=value`, `!=`, `<`, `<=`, `>`, `>=`.
pub fn condition(table: &TableSchema, text: &str) -> Result<Condition> {
    const OPERATORS: [(&str, Comparison); 6] = [
        ("!=", Comparison::NotEqual),
        ("<=", Comparison::LessOrEqual),
        (">=", Comparison::GreaterOrEqual),
        ("=", Comparison::Equal),
        ("<", Comparison::Less),
        (">", Comparison::Greater),
    ];
    // The operator is the leftmost one, and of those at one place the longest.
    let found = OPERATORS
        .iter()
        .filter_map(|(sign, comparison)| Some((text.find(sign)?, *sign, *comparison)))
        .min_by_key(|(at, sign, _)| (*at, std::cmp::Reverse(sign.len())));
    let (at, sign, comparison) =
        found.with_context(|| format!("{text:?} is not of the form column=value"))?;
    let (name, value) = (text.get(..at).unwrap_or_default(), text.get(at + sign.len()..));
    let column = column(table, name.trim())?;
    let value = parse(column, value.unwrap_or_default())?;
    Ok(Condition::new(column.name.clone(), comparison, value))
}

/// A typed value from a scalar of a JSON or YAML file.
pub fn from_json(column: &Column, value: &Json) -> Result<Value> {
    match value {
        Json::Null => Ok(Value::Null),
        Json::String(text) => parse(column, text),
        Json::Bool(_) | Json::Number(_) => parse(column, &value.to_string()),
        // Only json columns have such values; others refuse the text.
        Json::Array(_) | Json::Object(_) => parse(column, &value.to_string()),
    }
}

/// Numbers and booleans as themselves, everything else in the backend's own text form.
pub fn to_json(column_type: &ColumnType, value: &Value) -> Json {
    match value {
        Value::Null => Json::Null,
        Value::Bool(b) => Json::Bool(*b),
        Value::Int(v) => Json::from(*v),
        Value::Float8(v) if v.is_finite() => Json::from(*v),
        other => Json::String(column_type.format(other)),
    }
}

/// For a table cell; NULL is told apart from the empty string.
pub fn to_text(column_type: &ColumnType, value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        other => column_type.format(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> TableSchema {
        let column = |name: &str, column_type| Column {
            name: name.to_owned(),
            column_type,
            not_null: true,
            has_default: false,
            orders_by_bytes: false,
        };
        TableSchema {
            name: "t".to_owned(),
            parent: None,
            columns: vec![column("id", ColumnType::Int8), column("name", ColumnType::Text)],
            primary_key: vec![0],
            primary_key_constraint: "t_pkey".to_owned(),
            root_key: vec![0],
            parent_key: None,
            unique_keys: vec![],
            external_keys: vec![],
        }
    }

    #[test]
    fn conditions_take_the_leftmost_operator_so_that_values_may_contain_signs() {
        let table = table();
        let parsed = condition(&table, "name=a<=b").unwrap();
        assert_eq!(parsed, Condition::equal("name", Value::Text("a<=b".into())));
        let parsed = condition(&table, "id>=-3").unwrap();
        assert_eq!(parsed, Condition::new("id", Comparison::GreaterOrEqual, Value::Int(-3)));
    }

    #[test]
    fn mistakes_name_the_column_and_what_it_takes() {
        let table = table();
        let message = format!("{:#}", condition(&table, "id=seven").unwrap_err());
        assert!(message.contains("id (bigint)"), "{message}");
        let message = format!("{:#}", condition(&table, "nr=7").unwrap_err());
        assert!(message.contains("it has id, name"), "{message}");
    }

    #[test]
    fn keys_need_every_column() {
        let schema =
            GroupSchema { backend_schema: "public".into(), tables: vec![table()], lookups: vec![] };
        assert_eq!(key(&schema, &["7".into()], &[]).unwrap(), Key::root([Value::Int(7)]));
        let message = format!("{:#}", key(&schema, &[], &[]).unwrap_err());
        assert!(message.contains("root key (id)"), "{message}");
    }
}
