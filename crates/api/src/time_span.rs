//! Spans of time as Kubernetes writes them: `100ms`, `2s`, `10m`, `1h30m`.

use crate::kept_text::kept_text;
use kube::core::Duration as GoDuration;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use std::{borrow::Cow, time::Duration};

/// A span together with the text the user wrote, which is kept when written back. Equal by value.
#[derive(Clone, Debug)]
pub struct TimeSpan {
    text: String,
    duration: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a span of time such as 100ms, 2s, 10m or 1h30m")]
pub struct TimeSpanError(String);

impl TimeSpan {
    pub fn parse(text: &str) -> Result<Self, TimeSpanError> {
        let bad = || TimeSpanError(text.to_owned());
        let parsed: GoDuration = text.parse().map_err(|_| bad())?;
        if text.is_empty() || parsed.is_negative() {
            return Err(bad());
        }
        Ok(Self { text: text.to_owned(), duration: parsed.into() })
    }

    pub fn duration(&self) -> Duration {
        self.duration
    }

    pub fn millis(&self) -> u64 {
        u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX)
    }
}

kept_text!(TimeSpan, duration);

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::parse(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for TimeSpan {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "TimeSpan".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 24,
            "pattern": "^([0-9]+(\\.[0-9]+)?(ms|s|m|h))+$",
            "x-kubernetes-validations": [
                {
                    "rule": "duration(self) <= duration('720h')",
                    "message": "must be a span of time such as 100ms, 2s or 10m, at most 720h"
                }
            ]
        })
    }
}

/// For defaults, which cannot be malformed.
pub(crate) fn minutes(count: u64) -> TimeSpan {
    TimeSpan { text: format!("{count}m"), duration: Duration::from_secs(count * 60) }
}

/// For defaults, which cannot be malformed.
pub(crate) fn millis(count: u64) -> TimeSpan {
    let text = match count % 1_000 {
        0 => format!("{}s", count / 1_000),
        _ => format!("{count}ms"),
    };
    TimeSpan { text, duration: Duration::from_millis(count) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_as_kubernetes_writes_them_and_kept_as_written() {
        assert_eq!(TimeSpan::parse("1h30m").unwrap().millis(), 5_400_000);
        assert_eq!(TimeSpan::parse("600s").unwrap(), TimeSpan::parse("10m").unwrap());
        assert_eq!(serde_json::to_string(&TimeSpan::parse("10m").unwrap()).unwrap(), "\"10m\"");
        for text in ["", "10", "-1s", "ten", "1d"] {
            assert!(TimeSpan::parse(text).is_err(), "{text}");
        }
    }
}
