//! The log of counter writes: one line `key value` per acknowledgement in the file itself, and in
//! a second file beside it `D key value` (in doubt) and `X key wanted found` (violation).
//!
//! Values of a key only grow, so that the two files need no common order.

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, LineWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Values a run may use before it could meet those of another.
const VALUES_PER_RUN_BITS: u32 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    Acknowledged(i64, i64),
    Doubtful(i64, i64),
    Violated(i64, i64, i64),
}

/// What `special_facility.error_cntrl` holds beside a counter value.
pub fn facility_value(value: i64) -> i64 {
    value % 256
}

pub struct LogWriter {
    acknowledged: LineWriter<File>,
    doubtful: LineWriter<File>,
    first_value: i64,
}

impl LogWriter {
    pub fn create(path: &Path) -> Result<Self> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let first_value = ((seconds & 0xfff) << VALUES_PER_RUN_BITS) as i64;
        Ok(Self {
            acknowledged: LineWriter::new(File::create(path)?),
            doubtful: LineWriter::new(File::create(doubtful_path(path))?),
            first_value,
        })
    }

    /// The first value of this run's counters.
    pub fn first_value(&self) -> i64 {
        self.first_value
    }

    pub fn write(&mut self, entry: &Entry) -> Result<()> {
        match entry {
            Entry::Acknowledged(key, value) => writeln!(self.acknowledged, "{key} {value}")?,
            Entry::Doubtful(key, value) => writeln!(self.doubtful, "D {key} {value}")?,
            Entry::Violated(key, wanted, found) => {
                writeln!(self.doubtful, "X {key} {wanted} {found}")?;
            }
        }
        Ok(())
    }
}

fn doubtful_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".doubtful");
    PathBuf::from(name)
}

/// What the log says about one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyHistory {
    pub acknowledged: Option<i64>,
    /// Writes whose outcome was unknown at some time; those up to the acknowledged one are settled.
    pub doubtful: Vec<i64>,
    pub acknowledgements: u64,
    pub violations: u64,
}

impl KeyHistory {
    /// Whether the backend may hold this value once everything is flushed.
    pub fn allows(&self, value: i64) -> bool {
        match self.acknowledged {
            Some(acknowledged) => {
                acknowledged == value || value > acknowledged && self.doubtful.contains(&value)
            }
            // Nothing was acknowledged, so what was there before may still be.
            None => true,
        }
    }
}

pub fn read(path: &Path) -> Result<BTreeMap<i64, KeyHistory>> {
    let mut keys: BTreeMap<i64, KeyHistory> = BTreeMap::new();
    for entry in entries(path)? {
        match entry? {
            Entry::Acknowledged(key, value) => {
                let history = keys.entry(key).or_default();
                history.acknowledged = history.acknowledged.max(Some(value));
                history.acknowledgements += 1;
            }
            Entry::Doubtful(key, value) => keys.entry(key).or_default().doubtful.push(value),
            Entry::Violated(key, ..) => keys.entry(key).or_default().violations += 1,
        }
    }
    Ok(keys)
}

fn entries(path: &Path) -> Result<impl Iterator<Item = Result<Entry>>> {
    let mut all = Vec::new();
    let doubtful = doubtful_path(path);
    // A log that was copied without its second file still proves what was acknowledged.
    let second = doubtful.exists().then_some(doubtful.as_path());
    for path in [Some(path), second].into_iter().flatten() {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.display().to_string();
        all.extend(BufReader::new(file).lines().enumerate().map(move |(number, line)| {
            parse(&line?).with_context(|| format!("line {} of {name} is damaged", number + 1))
        }));
    }
    Ok(all.into_iter())
}

fn parse(line: &str) -> Result<Entry> {
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["D", key, value] => Ok(Entry::Doubtful(key.parse()?, value.parse()?)),
        ["X", key, wanted, found] => {
            Ok(Entry::Violated(key.parse()?, wanted.parse()?, found.parse()?))
        }
        [key, value] => Ok(Entry::Acknowledged(key.parse()?, value.parse()?)),
        _ => bail!("not an entry: {line:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_acknowledged_value_or_a_later_doubtful_one_is_allowed_and_nothing_else() {
        let path = std::env::temp_dir().join(format!("writes-log-{}", std::process::id()));
        let mut log = LogWriter::create(&path).unwrap();
        let entries = [
            Entry::Doubtful(7, 1),
            Entry::Acknowledged(7, 1),
            Entry::Acknowledged(7, 2),
            Entry::Doubtful(7, 3),
            Entry::Violated(8, 1, 0),
        ];
        entries.iter().for_each(|e| log.write(e).unwrap());
        let keys = read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(doubtful_path(&path)).unwrap();
        let seven = &keys[&7];
        assert!(seven.allows(2) && seven.allows(3) && !seven.allows(1) && !seven.allows(4));
        assert_eq!((seven.acknowledgements, keys[&8].violations), (2, 1));
        assert!(parse("7").is_err());
    }
}
