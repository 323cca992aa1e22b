//! The seven transactions: their mix, their inputs and which subscribers they touch.
//!
//! One generator for every target, so that two runs of one seed ask the same questions.

use crate::population::{Population, START_TIMES, digits};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Kind {
    GetSubscriberData,
    GetNewDestination,
    GetAccessData,
    UpdateSubscriberData,
    UpdateLocation,
    InsertCallForwarding,
    DeleteCallForwarding,
}

impl Kind {
    pub const ALL: [Kind; 7] = [
        Kind::GetSubscriberData,
        Kind::GetNewDestination,
        Kind::GetAccessData,
        Kind::UpdateSubscriberData,
        Kind::UpdateLocation,
        Kind::InsertCallForwarding,
        Kind::DeleteCallForwarding,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::GetSubscriberData => "GET_SUBSCRIBER_DATA",
            Kind::GetNewDestination => "GET_NEW_DESTINATION",
            Kind::GetAccessData => "GET_ACCESS_DATA",
            Kind::UpdateSubscriberData => "UPDATE_SUBSCRIBER_DATA",
            Kind::UpdateLocation => "UPDATE_LOCATION",
            Kind::InsertCallForwarding => "INSERT_CALL_FORWARDING",
            Kind::DeleteCallForwarding => "DELETE_CALL_FORWARDING",
        }
    }

    /// Share of the mix, in percent.
    pub fn mix_percent(self) -> u32 {
        match self {
            Kind::GetSubscriberData | Kind::GetAccessData => 35,
            Kind::GetNewDestination => 10,
            Kind::UpdateLocation => 14,
            _ => 2,
        }
    }

    /// Share of attempts that find (or may insert) their rows, in percent.
    pub fn hit_rate_percent(self) -> f64 {
        match self {
            Kind::GetSubscriberData | Kind::UpdateLocation => 100.0,
            // 0.625 · 0.85 · mean over the three start times of the chance that a forwarding
            // started by then and ends after a uniform hour of 1..=24.
            Kind::GetNewDestination => 14.79,
            Kind::GetAccessData | Kind::UpdateSubscriberData => 62.5,
            Kind::InsertCallForwarding | Kind::DeleteCallForwarding => 31.25,
        }
    }

    pub fn reads_only(self) -> bool {
        matches!(self, Self::GetSubscriberData | Self::GetNewDestination | Self::GetAccessData)
    }

    pub fn index(self) -> usize {
        self as usize
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    GetSubscriberData {
        s_id: i64,
    },
    GetNewDestination {
        s_id: i64,
        sf_type: i16,
        start_time: i16,
        end_time: i16,
    },
    GetAccessData {
        s_id: i64,
        ai_type: i16,
    },
    UpdateSubscriberData {
        s_id: i64,
        bit_1: i16,
        sf_type: i16,
        data_a: i16,
    },
    UpdateLocation {
        sub_nbr: String,
        vlr_location: i64,
    },
    InsertCallForwarding {
        sub_nbr: String,
        sf_type: i16,
        start_time: i16,
        end_time: i16,
        numberx: String,
    },
    DeleteCallForwarding {
        sub_nbr: String,
        sf_type: i16,
        start_time: i16,
    },
}

impl Input {
    pub fn kind(&self) -> Kind {
        match self {
            Self::GetSubscriberData { .. } => Kind::GetSubscriberData,
            Self::GetNewDestination { .. } => Kind::GetNewDestination,
            Self::GetAccessData { .. } => Kind::GetAccessData,
            Self::UpdateSubscriberData { .. } => Kind::UpdateSubscriberData,
            Self::UpdateLocation { .. } => Kind::UpdateLocation,
            Self::InsertCallForwarding { .. } => Kind::InsertCallForwarding,
            Self::DeleteCallForwarding { .. } => Kind::DeleteCallForwarding,
        }
    }
}

/// Draws subscriber ids.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    pub subscribers: u64,
    /// `None`: uniform. `Some(a)`: `((U[0,a] | U[1,n]) mod n) + 1`, which favours ids with many low
    /// bits set.
    mask: Option<u64>,
    outside: Option<Outside>,
}

/// Draws that leave 1..=`subscribers` for those above, up to `last`.
#[derive(Clone, Copy, Debug)]
struct Outside {
    percent: u32,
    last: u64,
}

impl Keys {
    pub fn uniform(subscribers: u64) -> Self {
        Self { subscribers, mask: None, outside: None }
    }

    pub fn skewed(subscribers: u64) -> Self {
        let mask = match subscribers {
            0..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        };
        Self { subscribers, mask: Some(mask), outside: None }
    }

    /// Of a hundred draws, so many are uniform above `subscribers`, up to `last`.
    #[must_use]
    pub fn with_outside(mut self, percent: u32, last: u64) -> Self {
        self.outside =
            (percent > 0 && last > self.subscribers).then_some(Outside { percent, last });
        self
    }

    pub fn draw(&self, rng: &mut ChaCha8Rng) -> u64 {
        if let Some(outside) = self.outside
            && rng.random_range(0..100) < outside.percent
        {
            return rng.random_range(self.subscribers + 1..=outside.last);
        }
        let uniform = rng.random_range(1..=self.subscribers);
        match self.mask {
            None => uniform,
            Some(mask) => ((rng.random_range(0..=mask) | uniform) % self.subscribers) + 1,
        }
    }
}

/// One client's endless stream of inputs.
#[derive(Clone, Debug)]
pub struct Traffic {
    rng: ChaCha8Rng,
    keys: Keys,
    population: Population,
}

impl Traffic {
    /// `stream` tells clients of one seed apart.
    pub fn new(population: Population, keys: Keys, seed: u64, stream: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x7261_6666_6963);
        rng.set_stream(stream);
        Self { rng, keys, population }
    }

    pub fn next_kind(&mut self) -> Kind {
        let mut left = self.rng.random_range(0..100_u32);
        for kind in Kind::ALL {
            match left.checked_sub(kind.mix_percent()) {
                Some(rest) => left = rest,
                None => return kind,
            }
        }
        Kind::GetSubscriberData
    }

    /// An input, and the subscriber it touches.
    ///
    /// An inserted forwarding lasts 1..=8 hours like the loaded ones, so that the hit rates of the
    /// reads do not drift while the mix runs.
    pub fn next_input(&mut self, kind: Kind) -> (u64, Input) {
        let id = self.keys.draw(&mut self.rng);
        let s_id = id as i64;
        let rng = &mut self.rng;
        let input = match kind {
            Kind::GetSubscriberData => Input::GetSubscriberData { s_id },
            Kind::GetNewDestination => Input::GetNewDestination {
                s_id,
                sf_type: rng.random_range(1..=4),
                start_time: start_time(rng),
                end_time: rng.random_range(1..=24),
            },
            Kind::GetAccessData => Input::GetAccessData { s_id, ai_type: rng.random_range(1..=4) },
            Kind::UpdateSubscriberData => Input::UpdateSubscriberData {
                s_id,
                bit_1: rng.random_range(0..=1),
                sf_type: rng.random_range(1..=4),
                data_a: rng.random_range(0..=255),
            },
            Kind::UpdateLocation => Input::UpdateLocation {
                sub_nbr: self.population.sub_nbr(id),
                vlr_location: i64::from(rng.random::<u32>()),
            },
            Kind::InsertCallForwarding => {
                let start_time = start_time(rng);
                Input::InsertCallForwarding {
                    sub_nbr: self.population.sub_nbr(id),
                    sf_type: rng.random_range(1..=4),
                    start_time,
                    end_time: start_time + rng.random_range(1..=8),
                    numberx: digits(rng),
                }
            }
            Kind::DeleteCallForwarding => Input::DeleteCallForwarding {
                sub_nbr: self.population.sub_nbr(id),
                sf_type: rng.random_range(1..=4),
                start_time: start_time(rng),
            },
        };
        (id, input)
    }
}

fn start_time(rng: &mut ChaCha8Rng) -> i16 {
    START_TIMES.get(rng.random_range(0..START_TIMES.len())).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::population::numbering::Numbering;

    #[test]
    fn the_mix_is_the_published_one() {
        assert_eq!(Kind::ALL.iter().map(|k| k.mix_percent()).sum::<u32>(), 100);
        let population = Population { seed: 1, subscribers: 100, numbering: Numbering::Derived };
        let mut traffic = Traffic::new(population, Keys::uniform(100), 1, 0);
        let mut counts = [0_i32; 7];
        for _ in 0..100_000 {
            counts[traffic.next_kind().index()] += 1;
        }
        for kind in Kind::ALL {
            let expected = kind.mix_percent() as i32 * 1_000;
            assert!((counts[kind.index()] - expected).abs() < 700, "{kind:?} {counts:?}");
        }
    }

    #[test]
    fn the_asked_share_of_draws_goes_outside_and_not_further_than_asked() {
        let keys = Keys::skewed(72_000).with_outside(5, 100_000);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let drawn: Vec<u64> = (0..20_000).map(|_| keys.draw(&mut rng)).collect();
        let outside = drawn.iter().filter(|k| **k > 72_000).count();
        assert!((850..1_150).contains(&outside), "{outside}");
        assert!(drawn.iter().all(|k| (1..=100_000).contains(k)));
    }

    #[test]
    fn skewed_keys_stay_inside_the_population_and_favour_set_low_bits() {
        let keys = Keys::skewed(100_000);
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let drawn: Vec<u64> = (0..20_000).map(|_| keys.draw(&mut rng)).collect();
        assert!(drawn.iter().all(|k| (1..=100_000).contains(k)));
        // Id minus one carries the bits: three of four low bits are set.
        let odd = drawn.iter().filter(|k| (*k - 1) % 2 == 1).count();
        assert!((14_500..15_500).contains(&odd), "{odd}");
    }
}
