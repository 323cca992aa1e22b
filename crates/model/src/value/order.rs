//! Order and equality of values, as the backend defines them (text: by bytes, see
//! [`super::Comparability`]).

use super::{ColumnType, Value, decimal};
use std::cmp::Ordering;

impl ColumnType {
    /// SQL comparison of two values of this type; `None` when one of them is NULL or of another
    /// kind.
    pub fn compare(&self, a: &Value, b: &Value) -> Option<Ordering> {
        match (a, b) {
            (Value::Bool(a), Value::Bool(b)) => Some(a.cmp(b)),
            (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
            (Value::Float4(a), Value::Float4(b)) => Some(floats(f64::from(*a), f64::from(*b))),
            (Value::Float8(a), Value::Float8(b)) => Some(floats(*a, *b)),
            (Value::Text(a), Value::Text(b)) => self.compare_text(a, b),
            (Value::Bytes(a), Value::Bytes(b)) => Some(a.cmp(b)),
            (Value::Uuid(a), Value::Uuid(b)) => Some(a.cmp(b)),
            (Value::Date(a), Value::Date(b)) => Some(a.cmp(b)),
            (Value::Time(a), Value::Time(b)) => Some(a.cmp(b)),
            (Value::Timestamp(a), Value::Timestamp(b)) => Some(a.cmp(b)),
            (Value::TimestampTz(a), Value::TimestampTz(b)) => Some(a.cmp(b)),
            _ => None,
        }
    }

    fn compare_text(&self, a: &str, b: &str) -> Option<Ordering> {
        match self {
            ColumnType::Numeric { .. } => decimal::compare(a, b),
            ColumnType::Char { .. } => Some(a.trim_end_matches(' ').cmp(b.trim_end_matches(' '))),
            ColumnType::Enum { labels, .. } => {
                let rank = |text: &str| labels.iter().position(|l| l == text);
                Some(rank(a)?.cmp(&rank(b)?))
            }
            _ => Some(a.cmp(b)),
        }
    }
}

/// NaN equals NaN and is greater than everything else, as in the backend.
fn floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
