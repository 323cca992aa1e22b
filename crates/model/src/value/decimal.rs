//! `numeric` in text form: normalising, rounding to a declared scale, comparing.
//!
//! Works on decimal strings of any length the backend allows; no arithmetic type is wide enough.

use std::cmp::Ordering;

/// The backend's limits: digits before and after the point.
const INTEGER_DIGITS_MAX: usize = 131_072;
const FRACTION_DIGITS_MAX: usize = 16_383;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Syntax,
    Range,
}

/// A finite number: `integer` without leading zeros (empty for zero), `fraction` as displayed.
struct Decimal {
    negative: bool,
    integer: String,
    fraction: String,
}

/// The backend's output form of the text, rounded to `scale` where a precision is declared.
pub(super) fn normalise(
    text: &str,
    precision: Option<u16>,
    scale: Option<i16>,
) -> Result<String, Fault> {
    let text = text.trim();
    if let Some(special) = special(text) {
        let infinite = special != "NaN";
        return if infinite && precision.is_some() {
            Err(Fault::Range)
        } else {
            Ok(special.into())
        };
    }
    let mut number = parse(text)?;
    if let Some(precision) = precision {
        let scale = i32::from(scale.unwrap_or(0));
        round(&mut number, scale);
        let room = i32::from(precision) - scale;
        if number.integer.len() as i64 > i64::from(room.max(0)) {
            return Err(Fault::Range);
        }
        // numeric(2,4): only fractions below 10^-2 fit
        let leading = number.fraction.bytes().take_while(|b| *b == b'0').count() as i64;
        let significant = number.fraction.len() as i64 - leading;
        if number.integer.is_empty() && significant > i64::from(precision) {
            return Err(Fault::Range);
        }
    }
    if number.integer.len() > INTEGER_DIGITS_MAX || number.fraction.len() > FRACTION_DIGITS_MAX {
        return Err(Fault::Range);
    }
    Ok(print(&number))
}

fn special(text: &str) -> Option<&'static str> {
    match text.to_ascii_lowercase().as_str() {
        "nan" => Some("NaN"),
        "infinity" | "+infinity" | "inf" | "+inf" => Some("Infinity"),
        "-infinity" | "-inf" => Some("-Infinity"),
        _ => None,
    }
}

fn parse(text: &str) -> Result<Decimal, Fault> {
    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = match unsigned.find(['e', 'E']) {
        Some(at) => {
            let (mantissa, exponent) = unsigned.split_at(at);
            let exponent: i64 =
                exponent.get(1..).unwrap_or("").parse().map_err(|_| Fault::Syntax)?;
            (mantissa, exponent)
        }
        None => (unsigned, 0),
    };
    let (integer, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if integer.len() + fraction.len() == 0 || !digits(integer) || !digits(fraction) {
        return Err(Fault::Syntax);
    }
    if exponent.unsigned_abs() > (INTEGER_DIGITS_MAX + FRACTION_DIGITS_MAX) as u64 {
        return Err(Fault::Range);
    }
    let mut integer = integer.to_owned();
    let mut fraction = fraction.to_owned();
    if exponent > 0 {
        let moved = (exponent as usize).min(fraction.len());
        let rest = fraction.split_off(moved);
        integer.push_str(&fraction);
        integer.extend(std::iter::repeat_n('0', exponent as usize - moved));
        fraction = rest;
    } else if exponent < 0 {
        let wanted = exponent.unsigned_abs() as usize;
        let missing = wanted.saturating_sub(integer.len());
        let padded = format!("{}{integer}", "0".repeat(missing));
        let (kept, moved) = padded.split_at(padded.len() - wanted);
        fraction = format!("{moved}{fraction}");
        integer = kept.to_owned();
    }
    let integer = integer.trim_start_matches('0').to_owned();
    Ok(Decimal { negative, integer, fraction })
}

/// Rounds half away from zero to `scale` digits after the point (before it, when negative).
fn round(number: &mut Decimal, scale: i32) {
    let mut digits = format!("{}{}", number.integer, number.fraction).into_bytes();
    let point = number.integer.len() as i64;
    let keep = point + i64::from(scale);
    if keep < 0 {
        // everything lies below half of the last kept place
        digits.clear();
        digits.resize((-i64::from(scale)).max(0) as usize, b'0');
        number.integer.clear();
        number.fraction = if scale > 0 { "0".repeat(scale as usize) } else { String::new() };
        return;
    }
    let keep = keep as usize;
    let up = digits.get(keep).is_some_and(|d| *d >= b'5');
    digits.resize(keep, b'0');
    let mut carried = up;
    for digit in digits.iter_mut().rev() {
        if !carried {
            break;
        }
        carried = *digit == b'9';
        *digit = if carried { b'0' } else { *digit + 1 };
    }
    let mut point = point as usize;
    if carried {
        digits.insert(0, b'1');
        point += 1;
    }
    let text: String = digits.iter().map(|b| char::from(*b)).collect();
    if scale >= 0 {
        let (integer, fraction) = text.split_at(point.min(text.len()));
        number.integer = integer.trim_start_matches('0').to_owned();
        number.fraction = fraction.to_owned();
    } else {
        let zeros = scale.unsigned_abs() as usize;
        let integer = format!("{text}{}", "0".repeat(zeros));
        number.integer = integer.trim_start_matches('0').to_owned();
        number.fraction.clear();
    }
}

fn print(number: &Decimal) -> String {
    let zero = number.integer.is_empty() && number.fraction.bytes().all(|b| b == b'0');
    let sign = if number.negative && !zero { "-" } else { "" };
    let integer = if number.integer.is_empty() { "0" } else { &number.integer };
    if number.fraction.is_empty() {
        format!("{sign}{integer}")
    } else {
        format!("{sign}{integer}.{}", number.fraction)
    }
}

/// `1.500` → `1.5`, `2.00` → `2`; integers stay as they are.
pub(super) fn without_trailing_zeros(text: &str) -> &str {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text }
}

/// Compares two normalised numbers; infinities at the ends, NaN above everything.
pub(super) fn compare(a: &str, b: &str) -> Option<Ordering> {
    let rank = |s: &str| match s {
        "-Infinity" => -1,
        "Infinity" => 1,
        "NaN" => 2,
        _ => 0,
    };
    let (rank_a, rank_b) = (rank(a), rank(b));
    if rank_a != 0 || rank_b != 0 {
        return Some(rank_a.cmp(&rank_b));
    }
    let (a, b) = (parse(a).ok()?, parse(b).ok()?);
    let zero = |d: &Decimal| d.integer.is_empty() && d.fraction.bytes().all(|c| c == b'0');
    let sign = |d: &Decimal| match (zero(d), d.negative) {
        (true, _) => 0,
        (false, true) => -1,
        (false, false) => 1,
    };
    let (sign_a, sign_b) = (sign(&a), sign(&b));
    if sign_a != sign_b {
        return Some(sign_a.cmp(&sign_b));
    }
    let magnitude = a
        .integer
        .len()
        .cmp(&b.integer.len())
        .then_with(|| a.integer.cmp(&b.integer))
        .then_with(|| a.fraction.trim_end_matches('0').cmp(b.fraction.trim_end_matches('0')));
    Some(if sign_a < 0 { magnitude.reverse() } else { magnitude })
}
