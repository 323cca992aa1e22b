//! Schemas and instances for tests: the HLR one, and random ones over every column type.

use cachetier_model::schema::{LookupSchema, ParentKey, ReferentialAction};
use cachetier_model::{Column, ColumnType, GroupSchema, Instance, Row, TableSchema, Value};
use rand::{Rng, RngExt};

pub(crate) fn column(name: &str, column_type: ColumnType, not_null: bool) -> Column {
    Column {
        name: name.to_owned(),
        column_type,
        not_null,
        has_default: false,
        orders_by_bytes: true,
    }
}

pub(crate) fn table(
    name: &str,
    parent: Option<(usize, Vec<usize>, ReferentialAction)>,
    columns: Vec<Column>,
    primary_key: Vec<usize>,
    root_key: Vec<usize>,
) -> TableSchema {
    let parent_id = parent.as_ref().map(|(id, _, _)| *id);
    TableSchema {
        name: name.to_owned(),
        parent: parent_id,
        columns,
        primary_key_constraint: format!("{name}_pkey"),
        root_key,
        parent_key: parent.map(|(_, columns, on_delete)| ParentKey {
            constraint: format!("{name}_fkey"),
            parent_columns: (0..columns.len()).collect(),
            columns,
            on_delete,
        }),
        primary_key,
        unique_keys: Vec::new(),
        external_keys: Vec::new(),
    }
}

/// The four tables of the HLR workload.
pub(crate) fn hlr() -> GroupSchema {
    let int2 = |name: &str| column(name, ColumnType::Int2, true);
    let id = || column("s_id", ColumnType::Int8, true);
    let mut subscriber = vec![id(), column("sub_nbr", varchar(15), true)];
    for group in ["bit", "hex", "byte2"] {
        subscriber.extend((1..=10).map(|n| int2(&format!("{group}_{n}"))));
    }
    subscriber.extend(["msc_location", "vlr_location"].map(|n| column(n, ColumnType::Int8, true)));
    let letters = |name: &str, length| column(name, ColumnType::Char { length }, true);
    let access = vec![
        id(),
        int2("ai_type"),
        int2("data1"),
        int2("data2"),
        letters("data3", 3),
        letters("data4", 5),
    ];
    let facility = vec![
        id(),
        int2("sf_type"),
        int2("is_active"),
        int2("error_cntrl"),
        int2("data_a"),
        letters("data_b", 5),
    ];
    let forwarding = vec![
        id(),
        int2("sf_type"),
        int2("start_time"),
        int2("end_time"),
        column("numberx", varchar(15), true),
    ];
    let action = ReferentialAction::NoAction;
    GroupSchema {
        backend_schema: "public".to_owned(),
        tables: vec![
            table("subscriber", None, subscriber, vec![0], vec![0]),
            table("access_info", Some((0, vec![0], action)), access, vec![0, 1], vec![0]),
            table("special_facility", Some((0, vec![0], action)), facility, vec![0, 1], vec![0]),
            table(
                "call_forwarding",
                Some((2, vec![0, 1], action)),
                forwarding,
                vec![0, 1, 2],
                vec![0],
            ),
        ],
        lookups: vec![LookupSchema { columns: vec![1], constraint: "sub_nbr_key".to_owned() }],
    }
}

fn varchar(length: u32) -> ColumnType {
    ColumnType::Varchar { length: Some(length) }
}

/// A full subscriber of the workload's shape.
pub(crate) fn subscriber(id: i64, random: &mut impl Rng) -> Instance {
    let int = Value::Int;
    let letters = |random: &mut dyn FnMut() -> u8, n: usize| {
        Value::Text((0..n).map(|_| char::from(b'A' + random() % 26)).collect::<String>().into())
    };
    let number = format!("{:015}", random.random_range(0..1_000_000_000_000_000_u64));
    let mut root = vec![int(id), Value::Text(number.into())];
    for end in [2, 16, 256] {
        root.extend((0..10).map(|_| int(random.random_range(0..end))));
    }
    root.extend((0..2).map(|_| int(i64::from(random.random::<u32>()))));
    let (mut access, mut facility, mut forwarding) = (Vec::new(), Vec::new(), Vec::new());
    for ai_type in (1..=4).take(random.random_range(1..=4)) {
        let (a, b) = (random.random_range(0..256), random.random_range(0..256));
        let mut byte = || random.random::<u8>();
        let (c, d) = (letters(&mut byte, 3), letters(&mut byte, 5));
        access.push(vec![int(id), int(ai_type), int(a), int(b), c, d]);
    }
    for sf_type in (1..=4).take(random.random_range(1..=4)) {
        let active = i64::from(random.random_bool(0.85));
        let (a, b) = (random.random_range(0..256), random.random_range(0..256));
        let text = letters(&mut || random.random::<u8>(), 5);
        facility.push(vec![int(id), int(sf_type), int(active), int(a), int(b), text]);
        for start in [0, 8, 16].into_iter().take(random.random_range(0..=3)) {
            let number = format!("{:015}", random.random_range(0..1_000_000_000_000_000_u64));
            let end = start + random.random_range(1..=8);
            let number = Value::Text(number.into());
            forwarding.push(vec![int(id), int(sf_type), int(start), int(end), number]);
        }
    }
    Instance { tables: vec![vec![root], access, facility, forwarding] }
}

fn random_type(random: &mut impl Rng) -> ColumnType {
    match random.random_range(0..23) {
        0 => ColumnType::Bool,
        1 => ColumnType::Int2,
        2 => ColumnType::Int4,
        3 => ColumnType::Int8,
        4 => ColumnType::Float4,
        5 => ColumnType::Float8,
        6 => ColumnType::Numeric { precision: None, scale: None },
        7 => ColumnType::Char { length: 4 },
        8 => varchar(5),
        9 => ColumnType::Text,
        10 => ColumnType::Bytea,
        11 => ColumnType::Date,
        12 => ColumnType::Time,
        13 => ColumnType::Timestamp,
        14 => ColumnType::TimestampTz,
        15 => ColumnType::Uuid,
        16 => ColumnType::Json,
        17 => ColumnType::Jsonb,
        18 => ColumnType::Enum { name: "mood".into(), labels: vec!["sad".into(), "ok".into()] },
        19 => ColumnType::Interval,
        20 => ColumnType::Inet,
        21 => ColumnType::Array { element: Box::new(ColumnType::Int4) },
        _ => ColumnType::Int2,
    }
}

fn random_key_type(random: &mut impl Rng) -> ColumnType {
    loop {
        let candidate = random_type(random);
        let few = matches!(candidate, ColumnType::Json | ColumnType::Jsonb | ColumnType::Bool);
        if candidate.can_be_key() && !few {
            return candidate;
        }
    }
}

/// Up to four tables; composite keys of any type, a lookup, every action on delete.
pub(crate) fn random_schema(random: &mut impl Rng) -> GroupSchema {
    let key: Vec<ColumnType> =
        (0..random.random_range(1..=2)).map(|_| random_key_type(random)).collect();
    let mut tables: Vec<TableSchema> = Vec::new();
    for id in 0..random.random_range(1..=4_usize) {
        let parent = (id > 0).then(|| random.random_range(0..id));
        let (mut columns, inherited) = match parent.and_then(|p| tables.get(p)) {
            None => {
                let own = key.iter().enumerate();
                let columns: Vec<_> =
                    own.map(|(n, t)| column(&format!("k{n}"), t.clone(), true)).collect();
                (columns, 0)
            }
            Some(parent) => {
                let count = parent.primary_key.len();
                let mut columns: Vec<_> = parent.columns.iter().take(count).cloned().collect();
                columns.push(column("own", random_key_type(random), true));
                (columns, count)
            }
        };
        let keys = columns.len();
        for n in 0..random.random_range(0..8) {
            columns.push(column(&format!("c{n}"), random_type(random), random.random_bool(0.5)));
        }
        let action = match random.random_range(0..4) {
            0 => ReferentialAction::NoAction,
            1 => ReferentialAction::SetNull,
            _ => ReferentialAction::Cascade,
        };
        let parent = parent.map(|p| (p, (0..inherited).collect(), action));
        let root_key = (0..key.len()).collect();
        tables.push(table(&format!("t{id}"), parent, columns, (0..keys).collect(), root_key));
    }
    let root = &tables[0];
    let lookups = (key.len()..root.columns.len())
        .filter(|id| root.columns[*id].column_type.can_be_key())
        .filter(|id| !matches!(root.columns[*id].column_type, ColumnType::Json))
        .take(1)
        .map(|id| LookupSchema { columns: vec![id], constraint: "lookup_key".to_owned() })
        .collect();
    GroupSchema { backend_schema: "public".to_owned(), tables, lookups }
}

/// A value as the column stores it; from few values, so that they meet again.
pub(crate) fn random_value(column: &Column, random: &mut impl Rng) -> Value {
    if !column.not_null && random.random_bool(0.3) {
        return Value::Null;
    }
    let texts: &[&str] = match &column.column_type {
        ColumnType::Bool => &["t", "f"],
        ColumnType::Int2 => &["0", "1", "3", "-1", "32767", "-32768", "200"],
        ColumnType::Int4 => &["0", "7", "-2147483648", "2147483647"],
        ColumnType::Int8 => {
            &["0", "-5", "9223372036854775807", "-9223372036854775808", "77777777777"]
        }
        ColumnType::Float4 => &["0", "-0", "1.5", "NaN", "Infinity"],
        ColumnType::Float8 => &["0", "-0", "-1.25e300", "NaN", "-Infinity"],
        ColumnType::Numeric { .. } => {
            &["1", "1.0", "1.00", "-3.14", "NaN", "123456789012345678901", "0"]
        }
        ColumnType::Char { .. } => &["", "a", "ABCD", "é", "12"],
        ColumnType::Varchar { .. } => &["", "a", "ABCDE", "00042", "é€"],
        ColumnType::Text => {
            &["", "0123456789012345678", "QUITE LONG", "ZZZZZZZZZZZZZZZZZZ", "2020-01-01"]
        }
        ColumnType::Bytea => &["\\x", "\\x00ff", "\\x313233"],
        ColumnType::Date => {
            &["2000-01-01", "0001-01-01", "infinity", "2026-11-30", "4713-11-24 BC"]
        }
        ColumnType::Time => &["00:00:00", "24:00:00", "12:34:56.789"],
        ColumnType::Timestamp => &["2026-11-30 10:11:12.5", "-infinity", "0044-03-15 00:00:00 BC"],
        ColumnType::TimestampTz => {
            &["2026-11-30 10:11:12.5+00", "infinity", "1970-01-01 00:00:00+00"]
        }
        ColumnType::Uuid => {
            &["00000000-0000-0000-0000-000000000000", "deadbeef-0000-4000-8000-00000000ffff"]
        }
        ColumnType::Interval => &["00:00:00", "1 day", "24:00:00", "-1 mons +2 days"],
        ColumnType::Inet => &["10.0.0.1", "10.0.0.0/8", "2001:db8::/32"],
        ColumnType::Array { .. } => &["{}", "{1,NULL,-3}", "[0:1]={1,2}", "{{1,2},{3,4}}"],
        ColumnType::Json => &["null", "{\"a\": 1}", "[]"],
        ColumnType::Jsonb => &["null", "{\"a\": 1}", "[1, 2]"],
        ColumnType::Enum { .. } => &["sad", "ok"],
    };
    column.column_type.parse_text(texts[random.random_range(0..texts.len())]).unwrap()
}

pub(crate) fn random_row(table: &TableSchema, random: &mut impl Rng) -> Row {
    table.columns.iter().map(|c| random_value(c, random)).collect()
}

/// An existing instance: every child row has its parent, keys are distinct and in order.
pub(crate) fn random_instance(schema: &GroupSchema, random: &mut impl Rng) -> Instance {
    let mut instance = Instance::absent(schema.tables.len());
    instance.tables[0].push(random_row(&schema.tables[0], random));
    for (id, table) in schema.tables.iter().enumerate().skip(1) {
        for _ in 0..random.random_range(0..5) {
            let parents = &instance.tables[table.parent.unwrap()];
            if parents.is_empty() {
                break;
            }
            let parent = parents[random.random_range(0..parents.len())].clone();
            let mut row = random_row(table, random);
            for id in &table.parent_key.as_ref().unwrap().columns {
                row[*id] = parent[*id].clone();
            }
            let rows = &mut instance.tables[id];
            let place = rows.binary_search_by(|r| crate::work::by_primary_key(table, r, &row));
            if let Err(place) = place {
                rows.insert(place, row);
            }
        }
    }
    instance
}

/// Equality that knows NaN.
pub(crate) fn same(a: &Instance, b: &Instance) -> bool {
    format!("{a:?}") == format!("{b:?}")
}
