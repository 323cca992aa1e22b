//! The HLR population: what each subscriber's rows hold.
//!
//! Owns the generator. Every subscriber is computed from the seed and its id alone, so that any
//! part of a population can be produced, checked or compared without the rest. Must never talk to
//! a database: loading is `load`, checking is `self_check`.

pub mod copy;
pub mod numbering;
pub mod tables;

use numbering::Numbering;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Default seed: one whose populations stay within the self-check's half point also on the hot
/// keys of the non-uniform distribution (a test holds it to that).
pub const DEFAULT_SEED: u64 = 43;

/// First hours at which a forwarding may start.
pub const START_TIMES: [i16; 3] = [0, 8, 16];

#[derive(Clone, Copy, Debug)]
pub struct Population {
    pub seed: u64,
    /// Ids run from 1 to this.
    pub subscribers: u64,
    pub numbering: Numbering,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Subscriber {
    pub s_id: i64,
    pub sub_nbr: String,
    pub bits: [i16; 10],
    pub hexes: [i16; 10],
    pub bytes: [i16; 10],
    /// Any unsigned 32-bit value.
    pub msc_location: i64,
    pub vlr_location: i64,
    pub access: Vec<AccessInfo>,
    pub facilities: Vec<Facility>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct AccessInfo {
    pub ai_type: i16,
    pub data1: i16,
    pub data2: i16,
    pub data3: String,
    pub data4: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Facility {
    pub sf_type: i16,
    pub is_active: bool,
    pub error_cntrl: i16,
    pub data_a: i16,
    pub data_b: String,
    pub forwardings: Vec<Forwarding>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Forwarding {
    pub start_time: i16,
    pub end_time: i16,
    pub numberx: String,
}

impl Population {
    pub fn sub_nbr(&self, s_id: u64) -> String {
        self.numbering.sub_nbr(self.seed, s_id)
    }

    pub fn subscriber(&self, s_id: u64) -> Subscriber {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(s_id);
        let rng = &mut rng;
        Subscriber {
            s_id: s_id as i64,
            sub_nbr: self.sub_nbr(s_id),
            bits: std::array::from_fn(|_| rng.random_range(0..=1)),
            hexes: std::array::from_fn(|_| rng.random_range(0..=15)),
            bytes: std::array::from_fn(|_| rng.random_range(0..=255)),
            msc_location: i64::from(rng.random::<u32>()),
            vlr_location: i64::from(rng.random::<u32>()),
            access: types(rng).map(|t| access_info(rng, t)).collect(),
            facilities: types(rng).map(|t| facility(rng, t)).collect(),
        }
    }
}

/// One to four distinct types of 1..=4, ascending.
fn types(rng: &mut ChaCha8Rng) -> impl Iterator<Item = i16> + use<> {
    let wanted = rng.random_range(1..=4);
    choose(rng, [1, 2, 3, 4], wanted).into_iter()
}

/// `wanted` distinct members of `from`, in their order there.
fn choose<const N: usize>(rng: &mut ChaCha8Rng, from: [i16; N], wanted: usize) -> Vec<i16> {
    let mut left = wanted;
    let mut chosen = Vec::with_capacity(wanted);
    for (position, value) in from.into_iter().enumerate() {
        if rng.random_range(0..N - position) < left {
            chosen.push(value);
            left -= 1;
        }
    }
    chosen
}

fn access_info(rng: &mut ChaCha8Rng, ai_type: i16) -> AccessInfo {
    AccessInfo {
        ai_type,
        data1: rng.random_range(0..=255),
        data2: rng.random_range(0..=255),
        data3: letters(rng, 3),
        data4: letters(rng, 5),
    }
}

fn facility(rng: &mut ChaCha8Rng, sf_type: i16) -> Facility {
    let is_active = rng.random_range(0..100) < 85;
    let error_cntrl = rng.random_range(0..=255);
    let data_a = rng.random_range(0..=255);
    let data_b = letters(rng, 5);
    let wanted = rng.random_range(0..=3);
    let starts = choose(rng, START_TIMES, wanted);
    let forwardings = starts
        .into_iter()
        .map(|start_time| Forwarding {
            start_time,
            end_time: start_time + rng.random_range(1..=8),
            numberx: digits(rng),
        })
        .collect();
    Facility { sf_type, is_active, error_cntrl, data_a, data_b, forwardings }
}

fn letters(rng: &mut ChaCha8Rng, length: usize) -> String {
    (0..length).map(|_| char::from(rng.random_range(b'A'..=b'Z'))).collect()
}

/// A telephone number of fifteen digits.
pub fn digits(rng: &mut ChaCha8Rng) -> String {
    format!("{:015}", rng.random_range(0..1_000_000_000_000_000_u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscriber_depends_on_its_seed_and_id_alone() {
        let small = Population { seed: 7, subscribers: 10, numbering: Numbering::Derived };
        let large = Population { subscribers: 1_000_000, ..small };
        assert_eq!(small.subscriber(3), large.subscriber(3));
        assert_ne!(small.subscriber(3).bytes, small.subscriber(4).bytes);
        assert_ne!(small.subscriber(3), Population { seed: 8, ..small }.subscriber(3));
    }

    #[test]
    fn generated_rows_stay_in_their_domains() {
        let population = Population { seed: 1, subscribers: 500, numbering: Numbering::Permuted };
        for s_id in 1..=500 {
            let s = population.subscriber(s_id);
            assert!(s.sub_nbr.len() == 15 && s.sub_nbr.bytes().all(|b| b.is_ascii_digit()));
            assert!((1..=4).contains(&s.access.len()) && (1..=4).contains(&s.facilities.len()));
            assert!(s.access.is_sorted_by(|a, b| a.ai_type < b.ai_type));
            assert!(s.facilities.is_sorted_by(|a, b| a.sf_type < b.sf_type));
            for f in s.facilities.iter().flat_map(|f| &f.forwardings) {
                assert!(START_TIMES.contains(&f.start_time));
                assert!((1..=8).contains(&(f.end_time - f.start_time)));
            }
        }
    }
}
