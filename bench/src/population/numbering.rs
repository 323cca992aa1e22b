//! How a subscriber's number follows from its id.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Numbering {
    /// The id, zero-padded to fifteen digits.
    #[default]
    Derived,
    /// A seeded permutation of all fifteen-digit numbers: unique, and not derivable from the id
    /// without the seed.
    Permuted,
}

const NUMBERS: u64 = 1_000_000_000_000_000;
const HALF_BITS: u32 = 25;
const HALF_MASK: u64 = (1 << HALF_BITS) - 1;
const ROUNDS: u64 = 6;

impl Numbering {
    pub fn sub_nbr(self, seed: u64, s_id: u64) -> String {
        match self {
            Self::Derived => format!("{s_id:015}"),
            Self::Permuted => format!("{:015}", permute(seed, s_id)),
        }
    }
}

/// A bijection on `0..10^15`: a Feistel network over 50 bits, walked until it lands inside. The
/// walk ends because the network is a bijection and the start lies inside; 2^50 is only an eighth
/// larger, so that it is 1.13 steps long on average.
fn permute(seed: u64, id: u64) -> u64 {
    let mut number = id % NUMBERS;
    loop {
        number = feistel(seed, number);
        if number < NUMBERS {
            return number;
        }
    }
}

fn feistel(seed: u64, number: u64) -> u64 {
    let (mut left, mut right) = (number >> HALF_BITS, number & HALF_MASK);
    for round in 0..ROUNDS {
        (left, right) = (right, left ^ (mix(seed, round, right) & HALF_MASK));
    }
    left << HALF_BITS | right
}

/// The finaliser of SplitMix64 over seed, round and half.
fn mix(seed: u64, round: u64, half: u64) -> u64 {
    let mut z = seed
        .wrapping_add(round.wrapping_mul(0x9e37_79b9_7f4a_7c15))
        .wrapping_add(half.wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn both_kinds_give_distinct_fifteen_digit_numbers() {
        assert_eq!(Numbering::Derived.sub_nbr(9, 42), "000000000000042");
        let numbers: BTreeSet<String> =
            (1..=50_000).map(|id| Numbering::Permuted.sub_nbr(9, id)).collect();
        assert_eq!(numbers.len(), 50_000);
        assert!(numbers.iter().all(|n| n.len() == 15));
        assert_ne!(Numbering::Permuted.sub_nbr(9, 1), Numbering::Permuted.sub_nbr(10, 1));
    }
}
