//! Runs one `cargo test`, shows its output as it comes, and reads the results out of it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// What became of one test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    Failed,
    Skipped,
}

/// Counts and names of one or more runs.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub passed: usize,
    pub failed: usize,
    pub skipped: usize,
    /// Outcome by the test's whole path; a name that several programs share keeps the worst.
    pub outcomes: BTreeMap<String, Outcome>,
    /// Tests that failed among the others and passed alone: faults to be mended, not to be hidden.
    pub unsteady: Vec<String>,
}

impl Summary {
    pub fn add(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
        self.unsteady.extend(other.unsteady);
        for (name, outcome) in other.outcomes {
            self.record(&name, outcome);
        }
    }

    /// A failure outside any test, such as one that did not compile or ended its program.
    pub fn fail(&mut self, what: &str) {
        self.failed += 1;
        self.record(what, Outcome::Failed);
    }

    pub fn failures(&self) -> impl Iterator<Item = &str> {
        self.outcomes
            .iter()
            .filter(|(_, outcome)| **outcome == Outcome::Failed)
            .map(|(name, _)| name.as_str())
    }

    /// Takes the results of failed tests that were run once more, alone.
    fn settle(&mut self, again: &Summary) {
        for (name, outcome) in &again.outcomes {
            if *outcome == Outcome::Passed {
                self.outcomes.insert(name.clone(), Outcome::Passed);
                self.unsteady.push(name.clone());
                self.failed = self.failed.saturating_sub(1);
                self.passed += 1;
            }
        }
    }

    fn record(&mut self, name: &str, outcome: Outcome) {
        let known = self.outcomes.entry(name.to_owned()).or_insert(outcome);
        if outcome == Outcome::Failed || *known == Outcome::Skipped {
            *known = outcome;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// More failures than this are no matter of timing.
const SECOND_LOOK_MAX: usize = 3;

/// Runs `make(filters)`. A few failed tests are run once more, alone, on a machine that now has
/// nothing else to do; those that pass then are named at the end as unsteady.
pub fn run(make: impl Fn(&[String]) -> Command, filters: &[String]) -> Result<Summary> {
    let mut summary = run_once(&mut make(filters))?;
    let failed: Vec<String> = summary.failures().map(str::to_owned).collect();
    let only_tests = failed.len() == summary.failed && failed.iter().all(|n| !n.contains(' '));
    if only_tests && (1..=SECOND_LOOK_MAX).contains(&failed.len()) {
        println!("\nonce more, alone: {}", failed.join(", "));
        let exact: Vec<String> = ["--exact".to_owned(), "--test-threads=1".to_owned()]
            .into_iter()
            .chain(failed)
            .collect();
        let again = run_once(&mut make(&exact))?;
        summary.settle(&again);
    }
    Ok(summary)
}

/// Runs the command; its failure is part of the summary, not an error.
fn run_once(command: &mut Command) -> Result<Summary> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("starting cargo test")?;
    let mut reader = Reader::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            println!("{line}");
            reader.line(&line);
        }
    }
    let status = child.wait()?;
    let mut summary = reader.summary;
    if !status.success() && summary.failed == 0 {
        summary.fail("cargo test itself: a test program did not compile or ended early");
    }
    Ok(summary)
}

/// Understands libtest's plain output. Counts come from its closing lines; names from the lines of
/// single tests, which a test that prints may tear apart.
#[derive(Debug, Default)]
struct Reader {
    summary: Summary,
    torn: Option<String>,
}

impl Reader {
    fn line(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.torn = None;
            self.summary.passed += count(counts, " passed");
            self.summary.failed += count(counts, " failed");
            self.summary.skipped += count(counts, " ignored");
            return;
        }
        if let Some((name, rest)) =
            line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        {
            let name = name.trim_end_matches(" - should panic").to_owned();
            match outcome(rest) {
                Some(outcome) => self.summary.record(&name, outcome),
                None => self.torn = Some(name),
            }
            return;
        }
        if let (Some(name), Some(outcome)) = (&self.torn, outcome(line)) {
            let name = name.clone();
            self.summary.record(&name, outcome);
            self.torn = None;
        }
    }
}

fn outcome(text: &str) -> Option<Outcome> {
    let text = text.trim_end();
    if text.starts_with("ignored") {
        return Some(Outcome::Skipped);
    }
    // a test's own output may stand before the word
    if text == "ok" || text.ends_with(" ok") || text.starts_with("ok ") {
        return Some(Outcome::Passed);
    }
    (text.ends_with("FAILED") || text.starts_with("FAILED")).then_some(Outcome::Failed)
}

fn count(counts: &str, what: &str) -> usize {
    counts
        .split([';', '.'])
        .filter_map(|part| part.strip_suffix(what))
        .find_map(|number| number.trim().parse().ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{Outcome, Reader, Summary};

    #[test]
    fn a_test_that_passes_alone_is_named_as_unsteady_and_one_that_fails_again_stays_failed() {
        let mut summary = Summary { passed: 5, failed: 2, ..Summary::default() };
        summary.record("a", Outcome::Failed);
        summary.record("b", Outcome::Failed);
        let mut again = Summary::default();
        again.record("a", Outcome::Passed);
        again.record("b", Outcome::Failed);
        summary.settle(&again);
        assert_eq!(summary.to_string(), "6 passed, 1 failed, 0 skipped");
        assert_eq!(summary.unsteady, ["a"]);
        assert_eq!(summary.failures().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn results_are_read_from_plain_output_even_when_a_test_prints() {
        let mut reader = Reader::default();
        for line in [
            "running 4 tests",
            "test a::d07_one ... ok",
            "test b ... ignored, needs a cluster",
            "test c ... some words of the test",
            "ok",
            "test e - should panic ... FAILED",
            "test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 9 filtered out; \
             finished in 0.00s",
        ] {
            reader.line(line);
        }
        let summary = reader.summary;
        assert_eq!(summary.to_string(), "2 passed, 1 failed, 1 skipped");
        assert_eq!(summary.outcomes.get("c"), Some(&Outcome::Passed));
        assert_eq!(summary.failures().collect::<Vec<_>>(), ["e"]);
    }
}
