//! The position type of the journal.
//!
//! Owns the packing of generation and counter into one number and its total order. Never does
//! arithmetic across generations: two positions can be compared, not subtracted.

use std::fmt;

/// Bits of a sequence that count frames within one generation.
pub const COUNTER_BITS: u32 = 44;
/// The largest counter: at a million frames a second, 203 days without a restart.
pub const COUNTER_MAX: u64 = (1 << COUNTER_BITS) - 1;
/// The largest generation. 19 bits, so that every sequence also fits a signed 64-bit column.
pub const GENERATION_MAX: u32 = (1 << 19) - 1;

/// A position in the journal: the generation (one per process start) in the high 20 bits, the
/// frame counter within it in the low 44. Ordered as the number is. Zero is before everything.
///
/// A generation is never reused, so a frame that a power cut took back and the frame written in
/// its place later never share a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(u64);

impl Sequence {
    /// Before the first frame of any journal.
    pub const ZERO: Self = Self(0);
    /// After every frame that can exist.
    pub const MAX: Self = Self(((GENERATION_MAX as u64) << COUNTER_BITS) | COUNTER_MAX);

    /// Packs generation and counter; bits beyond the two limits are cut off.
    pub const fn new(generation: u32, counter: u64) -> Self {
        let generation = (generation & GENERATION_MAX) as u64;
        Self((generation << COUNTER_BITS) | (counter & COUNTER_MAX))
    }

    /// The number as stored in files and in the backend.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number as a signed 64-bit column holds it; never negative.
    pub const fn as_i64(self) -> i64 {
        self.0 as i64
    }

    /// Reads a stored number back; `None` if no journal can have given it out.
    pub const fn from_stored(value: u64) -> Option<Self> {
        if value <= Self::MAX.0 { Some(Self(value)) } else { None }
    }

    /// Reads a signed 64-bit column back; `None` if no journal can have given it out.
    pub const fn from_i64(value: i64) -> Option<Self> {
        if value < 0 { None } else { Self::from_stored(value as u64) }
    }

    /// Which process start gave it out; 0 only for [`Sequence::ZERO`].
    pub const fn generation(self) -> u32 {
        (self.0 >> COUNTER_BITS) as u32
    }

    /// Which frame of its generation it is, from 1.
    pub const fn counter(self) -> u64 {
        self.0 & COUNTER_MAX
    }

    /// The one after it in the same generation; `None` when the counter is used up.
    pub const fn next(self) -> Option<Self> {
        if self.counter() == COUNTER_MAX { None } else { Some(Self(self.0 + 1)) }
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation(), self.counter())
    }
}

impl From<Sequence> for u64 {
    fn from(sequence: Sequence) -> Self {
        sequence.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_generation_is_after_every_frame_of_an_earlier_one() {
        assert!(Sequence::new(2, 1) > Sequence::new(1, COUNTER_MAX));
        assert!(Sequence::new(1, 1) > Sequence::ZERO);
        assert_eq!(Sequence::new(1, COUNTER_MAX).next(), None);
    }

    #[test]
    fn every_sequence_survives_a_signed_column() {
        for sequence in [Sequence::ZERO, Sequence::new(1, 1), Sequence::MAX] {
            assert_eq!(Sequence::from_i64(sequence.as_i64()), Some(sequence));
        }
        assert_eq!(Sequence::from_i64(-1), None);
        assert_eq!(Sequence::from_stored(u64::MAX), None);
    }
}
