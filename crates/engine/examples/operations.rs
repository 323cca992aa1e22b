//! Runs one kind of operation so many times and nothing else, for counting instructions: the
//! difference between two runs of different length, divided, is what one operation executes.
//!
//! `operations KIND COUNT`, KIND one of `read`, `read_rows`, `update`, `insert`, or `damaged`: frames
//! with flipped bits, each refused, or loaded, read and changed; for tools that watch addresses.

#![allow(clippy::print_stdout, clippy::indexing_slicing, reason = "a command line tool")]

use anyhow::{Context, Result, bail, ensure};
use cachetier_engine::{
    Commit, CommitRefused, CommitSink, Engine, EngineOptions, Installed, ReadStatus, RowSink,
};
use cachetier_model::schema::{LookupSchema, ParentKey, ReferentialAction};
use cachetier_model::{
    Column, ColumnType, Comparison, Condition, GroupSchema, Instance, Operation, ReadPlan, RootKey,
    TableId, TableRead, TableSchema, Transaction, Value, ValueRef, codec,
};
use std::sync::Arc;

const INSTANCES: i64 = 2_000;
/// Small columns, as of flags and short codes, beside the key, a number and two places.
const SMALL_COLUMNS: i64 = 30;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kind, count] = arguments.as_slice() else { bail!("usage: operations KIND COUNT") };
    let store = Store::filled()?;
    let count: i64 = count.parse().context("COUNT is not a number")?;
    let mut sink = Sink::default();
    for number in 0..count {
        // a step without common divisor visits all instances out of order
        let id = number * 1_237 % INSTANCES;
        match kind.as_str() {
            "read" => store.read(id, &store.root, &mut sink)?,
            "read_rows" => store.read(id, &store.rows, &mut sink)?,
            "update" => store.write(id, &update(number))?,
            "insert" => {
                store.write(id, &insert(id))?;
                store.write(id, &delete())?;
            }
            "damaged" => store.load_damaged(id, number as usize, &mut sink)?,
            _ => bail!("unknown kind {kind}"),
        }
    }
    println!("{kind}: {count} times, {} values", sink.values);
    Ok(())
}

struct Store {
    engine: Engine,
    keys: Vec<RootKey>,
    /// The root row, all its columns.
    root: ReadPlan,
    /// Four columns of one child row.
    rows: ReadPlan,
}

impl Store {
    fn filled() -> Result<Self> {
        let options = EngineOptions { capacity_bytes: 256 << 20 };
        let engine = Engine::new(Arc::new(schema()), options)?;
        let ticket = engine.open_ticket()?;
        let mut keys = Vec::new();
        for id in 0..INSTANCES {
            let key = RootKey::encode(&[Value::Int(id)])?;
            let installed = engine.install(&ticket, &key, Some(instance(id)))?;
            ensure!(installed == Installed::Inserted, "not installed: {installed:?}");
            keys.push(key);
        }
        engine.close_ticket(ticket);
        let whole = TableRead { table: 0, columns: Vec::new(), conditions: Vec::new() };
        let row = TableRead { table: 1, columns: vec![2, 3, 4, 5], conditions: vec![equal(1, 2)] };
        Ok(Self {
            engine,
            keys,
            root: ReadPlan { tables: vec![whole] },
            rows: ReadPlan { tables: vec![row] },
        })
    }

    fn read(&self, id: i64, plan: &ReadPlan, sink: &mut Sink) -> Result<()> {
        let status = self.engine.read_into(&self.keys[id as usize], None, plan, sink)?;
        ensure!(matches!(status, ReadStatus::Found { .. }), "not found: {status:?}");
        Ok(())
    }

    fn write(&self, id: i64, transaction: &Transaction) -> Result<()> {
        let key = &self.keys[id as usize];
        let done = self.engine.transact(key, transaction, &Accept)?;
        self.engine.flushed(key, done.sequence);
        Ok(())
    }
}

impl Store {
    fn load_damaged(&self, id: i64, number: usize, sink: &mut Sink) -> Result<()> {
        let key = &self.keys[id as usize];
        let mut bytes = Vec::new();
        codec::encode_instance(&instance(id), &mut bytes);
        for flip in 0..=number % 3 {
            let at = (number * 7_919 + flip * 104_729) % bytes.len();
            bytes[at] ^= 1 << (((number >> 3) + flip) % 8);
        }
        let Ok(instance) = codec::decode_instance(&bytes) else { return Ok(()) };
        ensure!(self.engine.forget(key), "nothing of it waits to be flushed");
        let ticket = self.engine.open_ticket()?;
        let installed = self.engine.install(&ticket, key, Some(instance));
        self.engine.close_ticket(ticket);
        if installed.is_ok() {
            self.read(id, &ReadPlan::default(), sink)?;
            // what is damaged may be refused, too
            let _ = self.write(id, &update(id)).and(self.write(id, &insert(id)));
        }
        Ok(())
    }
}

/// Looks at every value and keeps none.
#[derive(Default)]
struct Sink {
    values: u64,
}

impl RowSink for Sink {
    fn table(&mut self, _: TableId) {}

    fn row(&mut self, _: usize) {}

    fn value(&mut self, value: ValueRef<'_>) {
        std::hint::black_box(value);
        self.values += 1;
    }
}

struct Accept;

impl CommitSink for Accept {
    fn commit(&self, _: &Commit<'_>) -> Result<u64, CommitRefused> {
        Ok(1)
    }
}

fn equal(column: usize, value: i64) -> Condition {
    Condition { column, comparison: Comparison::Equal, values: vec![Value::Int(value)] }
}

fn one(operation: Operation) -> Transaction {
    Transaction { guards: Vec::new(), operations: vec![operation] }
}

fn update(number: i64) -> Transaction {
    let set = vec![(SMALL_COLUMNS as usize + 3, Value::Int(number * 7_919 % (1 << 31)))];
    one(Operation::Update { table: 0, conditions: Vec::new(), set, expect: Some(1) })
}

fn insert(id: i64) -> Transaction {
    let row = vec![
        Value::Int(id),
        Value::Int(9),
        Value::Int(1),
        Value::Int(2),
        Value::Text("ABC".into()),
        Value::Text("DEFGH".into()),
    ];
    one(Operation::Insert { table: 1, row })
}

fn delete() -> Transaction {
    let conditions = vec![equal(1, 9)];
    one(Operation::Delete { table: 1, conditions, expect: Some(1) })
}

fn instance(id: i64) -> Instance {
    let mut root = vec![Value::Int(id), Value::Text(format!("{:015}", id * 7_777_777).into())];
    root.extend((0..SMALL_COLUMNS).map(|n| Value::Int((id + n) % if n < 10 { 2 } else { 200 })));
    root.extend([Value::Int(1 << 31), Value::Int(1 << 31)]);
    let rows = (1..=3).map(|n| {
        let texts = ["QWE", "ASDFG"].map(|text| Value::Text(text.into()));
        let numbers = [id, n, (id + n) % 200, 255].map(Value::Int);
        numbers.into_iter().chain(texts).collect()
    });
    Instance { tables: vec![vec![root], rows.collect()] }
}

fn schema() -> GroupSchema {
    let column = |name: String, column_type| Column {
        name,
        column_type,
        not_null: true,
        has_default: false,
        orders_by_bytes: true,
    };
    let small = |n| column(format!("small_{n}"), ColumnType::Int2);
    let id = || column("id".to_owned(), ColumnType::Int8);
    let number = ColumnType::Varchar { length: Some(15) };
    let mut root = vec![id(), column("number".to_owned(), number)];
    root.extend((0..SMALL_COLUMNS).map(small));
    root.extend(["from", "to"].map(|n| column(n.to_owned(), ColumnType::Int8)));
    let mut child = vec![id()];
    child.extend((0..3).map(small));
    child.extend([3, 5].map(|n| column(format!("text_{n}"), ColumnType::Char { length: n })));
    let table = |name: &str, columns, key: Vec<usize>, parent_key: Option<ParentKey>| TableSchema {
        name: name.to_owned(),
        parent: parent_key.as_ref().map(|_| 0),
        columns,
        primary_key: key,
        primary_key_constraint: format!("{name}_pkey"),
        root_key: vec![0],
        parent_key,
        unique_keys: Vec::new(),
        external_keys: Vec::new(),
    };
    let parent_key = ParentKey {
        constraint: "child_fkey".to_owned(),
        columns: vec![0],
        parent_columns: vec![0],
        on_delete: ReferentialAction::Cascade,
    };
    GroupSchema {
        backend_schema: "public".to_owned(),
        tables: vec![
            table("root", root, vec![0], None),
            table("child", child, vec![0, 1], Some(parent_key)),
        ],
        lookups: vec![LookupSchema { columns: vec![1], constraint: "number_key".to_owned() }],
    }
}
