//! Texts and byte strings, packed by their alphabet.
//!
//! One header byte per value, or per column when all rows agree: alphabet and length in
//! characters. Digits take 3.3 bits each, capitals 4.7, numbers and dates 4, all else its bytes.

const RAW: u8 = 0;
const DIGITS: u8 = 1;
const CAPITALS: u8 = 2;
const NIBBLES: u8 = 3;

/// Lengths below this stand in the header; this value says that a varint follows.
const LONG: usize = 62;
/// Header that says: each row has its own.
const MIXED: u8 = 0xff;

const NIBBLE_ALPHABET: &[u8; 16] = b"0123456789.-+: e";

/// Digits per block, and bytes of a block of n digits.
const DIGIT_BLOCK: usize = 18;
const DIGIT_BYTES: [usize; DIGIT_BLOCK + 1] =
    [0, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5, 5, 6, 6, 7, 7, 8, 8];
const CAPITAL_BLOCK: usize = 13;
const CAPITAL_BYTES: [usize; CAPITAL_BLOCK + 1] = [0, 1, 2, 2, 3, 3, 4, 5, 5, 6, 6, 7, 8, 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    alphabet: u8,
    length: usize,
}

impl Header {
    fn of(bytes: &[u8]) -> Self {
        let all = |test: fn(&u8) -> bool| bytes.iter().all(test);
        let alphabet = if bytes.is_empty() {
            RAW
        } else if all(u8::is_ascii_digit) {
            DIGITS
        } else if all(u8::is_ascii_uppercase) {
            CAPITALS
        } else if all(|b| NIBBLE_ALPHABET.contains(b)) {
            NIBBLES
        } else {
            RAW
        };
        Self { alphabet, length: bytes.len() }
    }

    fn write(self, out: &mut Vec<u8>) {
        out.push(self.alphabet << 6 | self.length.min(LONG) as u8);
        if self.length >= LONG {
            let mut rest = (self.length - LONG) as u64;
            while rest >= 0x80 {
                out.push(rest as u8 | 0x80);
                rest >>= 7;
            }
            out.push(rest as u8);
        }
    }

    /// Bytes of the packed value.
    #[inline]
    fn payload(self) -> usize {
        let blocks = |block: usize, table: &[usize]| {
            let (whole, rest) = (self.length / block, self.length % block);
            whole * table.last().copied().unwrap_or(0) + table.get(rest).copied().unwrap_or(0)
        };
        match self.alphabet {
            DIGITS => blocks(DIGIT_BLOCK, &DIGIT_BYTES),
            CAPITALS => blocks(CAPITAL_BLOCK, &CAPITAL_BYTES),
            NIBBLES => self.length.div_ceil(2),
            _ => self.length,
        }
    }
}

/// Writes one column: the values of its rows that are not NULL.
pub(super) fn write_column(out: &mut Vec<u8>, values: &[&[u8]]) {
    let Some((first, rest)) = values.split_first() else { return };
    let header = Header::of(first);
    let uniform = rest.iter().all(|v| Header::of(v) == header);
    if uniform {
        header.write(out);
    } else {
        out.push(MIXED);
    }
    for value in values {
        let header = Header::of(value);
        if !uniform {
            header.write(out);
        }
        pack(out, header, value);
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

/// Reads the values of a column in order.
pub(super) struct ColumnReader<'a> {
    rest: &'a [u8],
    /// The common header, and the packed size that follows from it.
    uniform: Option<(Header, usize)>,
}

impl<'a> ColumnReader<'a> {
    /// `bytes` begins at the column; call only when at least one row has a value.
    pub(super) fn begin(bytes: &'a [u8]) -> Self {
        match bytes.split_first() {
            Some((&MIXED, rest)) => Self { rest, uniform: None },
            _ => {
                let mut reader = Self { rest: bytes, uniform: None };
                let header = reader.header();
                reader.uniform = Some((header, header.payload()));
                reader
            }
        }
    }

    fn byte(&mut self) -> u8 {
        match self.rest.split_first() {
            Some((byte, rest)) => {
                self.rest = rest;
                *byte
            }
            None => 0,
        }
    }

    fn header(&mut self) -> Header {
        let first = self.byte();
        let mut length = usize::from(first & 0x3f);
        if length >= LONG {
            length = LONG;
            for shift in (0..63).step_by(7) {
                let byte = self.byte();
                length += usize::from(byte & 0x7f) << shift;
                if byte & 0x80 == 0 {
                    break;
                }
            }
        }
        Header { alphabet: first >> 6, length }
    }

    /// Appends the next value to `out`.
    pub(super) fn next(&mut self, out: &mut Vec<u8>) {
        let (header, payload) = self.uniform.unwrap_or_else(|| {
            let header = self.header();
            (header, header.payload())
        });
        let (packed, rest) = self.rest.split_at_checked(payload).unwrap_or((self.rest, &[]));
        self.rest = rest;
        match header.alphabet {
            DIGITS => {
                unpack_blocks::<10>(out, packed, header.length, DIGIT_BLOCK, &DIGIT_BYTES, b'0')
            }
            CAPITALS => {
                unpack_blocks::<26>(
                    out,
                    packed,
                    header.length,
                    CAPITAL_BLOCK,
                    &CAPITAL_BYTES,
                    b'A',
                );
            }
            NIBBLES => {
                let letter = |n: u8| NIBBLE_ALPHABET.get(usize::from(n)).copied().unwrap_or(b'0');
                let both = packed.iter().flat_map(|b| [letter(b & 15), letter(b >> 4)]);
                out.extend(both.take(header.length));
            }
            _ => out.extend_from_slice(packed),
        }
    }

    pub(super) fn skip(&mut self, values: usize) {
        if let Some((_, payload)) = self.uniform {
            self.rest = self.rest.get(payload * values..).unwrap_or_default();
            return;
        }
        for _ in 0..values {
            let payload = self.header().payload();
            self.rest = self.rest.get(payload..).unwrap_or_default();
        }
    }

    /// What follows the values read so far.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

fn unpack_blocks<const BASE: u64>(
    out: &mut Vec<u8>,
    packed: &[u8],
    length: usize,
    block: usize,
    sizes: &[usize],
    zero: u8,
) {
    let mut packed = packed;
    let start = out.len();
    out.resize(start + length, zero);
    for letters in out.get_mut(start..).unwrap_or_default().chunks_mut(block) {
        let size = sizes.get(letters.len()).copied().unwrap_or(8);
        let (head, rest) = packed.split_at_checked(size).unwrap_or((packed, &[]));
        packed = rest;
        let mut number = little_endian(head);
        for letter in letters.iter_mut().rev() {
            *letter = zero + (number % BASE) as u8;
            number /= BASE;
        }
    }
}

/// Up to eight bytes as a number.
fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(values: &[&[u8]]) -> usize {
        let mut bytes = Vec::new();
        write_column(&mut bytes, values);
        bytes.push(0xaa);
        let mut reader = ColumnReader::begin(&bytes);
        for value in values {
            let mut out = Vec::new();
            reader.next(&mut out);
            assert_eq!(out, *value);
        }
        assert_eq!(reader.rest(), [0xaa]);
        let mut skipping = ColumnReader::begin(&bytes);
        skipping.skip(values.len());
        assert_eq!(skipping.rest(), [0xaa]);
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
