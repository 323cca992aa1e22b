//! Processor time as a Kubernetes quantity (`2`, `500m`, `1.5`), equal by value.

use crate::kept_text::{kept_text, text_or_number};
use crate::quantity::{QuantityError, parse_units};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;

/// Processors, in the text the user wrote, which is kept when written back.
#[derive(Clone, Debug)]
pub struct CpuAmount {
    text: String,
    /// Thousandths of a processor.
    milli: u64,
}

impl CpuAmount {
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        Ok(Self { text: text.to_owned(), milli: parse_units(text, 3)? })
    }

    /// For defaults, which cannot be malformed.
    pub(crate) fn from_milli(milli: u64) -> Self {
        Self { text: format!("{milli}m"), milli }
    }

    /// Thousandths of a processor, rounded up.
    pub fn milli(&self) -> u64 {
        self.milli
    }
}

kept_text!(CpuAmount, milli);

impl<'de> Deserialize<'de> for CpuAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&text_or_number(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for CpuAmount {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "CpuAmount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 24,
            "x-kubernetes-validations": [
                {
                    "rule": "isQuantity(string(self)) && quantity(string(self)).compareTo(quantity('10m')) >= 0 && quantity(string(self)).isLessThan(quantity('4k'))",
                    "message": "must be processors such as 500m, 2 or 1.5, at least 10m"
                }
            ]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn o01_processors_are_equal_however_they_are_written() {
        for (text, milli) in [("1000m", 1_000), ("1", 1_000), ("1.5", 1_500), ("0.0001", 1)] {
            assert_eq!(CpuAmount::parse(text).unwrap().milli(), milli, "{text}");
        }
        let number: CpuAmount = serde_json::from_str("2").unwrap();
        assert_eq!(number, CpuAmount::parse("2000m").unwrap());
        assert_eq!(serde_json::to_string(&number).unwrap(), "\"2\"");
        assert!(CpuAmount::parse("two").is_err());
    }
}
