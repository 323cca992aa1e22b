//! Values and their types.
//!
//! A [`Value`] is exact: it round-trips through the backend byte for byte. Textual forms (on the
//! wire, in `cachectl`) are the backend's own output formats in ISO style. What a type accepts,
//! how it prints, orders and canonicalises is decided in the modules below and nowhere else;
//! nothing here knows a wire format or an SQL driver.

mod accept;
mod array;
mod borrowed;
mod calendar;
mod decimal;
mod float;
mod interval;
mod json;
mod network;
mod order;
mod text_form;

pub use array::Array;
pub use borrowed::ValueRef;
pub use interval::Interval;
pub use network::Network;
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
    Numeric {
        precision: Option<u16>,
        scale: Option<i16>,
    },
    /// `char(n)`: compared without trailing spaces, stored padded.
    Char {
        length: u32,
    },
    /// `varchar(n)` or `varchar`.
    Varchar {
        length: Option<u32>,
    },
    Text,
    Bytea,
    Date,
    Time,
    Timestamp,
    TimestampTz,
    /// Without a precision or restricted fields.
    Interval,
    Uuid,
    Inet,
    Json,
    Jsonb,
    /// Labels in sort order; values travel as their label.
    Enum {
        name: String,
        labels: Vec<String>,
    },
    /// Of any number of dimensions; the declared sizes mean nothing to the backend either.
    Array {
        element: Box<ColumnType>,
    },
}

/// One column value. Which variant a column uses follows from its [`ColumnType`]:
/// `Int2/4/8 → Int`, `Char/Varchar/Text/Json/Jsonb/Enum/Numeric → Text` (numeric in the backend's
/// plain decimal output form with its display scale, or `NaN`, `Infinity`, `-Infinity`),
/// `Interval/Inet/Array → Text` in the backend's output form, `Date → Date` and so on.
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

impl Value {
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }
}

/// Why a value cannot be stored in a column of a type. Never carries the value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueError {
    #[error("the text is not a valid {sql_type}")]
    Syntax { sql_type: String },
    #[error("the value is out of the range of {sql_type}")]
    Range { sql_type: String },
    #[error("the value is too long for {sql_type}")]
    TooLong { sql_type: String },
    #[error("the value is not one of the labels of {sql_type}")]
    Label { sql_type: String },
    #[error("a value of another type was given for {sql_type}")]
    Kind { sql_type: String },
}

/// Which comparisons of a type mean here what they mean in the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparability {
    /// `json`: the backend has no equality for it.
    Nothing,
    /// `jsonb`: equality of the canonical text.
    Equality,
    /// Ordered by bytes; means the same in the backend only under a collation that does so too.
    TextOrder,
    Order,
}

impl ColumnType {
    /// The type as the backend writes it, e.g. `character varying(15)`.
    pub fn sql_name(&self) -> String {
        match self {
            ColumnType::Bool => "boolean".to_owned(),
            ColumnType::Int2 => "smallint".to_owned(),
            ColumnType::Int4 => "integer".to_owned(),
            ColumnType::Int8 => "bigint".to_owned(),
            ColumnType::Float4 => "real".to_owned(),
            ColumnType::Float8 => "double precision".to_owned(),
            ColumnType::Numeric { precision: Some(p), scale } => {
                format!("numeric({p},{})", scale.unwrap_or(0))
            }
            ColumnType::Numeric { precision: None, .. } => "numeric".to_owned(),
            ColumnType::Char { length } => format!("character({length})"),
            ColumnType::Varchar { length: Some(n) } => format!("character varying({n})"),
            ColumnType::Varchar { length: None } => "character varying".to_owned(),
            ColumnType::Text => "text".to_owned(),
            ColumnType::Bytea => "bytea".to_owned(),
            ColumnType::Date => "date".to_owned(),
            ColumnType::Time => "time without time zone".to_owned(),
            ColumnType::Timestamp => "timestamp without time zone".to_owned(),
            ColumnType::TimestampTz => "timestamp with time zone".to_owned(),
            ColumnType::Uuid => "uuid".to_owned(),
            ColumnType::Json => "json".to_owned(),
            ColumnType::Jsonb => "jsonb".to_owned(),
            ColumnType::Enum { name, .. } => name.clone(),
            ColumnType::Interval => "interval".to_owned(),
            ColumnType::Inet => "inet".to_owned(),
            ColumnType::Array { element } => format!("{}[]", element.sql_name()),
        }
    }

    pub fn comparability(&self) -> Comparability {
        match self {
            ColumnType::Json => Comparability::Nothing,
            ColumnType::Jsonb => Comparability::Equality,
            ColumnType::Char { .. } | ColumnType::Varchar { .. } | ColumnType::Text => {
                Comparability::TextOrder
            }
            // the order of elements may follow a collation
            ColumnType::Array { element } => match element.comparability() {
                Comparability::Nothing => Comparability::Nothing,
                _ => Comparability::Equality,
            },
            _ => Comparability::Order,
        }
    }

    /// Whether equal values have one form here, which is what finds them. Intervals (a day is 24
    /// hours) and arrays do not.
    pub fn can_be_key(&self) -> bool {
        !matches!(self, ColumnType::Interval | ColumnType::Array { .. })
    }

    fn syntax(&self) -> ValueError {
        ValueError::Syntax { sql_type: self.sql_name() }
    }

    fn range(&self) -> ValueError {
        ValueError::Range { sql_type: self.sql_name() }
    }

    fn too_long(&self) -> ValueError {
        ValueError::TooLong { sql_type: self.sql_name() }
    }

    fn kind(&self) -> ValueError {
        ValueError::Kind { sql_type: self.sql_name() }
    }
}

#[cfg(test)]
mod tests;
