//! Which processors belong to whom.

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::collections::BTreeSet;
use std::fmt;

/// Some of this machine's processors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processors(BTreeSet<usize>);

impl Processors {
    /// Those of this host, whatever this thread is tied to.
    pub fn online() -> Self {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        Self::parse(list.trim()).unwrap_or_else(|_| Self(BTreeSet::from([0])))
    }

    /// A list such as `0`, `0,2` or `0-3,6`, all of them on this host.
    pub fn here(list: &str) -> Result<Self> {
        let (wanted, online) = (Self::parse(list)?, Self::online());
        if let Some(number) = wanted.0.difference(&online.0).next() {
            bail!("there is no processor {number} here, only {online}");
        }
        Ok(wanted)
    }

    fn parse(list: &str) -> Result<Self> {
        let number = |text: &str| -> Result<usize> {
            let found = text.trim().parse().ok().filter(|n| *n < CpuSet::MAX_CPU);
            found.with_context(|| format!("{list:?} is not a list like 1 or 0,2 or 0-3"))
        };
        let mut all = BTreeSet::new();
        for part in list.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            ensure!(first <= last, "{list:?}: {first} is above {last}");
            all.extend(first..=last);
        }
        Ok(Self(all))
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// As `taskset -c` takes it.
impl fmt::Display for Processors {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(usize::to_string).collect();
        out.write_str(&numbers.join(","))
    }
}

/// Servers and driver of an experiment.
#[derive(Clone, Debug)]
pub struct Pinning {
    pub servers: Processors,
    pub driver: Processors,
}

impl Pinning {
    /// The lower half of the processors for the servers, the rest for the driver.
    pub fn halves() -> Self {
        let online = Processors::online();
        let all: Vec<usize> = online.0.iter().copied().collect();
        match all.split_at(all.len() / 2) {
            // one processor is shared
            ([], _) => Self { servers: online.clone(), driver: online },
            (lower, upper) => {
                let of = |half: &[usize]| Processors(half.iter().copied().collect());
                Self { servers: of(lower), driver: of(upper) }
            }
        }
    }

    /// Ties this thread, and every thread it starts from now on, to the driver's processors.
    pub fn pin_driver(&self) -> Result<()> {
        let mut set = CpuSet::new();
        self.driver.0.iter().for_each(|number| set.set(*number));
        sched_setaffinity(None, &set)
            .with_context(|| format!("pinning the driver to processors {}", self.driver))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_processors_has_single_ones_and_ranges() {
        assert_eq!(Processors::parse("0-2,5").unwrap().to_string(), "0,1,2,5");
        for wrong in ["", "a", "2-1", "0-4000000000", "1,"] {
            assert!(Processors::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn a_processor_that_is_not_there_is_named() {
        assert!(Processors::here("0").is_ok());
        let error = Processors::here("900-901").unwrap_err().to_string();
        assert!(error.contains("no processor 900"), "{error}");
    }
}
