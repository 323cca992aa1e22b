//! The text form of values: the backend's own output format, and what it accepts back.

use super::{ColumnType, Value, ValueError, calendar, float};
use std::fmt::Write;

impl ColumnType {
    /// Parses the backend's text form (never NULL) and applies [`ColumnType::check`].
    pub fn parse_text(&self, text: &str) -> Result<Value, ValueError> {
        let value = match self {
            ColumnType::Bool => parse_bool(text).map(Value::Bool),
            ColumnType::Int2 | ColumnType::Int4 | ColumnType::Int8 => {
                return self.parse_int(text);
            }
            ColumnType::Float4 => float::parse(text).map(Value::Float4),
            ColumnType::Float8 => float::parse(text).map(Value::Float8),
            ColumnType::Bytea => parse_bytea(text).map(|b| Value::Bytes(b.into())),
            ColumnType::Date => calendar::parse_date(text).map(Value::Date),
            ColumnType::Time => calendar::parse_time(text).map(Value::Time),
            ColumnType::Timestamp => calendar::parse_timestamp(text, false).map(Value::Timestamp),
            ColumnType::TimestampTz => {
                calendar::parse_timestamp(text, true).map(Value::TimestampTz)
            }
            ColumnType::Uuid => {
                uuid::Uuid::try_parse(text).ok().map(|u| Value::Uuid(u.into_bytes()))
            }
            ColumnType::Numeric { .. }
            | ColumnType::Char { .. }
            | ColumnType::Varchar { .. }
            | ColumnType::Text
            | ColumnType::Json
            | ColumnType::Jsonb
            | ColumnType::Interval
            | ColumnType::Inet
            | ColumnType::Array { .. }
            | ColumnType::Enum { .. } => Some(Value::Text(text.into())),
        };
        self.check(&value.ok_or_else(|| self.syntax())?)
    }

    fn parse_int(&self, text: &str) -> Result<Value, ValueError> {
        let text = text.trim();
        match text.parse::<i64>() {
            Ok(v) => self.check(&Value::Int(v)),
            Err(e) => match e.kind() {
                std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => {
                    Err(self.range())
                }
                _ => Err(self.syntax()),
            },
        }
    }

    /// The backend's text form; the empty string for NULL, which callers tell apart themselves.
    pub fn format(&self, value: &Value) -> String {
        match value {
            Value::Null => String::new(),
            Value::Bool(b) => if *b { "t" } else { "f" }.to_owned(),
            Value::Int(v) => v.to_string(),
            Value::Float4(v) => float::format_f32(*v),
            Value::Float8(v) => float::format_f64(*v),
            Value::Text(text) => text.to_string(),
            Value::Bytes(bytes) => format_bytea(bytes),
            Value::Uuid(u) => uuid::Uuid::from_bytes(*u).to_string(),
            Value::Date(d) => calendar::format_date(*d),
            Value::Time(t) => calendar::format_time(*t),
            Value::Timestamp(t) => calendar::format_timestamp(*t, ""),
            Value::TimestampTz(t) => calendar::format_timestamp(*t, "+00"),
        }
    }
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "t" | "true" | "yes" | "on" | "1" => Some(true),
        "f" | "false" | "no" | "off" | "0" => Some(false),
        _ => None,
    }
}

fn parse_bytea(text: &str) -> Option<Vec<u8>> {
    let hex = text.strip_prefix("\\x")?.as_bytes();
    if !hex.len().is_multiple_of(2) {
        return None;
    }
    let digit = |b: u8| char::from(b).to_digit(16).map(|d| d as u8);
    hex.chunks_exact(2)
        .map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        })
        .collect()
}

fn format_bytea(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(2 + bytes.len() * 2);
    out.push_str("\\x");
    for byte in bytes {
        // writing to a String cannot fail
        let _ = write!(out, "{byte:02x}");
    }
    out
}
