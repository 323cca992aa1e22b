use super::*;
use std::cmp::Ordering;

fn numeric(precision: u16, scale: i16) -> ColumnType {
    ColumnType::Numeric { precision: Some(precision), scale: Some(scale) }
}

const ANY_NUMERIC: ColumnType = ColumnType::Numeric { precision: None, scale: None };

/// Text in, text out; the second is what the backend prints.
fn prints(column_type: &ColumnType, given: &str, printed: &str) {
    let value = column_type.parse_text(given).unwrap_or_else(|e| panic!("{given}: {e}"));
    assert_eq!(column_type.format(&value), printed, "{given} as {}", column_type.sql_name());
    assert_eq!(column_type.parse_text(printed).as_ref(), Ok(&value), "{printed}");
    assert_eq!(column_type.check(&value).as_ref(), Ok(&value));
}

#[test]
fn d30_values_at_the_edges_round_trip_exactly() {
    let thousand = format!("-{}.{}", "9".repeat(500), "1".repeat(500));
    for (column_type, given, printed) in [
        (&ANY_NUMERIC, "NaN", "NaN"),
        (&ANY_NUMERIC, "-inf", "-Infinity"),
        (&ANY_NUMERIC, "-0.00", "0.00"),
        (&ANY_NUMERIC, "001.500", "1.500"),
        (&ANY_NUMERIC, "1.5e3", "1500"),
        (&ANY_NUMERIC, "1.25e-3", "0.00125"),
        (&ANY_NUMERIC, &thousand, &thousand),
        (&numeric(5, 2), "99.995", "100.00"),
        (&numeric(5, 2), "-0.004", "0.00"),
        (&numeric(3, -2), "12350", "12400"),
        (&numeric(2, 4), "0.00991", "0.0099"),
        (&ColumnType::Float8, "1e15", "1e+15"),
        (&ColumnType::Float8, "100000000000000", "100000000000000"),
        (&ColumnType::Float8, "0.1", "0.1"),
        (&ColumnType::Float8, "1e-5", "1e-05"),
        (&ColumnType::Float8, "-0", "-0"),
        (&ColumnType::Float8, "-infinity", "-Infinity"),
        (&ColumnType::Float4, "1000000", "1e+06"),
        (&ColumnType::Float4, "0.3", "0.3"),
        (&ColumnType::Float4, "390008.125", "390008.12"),
        (&ColumnType::Float4, "84145696", "8.4145696e+07"),
        (&ColumnType::Float8, "3.671033358157578e16", "3.6710333581575776e+16"),
        (&ColumnType::Date, "0001-01-01", "0001-01-01"),
        (&ColumnType::Date, "4713-11-24 BC", "4713-11-24 BC"),
        (&ColumnType::Date, "5874897-12-31", "5874897-12-31"),
        (&ColumnType::Date, "infinity", "infinity"),
        (&ColumnType::Date, "0001-02-29 BC", "0001-02-29 BC"),
        (&ColumnType::Time, "24:00", "24:00:00"),
        (&ColumnType::Time, "01:02:03.4500", "01:02:03.45"),
        (&ColumnType::Timestamp, "0044-03-15 12:00:00 BC", "0044-03-15 12:00:00 BC"),
        (&ColumnType::Timestamp, "294276-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999"),
        (&ColumnType::Timestamp, "-infinity", "-infinity"),
        (&ColumnType::TimestampTz, "2000-01-01 01:30:00+01:30", "2000-01-01 00:00:00+00"),
        (&ColumnType::TimestampTz, "1999-12-31T23:59:59Z", "1999-12-31 23:59:59+00"),
        (&ColumnType::Text, "", ""),
        (&ColumnType::Varchar { length: Some(15) }, "000000000000042", "000000000000042"),
        (&ColumnType::Varchar { length: Some(2) }, "é€  ", "é€"),
        (&ColumnType::Char { length: 4 }, "é", "é   "),
        (&ColumnType::Bytea, "\\x00fF", "\\x00ff"),
        (
            &ColumnType::Jsonb,
            "{\"bb\":1e2,\"a\":[1.0,null],\"bb\": \"\\u00e9\\n\"}",
            "{\"a\": [1.0, null], \"bb\": \"é\\n\"}",
        ),
        (&ColumnType::Json, "{ \"a\":1,\"a\":2 }", "{ \"a\":1,\"a\":2 }"),
        (&ColumnType::Json, "\"\\ud800x\"", "\"\\ud800x\""),
        (&ColumnType::Bool, "true", "t"),
    ] {
        prints(column_type, given, printed);
    }
}

#[test]
fn values_that_the_backend_would_refuse_are_refused() {
    for (column_type, text) in [
        (ColumnType::Int2, "32768"),
        (ColumnType::Int4, "x"),
        (ColumnType::Int8, "9223372036854775808"),
        (numeric(5, 2), "999.995"),
        (numeric(5, 2), "Infinity"),
        (numeric(2, 4), "0.01"),
        (ANY_NUMERIC, "1.2.3"),
        (ANY_NUMERIC, ""),
        (ANY_NUMERIC, "1e999999"),
        (ColumnType::Varchar { length: Some(2) }, "abc"),
        (ColumnType::Char { length: 2 }, "abc"),
        (ColumnType::Text, "nul\0"),
        (ColumnType::Date, "2023-02-29"),
        (ColumnType::Date, "0000-01-01"),
        (ColumnType::Date, "5874898-01-01"),
        (ColumnType::Time, "24:00:01"),
        (ColumnType::Timestamp, "2000-01-01 00:00:00+01"),
        (ColumnType::Timestamp, "294277-01-01 00:00:00"),
        (ColumnType::Uuid, "1234"),
        (ColumnType::Bytea, "\\x0"),
        (ColumnType::Json, "{\"a\":01}"),
        (ColumnType::Json, "[1,]"),
        (ColumnType::Jsonb, "\"\\u0000\""),
        (ColumnType::Jsonb, "\"\\ud800\""),
        (ColumnType::Float8, "infinite"),
        (ColumnType::Enum { name: "mood".into(), labels: vec!["ok".into()] }, "sad"),
    ] {
        assert!(column_type.parse_text(text).is_err(), "{text} as {}", column_type.sql_name());
    }
    assert!(matches!(ColumnType::Int4.check(&Value::Bool(true)), Err(ValueError::Kind { .. })));
}

#[test]
fn order_and_key_equality_are_the_backends() {
    let text = |s: &str| Value::Text(s.into());
    let order = |t: &ColumnType, a: &str, b: &str| t.compare(&text(a), &text(b));
    assert_eq!(order(&ANY_NUMERIC, "10", "9.5"), Some(Ordering::Greater));
    assert_eq!(order(&ANY_NUMERIC, "-10", "-9.5"), Some(Ordering::Less));
    assert_eq!(order(&ANY_NUMERIC, "1.50", "1.5"), Some(Ordering::Equal));
    assert_eq!(order(&ANY_NUMERIC, "NaN", "Infinity"), Some(Ordering::Greater));
    assert_eq!(order(&ANY_NUMERIC, "NaN", "NaN"), Some(Ordering::Equal));
    assert_eq!(order(&ColumnType::Char { length: 3 }, "a  ", "a"), Some(Ordering::Equal));
    let mood = ColumnType::Enum { name: "m".into(), labels: vec!["z".into(), "a".into()] };
    assert_eq!(order(&mood, "z", "a"), Some(Ordering::Less));
    assert_eq!(ColumnType::Int4.compare(&Value::Null, &Value::Int(1)), None);
    let nan = Value::Float8(f64::NAN);
    assert_eq!(ColumnType::Float8.compare(&nan, &nan), Some(Ordering::Equal));
    assert_eq!(ANY_NUMERIC.canonical_key(&text("1.500")), text("1.5"));
    assert_eq!(ANY_NUMERIC.canonical_key(&text("100")), text("100"));
    assert_eq!(ColumnType::Char { length: 3 }.canonical_key(&text("a  ")), text("a"));
}
