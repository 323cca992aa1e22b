//! Sizes in bytes as Kubernetes quantities (`64Gi`, `0.5Gi`, `1e9`, `500`), parsed exactly.
//!
//! Equality is by value, so `2048Mi` equals `2Gi`. Arithmetic is in integers: a value that is not a
//! whole number of bytes is rounded up, as Kubernetes does.

use crate::kept_text::{kept_text, text_or_number};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;

/// A number of bytes together with the text the user wrote, which is kept when written back.
#[derive(Clone, Debug)]
pub struct ByteSize {
    text: String,
    bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("`{0}` is not a quantity such as 512Mi, 0.5Gi, 1e9 or 1048576")]
    Malformed(String),
    #[error("`{0}` is out of range (at most 2^63 - 1 bytes)")]
    OutOfRange(String),
}

impl ByteSize {
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        Ok(Self { text: text.to_owned(), bytes: parse_bytes(text)? })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

kept_text!(ByteSize, bytes);

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&text_or_number(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for ByteSize {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ByteSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 24,
            "x-kubernetes-validations": [
                {
                    "rule": "isQuantity(string(self)) && quantity(string(self)).isGreaterThan(quantity('0')) && quantity(string(self)).isLessThan(quantity('1Pi'))",
                    "message": "must be a size such as 512Mi, 0.5Gi or 20Gi, above 0 and below 1Pi"
                }
            ]
        })
    }
}

/// For defaults, which cannot be malformed.
pub(crate) fn gibibytes(count: u64) -> ByteSize {
    ByteSize { text: format!("{count}Gi"), bytes: count << 30 }
}

/// For defaults, which cannot be malformed.
pub(crate) fn mebibytes(count: u64) -> ByteSize {
    ByteSize { text: format!("{count}Mi"), bytes: count << 20 }
}

/// `digits[.digits][suffix]`, suffix one of Ki..Ei, n u m k M G T P E, or `e`/`E` with an exponent.
fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    parse_units(text, 0)
}

/// The same in units of `10^-finer`, rounded up.
pub(crate) fn parse_units(text: &str, finer: i32) -> Result<u64, QuantityError> {
    let malformed = || QuantityError::Malformed(text.to_owned());
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err(malformed());
    }
    let out_of_range = || QuantityError::OutOfRange(text.to_owned());
    let digits = format!("{whole}{fraction}");
    let mantissa: u128 = digits.parse().map_err(|_| out_of_range())?;
    let scale = scale_of(suffix).ok_or_else(malformed)?;
    let fraction_digits = i32::try_from(fraction.len()).map_err(|_| malformed())?;
    let decimals = scale.decimal_exponent + finer - fraction_digits;
    let power = |n: u32| 10_u128.checked_pow(n).ok_or_else(out_of_range);
    let numerator = mantissa.checked_mul(scale.binary).ok_or_else(out_of_range)?;
    let bytes = if decimals >= 0 {
        numerator.checked_mul(power(decimals.unsigned_abs())?).ok_or_else(out_of_range)?
    } else {
        numerator.div_ceil(power(decimals.unsigned_abs())?)
    };
    u64::try_from(bytes).ok().filter(|b| i64::try_from(*b).is_ok()).ok_or_else(out_of_range)
}

struct Scale {
    binary: u128,
    decimal_exponent: i32,
}

fn scale_of(suffix: &str) -> Option<Scale> {
    let decimal = |decimal_exponent| Some(Scale { binary: 1, decimal_exponent });
    let binary = |power: u32| Some(Scale { binary: 1 << (10 * power), decimal_exponent: 0 });
    match suffix {
        "" => decimal(0),
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            (-30..=30).contains(&exponent).then_some(())?;
            decimal(exponent)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(text: &str) -> Result<u64, QuantityError> {
        ByteSize::parse(text).map(|size| size.bytes())
    }

    #[test]
    fn o29_odd_units_are_exact_and_nothing_panics() {
        for (text, expected) in [
            ("2048Mi", 2 << 30),
            ("0.5Gi", 1 << 29),
            ("1e9", 1_000_000_000),
            ("1E3", 1_000),
            ("1E", 1_000_000_000_000_000_000),
            ("1.5", 2),
            ("500m", 1),
            ("1.5Ki", 1_536),
            ("0.1Gi", 107_374_183),
            (".5k", 500),
            ("7.", 7),
        ] {
            assert_eq!(bytes(text).unwrap(), expected, "{text}");
        }
        for text in ["", ".", "Gi", "1 Gi", "1gi", "-1", "1..2", "1e", "1e999", "one"] {
            assert!(matches!(bytes(text), Err(QuantityError::Malformed(_))), "{text}");
        }
        for text in ["8Ei", "1e30", "99999999999999999999999999999999999999999"] {
            assert!(matches!(bytes(text), Err(QuantityError::OutOfRange(_))), "{text}");
        }
    }

    #[test]
    fn o01_equal_sizes_are_equal_however_they_are_written() {
        assert_eq!(ByteSize::parse("2048Mi").unwrap(), ByteSize::parse("2Gi").unwrap());
        let number: ByteSize = serde_json::from_str("1024").unwrap();
        assert_eq!(number, ByteSize::parse("1Ki").unwrap());
        assert_eq!(serde_json::to_string(&ByteSize::parse("0.5Gi").unwrap()).unwrap(), "\"0.5Gi\"");
    }
}
