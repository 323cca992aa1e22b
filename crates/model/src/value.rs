//! Values and their types.
//!
//! A [`Value`] is exact: it round-trips through the backend byte for byte. Textual forms (on the
//! wire, in `cachectl`) are the backend's own output formats in ISO style.

use serde::{Deserialize, Serialize};

/// The backend types a group may contain. A table with another type is refused by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "kind")]
pub enum ColumnType {
    Bool,
    Int2,
    Int4,
    Int8,
    Float4,
    Float8,
    /// `precision` and `scale` as declared, both `None` for plain `numeric`.
    Numeric { precision: Option<u16>, scale: Option<i16> },
    /// `char(n)`: compared without trailing spaces, stored padded.
    Char { length: u32 },
    /// `varchar(n)` or `varchar`.
    Varchar { length: Option<u32> },
    Text,
    Bytea,
    Date,
    Time,
    Timestamp,
    TimestampTz,
    Uuid,
    Json,
    Jsonb,
    /// Labels in sort order; values travel as their label.
    Enum { name: String, labels: Vec<String> },
}

/// One column value. Which variant a column uses follows from its [`ColumnType`]:
/// `Int2/4/8 → Int`, `Char/Varchar/Text/Json/Jsonb/Enum/Numeric → Text` (numeric in the backend's
/// plain decimal output form with its display scale, or `NaN`, `Infinity`, `-Infinity`),
/// `Date → Date` and so on.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float4(f32),
    Float8(f64),
    Text(Box<str>),
    Bytes(Box<[u8]>),
    Uuid([u8; 16]),
    /// Days since 2000-01-01; `i32::MAX` is `infinity`, `i32::MIN` is `-infinity`.
    Date(i32),
    /// Microseconds since midnight.
    Time(i64),
    /// Microseconds since 2000-01-01 00:00, of a `timestamp`; `i64::MAX`/`MIN` are the infinities.
    Timestamp(i64),
    /// The same for `timestamptz`, in UTC.
    TimestampTz(i64),
}
