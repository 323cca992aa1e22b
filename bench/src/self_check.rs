//! The self-check: is this population, under this traffic, the workload it claims to be?
//!
//! Pure over shapes. Row means and the active share come from the population itself; the seven hit
//! rates from drawing inputs with the very generator that a run uses.

use crate::population::Population;
use crate::shape::Shape;
use crate::traffic::{Keys, Kind, Traffic};
use serde::{Deserialize, Serialize};

/// Allowed distance of a hit rate from its published value, in points.
pub const HIT_RATE_TOLERANCE_POINTS: f64 = 0.5;

/// Draws per transaction; the sampling error is below a tenth of a point.
const DRAWS: u64 = 400_000;

/// Below this many subscribers chance alone exceeds the tolerances, which then widen.
const SMALL_POPULATION: f64 = 50_000.0;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    pub what: String,
    pub expected: f64,
    pub found: f64,
    pub tolerance: f64,
    pub ok: bool,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SelfCheck {
    pub ok: bool,
    pub subscribers: u64,
    pub findings: Vec<Finding>,
}

impl SelfCheck {
    /// What is wrong, in one line; `None` when nothing is.
    pub fn failure(&self) -> Option<String> {
        let wrong: Vec<String> = self
            .findings
            .iter()
            .filter(|f| !f.ok)
            .map(|f| {
                format!(
                    "{} is {:.2}, expected {:.2} ± {:.2}",
                    f.what, f.found, f.expected, f.tolerance
                )
            })
            .collect();
        (!wrong.is_empty()).then(|| wrong.join("; "))
    }
}

/// Checks shapes (index 0 is subscriber 1) under uniform keys and, if other, under `keys`.
pub fn check(shapes: &[Shape], population: Population, keys: Keys) -> SelfCheck {
    let widen = (SMALL_POPULATION / shapes.len().max(1) as f64).sqrt().max(1.0);
    let mut findings = population_findings(shapes, widen);
    findings.extend(hit_rates(shapes, population, keys, widen));
    SelfCheck { ok: findings.iter().all(|f| f.ok), subscribers: shapes.len() as u64, findings }
}

fn finding(what: String, expected: f64, found: f64, tolerance: f64) -> Finding {
    Finding { what, expected, found, tolerance, ok: (found - expected).abs() <= tolerance }
}

fn population_findings(shapes: &[Shape], widen: f64) -> Vec<Finding> {
    let total = |count: fn(Shape) -> u32| shapes.iter().map(|s| f64::from(count(*s))).sum::<f64>();
    let subscribers = shapes.len().max(1) as f64;
    let facilities = total(Shape::facility_count);
    let share = total(Shape::active_count) / facilities.max(1.0);
    vec![
        finding(
            "access_info rows per subscriber".into(),
            2.5,
            total(Shape::access_count) / subscribers,
            0.02 * widen,
        ),
        finding(
            "special_facility rows per subscriber".into(),
            2.5,
            facilities / subscribers,
            0.02 * widen,
        ),
        finding(
            "call_forwarding rows per subscriber".into(),
            3.75,
            total(Shape::forwarding_count) / subscribers,
            0.05 * widen,
        ),
        finding("share of active facilities".into(), 0.85, share, 0.005 * widen),
    ]
}

fn hit_rates(shapes: &[Shape], population: Population, keys: Keys, widen: f64) -> Vec<Finding> {
    let mut traffic = Traffic::new(population, keys, population.seed, u64::MAX);
    Kind::ALL
        .into_iter()
        .map(|kind| {
            let mut hits = 0_u64;
            for _ in 0..DRAWS {
                let (id, input) = traffic.next_input(kind);
                let shape = shapes.get((id - 1) as usize).copied().unwrap_or_default();
                hits += u64::from(shape.hit(&input));
            }
            finding(
                format!("{} hit rate %", kind.name()),
                kind.hit_rate_percent(),
                100.0 * hits as f64 / DRAWS as f64,
                HIT_RATE_TOLERANCE_POINTS * widen,
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::DEFAULT_SEED;
    use crate::population::numbering::Numbering;

    fn shapes(population: Population) -> Vec<Shape> {
        (1..=population.subscribers).map(|id| Shape::of(&population.subscriber(id))).collect()
    }

    #[test]
    fn the_default_population_passes_its_self_check_on_uniform_and_on_skewed_keys() {
        let population =
            Population { seed: DEFAULT_SEED, subscribers: 100_000, numbering: Numbering::Derived };
        let shapes = shapes(population);
        for keys in [Keys::uniform(100_000), Keys::skewed(100_000)] {
            let result = check(&shapes, population, keys);
            assert!(result.ok, "{keys:?}: {:?}", result.failure());
        }
    }

    #[test]
    fn a_population_that_lost_rows_fails_and_says_which() {
        let population =
            Population { seed: DEFAULT_SEED, subscribers: 50_000, numbering: Numbering::Derived };
        let mut shapes = shapes(population);
        shapes.iter_mut().step_by(20).for_each(|s| *s = Shape::default());
        let failure = check(&shapes, population, Keys::uniform(50_000)).failure().unwrap();
        assert!(failure.contains("call_forwarding rows per subscriber"), "{failure}");
        assert!(failure.contains("GET_ACCESS_DATA hit rate"), "{failure}");
    }
}
