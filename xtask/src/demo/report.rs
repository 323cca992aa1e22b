//! The record of a demo run, as JSON and for the summary.

use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

#[derive(Debug, Serialize)]
pub struct Report {
    pub ok: bool,
    pub steps: Vec<Step>,
    pub subscribers: u64,
    /// Mean latency per transaction, in milliseconds.
    pub latency_ms: Latencies,
    pub acknowledged_writes: u64,
    pub compare: Comparison,
    #[serde(skip)]
    started: Instant,
    /// From the beginning to the end, the taking down of what was started left out.
    pub total_seconds: f64,
}

#[derive(Debug, Serialize)]
pub struct Step {
    pub name: String,
    pub ok: bool,
    pub seconds: f64,
    /// What the step saw, for the summary.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub note: String,
}

#[derive(Debug, Default, Serialize)]
pub struct Latencies {
    pub backend: BTreeMap<String, f64>,
    pub cache: BTreeMap<String, f64>,
}

#[derive(Debug, Default, Serialize)]
pub struct Comparison {
    pub rows: u64,
    pub differences: u64,
}

impl Report {
    pub fn new(subscribers: u64) -> Self {
        Self {
            ok: false,
            steps: Vec::new(),
            subscribers,
            latency_ms: Latencies::default(),
            acknowledged_writes: 0,
            compare: Comparison::default(),
            started: Instant::now(),
            total_seconds: 0.0,
        }
    }

    /// Runs one step, prints its beginning and end, and keeps its time. `look_at` is what a person
    /// should look at when it fails.
    pub fn step(
        &mut self,
        name: &str,
        look_at: &str,
        act: impl FnOnce(&mut Report) -> Result<String>,
    ) -> Result<()> {
        let (number, so_far) = (self.steps.len() + 1, self.started.elapsed().as_secs());
        println!("\n▶ {number:>2}. {name}  (after {so_far} s)");
        let begin = Instant::now();
        let result = act(self);
        let seconds = begin.elapsed().as_secs_f64();
        let note = result.as_ref().cloned().unwrap_or_default();
        let ok = result.is_ok();
        if ok {
            println!("  ✓ {note} ({seconds:.1} s)");
        } else {
            println!("  ✗ failed after {seconds:.1} s; look at: {look_at}");
        }
        self.steps.push(Step { name: name.to_owned(), ok, seconds, note });
        result.map(drop).with_context(|| format!("step \"{name}\" failed; look at: {look_at}"))
    }

    pub fn finish(&mut self, ok: bool) {
        self.ok = ok && self.compare.differences == 0;
        self.total_seconds = self.started.elapsed().as_secs_f64();
    }

    pub fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
    }
}
