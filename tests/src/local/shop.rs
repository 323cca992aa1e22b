//! A shop's customers, their orders and the lines of those: a schema that has nothing in common
//! with the subscribers', cached as `examples/customers.yaml` says.

use super::group::Dataset;
use anyhow::{Context, Result};
use cachetier_api::v1alpha1::CacheGroup;
use cachetier_client::{Client, Key, Read};
use cachetier_model::{GroupSchema, TableSchema, Value};
use std::path::Path;

const TABLES: &str = r#"
SET TIME ZONE 'UTC';
CREATE SCHEMA shop;
CREATE TYPE shop.order_state AS ENUM ('new', 'paid', 'Shipped, late', 'returned');
CREATE TABLE shop.customer (
  country char(3), code text,
  email varchar(80) UNIQUE, tax_number numeric,
  joined timestamptz NOT NULL, born date, credit numeric(12,2) NOT NULL, rating real,
  labels text[], photo bytea, device uuid, address inet, contact jsonb,
  PRIMARY KEY (country, code), UNIQUE (country, tax_number));
CREATE TABLE shop.orders (
  order_no numeric, country char(3), code text,
  state shop.order_state NOT NULL, placed timestamptz NOT NULL, shipped timestamp,
  waited interval, total numeric(14,4), note text,
  PRIMARY KEY (country, code, order_no),
  FOREIGN KEY (country, code) REFERENCES shop.customer);
CREATE TABLE shop.order_line (
  country char(3), code text, order_no numeric, line smallint,
  article text NOT NULL, quantity numeric NOT NULL, price numeric(12,4), discount double precision,
  gift boolean, due date, opens time,
  PRIMARY KEY (country, code, order_no, line),
  FOREIGN KEY (country, code, order_no) REFERENCES shop.orders ON DELETE CASCADE);
"#;

const COUNTRIES: [&str; 4] = ["CZE", "DE", "é", "USA"];

/// Customers `1..=customers`, the first ones without orders, with two orders and up to three lines
/// per order; what can be NULL is NULL here and there.
pub fn dataset(customers: i64) -> Result<Dataset> {
    let example = example()?;
    Ok(Dataset {
        sql: format!("{TABLES}{}", population(customers)),
        backend_schema: example.spec.backend.postgres.schema,
        config: serde_json::to_string(&example.spec.tables)?,
    })
}

/// The group that people are shown.
fn example() -> Result<CacheGroup> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/customers.yaml");
    Ok(serde_saphyr::from_str(&std::fs::read_to_string(path)?)?)
}

fn population(customers: i64) -> String {
    let countries = COUNTRIES.map(|c| format!("'{c}'")).join(", ");
    format!(
        "CREATE TEMP TABLE person AS SELECT n, (ARRAY[{countries}])[n % 4 + 1]::char(3) AS country,
           'c-' || n || CASE n % 3 WHEN 0 THEN 'ž' ELSE '' END AS code
           FROM generate_series(1, {customers}) n;
         INSERT INTO shop.customer SELECT country, code,
           CASE WHEN n % 5 > 0 THEN 'c' || n || '@example.org' END,
           CASE WHEN n % 7 > 0 THEN n / 4 + 0.50 END,
           timestamptz '2020-02-29 23:59:59.999999+00' + n * interval '1 hour 1 microsecond',
           CASE WHEN n % 3 > 0 THEN date '1970-01-01' - n::int END, n * 1.01,
           CASE WHEN n % 4 > 0 THEN n / 8.0 END,
           CASE n % 3 WHEN 0 THEN ARRAY['vip', NULL, 'a \"b\"'] WHEN 1 THEN '{{}}' END,
           CASE WHEN n % 2 > 0 THEN decode(lpad(to_hex(n), 6, '0'), 'hex') END,
           CASE WHEN n % 6 > 0 THEN md5(n::text)::uuid END,
           CASE WHEN n % 4 > 1 THEN inet '10.0.0.0' + n END,
           CASE WHEN n % 5 > 1 THEN jsonb_build_object('n', n, 'x', NULL) END FROM person;
         INSERT INTO shop.orders SELECT n * 10 + o, country, code,
           (enum_range(NULL::shop.order_state))[(n + o) % 4 + 1],
           timestamptz '2026-11-30 10:00:00+00' - n * interval '61 minutes',
           CASE WHEN o > 1 THEN timestamp '2026-12-01 08:00:00.25' END,
           CASE WHEN n % 2 > 0 THEN n * interval '1 day 2 hours' END,
           CASE WHEN n % 3 > 0 THEN n * 3.1415 END, CASE o WHEN 1 THEN 'order ' || n END
           FROM person, generate_series(1, 2) o WHERE n > 2;
         INSERT INTO shop.order_line SELECT country, code,
           CASE l WHEN 2 THEN n * 10 + o ELSE (n * 10 + o) * 1.00 END, l,
           'A-' || n % 9, l * 0.5, CASE WHEN l > 1 THEN n * 0.0001 END, n / 7.0::float8,
           CASE WHEN n % 3 > 0 THEN l = 1 END, CASE l WHEN 3 THEN date '2027-01-01' + n::int END,
           CASE l WHEN 1 THEN time '09:30' END
           FROM person, generate_series(1, 2) o, generate_series(1, 3) l
           WHERE n > 2 AND l <= n % 4;"
    )
}

/// The customers' keys, as the backend writes them.
pub fn keys(customers: i64) -> Vec<(String, String)> {
    let country = |n: i64| COUNTRIES.get((n % 4) as usize).copied().unwrap_or_default();
    let code = |n: i64| format!("c-{n}{}", if n % 3 == 0 { "ž" } else { "" });
    (1..=customers).map(|n| (country(n).to_owned(), code(n))).collect()
}

pub fn text(text: &str) -> Value {
    Value::Text(text.into())
}

pub fn by_key((country, code): &(String, String)) -> Key {
    Key::root([text(country), text(code)])
}

/// Columns with values given as the backend would print them.
pub fn cells(
    schema: &GroupSchema,
    table: &str,
    given: &[(&str, &str)],
) -> Result<Vec<(String, Value)>> {
    given
        .iter()
        .map(|(name, text)| Ok(((*name).to_owned(), cell(schema, table, name, text)?)))
        .collect()
}

/// One such value; `NULL` is none.
pub fn cell(schema: &GroupSchema, table: &str, column: &str, text: &str) -> Result<Value> {
    let table = schema.tables.iter().find(|t| t.name == table).context("no such table")?;
    let column = table.columns.iter().find(|c| c.name == column).context("no such column")?;
    Ok(if text == "NULL" { Value::Null } else { column.column_type.parse_text(text)? })
}

/// A row as text, column by column.
pub type TextRow = Vec<Option<String>>;

/// Every row of every table of these customers as the cache has it.
pub async fn cached(client: &Client, keys: &[(String, String)]) -> Result<Vec<Vec<TextRow>>> {
    let schema = client.schema();
    let mut tables = vec![Vec::new(); schema.tables.len()];
    for key in keys {
        let answer = client.read(&Read::whole(by_key(key))).await?;
        for (table, rows) in schema.tables.iter().zip(&mut tables) {
            rows.extend(answer.rows(&table.name).iter().map(|row| text_row(table, row)));
        }
    }
    tables.iter_mut().for_each(|rows| rows.sort());
    Ok(tables)
}

fn text_row(table: &TableSchema, row: &[Value]) -> TextRow {
    let cells = table.columns.iter().zip(row);
    cells.map(|(c, v)| (!v.is_null()).then(|| c.column_type.format(v))).collect()
}

/// Every row of every table as the backend itself prints it.
pub async fn printed(
    database: &tokio_postgres::Client,
    schema: &GroupSchema,
) -> Result<Vec<Vec<TextRow>>> {
    let mut tables = Vec::new();
    for table in &schema.tables {
        // a cast to text would cut the padding of char(n)
        let print = |c: &str| format!("CASE WHEN {c} IS NOT NULL THEN concat({c}) END");
        let columns: Vec<String> = table.columns.iter().map(|c| print(&c.name)).collect();
        let sql = format!("SELECT {} FROM shop.{}", columns.join(", "), table.name);
        let rows = database.query(&sql, &[]).await?;
        let cells = |row: &tokio_postgres::Row| (0..row.len()).map(|n| row.get(n)).collect();
        let mut rows: Vec<TextRow> = rows.iter().map(cells).collect();
        rows.sort();
        tables.push(rows);
    }
    Ok(tables)
}
