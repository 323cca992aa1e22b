//! Whatever the bytes or the text, reading them is an answer or an error and never a panic, and
//! what was read is written and read again the same.
//!
//! Seeds are fixed; `MODEL_CASES` asks for more of them than the second's worth run by default.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use cachetier_model::{ChangeKind, ColumnType, Instance, RootKey, RowChange, Value, codec};
use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn cases() -> u64 {
    std::env::var("MODEL_CASES").ok().and_then(|s| s.parse().ok()).unwrap_or(30_000)
}

fn value(random: &mut impl Rng) -> Value {
    let few = random.random_range(0..12);
    match random.random_range(0..12) {
        0 => Value::Null,
        1 => Value::Bool(random.random()),
        2 | 3 => Value::Int(random.random::<i64>() >> random.random_range(0..64)),
        4 => Value::Float4(f32::from_bits(random.random())),
        5 => Value::Float8(f64::from_bits(random.random())),
        6 | 7 => Value::Text(
            "0123456789AbÉ ".chars().cycle().skip(few).take(few).collect::<String>().into(),
        ),
        8 => Value::Bytes((0..few).map(|_| random.random()).collect()),
        9 => Value::Uuid(random.random()),
        10 => Value::Date(random.random()),
        _ => Value::TimestampTz(random.random()),
    }
}

fn row(random: &mut impl Rng) -> Vec<Value> {
    (0..random.random_range(0..6)).map(|_| value(random)).collect()
}

/// Bits flipped, cut off, repeated; or noise.
fn damaged(bytes: &[u8], random: &mut impl Rng) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match random.random_range(0..6) {
        0 => bytes = (0..random.random_range(0..80)).map(|_| random.random()).collect(),
        1 => bytes.truncate(random.random_range(0..=bytes.len())),
        2 => bytes.extend_from_within(random.random_range(0..=bytes.len())..),
        _ => {
            for _ in 0..random.random_range(1..4) {
                let at = random.random_range(0..bytes.len().max(1));
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.random_range(0..8);
                }
            }
        }
    }
    bytes
}

#[test]
fn damaged_rows_instances_changes_and_keys_are_errors_or_round_trip() {
    let (mut read, mut refused) = (0_u64, 0_u64);
    for seed in 0..cases() {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let rows = |random: &mut ChaCha8Rng| {
            (0..random.random_range(0..4)).map(|_| row(random)).collect::<Vec<_>>()
        };
        let mut bytes = Vec::new();
        let same = match seed % 3 {
            0 => {
                let tables = (0..random.random_range(0..4)).map(|_| rows(&mut random)).collect();
                codec::encode_instance(&Instance { tables }, &mut bytes);
                let bytes = damaged(&bytes, &mut random);
                again(codec::decode_instance, codec::encode_instance, &bytes)
            }
            1 => {
                let change =
                    |row| RowChange { table: 300, kind: ChangeKind::Update, row, changed: vec![1] };
                let changes: Vec<_> = rows(&mut random).into_iter().map(change).collect();
                codec::encode_changes(&changes, &mut bytes);
                let bytes = damaged(&bytes, &mut random);
                again(codec::decode_changes, |c, out| codec::encode_changes(c, out), &bytes)
            }
            _ => {
                let mut values = row(&mut random);
                values.retain(|value| !value.is_null());
                let key = RootKey::encode(&values).unwrap();
                let key = RootKey::from_bytes(damaged(key.as_bytes(), &mut random).into());
                key.decode().ok().map(|values| RootKey::encode(&values).unwrap().decode().is_ok())
            }
        };
        assert_ne!(same, Some(false), "seed {seed}");
        *(if same.is_some() { &mut read } else { &mut refused }) += 1;
    }
    assert!(read > cases() / 10 && refused > cases() / 10, "{read} read, {refused} refused");
}

/// Whether what the bytes say, written and read again, is the same; `None`: they say nothing.
fn again<T: std::fmt::Debug, E>(
    decode: impl Fn(&[u8]) -> Result<T, E>,
    encode: impl Fn(&T, &mut Vec<u8>),
    bytes: &[u8],
) -> Option<bool> {
    let first = decode(bytes).ok()?;
    let mut written = Vec::new();
    encode(&first, &mut written);
    // not by `==`, which a NaN would never pass
    Some(decode(&written).is_ok_and(|second| format!("{first:?}") == format!("{second:?}")))
}

/// Pieces of which texts of some type are made.
const PIECES: &[&str] = &[
    "0",
    "1",
    "9",
    "12",
    "00",
    "-",
    "+",
    ".",
    ",",
    ":",
    "/",
    "e",
    "E",
    " ",
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    "\\u00e9",
    "\\ud83d",
    "null",
    "NULL",
    "true",
    "NaN",
    "inf",
    "infinity",
    "BC",
    "days",
    "mon",
    "PT",
    "::",
    "ffff",
    "é",
    "\0",
    "2026-11-30",
    "10:11:12.5",
    "999999999999999999999",
    "\u{7f}",
    "\\x",
    "ff",
    "deadbeef-0000-4000-8000-00000000ffff",
];

#[test]
fn arbitrary_texts_are_refused_or_print_as_what_reads_back_the_same() {
    let types = [
        ColumnType::Bool,
        ColumnType::Int2,
        ColumnType::Int8,
        ColumnType::Float4,
        ColumnType::Float8,
        ColumnType::Numeric { precision: None, scale: None },
        ColumnType::Numeric { precision: Some(5), scale: Some(2) },
        ColumnType::Numeric { precision: Some(3), scale: Some(-2) },
        ColumnType::Char { length: 4 },
        ColumnType::Varchar { length: Some(4) },
        ColumnType::Text,
        ColumnType::Bytea,
        ColumnType::Date,
        ColumnType::Time,
        ColumnType::Timestamp,
        ColumnType::TimestampTz,
        ColumnType::Uuid,
        ColumnType::Json,
        ColumnType::Jsonb,
        ColumnType::Interval,
        ColumnType::Inet,
        ColumnType::Array {
            element: Box::new(ColumnType::Numeric { precision: None, scale: None }),
        },
        ColumnType::Array { element: Box::new(ColumnType::Text) },
    ];
    let mut accepted = vec![0; types.len()];
    for seed in 0..cases() {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let pieces =
            (0..random.random_range(0..8)).map(|_| PIECES[random.random_range(0..PIECES.len())]);
        let text: String = pieces.collect();
        for (column_type, accepted) in types.iter().zip(&mut accepted) {
            let Ok(value) = column_type.parse_text(&text) else { continue };
            *accepted += 1;
            let printed = column_type.format(&value);
            let read = column_type.parse_text(&printed);
            let same = read.as_ref().is_ok_and(|read| format!("{read:?}") == format!("{value:?}"));
            assert!(same, "{} {text:?}: {value:?} {printed:?} {read:?}", column_type.sql_name());
            let order = column_type.compare(&value, &value);
            let comparable = !matches!(column_type, ColumnType::Json);
            assert!(order == Some(std::cmp::Ordering::Equal) || !comparable, "{text:?} {order:?}");
        }
    }
    let never = types.iter().zip(&accepted).filter(|(_, n)| **n == 0).map(|(t, _)| t.sql_name());
    assert_eq!(never.collect::<Vec<_>>(), [""; 0], "types that accepted nothing");
}
