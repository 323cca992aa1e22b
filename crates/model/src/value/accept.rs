//! What a column accepts: kind, range, length, label, and the form in which it is stored.
//!
//! The rules are the backend's assignment rules: `char(n)` is padded, spaces beyond the length of
//! a `varchar(n)` are cut, a `numeric(p,s)` is rounded to its scale, `jsonb` is normalised.

use super::{Array, ColumnType, Interval, Network, Value, ValueError, calendar, decimal, json};

impl ColumnType {
    /// The value as a column of this type stores it, or why it cannot. NULL passes.
    pub fn check(&self, value: &Value) -> Result<Value, ValueError> {
        match (self, value) {
            (_, Value::Null) => Ok(Value::Null),
            (ColumnType::Bool, Value::Bool(_))
            | (ColumnType::Int8, Value::Int(_))
            | (ColumnType::Float4, Value::Float4(_))
            | (ColumnType::Float8, Value::Float8(_))
            | (ColumnType::Bytea, Value::Bytes(_))
            | (ColumnType::Uuid, Value::Uuid(_)) => Ok(value.clone()),
            (ColumnType::Int2, Value::Int(v)) => {
                i16::try_from(*v).map(|_| value.clone()).map_err(|_| self.range())
            }
            (ColumnType::Int4, Value::Int(v)) => {
                i32::try_from(*v).map(|_| value.clone()).map_err(|_| self.range())
            }
            (ColumnType::Date, Value::Date(d)) => {
                calendar::date_in_range(*d).then(|| value.clone()).ok_or_else(|| self.range())
            }
            (ColumnType::Time, Value::Time(t)) => {
                calendar::time_in_range(*t).then(|| value.clone()).ok_or_else(|| self.range())
            }
            (ColumnType::Timestamp, Value::Timestamp(t))
            | (ColumnType::TimestampTz, Value::TimestampTz(t)) => {
                calendar::timestamp_in_range(*t).then(|| value.clone()).ok_or_else(|| self.range())
            }
            (_, Value::Text(text)) => self.check_text(text).map(Value::Text),
            _ => Err(self.kind()),
        }
    }

    fn check_text(&self, text: &str) -> Result<Box<str>, ValueError> {
        if text.contains('\0') {
            return Err(self.syntax());
        }
        match self {
            ColumnType::Text => Ok(text.into()),
            ColumnType::Varchar { length: None } => Ok(text.into()),
            ColumnType::Varchar { length: Some(n) } => self.cut(text, *n).map(Into::into),
            ColumnType::Char { length } => {
                let kept = self.cut(text, *length)?;
                let missing = (*length as usize).saturating_sub(kept.chars().count());
                let mut padded = String::with_capacity(kept.len() + missing);
                padded.push_str(kept);
                padded.extend(std::iter::repeat_n(' ', missing));
                Ok(padded.into())
            }
            ColumnType::Numeric { precision, scale } => {
                decimal::normalise(text, *precision, *scale).map(Into::into).map_err(|e| {
                    if e == decimal::Fault::Range { self.range() } else { self.syntax() }
                })
            }
            ColumnType::Json => {
                json::validate(text).then(|| text.into()).ok_or_else(|| self.syntax())
            }
            ColumnType::Jsonb => json::normalise(text).map(Into::into).ok_or_else(|| self.syntax()),
            ColumnType::Interval => {
                Interval::parse(text).map(|i| i.format().into()).ok_or_else(|| self.syntax())
            }
            ColumnType::Inet => {
                Network::parse(text).map(|n| n.format().into()).ok_or_else(|| self.syntax())
            }
            ColumnType::Array { element } => {
                Array::parse(element, text).map(|array| array.format(element).into())
            }
            ColumnType::Enum { labels, .. } => labels
                .iter()
                .any(|l| l == text)
                .then(|| text.into())
                .ok_or_else(|| ValueError::Label { sql_type: self.sql_name() }),
            _ => Err(self.kind()),
        }
    }

    /// At most `length` characters of the text; what is cut must be spaces.
    fn cut<'a>(&self, text: &'a str, length: u32) -> Result<&'a str, ValueError> {
        let end = text.char_indices().nth(length as usize).map_or(text.len(), |(at, _)| at);
        let (kept, rest) = text.split_at(end);
        if rest.bytes().all(|b| b == b' ') { Ok(kept) } else { Err(self.too_long()) }
    }

    /// The form of a checked value whose equality is the backend's equality of keys: numeric
    /// without trailing zeros, char without padding, floats without a negative zero.
    pub fn canonical_key(&self, value: &Value) -> Value {
        self.canonical_ref(value.as_value_ref()).to_value()
    }
}
