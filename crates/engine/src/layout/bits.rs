//! Bit-wise writing and reading. Lowest bit first; a reader past the end reads zeros, so damaged
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

#[derive(Clone, Copy)]
pub(super) struct BitReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> BitReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    #[inline]
    pub(super) fn skip(&mut self, bits: usize) {
        self.at += bits;
    }

    #[inline]
    pub(super) fn read(&mut self, width: u32) -> u64 {
        let (byte, shift) = (self.at >> 3, (self.at & 7) as u32);
        self.at += width as usize;
        let mut value = self.word(byte) >> shift;
        if shift + width > 64 {
            value |= u64::from(self.bytes.get(byte + 8).copied().unwrap_or(0)) << (64 - shift);
        }
        if width >= 64 { value } else { value & ((1 << width) - 1) }
    }

    /// Bytes touched so far, the last one counted whole.
    #[inline]
    pub(super) fn bytes_read(&self) -> usize {
        self.at.div_ceil(8)
    }

    #[inline]
    fn word(&self, byte: usize) -> u64 {
        match self.bytes.get(byte..byte + 8).and_then(|b| b.first_chunk()) {
            Some(chunk) => u64::from_le_bytes(*chunk),
            None => self.last_word(byte),
        }
    }

    #[cold]
    fn last_word(&self, byte: usize) -> u64 {
        let mut chunk = [0; 8];
        let rest = self.bytes.get(byte..).unwrap_or_default();
        chunk.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        u64::from_le_bytes(chunk)
    }
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
            let mut reader = BitReader::new(&bytes);
            for (value, width) in &values {
                prop_assert_eq!(reader.read(*width), cut(*value, *width));
            }
            prop_assert_eq!(reader.bytes_read(), bytes.len());
        }
    }
}
