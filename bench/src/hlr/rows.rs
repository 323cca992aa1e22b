//! Rows of subscribers from the three places that have them (generator, backend, cache) in one
//! form, and their differences.

use crate::ledger::{Column, Value as Written, forwarding};
use crate::population::Subscriber;
use crate::population::tables::TABLES;
use anyhow::{Context, Result};
use cachetier_client::ReadAnswer;
use cachetier_model::Value;
use std::collections::BTreeMap;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    Int(i64),
    Text(String),
    /// Something the tables do not hold.
    Foreign,
}

/// Table (its place among [`TABLES`]) and the key below the subscriber.
pub type RowKey = (usize, i64, i64);

/// All rows of one subscriber.
pub type Rows = BTreeMap<RowKey, Vec<Field>>;

const SUBSCRIBER: usize = 0;
const SPECIAL_FACILITY: usize = 2;
const CALL_FORWARDING: usize = 3;
/// Places of columns in their tables.
const BIT_1: usize = 2;
const VLR_LOCATION: usize = 33;
const DATA_A: usize = 4;

/// Rows that are not the same on both sides, or on one side only.
pub fn differences(one: &Rows, other: &Rows) -> u64 {
    let missing = |a: &Rows, b: &Rows| a.keys().filter(|k| !b.contains_key(*k)).count();
    let unlike = one.iter().filter(|(k, row)| other.get(*k).is_some_and(|r| r != *row)).count();
    (missing(one, other) + missing(other, one) + unlike) as u64
}

fn insert(rows: &mut Rows, table: usize, row: Vec<Field>) {
    let key = |at: usize| match row.get(at) {
        Some(Field::Int(value)) => *value,
        _ => i64::MIN,
    };
    let place = match table {
        SUBSCRIBER => (table, 0, 0),
        CALL_FORWARDING => (table, key(1), key(2)),
        _ => (table, key(1), 0),
    };
    rows.insert(place, row);
}

pub fn of_generator(s: &Subscriber) -> Rows {
    let int = |value: i16| Field::Int(value.into());
    let text = |value: &str| Field::Text(value.to_owned());
    let mut rows = Rows::new();
    let mut row = vec![Field::Int(s.s_id), text(&s.sub_nbr)];
    row.extend(s.bits.iter().chain(&s.hexes).chain(&s.bytes).map(|v| int(*v)));
    row.extend([Field::Int(s.msc_location), Field::Int(s.vlr_location)]);
    insert(&mut rows, SUBSCRIBER, row);
    for a in &s.access {
        let numbers = [int(a.ai_type), int(a.data1), int(a.data2)];
        let mut row = vec![Field::Int(s.s_id)];
        row.extend(numbers.into_iter().chain([text(&a.data3), text(&a.data4)]));
        insert(&mut rows, 1, row);
    }
    for f in &s.facilities {
        let numbers = [int(f.sf_type), int(f.is_active.into()), int(f.error_cntrl), int(f.data_a)];
        let mut row = vec![Field::Int(s.s_id)];
        row.extend(numbers.into_iter().chain([text(&f.data_b)]));
        insert(&mut rows, SPECIAL_FACILITY, row);
        for c in &f.forwardings {
            let row = vec![
                Field::Int(s.s_id),
                int(f.sf_type),
                int(c.start_time),
                int(c.end_time),
                text(&c.numberx),
            ];
            insert(&mut rows, CALL_FORWARDING, row);
        }
    }
    rows
}

pub fn of_cache(answer: &ReadAnswer) -> Rows {
    let mut rows = Rows::new();
    for (number, table) in TABLES.into_iter().enumerate() {
        for row in answer.rows(table) {
            let fields = row.iter().map(|value| match value {
                Value::Int(value) => Field::Int(*value),
                Value::Text(value) => Field::Text(value.to_string()),
                _ => Field::Foreign,
            });
            insert(&mut rows, number, fields.collect());
        }
    }
    rows
}

/// Subscribers `first..=last` as the backend has them.
pub async fn of_backend(client: &Client, first: i64, last: i64) -> Result<BTreeMap<i64, Rows>> {
    let mut found: BTreeMap<i64, Rows> = BTreeMap::new();
    for (number, table) in TABLES.into_iter().enumerate() {
        let sql = format!("SELECT * FROM {table} WHERE s_id BETWEEN $1 AND $2");
        for row in client.query(&sql, &[&first, &last]).await.context("reading rows back")? {
            let id: i64 = row.try_get(0)?;
            let fields = (0..row.len()).map(|at| field(&row, at)).collect::<Result<_>>()?;
            insert(found.entry(id).or_default(), number, fields);
        }
    }
    Ok(found)
}

fn field(row: &Row, at: usize) -> Result<Field> {
    let kind = row.columns().get(at).map(|c| c.type_().clone());
    Ok(match kind {
        Some(Type::INT2) => Field::Int(row.try_get::<_, i16>(at)?.into()),
        Some(Type::INT8) => Field::Int(row.try_get(at)?),
        Some(Type::BPCHAR | Type::VARCHAR) => Field::Text(row.try_get(at)?),
        _ => Field::Foreign,
    })
}

/// What a column that the workload changes holds in these rows; `None` when its row is not there.
pub fn held(rows: &Rows, column: Column) -> Option<Written> {
    let (key, at) = place(column);
    let row = rows.get(&key);
    if let Column::Forwarding(..) = column {
        let Some([_, _, _, Field::Int(end), Field::Text(number)]) = row.map(Vec::as_slice) else {
            return Some(0);
        };
        return Some(forwarding(*end, number));
    }
    match row?.get(at)? {
        Field::Int(value) => Some(*value as Written),
        _ => None,
    }
}

/// Takes one column over from other rows.
pub fn take_over(rows: &mut Rows, from: &Rows, column: Column) {
    let (key, at) = place(column);
    if let Column::Forwarding(..) = column {
        match from.get(&key) {
            Some(row) => rows.insert(key, row.clone()),
            None => rows.remove(&key),
        };
        return;
    }
    let value = from.get(&key).and_then(|row| row.get(at)).cloned();
    if let (Some(field), Some(value)) = (rows.get_mut(&key).and_then(|r| r.get_mut(at)), value) {
        *field = value;
    }
}

/// Makes one column unlike any that can be held.
pub fn spoil(rows: &mut Rows, column: Column) {
    let (key, at) = place(column);
    let row = rows.entry(key).or_default();
    match row.get_mut(at) {
        Some(field) => *field = Field::Foreign,
        None => row.push(Field::Foreign),
    }
}

fn place(column: Column) -> (RowKey, usize) {
    match column {
        Column::Bit1 => ((SUBSCRIBER, 0, 0), BIT_1),
        Column::VlrLocation => ((SUBSCRIBER, 0, 0), VLR_LOCATION),
        Column::DataA(sf_type) => ((SPECIAL_FACILITY, sf_type.into(), 0), DATA_A),
        Column::Forwarding(sf_type, start) => ((CALL_FORWARDING, sf_type.into(), start.into()), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::numbering::Numbering;
    use crate::population::{DEFAULT_SEED, Population};

    #[test]
    fn a_changed_a_missing_and_a_surplus_row_are_each_one_difference() {
        let population =
            Population { seed: DEFAULT_SEED, subscribers: 10, numbering: Numbering::Derived };
        let rows = of_generator(&population.subscriber(1));
        assert_eq!(differences(&rows, &rows), 0);
        let mut other = rows.clone();
        other.remove(&(SPECIAL_FACILITY, population.subscriber(1).facilities[0].sf_type.into(), 0));
        other.insert((CALL_FORWARDING, 9, 9), vec![]);
        other.get_mut(&(SUBSCRIBER, 0, 0)).unwrap()[VLR_LOCATION] = Field::Int(-1);
        assert_eq!(differences(&rows, &other), 3);
        assert_eq!(held(&other, Column::VlrLocation), Some(-1_i64 as Written));
    }
}
