//! Mistakes that the configuration alone shows, and only a change of it can heal.
//!
//! Owns those rules and the order of the tables. Pure; what the backend has to say about tables
//! and columns is asked elsewhere.

use super::{Eviction, NodeConfig, TableConfig};

/// The longest time a setting may ask for: 30 days, as in the resource. What is longer is a typing
/// error, and could not be added to a clock.
const TIME_MAX_SECONDS: u64 = 30 * 24 * 3_600;
/// More connections than any server takes; each may become a task.
const CONNECTIONS_MAX: u32 = 10_000;
/// Below, eviction finds too few instances in a slot to make room: some kilobytes of each.
const EVICTION_BYTES_MIN: u64 = 16 << 20;
/// Room for some thousand idempotency answers.
const ANSWERS_BYTES_MIN: u64 = 1 << 20;
/// Calls at once.
const CONCURRENT_MAX: u32 = 1_000_000;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("configuration field {field}: {fix}")]
pub struct ConfigError {
    /// The field's path in the file.
    pub field: String,
    /// What is wrong, and what to write instead.
    pub fix: String,
}

impl ConfigError {
    pub fn new(field: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { field: field.into(), fix: fix.into() }
    }
}

impl NodeConfig {
    /// Refuses what would keep a node from its start however long it waited.
    pub fn check(&self) -> Result<(), ConfigError> {
        parents_first(&self.tables)?;
        let under_a_child = self.tables.iter().find(|t| t.parent.is_some() && has_lookups(t));
        if let Some(table) = under_a_child {
            return Err(of_table(
                &table.name,
                "lookupKeys",
                "only the root table has lookup keys; move them there, or remove them",
            ));
        }
        self.check_numbers()?;
        self.check_times()
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let within = |field: &str, value: u32, max: u32| match value {
            value if value <= max => Ok(()),
            value => Err(ConfigError::new(field, format!("it is {value}; at most {max}"))),
        };
        // that the connections are more than the lanes is asked by the backend that opens them
        if self.write_through.lanes == 0 {
            return Err(ConfigError::new("writeThrough.lanes", "it is 0; at least 1"));
        }
        self.check_bytes()?;
        within("backend.maxConnections", self.backend.max_connections, CONNECTIONS_MAX)?;
        within("bypass.maxConcurrent", self.bypass.max_concurrent, CONCURRENT_MAX)?;
        within("preload.readyAtPercent", u32::from(self.preload.ready_at_percent), 100)
    }

    fn check_bytes(&self) -> Result<(), ConfigError> {
        let least = |field: &str, value: u64, min: u64| match value {
            value if value >= min => Ok(()),
            value => Err(ConfigError::new(field, format!("it is {value}; at least {min}"))),
        };
        least("writeThrough.maxBacklogBytes", self.write_through.max_backlog_bytes, 1)?;
        least("writeThrough.maxBatchRows", self.write_through.max_batch_rows.into(), 1)?;
        if self.idempotency.window_seconds > 0 {
            least("idempotency.maxBytes", self.idempotency.max_bytes, ANSWERS_BYTES_MIN)?;
        }
        // an instance takes the place of another one of its slot
        if self.memory.eviction == Eviction::Clean {
            least("memory.capacityBytes", self.memory.capacity_bytes, EVICTION_BYTES_MIN)?;
        }
        Ok(())
    }

    fn check_times(&self) -> Result<(), ConfigError> {
        let millis_max = TIME_MAX_SECONDS * 1_000;
        let times = [
            ("journal.syncIntervalMs", self.journal.sync_interval_ms, millis_max),
            ("journal.keepFlushedSeconds", self.journal.keep_flushed_seconds, TIME_MAX_SECONDS),
            ("idempotency.windowSeconds", self.idempotency.window_seconds, TIME_MAX_SECONDS),
            ("writeThrough.maxDelayMs", self.write_through.max_delay_ms, millis_max),
            ("bypass.holdTimeoutMs", self.bypass.hold_timeout_ms, millis_max),
        ];
        match times.into_iter().find(|(_, value, max)| value > max) {
            None => Ok(()),
            Some((field, value, max)) => {
                Err(ConfigError::new(field, format!("it is {value}; at most {max} (30 days)")))
            }
        }
    }
}

fn has_lookups(table: &TableConfig) -> bool {
    !table.lookup_keys.is_empty()
}

fn of_table(table: &str, field: &str, fix: impl Into<String>) -> ConfigError {
    ConfigError::new(format!("tables[{table}].{field}"), fix)
}

/// The root, then every table after its parent, else in the order declared.
pub fn parents_first(tables: &[TableConfig]) -> Result<Vec<&TableConfig>, ConfigError> {
    let named = |name: &str| tables.iter().filter(|t| t.name == name).count();
    if let Some(table) = tables.iter().find(|t| named(&t.name) > 1) {
        return Err(of_table(&table.name, "name", "the table is listed twice; list it once"));
    }
    let mut roots = tables.iter().filter(|t| t.parent.is_none());
    let Some(root) = roots.next() else {
        let fix = match tables {
            [] => "there are none; list the root table and its child tables",
            _ => "all have a `parent`; one must be the root, without it",
        };
        return Err(ConfigError::new("tables", fix));
    };
    if let Some(second) = roots.next() {
        let fix = format!(
            "tables {} and {} both have no `parent`; a group has one root table",
            root.name, second.name
        );
        return Err(of_table(&second.name, "parent", fix));
    }
    let mut ordered = vec![root];
    let mut left: Vec<&TableConfig> = tables.iter().filter(|t| t.parent.is_some()).collect();
    while let Some(lost) = left.first().copied() {
        let before = left.len();
        left.retain(|table| {
            let ready = ordered.iter().any(|o| Some(&o.name) == table.parent.as_ref());
            if ready {
                ordered.push(table);
            }
            !ready
        });
        if left.len() == before {
            return Err(no_way_up(&left, lost));
        }
    }
    Ok(ordered)
}

/// Why none of these tables leads to the root.
fn no_way_up(left: &[&TableConfig], lost: &TableConfig) -> ConfigError {
    let parent_of = |table: &TableConfig| table.parent.clone().unwrap_or_default();
    let known = |name: &str| left.iter().any(|t| t.name == name);
    match left.iter().find(|t| !known(&parent_of(t))) {
        Some(table) => {
            let fix = format!("{} is not a table of the group", parent_of(table));
            of_table(&table.name, "parent", fix)
        }
        None => of_table(&lost.name, "parent", "its parents form a circle; one must be the root"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(tables: &str, rest: &str) -> NodeConfig {
        let text = format!(
            "group: {{name: t/g, uid: u}}\nbackend: {{credentialsDir: /c}}\n\
             journal: {{directory: /j}}\ntables: {tables}\n{rest}"
        );
        serde_saphyr::from_str(&text).unwrap()
    }

    fn refused(tables: &str, rest: &str) -> String {
        config(tables, rest).check().unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_that_only_the_configuration_heals_is_refused_with_its_field() {
        let root = "[{name: a}]";
        assert_eq!(config(root, "").check(), Ok(()));
        let cases = [
            ("[]", "", "tables: there are none"),
            ("[{name: a, parent: b}, {name: b, parent: a}]", "", "tables: all have a `parent`"),
            ("[{name: a}, {name: b}]", "", "tables[b].parent: tables a and b both have no"),
            (root, "writeThrough: {maxBacklogBytes: 0}", "writeThrough.maxBacklogBytes: it is 0"),
            (root, "idempotency: {windowSeconds: 1, maxBytes: 9}", "idempotency.maxBytes: it is 9"),
            (
                root,
                "memory: {eviction: Clean, capacityBytes: 2000000}",
                "memory.capacityBytes: it is 2000000; at least 16777216",
            ),
            ("[{name: a}, {name: a}]", "", "tables[a].name: the table is listed twice"),
            ("[{name: a}, {name: b, parent: a}, {name: b, parent: a}]", "", "tables[b].name"),
            (
                "[{name: a}, {name: c, parent: b}, {name: b, parent: nowhere}]",
                "",
                "tables[b].parent: nowhere is not a table of the group",
            ),
            (
                "[{name: a}, {name: b, parent: c}, {name: c, parent: b}]",
                "",
                "tables[b].parent: its parents form a circle",
            ),
            ("[{name: a}, {name: b, parent: b}]", "", "tables[b].parent: its parents form"),
            (
                "[{name: a}, {name: b, parent: a, lookupKeys: [[n]]}]",
                "",
                "tables[b].lookupKeys: only the root",
            ),
            (root, "preload: {readyAtPercent: 101}", "preload.readyAtPercent: it is 101"),
            (root, "writeThrough: {lanes: 0}", "writeThrough.lanes: it is 0"),
            (root, "idempotency: {windowSeconds: 2592001}", "idempotency.windowSeconds"),
            (root, "bypass: {holdTimeoutMs: 18446744073709551615}", "bypass.holdTimeoutMs"),
            (root, "writeThrough: {maxDelayMs: 2592000001}", "writeThrough.maxDelayMs"),
        ];
        for (tables, rest, words) in cases {
            let error = refused(tables, rest);
            let words = format!("configuration field {words}");
            assert!(error.starts_with(&words), "{error}");
        }
    }

    #[test]
    fn tables_come_after_their_parents_in_whatever_order_they_are_listed() {
        let config = config("[{name: c, parent: b}, {name: b, parent: a}, {name: a}]", "");
        let names = parents_first(&config.tables).unwrap().into_iter().map(|t| &t.name);
        assert_eq!(names.collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
