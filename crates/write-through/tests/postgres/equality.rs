//! R21: values are equal and in order here exactly when the backend says so. It is asked about
//! every pair of many spellings of each type.

use crate::support::server;
use cachetier_model::{ColumnType, Comparability, RootKey, Value};
use std::cmp::Ordering;

/// Prefixes and suffixes put around a few stems: spellings that are equal, nearly equal, or not.
fn spellings(before: &[&str], stems: &[&str], after: &[&str]) -> Vec<String> {
    let stems = stems.iter().flat_map(|s| before.iter().map(move |b| format!("{b}{s}")));
    stems.flat_map(|s| after.iter().map(move |a| format!("{s}{a}"))).collect()
}

fn cases() -> Vec<(ColumnType, &'static str, Vec<String>)> {
    let numeric = |precision, scale| ColumnType::Numeric { precision, scale };
    let numbers = || {
        let mut all = spellings(
            &["", "-", "+00"],
            &["0", "1", "10", "9.5", ".5", "1e2", "99.95"],
            &["", "0", "e0", "e-1"],
        );
        all.extend(
            ["NaN", "Infinity", "-Infinity", "1.", "1.0", "1.000", "-0.00"].map(str::to_owned),
        );
        all
    };
    let texts =
        || spellings(&["", " ", "a"], &["", "A", "ä", "a", "\u{1f600}"], &["", " ", "  ", "b"]);
    let json = [
        "1",
        "1.0",
        "{\"a\": 1}",
        "{\"a\": 1.00}",
        "[1, null]",
        "[1.0,null]",
        "\"1\"",
        "1e2",
        "100",
    ];
    let labels = ["z", "a", "Z"].map(str::to_owned).to_vec();
    let element = |of| ColumnType::Array { element: Box::new(of) };
    let owned = |texts: &[&str]| texts.iter().map(|t| (*t).to_owned()).collect::<Vec<_>>();
    vec![
        (numeric(None, None), "numeric", numbers()),
        (numeric(Some(4), Some(1)), "numeric(4,1)", numbers()),
        (ColumnType::Char { length: 4 }, "char(4) COLLATE \"C\"", texts()),
        (ColumnType::Varchar { length: Some(4) }, "varchar(4) COLLATE \"C\"", texts()),
        (ColumnType::Text, "text COLLATE \"C\"", texts()),
        (
            ColumnType::Float8,
            "float8",
            owned(&["0", "-0", "NaN", "Infinity", "1", "1.0", "-1e300"]),
        ),
        (
            ColumnType::Float4,
            "float4",
            owned(&["0", "-0", "NaN", "-Infinity", "0.1", "0.10000000149"]),
        ),
        (
            ColumnType::Interval,
            "interval",
            owned(&["1 day", "24:00:00", "1 mon", "30 days", "-1 day", "-24:00:01", "1 year", "0"]),
        ),
        (
            ColumnType::Inet,
            "inet",
            owned(&[
                "10.0.0.1",
                "10.0.0.1/32",
                "10.0.0.1/8",
                "10.0.0.0/8",
                "::1",
                "0::1/128",
                "::ffff:10.0.0.1",
            ]),
        ),
        (
            ColumnType::TimestampTz,
            "timestamptz",
            owned(&["2026-11-30 10:00:00+00", "2026-11-30 12:00:00+02", "infinity", "-infinity"]),
        ),
        (ColumnType::Enum { name: "grade".into(), labels: labels.clone() }, "grade", labels),
        (ColumnType::Jsonb, "jsonb", owned(&json)),
        (
            element(numeric(None, None)),
            "numeric[]",
            owned(&[
                "{}",
                "{1}",
                "{1.0}",
                "{1,NULL}",
                "{1.00,NULL}",
                "[0:0]={1}",
                "{{1},{2}}",
                "{1,2}",
            ]),
        ),
        (element(ColumnType::Char { length: 2 }), "char(2)[]", owned(&["{a}", "{\"a \"}", "{b}"])),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn r21_values_are_equal_and_ordered_as_the_backend_says() {
    let db = server::shared().database().await;
    db.run("CREATE TYPE grade AS ENUM ('z', 'a', 'Z'); SET TIME ZONE 'UTC'").await;
    let client = &db.client;
    for (column_type, name, spellings) in cases() {
        let values: Vec<(String, Value)> = spellings
            .into_iter()
            .filter_map(|text| column_type.parse_text(&text).ok().map(|value| (text, value)))
            .collect();
        assert!(values.len() > 2, "{name}: {values:?}");
        let texts: Vec<&str> = values.iter().map(|(text, _)| text.as_str()).collect();
        // the backend's own reading of the text, in a column of the type
        let made = format!("CREATE TEMP TABLE t (n int, v {name})");
        client.batch_execute(&format!("DROP TABLE IF EXISTS t; {made}")).await.unwrap();
        let (plain, _) = name.split_once(" COLLATE").unwrap_or((name, ""));
        let fill = format!(
            "INSERT INTO t SELECT n, x::{plain} FROM unnest($1::text[]) WITH ORDINALITY u(x, n)"
        );
        client.execute(&fill, &[&texts]).await.unwrap();
        let ordered = column_type.comparability() != Comparability::Equality;
        let less = if ordered { "a.v < b.v" } else { "false" };
        let pairs = format!("SELECT a.n, b.n, a.v = b.v, {less} FROM t a, t b");
        for row in client.query(&pairs, &[]).await.unwrap() {
            let value = |column: usize| &values[row.get::<_, i32>(column) as usize - 1];
            let ((a_text, a), (b_text, b)) = (value(0), value(1));
            let (equal, less): (bool, bool) = (row.get(2), row.get(3));
            let what = format!("{name}: {a_text:?} and {b_text:?}");
            let order = column_type.compare(a, b);
            assert_eq!(order == Some(Ordering::Equal), equal, "{what}");
            assert!(!ordered || (order == Some(Ordering::Less)) == less, "{what}: {order:?}");
            if column_type.can_be_key() && !matches!(column_type, ColumnType::Jsonb) {
                let key = |v: &Value| RootKey::encode(&[column_type.canonical_key(v)]).unwrap();
                assert_eq!(key(a) == key(b), equal, "{what} as keys");
            }
        }
    }
}
