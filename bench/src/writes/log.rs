//! The log of acknowledged counter writes: one line each, `A key value`, `D key value` (in doubt)
//! or `X key wanted found` (violation).

use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::Path;
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
    file: BufWriter<File>,
    first_value: i64,
}

impl LogWriter {
    pub fn create(path: &Path) -> Result<Self> {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let first_value = ((seconds & 0xfff) << VALUES_PER_RUN_BITS) as i64;
        Ok(Self { file: BufWriter::new(File::create(path)?), first_value })
    }

    /// The first value of this run's counters.
    pub fn first_value(&self) -> i64 {
        self.first_value
    }

    pub fn write(&mut self, entry: &Entry) -> Result<()> {
        match entry {
            Entry::Acknowledged(key, value) => writeln!(self.file, "A {key} {value}")?,
            Entry::Doubtful(key, value) => writeln!(self.file, "D {key} {value}")?,
            Entry::Violated(key, wanted, found) => {
                writeln!(self.file, "X {key} {wanted} {found}")?;
            }
        }
        Ok(())
    }

    pub fn finish(&mut self) -> Result<()> {
        Ok(self.file.flush()?)
    }
}

/// What the log says about one key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyHistory {
    pub acknowledged: Option<i64>,
    /// Unsettled writes after the last acknowledged one.
    pub doubtful: Vec<i64>,
    pub acknowledgements: u64,
    pub violations: u64,
}

impl KeyHistory {
    /// Whether the backend may hold this value once everything is flushed.
    pub fn allows(&self, value: i64) -> bool {
        match self.acknowledged {
            Some(acknowledged) => acknowledged == value || self.doubtful.contains(&value),
            // Nothing was acknowledged, so what was there before may still be.
            None => true,
        }
    }
}

pub fn read(path: &Path) -> Result<BTreeMap<i64, KeyHistory>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut keys: BTreeMap<i64, KeyHistory> = BTreeMap::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line?;
        let entry = parse(&line)
            .with_context(|| format!("line {} of {} is damaged", number + 1, path.display()))?;
        match entry {
            Entry::Acknowledged(key, value) => {
                let history = keys.entry(key).or_default();
                history.acknowledged = Some(value);
                history.doubtful.clear();
                history.acknowledgements += 1;
            }
            Entry::Doubtful(key, value) => keys.entry(key).or_default().doubtful.push(value),
            Entry::Violated(key, ..) => keys.entry(key).or_default().violations += 1,
        }
    }
    Ok(keys)
}

fn parse(line: &str) -> Result<Entry> {
    let mut words = line.split(' ');
    let kind = words.next().unwrap_or_default();
    let numbers = words.map(str::parse).collect::<Result<Vec<i64>, _>>()?;
    match (kind, numbers.as_slice()) {
        ("A", [key, value]) => Ok(Entry::Acknowledged(*key, *value)),
        ("D", [key, value]) => Ok(Entry::Doubtful(*key, *value)),
        ("X", [key, wanted, found]) => Ok(Entry::Violated(*key, *wanted, *found)),
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
        log.finish().unwrap();
        let keys = read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let seven = &keys[&7];
        assert!(seven.allows(2) && seven.allows(3) && !seven.allows(1) && !seven.allows(4));
        assert_eq!((seven.acknowledgements, keys[&8].violations), (2, 1));
        assert!(parse("A 7").is_err());
    }
}
