//! The simulated database's tables, and the two ways between their rows and an account's content.
//!
//! An account has a number that is unique among all, a version that says which of its
//! transactions was the last, a filler that follows from the version, and items below it.

use std::collections::BTreeMap;

use cachetier_model::node_config::TableConfig;
use cachetier_model::schema::{
    Column, LookupSchema, ParentKey, ReferentialAction, TableSchema, UniqueKey,
};
use cachetier_model::{ColumnType, GroupSchema, LookupKey, RootKey, Row, Value};

use crate::account::Account;

pub const ACCOUNT: usize = 0;
pub const ITEM: usize = 1;
pub const NUMBER: usize = 1;
pub const VERSION: usize = 2;
pub const FILLER: usize = 3;
/// The longest filler; makes journals rotate.
const FILLER_BYTES_MAX: i64 = 900;

pub fn schema() -> GroupSchema {
    let table = |name: &str, columns: &[&str], key: &[usize]| TableSchema {
        name: name.to_owned(),
        parent: None,
        columns: columns.iter().map(|name| column(name)).collect(),
        primary_key: key.to_vec(),
        primary_key_constraint: format!("{name}_pkey"),
        root_key: vec![0],
        parent_key: None,
        unique_keys: Vec::new(),
        external_keys: Vec::new(),
    };
    let mut account = table("account", &["id", "number", "version"], &[0]);
    account.columns.push(Column { column_type: ColumnType::Text, ..column("filler") });
    let constraint = "account_number_key".to_owned();
    account.unique_keys = vec![UniqueKey { constraint: constraint.clone(), columns: vec![NUMBER] }];
    let mut item = table("item", &["id", "name", "content"], &[0, 1]);
    item.parent = Some(ACCOUNT);
    item.parent_key = Some(ParentKey {
        constraint: "item_id_fkey".to_owned(),
        columns: vec![0],
        parent_columns: vec![0],
        on_delete: ReferentialAction::Cascade,
    });
    GroupSchema {
        backend_schema: "public".to_owned(),
        tables: vec![account, item],
        lookups: vec![LookupSchema { columns: vec![NUMBER], constraint }],
    }
}

fn column(name: &str) -> Column {
    Column {
        name: name.to_owned(),
        column_type: ColumnType::Int8,
        not_null: true,
        has_default: false,
        orders_by_bytes: false,
    }
}

pub fn table_configs() -> Vec<TableConfig> {
    let table = |name: &str, parent: Option<&str>, lookup_keys| TableConfig {
        name: name.to_owned(),
        parent: parent.map(str::to_owned),
        lookup_keys,
    };
    let number = vec![vec!["number".to_owned()]];
    vec![table("account", None, number), table("item", Some("account"), Vec::new())]
}

/// The canonical key of an account. Integers always have one.
pub fn root(id: i64) -> RootKey {
    RootKey::encode(&[Value::Int(id)])
        .unwrap_or_else(|_| RootKey::from_bytes(Vec::from(id.to_be_bytes()).into()))
}

pub fn number_key(number: i64) -> LookupKey {
    LookupKey::encode(&[Value::Int(number)])
        .unwrap_or_else(|_| LookupKey::from_bytes(Vec::from(number.to_be_bytes()).into()))
}

pub fn int(row: &Row, column: usize) -> i64 {
    match row.get(column) {
        Some(Value::Int(int)) => *int,
        _ => i64::MIN,
    }
}

/// What an account's last column holds under a version: frames get long, and a row that was put
/// together from two versions is seen.
pub fn filler(version: i64) -> Value {
    let bytes = (version * 7_919) % FILLER_BYTES_MAX;
    let text: String = std::iter::repeat_n('x', bytes as usize).collect();
    Value::Text(text.into())
}

/// From all rows of one instance, by table.
pub fn account_of(tables: &[Vec<Row>]) -> Option<Account> {
    let row = tables.get(ACCOUNT)?.first()?;
    let rows = tables.get(ITEM).map(Vec::as_slice).unwrap_or_default();
    let items: BTreeMap<i64, i64> = rows.iter().map(|r| (int(r, 1), int(r, 2))).collect();
    let version = int(row, VERSION);
    // a filler of another version: no content that ever stood has this version
    let whole = row.get(FILLER) == Some(&filler(version));
    Some(Account { number: int(row, NUMBER), version: if whole { version } else { -1 }, items })
}
