//! The proof that the simulator can fail: each deliberate defect, and the seeds it took.
//!
//! Rules without a defect live where no simulated history comes: in statements, settings and types of
//! the real database, for which the simulated one has code of its own. What protects them instead
//! (in `crates/write-through/tests/postgres` unless said otherwise):
//!
//! - R12, rows affected: `r12_an_update_of_a_row_deleted_by_others_is_a_reject_and_not_a_silent_success`
//! - R13, a frozen transaction: `r13_a_frozen_transaction_does_not_hold_the_fence_for_ever`
//! - R14, claimed tables: `r14_a_second_group_is_refused_by_name`, there and in `crates/group/tests`
//! - R18, one snapshot: `d21_r18_instances_come_whole_from_one_snapshot_and_absent_is_said` and
//!   `r18_a_scan_sees_the_database_as_it_was_when_it_was_opened`
//! - R21, equality of keys: `d31_composite_keys_of_text_uuid_numeric_and_enum_are_scanned_read_and_written`

use std::fmt;
#[cfg(feature = "defects")]
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::watch::Pulse;

/// How one defect was hunted.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hunt {
    pub defect: String,
    pub what: String,
    /// The first seed whose history breaks a promise; `None`: not found.
    pub seed: Option<u64>,
    /// Seeds run, that one included.
    pub seeds: u64,
    pub violation: String,
    pub seconds: f64,
}

impl Hunt {
    /// Nothing was run yet.
    pub fn of(defect: &cachetier_defects::Defect) -> Self {
        Self {
            defect: defect.name.to_owned(),
            what: defect.what.to_owned(),
            seed: None,
            seeds: 0,
            violation: String::new(),
            seconds: 0.0,
        }
    }
}

impl fmt::Display for Hunt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:30} ", self.defect)?;
        match self.seed {
            Some(seed) => write!(f, "found after {} seeds (seed {seed})", self.seeds)?,
            None => write!(f, "NOT FOUND in {} seeds", self.seeds)?,
        }
        write!(f, ", {:.1} s: {}", self.seconds, self.violation)
    }
}

#[cfg(feature = "defects")]
fn plant(name: Option<&str>) {
    cachetier_defects::plant(name);
}

#[cfg(not(feature = "defects"))]
fn plant(_name: Option<&str>) {}

/// One history with the defect planted, where it can be.
pub fn show(defect: &cachetier_defects::Defect, seed: u64) -> Outcome {
    plant(Some(defect.name));
    let outcome = crate::run(seed);
    plant(None);
    outcome
}

/// Runs seeds from `first` on with the defect planted, until one finds it.
#[cfg(feature = "defects")]
pub fn hunt(defect: &cachetier_defects::Defect, first: u64, seeds_max: u64, pulse: &Pulse) -> Hunt {
    let (begun, mut hunt) = (Instant::now(), Hunt::of(defect));
    plant(Some(defect.name));
    for seed in first..first.saturating_add(seeds_max) {
        hunt.seeds += 1;
        if let Some(violation) = crate::run_watched(seed, pulse).violation {
            (hunt.seed, hunt.violation) = (Some(seed), violation);
            break;
        }
    }
    plant(None);
    hunt.seconds = begun.elapsed().as_secs_f64();
    hunt
}

/// Without the feature nothing is planted, and nothing can be found.
#[cfg(not(feature = "defects"))]
pub fn hunt(
    defect: &cachetier_defects::Defect,
    _first: u64,
    _seeds_max: u64,
    _pulse: &Pulse,
) -> Hunt {
    let violation = "built without the feature `defects`".to_owned();
    Hunt { violation, ..Hunt::of(defect) }
}
