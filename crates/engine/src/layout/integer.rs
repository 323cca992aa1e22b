//! Values of fixed width as integers, packed in groups that share one bit width.
//!
//! A group begins with a four-bit code of its width, chosen from the values it holds: a column of
//! small numbers costs its information and no declaration, and a later large value just makes its
//! group wider. Unsigned widths are tried first, zigzag ones take what is negative or too long.

use super::bits::{BitWriter, read_at, word_at, write_at};
use cachetier_model::{ColumnType, Row, Value, ValueRef};

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
    pub(super) fn value(&self, integer: i64) -> ValueRef<'_> {
        match self {
            Self::Bool => ValueRef::Bool(integer != 0),
            Self::Int => ValueRef::Int(integer),
            Self::Float4 => ValueRef::Float4(f32::from_bits(integer as u32)),
            Self::Float8 => ValueRef::Float8(f64::from_bits(integer as u64)),
            Self::Date => ValueRef::Date(integer as i32),
            Self::Time => ValueRef::Time(integer),
            Self::Timestamp => ValueRef::Timestamp(integer),
            Self::TimestampTz => ValueRef::TimestampTz(integer),
            Self::Label(labels) => {
                labels.get(integer as usize).map_or(ValueRef::Null, |l| ValueRef::Text(l))
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

/// Where the values of one group stand in the bit string, and how.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    /// Bit of the first value.
    at: u32,
    width: u8,
    zigzag: bool,
}

impl Span {
    /// The group whose code stands at this bit.
    #[inline]
    pub(super) fn begin(bytes: &[u8], at: usize) -> Self {
        let (width, zigzag) = width_of((word_at(bytes, at) & 15) as usize);
        Self { at: at as u32 + CODE_BITS, width: width as u8, zigzag }
    }

    /// The bit after so many values.
    #[inline]
    pub(super) fn end(self, values: usize) -> usize {
        self.place(values)
    }

    #[inline]
    fn place(self, index: usize) -> usize {
        self.at as usize + index * usize::from(self.width)
    }

    #[inline]
    pub(super) fn value(self, bytes: &[u8], index: usize) -> i64 {
        let raw = read_at(bytes, self.place(index), u32::from(self.width));
        if self.zigzag { (raw >> 1) as i64 ^ -((raw & 1) as i64) } else { raw as i64 }
    }

    /// Calls `each` with `count` values from `first` on. Most groups are unsigned and short enough
    /// to be read as one word.
    #[inline]
    pub(super) fn for_each(
        self,
        bytes: &[u8],
        first: usize,
        count: usize,
        mut each: impl FnMut(i64),
    ) {
        if count * usize::from(self.width) <= 57 && !self.zigzag {
            let (mut word, mask) = (word_at(bytes, self.place(first)), (1_u64 << self.width) - 1);
            for _ in 0..count {
                each((word & mask) as i64);
                word >>= self.width;
            }
        } else {
            (first..first + count).for_each(|index| each(self.value(bytes, index)));
        }
    }

    /// Appends `count` values from `first` on, as [`Span::for_each`] gives them.
    #[inline]
    pub(super) fn append(self, bytes: &[u8], first: usize, count: usize, row: &mut Row) {
        if count * usize::from(self.width) <= 57 && !self.zigzag {
            let (mut word, mask) = (word_at(bytes, self.place(first)), (1_u64 << self.width) - 1);
            // of a known length: no look at the capacity for each
            row.extend((0..count).map(|_| {
                let value = (word & mask) as i64;
                word >>= self.width;
                Value::Int(value)
            }));
        } else {
            row.extend((first..first + count).map(|index| Value::Int(self.value(bytes, index))));
        }
    }

    /// Whether this value could stand in the group as it is.
    #[inline]
    pub(super) fn fits(self, value: i64) -> bool {
        let raw = if self.zigzag { zigzag(value) } else { value as u64 };
        (self.zigzag || value >= 0) && 64 - raw.leading_zeros() <= u32::from(self.width)
    }

    /// Overwrites a value with one that [`Span::fits`].
    pub(super) fn write(self, bytes: &mut [u8], index: usize, value: i64) {
        let raw = if self.zigzag { zigzag(value) } else { value as u64 };
        write_at(bytes, self.place(index), u32::from(self.width), raw);
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
            let span = Span::begin(&bytes, 0);
            let mut read = Vec::new();
            span.for_each(&bytes, 0, values.len(), |value| read.push(value));
            prop_assert_eq!(&read, &values);
            prop_assert_eq!(span.end(values.len()).div_ceil(8), bytes.len());
            for (index, value) in values.iter().enumerate() {
                prop_assert_eq!(span.value(&bytes, index), *value);
                let mut patched = bytes.clone();
                let last = values.len() - 1;
                if span.fits(*value) {
                    span.write(&mut patched, last, *value);
                    prop_assert_eq!(span.value(&patched, last), *value);
                    span.write(&mut patched, last, values[last]);
                }
                prop_assert_eq!(&patched, &bytes);
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
