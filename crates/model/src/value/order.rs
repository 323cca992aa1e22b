//! Order and equality of values, as the backend defines them (text: by bytes, see
//! [`super::Comparability`]).

use super::{Array, ColumnType, Interval, Network, Value, ValueRef, decimal, json};
use std::cmp::Ordering;

impl ColumnType {
    /// SQL comparison of two values of this type; `None` when one of them is NULL or of another
    /// kind.
    pub fn compare(&self, a: &Value, b: &Value) -> Option<Ordering> {
        self.compare_refs(a.as_value_ref(), b.as_value_ref())
    }

    /// [`ColumnType::compare`] of borrowed values.
    #[inline]
    pub fn compare_refs(&self, a: ValueRef<'_>, b: ValueRef<'_>) -> Option<Ordering> {
        use ValueRef as V;
        match (a, b) {
            (V::Int(a), V::Int(b)) => Some(a.cmp(&b)),
            (V::Bool(a), V::Bool(b)) => Some(a.cmp(&b)),
            (V::Float4(a), V::Float4(b)) => Some(floats(f64::from(a), f64::from(b))),
            (V::Float8(a), V::Float8(b)) => Some(floats(a, b)),
            (V::Text(a), V::Text(b)) => self.compare_text(a, b),
            (V::Bytes(a), V::Bytes(b)) => Some(a.cmp(b)),
            (V::Uuid(a), V::Uuid(b)) => Some(a.cmp(&b)),
            (V::Date(a), V::Date(b)) => Some(a.cmp(&b)),
            (V::Time(a), V::Time(b))
            | (V::Timestamp(a), V::Timestamp(b))
            | (V::TimestampTz(a), V::TimestampTz(b)) => Some(a.cmp(&b)),
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
            ColumnType::Jsonb => Some(json::canonical(a)?.cmp(&json::canonical(b)?)),
            ColumnType::Interval => Some(Interval::parse(a)?.compare(Interval::parse(b)?)),
            ColumnType::Inet => Some(Network::parse(a)?.compare(Network::parse(b)?)),
            ColumnType::Array { element } => {
                let array = |text| Array::parse(element, text).ok();
                array(a)?.compare(&array(b)?, element)
            }
            _ => Some(a.cmp(b)),
        }
    }
}

/// NaN equals NaN and is greater than everything else, as in the backend.
fn floats(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
