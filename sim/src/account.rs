//! One account's content and the transactions clients make on it: the model that everything else
//! is compared with. Pure.

use std::collections::BTreeMap;
use std::fmt;

use cachetier_model::{Comparison, Condition, Guard, Operation, Transaction, Value};

use crate::tables::{ACCOUNT, FILLER, ITEM, NUMBER, VERSION, filler};

/// What an account holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Account {
    pub number: i64,
    pub version: i64,
    pub items: BTreeMap<i64, i64>,
}

/// `None`: there is no such account.
pub type Content = Option<Account>;

/// What a client does. Each leaves its version behind, so that every content tells which
/// transaction was the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    Open { number: i64 },
    Touch,
    Put { name: i64 },
    Take { name: i64 },
    Rename { number: i64 },
    Close,
}

/// One transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deed {
    pub id: i64,
    pub version: i64,
    pub act: Act,
}

impl Deed {
    /// The content afterwards; `None` where the rules of the data refuse it.
    pub fn apply(&self, before: &Content) -> Option<Content> {
        let mut after = before.clone();
        match (&self.act, &mut after) {
            (Act::Open { number }, None) => {
                after = Some(Account {
                    number: *number,
                    version: self.version,
                    items: BTreeMap::new(),
                });
                return Some(after);
            }
            (Act::Open { .. }, Some(_)) | (_, None) => return None,
            (Act::Touch, Some(_)) => {}
            (Act::Put { name }, Some(account)) => {
                if account.items.insert(*name, self.version).is_some() {
                    return None;
                }
            }
            (Act::Take { name }, Some(account)) => {
                account.items.remove(name)?;
            }
            (Act::Rename { number }, Some(account)) => account.number = *number,
            (Act::Close, Some(_)) => return Some(None),
        }
        if let Some(account) = &mut after {
            account.version = self.version;
        }
        Some(after)
    }

    /// Only the backend can decide it (R16).
    pub fn is_decided_by_backend(&self) -> bool {
        matches!(self.act, Act::Open { .. } | Act::Rename { .. } | Act::Close)
    }

    /// The number it takes, if it takes one.
    pub fn number(&self) -> Option<i64> {
        match self.act {
            Act::Open { number } | Act::Rename { number } => Some(number),
            _ => None,
        }
    }

    /// The call's form.
    pub fn transaction(&self) -> Transaction {
        let int = Value::Int;
        let named = |name: i64| Condition {
            column: 1,
            comparison: Comparison::Equal,
            values: vec![int(name)],
        };
        let mark = |mut set: Vec<(usize, Value)>| {
            set.push((VERSION, int(self.version)));
            set.push((FILLER, filler(self.version)));
            Operation::Update { table: ACCOUNT, conditions: Vec::new(), set, expect: Some(1) }
        };
        let mut guards = Vec::new();
        let operations = match &self.act {
            Act::Open { number } => {
                let row = vec![int(self.id), int(*number), int(self.version), filler(self.version)];
                vec![Operation::Insert { table: ACCOUNT, row }]
            }
            Act::Touch => vec![mark(Vec::new())],
            Act::Put { name } => {
                let row = vec![int(self.id), int(*name), int(self.version)];
                vec![mark(Vec::new()), Operation::Insert { table: ITEM, row }]
            }
            Act::Take { name } => {
                guards.push(Guard::Exists { table: ITEM, conditions: vec![named(*name)] });
                let conditions = vec![named(*name)];
                let delete = Operation::Delete { table: ITEM, conditions, expect: Some(1) };
                vec![delete, mark(Vec::new())]
            }
            Act::Rename { number } => vec![mark(vec![(NUMBER, int(*number))])],
            Act::Close => {
                let conditions = Vec::new();
                vec![Operation::Delete { table: ACCOUNT, conditions, expect: Some(1) }]
            }
        };
        Transaction { guards, operations }
    }
}

impl fmt::Display for Deed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, version, act } = self;
        match act {
            Act::Open { number } => {
                write!(f, "account {id}: open as no. {number}, version {version}")
            }
            Act::Touch => write!(f, "account {id}: touch, version {version}"),
            Act::Put { name } => write!(f, "account {id}: put item {name}, version {version}"),
            Act::Take { name } => write!(f, "account {id}: take item {name}, version {version}"),
            Act::Rename { number } => {
                write!(f, "account {id}: rename to no. {number}, version {version}")
            }
            Act::Close => write!(f, "account {id}: close, version {version}"),
        }
    }
}

/// In few words.
pub fn show(content: &Content) -> String {
    match content {
        None => "absent".to_owned(),
        Some(account) => {
            let items: Vec<String> =
                account.items.iter().map(|(name, version)| format!("{name}@{version}")).collect();
            format!("v{} no.{} [{}]", account.version, account.number, items.join(" "))
        }
    }
}
