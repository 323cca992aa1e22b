//! The proof that the simulator can fail: each deliberate defect, and the seeds it took.

use std::time::Instant;

use serde::Serialize;

/// How one defect was hunted.
#[derive(Clone, Debug, Serialize)]
pub struct Hunt {
    pub defect: &'static str,
    pub what: &'static str,
    /// The first seed whose history breaks a promise; `None`: not found.
    pub seed: Option<u64>,
    /// Seeds run, that one included.
    pub seeds: u64,
    pub violation: String,
    pub seconds: f64,
}

/// Runs seeds from `first` on with the defect planted, until one finds it.
#[cfg(feature = "defects")]
pub fn hunt(defect: cachetier_defects::Defect, first: u64, seeds_max: u64) -> Hunt {
    let begun = Instant::now();
    let mut hunt = Hunt {
        defect: defect.name,
        what: defect.what,
        seed: None,
        seeds: 0,
        violation: String::new(),
        seconds: 0.0,
    };
    cachetier_defects::plant(Some(defect.name));
    for seed in first..first.saturating_add(seeds_max) {
        hunt.seeds += 1;
        if let Some(violation) = crate::run(seed).violation {
            (hunt.seed, hunt.violation) = (Some(seed), violation);
            break;
        }
    }
    cachetier_defects::plant(None);
    hunt.seconds = begun.elapsed().as_secs_f64();
    hunt
}

/// Without the feature nothing is planted, and nothing can be found.
#[cfg(not(feature = "defects"))]
pub fn hunt(defect: cachetier_defects::Defect, _first: u64, _seeds_max: u64) -> Hunt {
    let begun = Instant::now();
    Hunt {
        defect: defect.name,
        what: defect.what,
        seed: None,
        seeds: 0,
        violation: "built without the feature `defects`".to_owned(),
        seconds: begun.elapsed().as_secs_f64(),
    }
}
