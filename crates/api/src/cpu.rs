//! Processor time as a Kubernetes quantity (`2`, `500m`, `1.5`), equal by value.

use crate::quantity::{QuantityError, parse_units};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Cow;
use std::fmt;

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

impl PartialEq for CpuAmount {
    fn eq(&self, other: &Self) -> bool {
        self.milli == other.milli
    }
}

impl Eq for CpuAmount {}

impl fmt::Display for CpuAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for CpuAmount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

impl<'de> Deserialize<'de> for CpuAmount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Form {
            Number(serde_json::Number),
            Text(String),
        }
        let text = match Form::deserialize(deserializer)? {
            Form::Number(number) => number.to_string(),
            Form::Text(text) => text,
        };
        Self::parse(&text).map_err(serde::de::Error::custom)
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
