//! R21: two keys have the same bytes exactly when their column calls them equal, however they are
//! written. That the column calls them what the backend does is tested against the backend.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use cachetier_model::{ColumnType, RootKey, Value};
use proptest::prelude::*;
use std::cmp::Ordering;

const NUMERIC: ColumnType = ColumnType::Numeric { precision: None, scale: None };

/// Numbers near each other, in many spellings.
fn number() -> impl Strategy<Value = String> {
    let plain = ("[+-]?", "0{0,3}", "[0-2]{1,3}", "(\\.[01]{0,2}0{0,4})?", "(e-?[0-2])?").prop_map(
        |(sign, zeros, digits, fraction, power)| sign + &zeros + &digits + &fraction + &power,
    );
    let special = prop_oneof![Just("NaN"), Just("-Infinity")].prop_map(str::to_owned);
    prop_oneof![8 => plain, 1 => special]
}

fn near(n: u8) -> impl Strategy<Value = String> {
    // few letters, so that equal ones meet; spaces where they count and where they do not
    prop::collection::vec(prop_oneof![Just('a'), Just('A'), Just('é'), Just(' ')], 0..=n.into())
        .prop_map(|letters| letters.into_iter().collect())
}

fn typed() -> impl Strategy<Value = (ColumnType, String, String)> {
    let pair = |column_type: ColumnType, text: BoxedStrategy<String>| {
        (Just(column_type), text.clone(), text)
    };
    let scaled = ColumnType::Numeric { precision: Some(6), scale: Some(1) };
    let spelled = |texts: &'static [&'static str]| {
        prop::sample::select(texts).prop_map(str::to_owned).boxed()
    };
    let floats = spelled(&["0", "-0", "NaN", "1", "1.0", "1e0", "Infinity", "inf"]);
    let times = spelled(&["2026-11-30 10:00:00+00", "2026-11-30 12:00:00+02", "infinity"]);
    let networks = spelled(&["10.0.0.1", "10.0.0.1/32", "10.0.0.1/8", "::1", "0:0::1", "::1/128"]);
    prop_oneof![
        4 => pair(NUMERIC, number().boxed()),
        2 => pair(scaled, number().boxed()),
        2 => pair(ColumnType::Char { length: 3 }, near(3).boxed()),
        1 => pair(ColumnType::Varchar { length: Some(3) }, near(5).boxed()),
        1 => pair(ColumnType::Text, near(2).boxed()),
        1 => pair(ColumnType::Float4, floats.clone()),
        1 => pair(ColumnType::Float8, floats),
        1 => pair(ColumnType::TimestampTz, times),
        1 => pair(ColumnType::Inet, networks),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn r21_keys_are_the_same_bytes_when_and_only_when_the_values_are_equal(
        (column_type, a, b) in typed(),
    ) {
        // what the column refuses is no key
        let (Ok(a), Ok(b)) = (column_type.parse_text(&a), column_type.parse_text(&b)) else {
            return Ok(());
        };
        prop_assert!(column_type.can_be_key());
        let key = |value: &Value| RootKey::encode(&[column_type.canonical_key(value)]).unwrap();
        let equal = column_type.compare(&a, &b) == Some(Ordering::Equal);
        prop_assert_eq!(key(&a) == key(&b), equal, "{:?} {:?}", a, b);
        // and the form that is kept in keys is itself a value of the column, equal to the given one
        let canonical = key(&a).decode().unwrap().remove(0);
        prop_assert_eq!(column_type.compare(&canonical, &a), Some(Ordering::Equal));
        prop_assert_eq!(key(&canonical), key(&a));
        prop_assert_eq!(key(&a).slot(), key(&canonical).slot());
    }
}
