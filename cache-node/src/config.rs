//! Reading `node.yaml`.
//!
//! Owns how a mistake in the file is told: in one line, with its place, the field and what belongs
//! there.

use anyhow::{Context, ensure};
use cachetier_model::node_config::NodeConfig;
use serde_saphyr::Error;
use std::path::Path;

/// Reads and checks the configuration file.
pub fn load(path: &Path) -> anyhow::Result<NodeConfig> {
    let text = std::fs::read_to_string(path)?;
    let config = parse(&text).context("it is not a valid node.yaml")?;
    ensure!(!config.group.uid.is_empty(), "group.uid is empty; give the group a fixed identity");
    ensure!(config.write_through.lanes > 0, "writeThrough.lanes must be at least 1");
    Ok(config)
}

/// A mistake in the file.
#[derive(Debug, thiserror::Error)]
#[error("line {line}, column {column}: {field}: {problem}")]
struct Mistake {
    line: u64,
    column: u64,
    field: String,
    problem: String,
}

fn parse(text: &str) -> Result<NodeConfig, Mistake> {
    let mut field = String::new();
    let parsed = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
        serde_path_to_error::deserialize(deserializer).map_err(|error| {
            field = error.path().to_string();
            error.into_inner()
        })
    });
    parsed.map_err(|error| mistake(text, field, error.without_snippet()))
}

fn mistake(text: &str, field: String, error: &Error) -> Mistake {
    let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
    let number = match error {
        Error::InvalidScalar { ty, .. } => whole_number(ty, &field),
        _ => None,
    };
    let problem = match number {
        Some(wanted) => format!("{:?} is not {wanted}", value_at(text, line, column)),
        None => {
            let said = error.to_string();
            said.split_whitespace().collect::<Vec<_>>().join(" ")
        }
    };
    Mistake { line, column, field, problem }
}

/// What a field of this integer type takes; units stand last in the names of fields.
fn whole_number(integer: &str, field: &str) -> Option<String> {
    let bits: u32 = integer.strip_prefix('u')?.parse().ok()?;
    let unit = [
        ("Bytes", " of bytes"),
        ("Ms", " of milliseconds"),
        ("Seconds", " of seconds"),
        ("Percent", " of percent"),
    ];
    let unit = unit.iter().find(|(suffix, _)| field.ends_with(suffix)).map_or("", |u| u.1);
    let most = match bits {
        64 => "up, without a unit".to_owned(),
        _ => format!("to {}", (1_u64 << bits) - 1),
    };
    Some(format!("a whole number{unit}, from 0 {most}"))
}

/// The scalar that begins at a place of the file, counted from 1.
fn value_at(text: &str, line: u64, column: u64) -> String {
    let before = |count: u64| usize::try_from(count.saturating_sub(1)).unwrap_or(usize::MAX);
    let line = text.lines().nth(before(line)).unwrap_or_default();
    let rest = line.chars().skip(before(column));
    let value: String = rest.take_while(|c| !matches!(c, ',' | '}' | ']' | '#')).collect();
    value.trim().trim_matches(['"', '\'']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALID: &str = "group: {name: t/g, uid: u}\nbackend: {credentialsDir: /x}\n\
                         tables: [{name: t}]\njournal: {directory: /j}\n";

    fn said(addition: &str) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("node.yaml");
        std::fs::write(&path, format!("{VALID}{addition}")).unwrap();
        format!("{:#}", load(&path).unwrap_err())
    }

    #[test]
    fn a_misspelt_field_is_refused_by_name() {
        let error = said("writeTrough: {lanes: 2}\n");
        assert!(error.contains("writeTrough") && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_number_that_is_none_is_told_in_one_line_with_its_field_and_what_is_wanted() {
        let cases = [
            (
                "memory:\n  capacityBytes: 1Gi  # too easy\n",
                "line 6, column 18: memory.capacityBytes: \"1Gi\" is not a whole number of bytes, \
                 from 0 up, without a unit",
            ),
            (
                "memory: {capacityBytes: -5}\n",
                "line 5, column 25: memory.capacityBytes: \"-5\" is not a whole number of bytes, \
                 from 0 up, without a unit",
            ),
            (
                "writeThrough: {lanes: 70000, maxDelayMs: 5}\n",
                "line 5, column 23: writeThrough.lanes: \"70000\" is not a whole number, from 0 to \
                 65535",
            ),
            (
                "writeThrough: {maxDelayMs: 5s}\n",
                "line 5, column 28: writeThrough.maxDelayMs: \"5s\" is not a whole number of \
                 milliseconds, from 0 up, without a unit",
            ),
        ];
        for (addition, expected) in cases {
            let error = said(addition);
            assert_eq!(error, format!("it is not a valid node.yaml: {expected}"));
        }
    }

    #[test]
    fn every_other_mistake_is_one_line_too() {
        for addition in ["writeThrough: {paused: maybe}\n", "topology: Alone\n", "memory: [\n"] {
            let error = said(addition);
            assert!(!error.contains('\n') && error.contains("line "), "{error}");
        }
    }
}
