//! `numeric`: decimal text with its display scale, and the server's digits of base 10,000.

use bytes::{Buf, BufMut, BytesMut};

const POSITIVE: u16 = 0x0000;
const NEGATIVE: u16 = 0x4000;
const NAN: u16 = 0xC000;
const INFINITY: u16 = 0xD000;
const NEGATIVE_INFINITY: u16 = 0xF000;
/// Decimal digits in one of the server's.
const GROUP: usize = 4;

/// Appends the binary form of plain decimal text; `None` when it is none or too large.
pub(in crate::postgres) fn encode(text: &str, out: &mut BytesMut) -> Option<()> {
    let special = match text {
        "NaN" => Some(NAN),
        "Infinity" => Some(INFINITY),
        "-Infinity" => Some(NEGATIVE_INFINITY),
        _ => None,
    };
    if let Some(sign) = special {
        header(out, 0, 0, sign, 0);
        return Some(());
    }
    let (sign, magnitude) = match text.strip_prefix('-') {
        Some(rest) => (NEGATIVE, rest),
        None => (POSITIVE, text),
    };
    let (whole, fraction) = magnitude.split_once('.').unwrap_or((magnitude, ""));
    let plain = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !plain(whole) || !plain(fraction) {
        return None;
    }
    let scale = u16::try_from(fraction.len()).ok()?;
    // groups are counted from the decimal point in both directions
    let lead = (GROUP - whole.len() % GROUP) % GROUP;
    let padded: Vec<u8> = std::iter::repeat_n(b'0', lead)
        .chain(whole.bytes())
        .chain(fraction.bytes())
        .chain(std::iter::repeat_n(b'0', (GROUP - fraction.len() % GROUP) % GROUP))
        .collect();
    let groups: Vec<u16> = padded
        .chunks(GROUP)
        .map(|group| group.iter().fold(0_u16, |n, b| n * 10 + u16::from(*b - b'0')))
        .collect();
    let whole_groups = whole.len().div_ceil(GROUP);
    let skipped = groups.iter().take_while(|g| **g == 0).count();
    let end = groups.iter().rposition(|g| *g != 0).map_or(skipped, |last| last + 1);
    let digits = groups.get(skipped..end).unwrap_or_default();
    if digits.is_empty() {
        header(out, 0, 0, POSITIVE, scale);
        return Some(());
    }
    let weight = i16::try_from(whole_groups as i64 - skipped as i64 - 1).ok()?;
    header(out, u16::try_from(digits.len()).ok()?, weight, sign, scale);
    digits.iter().for_each(|d| out.put_u16(*d));
    Some(())
}

fn header(out: &mut BytesMut, digits: u16, weight: i16, sign: u16, scale: u16) {
    out.put_u16(digits);
    out.put_i16(weight);
    out.put_u16(sign);
    out.put_u16(scale);
}

/// The server's own output form of the binary one.
pub(in crate::postgres) fn decode(mut raw: &[u8]) -> Option<String> {
    if raw.len() < 8 {
        return None;
    }
    let (count, weight) = (usize::from(raw.get_u16()), i32::from(raw.get_i16()));
    let (sign, scale) = (raw.get_u16(), usize::from(raw.get_u16()));
    match sign {
        NAN => return Some("NaN".to_owned()),
        INFINITY => return Some("Infinity".to_owned()),
        NEGATIVE_INFINITY => return Some("-Infinity".to_owned()),
        POSITIVE | NEGATIVE => {}
        _ => return None,
    }
    if raw.len() != count * 2 {
        return None;
    }
    let digits: Vec<u16> = (0..count).map(|_| raw.get_u16()).collect();
    // the group at 10,000^place
    let group = |place: i32| -> u16 {
        usize::try_from(weight - place).ok().and_then(|n| digits.get(n)).copied().unwrap_or(0)
    };
    let mut text = String::new();
    if sign == NEGATIVE {
        text.push('-');
    }
    if weight < 0 {
        text.push('0');
    } else {
        text.push_str(&group(weight).to_string());
        (0..weight).rev().for_each(|place| text.push_str(&format!("{:04}", group(place))));
    }
    if scale > 0 {
        text.push('.');
        let point = text.len();
        let groups = i32::try_from(scale.div_ceil(GROUP)).ok()?;
        (1..=groups).for_each(|place| text.push_str(&format!("{:04}", group(-place))));
        text.truncate(point + scale);
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn there_and_back(text: &str) -> Option<String> {
        let mut out = BytesMut::new();
        encode(text, &mut out)?;
        decode(&out)
    }

    #[test]
    fn edges_keep_their_digits_and_their_scale() {
        let long = format!("-{}.{}", "9".repeat(1_000), "0123456789".repeat(100));
        for text in [
            "0",
            "0.00",
            "1",
            "-1",
            "10",
            "9999",
            "10000",
            "100000000",
            "0.0001",
            "0.00001",
            "-0.10",
            "123456789.987654321",
            "NaN",
            "Infinity",
            "-Infinity",
            &long,
        ] {
            assert_eq!(there_and_back(text).as_deref(), Some(text));
        }
        assert_eq!(there_and_back("1e5"), None);
        assert_eq!(there_and_back(""), None);
        assert_eq!(decode(&[0, 1, 0]), None);
    }

    proptest! {
        #[test]
        fn any_decimal_round_trips(sign in "-?", whole in "[1-9][0-9]{0,30}", part in "(\\.[0-9]{1,30})?") {
            let text = format!("{sign}{whole}{part}");
            prop_assert_eq!(there_and_back(&text), Some(text));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = decode(&bytes);
        }
    }
}
