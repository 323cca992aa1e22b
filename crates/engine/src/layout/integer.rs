//! Values of fixed width as integers, packed in groups that share one bit width.
//!
//! A group begins with a four-bit code of its width, chosen from the values it holds: a column of
//! small numbers costs its information and no declaration, and a later large value just makes its
//! group wider. Unsigned widths are tried first, zigzag ones take what is negative or too long.

use super::bits::{BitReader, BitWriter};
use cachetier_model::{ColumnType, Value};

const CODE_BITS: u32 = 4;
const UNSIGNED: [u32; 12] = [0, 1, 2, 3, 4, 5, 6, 8, 16, 24, 32, 52];
const ZIGZAG: [u32; 4] = [8, 16, 32, 64];

/// How a column's values become integers.
#[derive(Clone, Debug)]
pub(super) enum IntegerKind {
    Bool,
    Int,
    Float4,
    Float8,
    Date,
    Time,
    Timestamp,
    TimestampTz,
    /// Position of the label.
    Label(Vec<Box<str>>),
}

impl IntegerKind {
    /// `None` for types that are kept as text or bytes.
    pub(super) fn of(column_type: &ColumnType) -> Option<Self> {
        Some(match column_type {
            ColumnType::Bool => Self::Bool,
            ColumnType::Int2 | ColumnType::Int4 | ColumnType::Int8 => Self::Int,
            ColumnType::Float4 => Self::Float4,
            ColumnType::Float8 => Self::Float8,
            ColumnType::Date => Self::Date,
            ColumnType::Time => Self::Time,
            ColumnType::Timestamp => Self::Timestamp,
            ColumnType::TimestampTz => Self::TimestampTz,
            ColumnType::Enum { labels, .. } => {
                Self::Label(labels.iter().map(|l| l.as_str().into()).collect())
            }
            _ => return None,
        })
    }

    /// NULL is 0: its place is kept, the bitmap says so. `None`: the value is of another kind.
    pub(super) fn to_integer(&self, value: &Value) -> Option<i64> {
        Some(match (self, value) {
            (_, Value::Null) => 0,
            (Self::Bool, Value::Bool(v)) => i64::from(*v),
            (Self::Int, Value::Int(v)) => *v,
            (Self::Float4, Value::Float4(v)) => i64::from(v.to_bits()),
            (Self::Float8, Value::Float8(v)) => v.to_bits() as i64,
            (Self::Date, Value::Date(v)) => i64::from(*v),
            (Self::Time, Value::Time(v)) => *v,
            (Self::Timestamp, Value::Timestamp(v)) => *v,
            (Self::TimestampTz, Value::TimestampTz(v)) => *v,
            (Self::Label(labels), Value::Text(text)) => {
                labels.iter().position(|l| l == text)? as i64
            }
            _ => return None,
        })
    }

    #[inline]
    pub(super) fn value(&self, integer: i64) -> Value {
        match self {
            Self::Bool => Value::Bool(integer != 0),
            Self::Int => Value::Int(integer),
            Self::Float4 => Value::Float4(f32::from_bits(integer as u32)),
            Self::Float8 => Value::Float8(f64::from_bits(integer as u64)),
            Self::Date => Value::Date(integer as i32),
            Self::Time => Value::Time(integer),
            Self::Timestamp => Value::Timestamp(integer),
            Self::TimestampTz => Value::TimestampTz(integer),
            Self::Label(labels) => {
                labels.get(integer as usize).map_or(Value::Null, |l| Value::Text(l.clone()))
            }
        }
    }
}

/// Writes one group.
pub(super) fn write_group(writer: &mut BitWriter<'_>, values: &[i64]) {
    let negative = values.iter().any(|v| *v < 0);
    let widest = values.iter().fold(0, |acc, v| acc | *v as u64);
    let unsigned = (!negative)
        .then(|| UNSIGNED.iter().position(|w| 64 - widest.leading_zeros() <= *w))
        .flatten();
    match unsigned {
        Some(code) => {
            writer.push(code as u64, CODE_BITS);
            let width = width_of(code);
            values.iter().for_each(|v| writer.push(*v as u64, width.0));
        }
        None => {
            let widest = values.iter().fold(0, |acc, v| acc | zigzag(*v));
            let code = ZIGZAG.iter().position(|w| 64 - widest.leading_zeros() <= *w).unwrap_or(3);
            writer.push((UNSIGNED.len() + code) as u64, CODE_BITS);
            let width = width_of(UNSIGNED.len() + code);
            values.iter().for_each(|v| writer.push(zigzag(*v), width.0));
        }
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// (bits, zigzag) of a width code.
#[inline]
fn width_of(code: usize) -> (u32, bool) {
    const TABLE: [(u32, bool); 16] = {
        let mut table = [(0, false); 16];
        let mut n = 0;
        #[allow(clippy::indexing_slicing, reason = "evaluated at compile time")]
        while n < 16 {
            table[n] = if n < 12 { (UNSIGNED[n], false) } else { (ZIGZAG[n - 12], true) };
            n += 1;
        }
        table
    };
    TABLE.get(code & 15).copied().unwrap_or((0, false))
}

/// Reads the values of a group one by one.
#[derive(Clone, Copy)]
pub(super) struct GroupReader {
    width: u32,
    zigzag: bool,
}

impl GroupReader {
    #[inline]
    pub(super) fn begin(reader: &mut BitReader<'_>) -> Self {
        let (width, zigzag) = width_of(reader.read(CODE_BITS) as usize);
        Self { width, zigzag }
    }

    #[inline]
    pub(super) fn next(self, reader: &mut BitReader<'_>) -> i64 {
        let raw = reader.read(self.width);
        if self.zigzag { (raw >> 1) as i64 ^ -((raw & 1) as i64) } else { raw as i64 }
    }

    /// Calls `each` with the group's next values, exactly so many. Most groups are unsigned and
    /// short enough to be read as one word.
    #[inline]
    pub(super) fn for_each(
        self,
        reader: &mut BitReader<'_>,
        values: usize,
        mut each: impl FnMut(i64),
    ) {
        let bits = values * self.width as usize;
        if bits <= 64 && self.width < 64 && !self.zigzag {
            let (mut word, mask) = (reader.read(bits as u32), (1 << self.width) - 1);
            for _ in 0..values {
                each((word & mask) as i64);
                word >>= self.width;
            }
        } else {
            (0..values).for_each(|_| each(self.next(reader)));
        }
    }

    #[inline]
    pub(super) fn skip(self, reader: &mut BitReader<'_>, values: usize) {
        reader.skip(values * self.width as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn groups_round_trip(
            values in prop::collection::vec(prop_oneof![0..2_i64, 0..300_i64, any::<i64>()], 1..12),
        ) {
            let mut bytes = Vec::new();
            let mut writer = BitWriter::new(&mut bytes);
            write_group(&mut writer, &values);
            writer.finish();
            let mut reader = BitReader::new(&bytes);
            let group = GroupReader::begin(&mut reader);
            let mut single = reader;
            let mut read = Vec::new();
            group.for_each(&mut reader, values.len(), |value| read.push(value));
            prop_assert_eq!(&read, &values);
            for value in &values {
                prop_assert_eq!(group.next(&mut single), *value);
            }
        }
    }

    #[test]
    fn ten_flags_cost_two_bytes() {
        let mut bytes = Vec::new();
        let mut writer = BitWriter::new(&mut bytes);
        write_group(&mut writer, &[1, 0, 1, 1, 0, 1, 0, 0, 0, 1]);
        writer.finish();
        assert_eq!(bytes.len(), 2);
    }
}
