//! The plan against a naive model: whatever a batch is made of, running its waves must come to
//! what running its changes one by one came to.

use super::{Wave, plan};
use crate::double::store::Store;
use cachetier_model::schema::{LookupSchema, ParentKey, ReferentialAction, TableSchema, UniqueKey};
use cachetier_model::{ChangeKind, Column, ColumnType, GroupSchema, Row, RowChange, Value};
use proptest::prelude::*;

const ROOT: usize = 0;
const FACILITY: usize = 1;
const LINE: usize = 2;

fn column(name: &str, not_null: bool) -> Column {
    Column {
        name: name.to_owned(),
        column_type: ColumnType::Int8,
        not_null,
        has_default: false,
        orders_by_bytes: false,
    }
}

fn table(name: &str, columns: &[&str], key: &[usize]) -> TableSchema {
    TableSchema {
        name: name.to_owned(),
        parent: None,
        columns: columns.iter().map(|c| column(c, false)).collect(),
        primary_key: key.to_vec(),
        primary_key_constraint: format!("{name}_pkey"),
        root_key: vec![0],
        parent_key: None,
        unique_keys: Vec::new(),
        external_keys: Vec::new(),
    }
}

fn parent_key(columns: &[usize], parent_columns: &[usize]) -> Option<ParentKey> {
    Some(ParentKey {
        constraint: "fkey".to_owned(),
        columns: columns.to_vec(),
        parent_columns: parent_columns.to_vec(),
        on_delete: ReferentialAction::NoAction,
    })
}

/// A root with a lookup key; facilities; lines that hang on a facility by a column that may
/// change, with a unique number of their own.
fn schema() -> GroupSchema {
    let mut root = table("root", &["id", "number", "v"], &[0]);
    root.unique_keys = vec![UniqueKey { constraint: "root_number".to_owned(), columns: vec![1] }];
    let mut facility = table("facility", &["id", "kind", "v"], &[0, 1]);
    facility.parent = Some(ROOT);
    facility.parent_key = parent_key(&[0], &[0]);
    let mut line = table("line", &["id", "n", "kind", "number"], &[0, 1]);
    line.parent = Some(FACILITY);
    line.parent_key = parent_key(&[0, 2], &[0, 1]);
    line.unique_keys = vec![UniqueKey { constraint: "line_number".to_owned(), columns: vec![3] }];
    GroupSchema {
        backend_schema: "public".to_owned(),
        tables: vec![root, facility, line],
        lookups: vec![LookupSchema { columns: vec![1], constraint: "root_number".to_owned() }],
    }
}

fn int(v: i64) -> Value {
    Value::Int(v)
}

/// A wish for a change; what does not fit the model's state is left out.
#[derive(Clone, Debug)]
struct Wish {
    table: usize,
    kind: ChangeKind,
    id: i64,
    n: i64,
    a: i64,
    b: i64,
    /// Which of the two columns an update changes.
    which: u8,
}

fn wishes() -> impl Strategy<Value = Vec<Wish>> {
    let kind = prop_oneof![
        3 => Just(ChangeKind::Insert), 4 => Just(ChangeKind::Update), 2 => Just(ChangeKind::Delete)
    ];
    let wish = (0_usize..3, kind, 0_i64..4, 0_i64..2, 0_i64..4, 0_i64..4, 1_u8..4);
    let wish =
        wish.prop_map(|(table, kind, id, n, a, b, which)| Wish { table, kind, id, n, a, b, which });
    proptest::collection::vec(wish, 0..120)
}

fn wanted_row(w: &Wish) -> Row {
    match w.table {
        ROOT => vec![int(w.id), int(w.a), int(w.b)],
        FACILITY => vec![int(w.id), int(w.n), int(w.b)],
        _ => vec![int(w.id), int(w.a), int(w.n), int(w.b)],
    }
}

/// The change as a cache would journal it, given the rows as they are.
fn change(store: &Store, schema: &GroupSchema, w: &Wish) -> Option<RowChange> {
    let row = wanted_row(w);
    let table = &schema.tables[w.table];
    let key = crate::double::store::key_of(table, &row).ok()?;
    let old = store.tables[w.table].get(&key).cloned();
    let (table, kind) = (w.table, w.kind);
    match kind {
        ChangeKind::Insert => Some(RowChange { table, kind, row, changed: Vec::new() }),
        ChangeKind::Delete => Some(RowChange { table, kind, row: old?, changed: Vec::new() }),
        ChangeKind::Update => {
            let old = old?;
            let own: Vec<usize> =
                (0..old.len()).filter(|c| !schema.tables[table].primary_key.contains(c)).collect();
            let picked = own.iter().enumerate().filter(|(n, _)| w.which & (1 << n) != 0);
            let changed: Vec<usize> =
                picked.map(|(_, c)| *c).filter(|c| old[*c] != row[*c]).collect();
            let mut new = old;
            changed.iter().for_each(|c| new[*c] = row[*c].clone());
            (!changed.is_empty()).then_some(RowChange { table, kind, row: new, changed })
        }
    }
}

fn run(store: &mut Store, schema: &GroupSchema, waves: &[Wave<'_>]) -> Result<(), String> {
    for statement in waves.iter().flat_map(|w| &w.statements) {
        let affected = store
            .run(schema, statement)
            .map_err(|e| format!("{e}: {:?} {:?}", e.constraint, statement))?;
        if affected != statement.rows.len() as u64 {
            return Err(format!("{affected} rows affected by {statement:?}"));
        }
    }
    Ok(())
}

/// Runs wishes one by one; answers what was committed and the final state.
fn history(wishes: &[Wish], schema: &GroupSchema) -> (Vec<RowChange>, Store) {
    let mut store = Store::of(schema);
    let mut committed = Vec::new();
    for wish in wishes {
        let Some(change) = change(&store, schema, wish) else { continue };
        let mut next = store.clone();
        let alone = [change.clone()];
        let fits = plan(schema, &alone).map(|waves| run(&mut next, schema, &waves).is_ok());
        if fits == Ok(true) {
            store = next;
            committed.push(change);
        }
    }
    (committed, store)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn d08_any_batches_of_a_history_come_to_what_the_history_came_to(
        wishes in wishes(), cuts in proptest::collection::vec(1_usize..60, 1..20)
    ) {
        let schema = schema();
        let (committed, expected) = history(&wishes, &schema);
        let mut store = Store::of(&schema);
        let mut rest = &committed[..];
        for cut in cuts.iter().chain(std::iter::once(&usize::MAX)) {
            let (batch, later) = rest.split_at((*cut).min(rest.len()));
            rest = later;
            let waves = plan(&schema, batch).unwrap();
            if let Err(error) = run(&mut store, &schema, &waves) {
                return Err(TestCaseError::fail(error));
            }
        }
        prop_assert_eq!(store, expected);
    }

    #[test]
    fn one_row_is_in_one_statement_of_a_wave_at_most(wishes in wishes()) {
        let schema = schema();
        let (committed, _) = history(&wishes, &schema);
        for wave in plan(&schema, &committed).unwrap() {
            let mut seen = std::collections::HashSet::new();
            for statement in &wave.statements {
                for row in &statement.rows {
                    let table = &schema.tables[statement.table];
                    let key = crate::double::store::key_of(table, row).unwrap();
                    prop_assert!(seen.insert((statement.table, key)));
                }
            }
        }
    }
}

#[test]
fn d09_a_hot_row_updated_a_thousand_times_is_sent_once() {
    let schema = schema();
    let changes: Vec<RowChange> = (0..1_000)
        .map(|v| RowChange {
            table: ROOT,
            kind: ChangeKind::Update,
            row: vec![int(1), int(7), int(v)],
            changed: vec![2],
        })
        .collect();
    let waves = plan(&schema, &changes).unwrap();
    assert_eq!((waves.len(), waves[0].statements.len()), (1, 1));
    assert_eq!(waves[0].statements[0].rows, vec![&vec![int(1), int(7), int(999)]]);
    assert_eq!(waves[0].statements[0].set, vec![2]);
}

#[test]
fn d08_a_row_that_comes_back_under_another_parent_does_not_hold_the_old_one() {
    let schema = schema();
    let change = |table, kind, row: Row| RowChange { table, kind, row, changed: Vec::new() };
    let line = |kind: i64| vec![int(1), int(1), int(kind), int(0)];
    let mut store = Store::of(&schema);
    let before = [
        change(ROOT, ChangeKind::Insert, vec![int(1), int(0), int(0)]),
        change(FACILITY, ChangeKind::Insert, vec![int(1), int(0), int(0)]),
        change(FACILITY, ChangeKind::Insert, vec![int(1), int(1), int(0)]),
        change(LINE, ChangeKind::Insert, line(0)),
    ];
    run(&mut store, &schema, &plan(&schema, &before).unwrap()).unwrap();
    let batch = [
        change(LINE, ChangeKind::Delete, line(0)),
        change(FACILITY, ChangeKind::Delete, vec![int(1), int(0), int(0)]),
        change(LINE, ChangeKind::Insert, line(1)),
    ];
    run(&mut store, &schema, &plan(&schema, &batch).unwrap()).unwrap();
    assert_eq!(store.tables[FACILITY].len(), 1);
    assert_eq!(store.tables[LINE].values().next(), Some(&line(1)));
}

#[test]
fn d07_children_are_deleted_before_and_inserted_after_their_parents() {
    let schema = schema();
    let change = |table, kind, row: Row| RowChange { table, kind, row, changed: Vec::new() };
    let changes = [
        change(LINE, ChangeKind::Insert, vec![int(1), int(0), int(5), int(9)]),
        change(ROOT, ChangeKind::Insert, vec![int(1), int(1), int(0)]),
        change(FACILITY, ChangeKind::Insert, vec![int(1), int(5), int(0)]),
        change(ROOT, ChangeKind::Delete, vec![int(2), int(2), int(0)]),
        change(FACILITY, ChangeKind::Delete, vec![int(2), int(5), int(0)]),
    ];
    let waves = plan(&schema, &changes).unwrap();
    let order: Vec<_> = waves[0].statements.iter().map(|s| (s.kind, s.table)).collect();
    use ChangeKind::{Delete, Insert};
    let expected = [(Delete, 1), (Delete, 0), (Insert, 0), (Insert, 1), (Insert, 2)];
    assert_eq!((waves.len(), order), (1, expected.to_vec()));
}

#[test]
fn what_cannot_follow_each_other_is_an_error_and_not_a_wrong_statement() {
    let schema = schema();
    let row = vec![int(1), int(1), int(0)];
    let insert =
        RowChange { table: ROOT, kind: ChangeKind::Insert, row: row.clone(), changed: Vec::new() };
    assert!(plan(&schema, &[insert.clone(), insert]).is_err());
    let nowhere = RowChange { table: 9, kind: ChangeKind::Delete, row, changed: Vec::new() };
    assert!(plan(&schema, &[nowhere]).is_err());
}
