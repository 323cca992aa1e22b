//! Texts and byte strings, packed by their alphabet.
//!
//! One header byte per value, or per column when all rows agree: alphabet and length in
//! characters. Digits take 3.3 bits each, capitals 4.7, numbers and dates 4, all else its bytes.

use super::ascii::as_text;
use super::bits::word;
use smallvec::SmallVec;

const RAW: u8 = 0;
const DIGITS: u8 = 1;
const CAPITALS: u8 = 2;
const NIBBLES: u8 = 3;

/// Lengths below this stand in the header; this value says that a varint follows.
const LONG: usize = 62;
/// Header that says: each row has its own.
const MIXED: u8 = 0xff;

const NIBBLE_ALPHABET: &[u8; 16] = b"0123456789.-+: e";

/// Per byte, a bit for each packed alphabet that has it.
const ALPHABETS: [u8; 256] = {
    let mut alphabets = [0; 256];
    let mut byte = 0;
    #[allow(clippy::indexing_slicing, reason = "evaluated at compile time")]
    while byte < 256 {
        let letter = byte as u8;
        alphabets[byte] = (letter.is_ascii_digit() as u8) << DIGITS
            | (letter.is_ascii_uppercase() as u8) << CAPITALS;
        byte += 1;
    }
    let mut code = 0;
    #[allow(clippy::indexing_slicing, reason = "evaluated at compile time")]
    while code < NIBBLE_ALPHABET.len() {
        alphabets[NIBBLE_ALPHABET[code] as usize] |= 1 << NIBBLES;
        code += 1;
    }
    alphabets
};

/// Digits per block, and bytes of a block of n digits.
const DIGIT_BLOCK: usize = 18;
const DIGIT_BYTES: [usize; DIGIT_BLOCK + 1] =
    [0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 8];
const CAPITAL_BLOCK: usize = 13;
const CAPITAL_BYTES: [usize; CAPITAL_BLOCK + 1] = [0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6, 7, 8, 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    length: u32,
    alphabet: u8,
}

impl Header {
    fn of(bytes: &[u8]) -> Self {
        // the packed alphabets that have all of the bytes, one bit each
        let fits = bytes.iter().fold(u8::MAX, |fits, byte| {
            fits & ALPHABETS.get(usize::from(*byte)).copied().unwrap_or(0)
        });
        let alphabet = match fits {
            _ if bytes.is_empty() => RAW,
            _ if fits & 1 << DIGITS != 0 => DIGITS,
            _ if fits & 1 << CAPITALS != 0 => CAPITALS,
            _ if fits & 1 << NIBBLES != 0 => NIBBLES,
            _ => RAW,
        };
        Self { alphabet, length: bytes.len() as u32 }
    }

    fn write(self, out: &mut Vec<u8>) {
        let length = self.length as usize;
        out.push(self.alphabet << 6 | length.min(LONG) as u8);
        if length >= LONG {
            let mut rest = length - LONG;
            while rest >= 0x80 {
                out.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            out.push(rest as u8);
        }
    }

    /// The header at byte `at`, and how long it is.
    #[inline]
    fn read(bytes: &[u8], at: usize) -> (Self, usize) {
        let first = bytes.get(at).copied().unwrap_or(0);
        let short = usize::from(first & 0x3f);
        if short < LONG {
            return (Self { alphabet: first >> 6, length: short as u32 }, 1);
        }
        let (mut length, mut read) = (LONG, 1);
        for shift in (0..35).step_by(7) {
            let byte = bytes.get(at + read).copied().unwrap_or(0);
            read += 1;
            length += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        (Self { alphabet: first >> 6, length: length as u32 }, read)
    }

    /// Bytes of the packed value.
    #[inline]
    fn payload(self) -> usize {
        let length = self.length as usize;
        let blocks = |block: usize, table: &[usize]| {
            let (whole, rest) = (length / block, length % block);
            whole * table.last().copied().unwrap_or(0) + table.get(rest).copied().unwrap_or(0)
        };
        match self.alphabet {
            DIGITS => blocks(DIGIT_BLOCK, &DIGIT_BYTES),
            CAPITALS => blocks(CAPITAL_BLOCK, &CAPITAL_BYTES),
            NIBBLES => length.div_ceil(2),
            _ => length,
        }
    }
}

/// Writes one column: the values of its rows that are not NULL.
pub(super) fn write_column(out: &mut Vec<u8>, values: &[&[u8]]) {
    let headers: SmallVec<[Header; 8]> = values.iter().map(|value| Header::of(value)).collect();
    let Some((first, rest)) = headers.split_first() else { return };
    let uniform = rest.iter().all(|header| header == first);
    if uniform {
        first.write(out);
    } else {
        out.push(MIXED);
    }
    for (value, header) in values.iter().zip(&headers) {
        if !uniform {
            header.write(out);
        }
        pack(out, *header, value);
    }
}

fn pack(out: &mut Vec<u8>, header: Header, bytes: &[u8]) {
    match header.alphabet {
        DIGITS => pack_blocks(out, bytes, DIGIT_BLOCK, &DIGIT_BYTES, 10, b'0'),
        CAPITALS => pack_blocks(out, bytes, CAPITAL_BLOCK, &CAPITAL_BYTES, 26, b'A'),
        NIBBLES => {
            let code = |b: &u8| NIBBLE_ALPHABET.iter().position(|a| a == b).unwrap_or(0) as u8;
            out.extend(bytes.chunks(2).map(|pair| match pair {
                [a, b] => code(a) | code(b) << 4,
                [a] => code(a),
                _ => 0,
            }));
        }
        _ => out.extend_from_slice(bytes),
    }
}

fn pack_blocks(
    out: &mut Vec<u8>,
    bytes: &[u8],
    block: usize,
    sizes: &[usize],
    base: u64,
    zero: u8,
) {
    for chunk in bytes.chunks(block) {
        let number = chunk.iter().fold(0_u64, |n, b| n * base + u64::from(b - zero));
        let size = sizes.get(chunk.len()).copied().unwrap_or(8);
        out.extend(number.to_le_bytes().iter().take(size));
    }
}

/// Where the values of one column stand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TextSpan {
    /// The first value; its header when each has its own.
    at: u32,
    /// The common header, and the packed size that follows from it.
    uniform: Option<(Header, u32)>,
}

impl TextSpan {
    /// The column that begins at byte `at`; call only when at least one row has a value.
    #[inline]
    pub(super) fn begin(bytes: &[u8], at: usize) -> Self {
        if bytes.get(at) == Some(&MIXED) {
            return Self { at: at as u32 + 1, uniform: None };
        }
        let (header, length) = Header::read(bytes, at);
        Self { at: (at + length) as u32, uniform: Some((header, header.payload() as u32)) }
    }

    /// Values of this many bytes each without any header.
    pub(super) fn bare(at: usize, size: usize) -> Self {
        let header = Header { alphabet: RAW, length: size as u32 };
        Self { at: at as u32, uniform: Some((header, size as u32)) }
    }

    /// The byte after so many values; at most the end of the bytes.
    #[inline]
    pub(super) fn end(self, bytes: &[u8], values: usize) -> usize {
        self.advance(bytes, self.at as usize, values).min(bytes.len())
    }

    /// Where the first value begins.
    #[inline]
    pub(super) fn start(self) -> usize {
        self.at as usize
    }

    /// Where the value begins that stands `values` after the one at `at`.
    #[inline]
    pub(super) fn advance(self, bytes: &[u8], mut at: usize, values: usize) -> usize {
        if let Some((_, payload)) = self.uniform {
            return at + payload as usize * values;
        }
        for _ in 0..values {
            let (header, length) = Header::read(bytes, at);
            at = (at + length + header.payload()).min(bytes.len());
        }
        at
    }

    /// The value that begins at `at`.
    #[inline]
    pub(super) fn value(self, bytes: &[u8], at: usize) -> Packed<'_> {
        let (header, at, payload) = match self.uniform {
            Some((header, payload)) => (header, at, payload as usize),
            None => {
                let (header, length) = Header::read(bytes, at);
                (header, at + length, header.payload())
            }
        };
        let bytes = bytes.get(at..).unwrap_or_default();
        if bytes.len() < payload {
            let header = Header { alphabet: RAW, length: 0 };
            return Packed { header, payload: 0, at, bytes };
        }
        Packed { header, payload, at, bytes }
    }
}

/// One packed value.
#[derive(Clone, Copy)]
pub(super) struct Packed<'a> {
    header: Header,
    payload: usize,
    /// Where it begins.
    at: usize,
    /// From its first byte on, with what follows it.
    bytes: &'a [u8],
}

/// Room to unpack a text into, reused from value to value.
#[derive(Debug)]
pub(crate) struct Scratch {
    small: [u8; SMALL],
    large: Vec<u8>,
}

const SMALL: usize = 64;

impl Scratch {
    #[inline]
    pub(crate) fn new() -> Self {
        Self { small: [0; SMALL], large: Vec::new() }
    }

    /// So many bytes, with anything in them.
    #[inline]
    fn room(&mut self, length: usize) -> &mut [u8] {
        if length > SMALL {
            self.large.resize(length, 0);
        }
        let all = if length > SMALL { self.large.as_mut_slice() } else { &mut self.small };
        all.get_mut(..length).unwrap_or_default()
    }
}

impl<'a> Packed<'a> {
    /// As it lies there.
    #[inline]
    pub(super) fn raw(self) -> &'a [u8] {
        self.bytes.get(..self.payload).unwrap_or_default()
    }

    /// Where it lies.
    pub(super) fn start(self) -> usize {
        self.at
    }

    pub(super) fn bytes<'s>(self, scratch: &'s mut Scratch) -> &'s [u8]
    where
        'a: 's,
    {
        if self.header.alphabet == RAW { self.raw() } else { self.unpack(0, scratch).as_bytes() }
    }

    /// The text where it lies, or unpacked into `scratch`.
    #[inline]
    pub(super) fn text<'s>(self, scratch: &'s mut Scratch) -> &'s str
    where
        'a: 's,
    {
        if self.header.alphabet == RAW {
            return std::str::from_utf8(self.raw()).unwrap_or_default();
        }
        self.unpack(0, scratch)
    }

    /// The text with spaces up to `length` characters.
    pub(super) fn padded<'s>(self, length: usize, scratch: &'s mut Scratch) -> &'s str
    where
        'a: 's,
    {
        if self.header.alphabet != RAW {
            return self.unpack(length, scratch);
        }
        let text = std::str::from_utf8(self.raw()).unwrap_or_default();
        let missing = length.saturating_sub(text.chars().count());
        let padded = scratch.room(text.len() + missing);
        if let Some((to, padding)) = padded.split_at_mut_checked(text.len()) {
            to.copy_from_slice(text.as_bytes());
            padding.fill(b' ');
        }
        std::str::from_utf8(padded).unwrap_or_default()
    }

    /// A text of a packed alphabet; spaces follow up to `width`.
    fn unpack(self, width: usize, scratch: &mut Scratch) -> &str {
        let (length, packed) = (self.header.length as usize, self.bytes);
        let all = scratch.room(length.max(width));
        let Some((letters, padding)) = all.split_at_mut_checked(length) else { return "" };
        padding.fill(b' ');
        match self.header.alphabet {
            DIGITS => {
                for (number, digits) in letters.chunks_mut(DIGIT_BLOCK).enumerate() {
                    let size = DIGIT_BYTES.get(digits.len()).copied().unwrap_or(8);
                    write_digits(block_at(packed, number * 8, size), digits);
                }
            }
            CAPITALS => {
                for (number, letters) in letters.chunks_mut(CAPITAL_BLOCK).enumerate() {
                    let size = CAPITAL_BYTES.get(letters.len()).copied().unwrap_or(8);
                    let mut block = block_at(packed, number * 8, size);
                    for letter in letters.iter_mut().rev() {
                        *letter = b'A' + (block % 26) as u8;
                        block /= 26;
                    }
                }
            }
            _ => {
                for (at, letter) in letters.iter_mut().enumerate() {
                    let both = packed.get(at / 2).copied().unwrap_or(0);
                    let code = if at % 2 == 0 { both & 15 } else { both >> 4 };
                    *letter = NIBBLE_ALPHABET.get(usize::from(code)).copied().unwrap_or(b'0');
                }
            }
        }
        as_text(all)
    }

    /// `text` packed to be written over this value; `None` when it takes another form.
    pub(super) fn patch(self, text: &[u8]) -> Option<Vec<u8>> {
        let header = Header::of(text);
        if header != self.header {
            return None;
        }
        let mut out = Vec::with_capacity(self.payload);
        pack(&mut out, header, text);
        Some(out)
    }
}

/// Up to eight bytes of one block as a number; every block but the last takes eight.
#[inline]
fn block_at(packed: &[u8], at: usize, size: usize) -> u64 {
    let block = word(packed, at);
    if size >= 8 { block } else { block & ((1 << (size * 8)) - 1) }
}

/// Two digits at a time, from the end.
#[inline]
fn write_digits(mut number: u64, digits: &mut [u8]) {
    const PAIRS: [[u8; 2]; 100] = {
        let mut pairs = [[b'0'; 2]; 100];
        let mut n = 0;
        #[allow(clippy::indexing_slicing, reason = "evaluated at compile time")]
        while n < 100 {
            pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
            n += 1;
        }
        pairs
    };
    let mut pairs = digits.rchunks_exact_mut(2);
    for pair in pairs.by_ref() {
        if let (Some(digits), [high, low]) = (PAIRS.get((number % 100) as usize), pair) {
            [*high, *low] = *digits;
        }
        number /= 100;
    }
    if let [first] = pairs.into_remainder() {
        *first = b'0' + (number % 10) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(values: &[&[u8]]) -> usize {
        let mut bytes = Vec::new();
        write_column(&mut bytes, values);
        bytes.push(0xaa);
        let span = TextSpan::begin(&bytes, 0);
        for (index, value) in values.iter().enumerate() {
            let packed = span.value(&bytes, span.advance(&bytes, span.start(), index));
            assert_eq!(packed.bytes(&mut Scratch::new()), *value);
            assert_eq!(packed.patch(value).unwrap().as_slice(), packed.raw());
        }
        assert_eq!(span.end(&bytes, values.len()), bytes.len() - 1);
        bytes.len() - 1
    }

    proptest! {
        #[test]
        fn columns_round_trip(values in prop::collection::vec(
            prop_oneof!["[0-9]{0,70}", "[A-Z]{0,70}", "[0-9.:-]{0,9}", ".{0,80}"], 1..5,
        )) {
            round_trip(&values.iter().map(String::as_bytes).collect::<Vec<_>>());
        }
    }

    #[test]
    fn numbers_and_capitals_take_their_information() {
        assert_eq!(round_trip(&[b"000000000000042"]), 8);
        assert_eq!(round_trip(&[b"ABC", b"XYZ", b"ZZZ"]), 7);
        assert_eq!(round_trip(&[b"999999999999999999", b""]), 11);
        for n in 0..40 {
            round_trip(&["9".repeat(n).as_bytes(), "Z".repeat(n).as_bytes()]);
        }
    }
}
