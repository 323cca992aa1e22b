//! Bit-wise writing and reading. Lowest bit first; reading past the end gives zeros, so damaged
//! bytes decode to wrong values but never panic.

pub(super) struct BitWriter<'a> {
    out: &'a mut Vec<u8>,
    pending: u64,
    used: u32,
}

impl<'a> BitWriter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self { out, pending: 0, used: 0 }
    }

    /// Appends the lowest `width` (0..=64) bits of `value`; the others must be zero.
    pub(super) fn push(&mut self, value: u64, width: u32) {
        if width == 0 {
            return;
        }
        self.pending |= value << self.used;
        let total = self.used + width;
        if total < 64 {
            self.used = total;
            return;
        }
        self.out.extend_from_slice(&self.pending.to_le_bytes());
        let written = 64 - self.used;
        self.pending = if written == 64 { 0 } else { value >> written };
        self.used = total - 64;
    }

    /// Pads to a whole byte.
    pub(super) fn finish(self) {
        let bytes = self.used.div_ceil(8) as usize;
        self.out.extend(self.pending.to_le_bytes().iter().take(bytes));
    }
}

/// The bits from bit `at` on: at least 57 of them, zeros past the end.
#[inline]
pub(super) fn word_at(bytes: &[u8], at: usize) -> u64 {
    word(bytes, at >> 3) >> (at & 7)
}

/// `width` (0..=64) bits from bit `at` on.
#[inline]
pub(super) fn read_at(bytes: &[u8], at: usize, width: u32) -> u64 {
    let mut value = word_at(bytes, at);
    let shift = (at & 7) as u32;
    if shift + width > 64 {
        value |= u64::from(bytes.get((at >> 3) + 8).copied().unwrap_or(0)) << (64 - shift);
    }
    if width >= 64 { value } else { value & ((1 << width) - 1) }
}

/// Overwrites `width` (0..=64) bits from bit `at` on; `value` has no others set.
pub(super) fn write_at(bytes: &mut [u8], at: usize, width: u32, value: u64) {
    let (mut at, mut left, mut value) = (at, width, value);
    while left > 0 {
        let (shift, Some(byte)) = ((at & 7) as u32, bytes.get_mut(at >> 3)) else { return };
        let here = left.min(8 - shift);
        let mask = ((1_u16 << here) - 1) as u8;
        *byte = *byte & !(mask << shift) | (value as u8 & mask) << shift;
        at += here as usize;
        left -= here;
        value = value.checked_shr(here).unwrap_or(0);
    }
}

/// Eight bytes from `at` on as a number; zeros past the end.
#[inline]
pub(super) fn word(bytes: &[u8], at: usize) -> u64 {
    match bytes.get(at..).and_then(|b| b.first_chunk()) {
        Some(chunk) => u64::from_le_bytes(*chunk),
        None => last_word(bytes, at),
    }
}

#[cold]
fn last_word(bytes: &[u8], at: usize) -> u64 {
    let mut chunk = [0; 8];
    let rest = bytes.get(at..).unwrap_or_default();
    chunk.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    u64::from_le_bytes(chunk)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_round_trip(values in prop::collection::vec((any::<u64>(), 0_u32..=64), 0..40)) {
            let cut = |v: u64, w: u32| if w == 64 { v } else { v & ((1 << w) - 1) };
            let mut bytes = Vec::new();
            let mut writer = BitWriter::new(&mut bytes);
            values.iter().for_each(|(v, w)| writer.push(cut(*v, *w), *w));
            writer.finish();
            let mut at = 0;
            for (value, width) in &values {
                prop_assert_eq!(read_at(&bytes, at, *width), cut(*value, *width));
                at += *width as usize;
            }
            prop_assert_eq!(at.div_ceil(8), bytes.len());
            at = 0;
            let mut patched = vec![0xff; bytes.len()];
            for (value, width) in &values {
                write_at(&mut patched, at, *width, cut(*value, *width));
                at += *width as usize;
            }
            write_at(&mut patched, at, (bytes.len() * 8 - at) as u32, 0);
            prop_assert_eq!(patched, bytes);
        }
    }
}
