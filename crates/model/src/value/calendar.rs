//! Dates and times in ISO style over the backend's whole range (4713 BC to 294276 AD, dates to
//! 5874897 AD), which is wider than date libraries allow.
//!
//! Civil-day arithmetic is the well-known proleptic Gregorian one, counted in 400-year eras.

const DAYS_1970_TO_2000: i64 = 10_957;
const DATE_MIN: i64 = -2_451_545;
const DATE_END: i64 = 2_145_031_949;
const TIMESTAMP_MIN: i64 = -211_813_488_000_000_000;
const TIMESTAMP_END: i64 = 9_223_371_331_200_000_000;
pub(super) const DAY_MICROS: i64 = 86_400_000_000;

pub(super) fn date_in_range(days: i32) -> bool {
    matches!(days, i32::MIN | i32::MAX) || (DATE_MIN..DATE_END).contains(&i64::from(days))
}

pub(super) fn time_in_range(micros: i64) -> bool {
    (0..=DAY_MICROS).contains(&micros)
}

pub(super) fn timestamp_in_range(micros: i64) -> bool {
    matches!(micros, i64::MIN | i64::MAX) || (TIMESTAMP_MIN..TIMESTAMP_END).contains(&micros)
}

/// Days since 2000-01-01 of a civil date (astronomical year: 1 BC is 0).
fn days_of(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468 - DAYS_1970_TO_2000
}

/// The inverse of [`days_of`]: (year, month, day).
fn civil_of(days: i64) -> (i64, i64, i64) {
    let shifted = days + DAYS_1970_TO_2000 + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn print_date(days: i64) -> (String, &'static str) {
    let (year, month, day) = civil_of(days);
    let (year, era) = if year > 0 { (year, "") } else { (1 - year, " BC") };
    (format!("{year:04}-{month:02}-{day:02}"), era)
}

pub(super) fn format_date(days: i32) -> String {
    match days {
        i32::MAX => "infinity".to_owned(),
        i32::MIN => "-infinity".to_owned(),
        _ => {
            let (date, era) = print_date(i64::from(days));
            format!("{date}{era}")
        }
    }
}

pub(super) fn format_time(micros: i64) -> String {
    let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    let clock = format!("{hour:02}:{minute:02}:{second:02}");
    if fraction == 0 {
        clock
    } else {
        format!("{clock}.{}", format!("{fraction:06}").trim_end_matches('0'))
    }
}

/// `zone` is `+00` for a `timestamptz`, empty for a `timestamp`.
pub(super) fn format_timestamp(micros: i64, zone: &str) -> String {
    match micros {
        i64::MAX => "infinity".to_owned(),
        i64::MIN => "-infinity".to_owned(),
        _ => {
            let (date, era) = print_date(micros.div_euclid(DAY_MICROS));
            format!("{date} {}{zone}{era}", format_time(micros.rem_euclid(DAY_MICROS)))
        }
    }
}

pub(super) fn parse_date(text: &str) -> Option<i32> {
    match text.trim() {
        "infinity" => Some(i32::MAX),
        "-infinity" => Some(i32::MIN),
        text => {
            let (text, before_christ) = strip_era(text);
            let days = date_part(text, before_christ)?;
            (DATE_MIN..DATE_END).contains(&days).then_some(days as i32)
        }
    }
}

fn strip_era(text: &str) -> (&str, bool) {
    match text.strip_suffix(" BC") {
        Some(rest) => (rest.trim_end(), true),
        None => (text.strip_suffix(" AD").unwrap_or(text), false),
    }
}

fn number(text: &str, length: std::ops::RangeInclusive<usize>) -> Option<i64> {
    let plain = length.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn date_part(text: &str, before_christ: bool) -> Option<i64> {
    let mut parts = text.split('-');
    let year = number(parts.next()?, 1..=7)?;
    let month = number(parts.next()?, 1..=2)?;
    let day = number(parts.next()?, 1..=2)?;
    if parts.next().is_some() || year == 0 {
        return None;
    }
    let year = if before_christ { 1 - year } else { year };
    let days = days_of(year, month, day);
    ((1..=12).contains(&month) && civil_of(days) == (year, month, day)).then_some(days)
}

pub(super) fn parse_time(text: &str) -> Option<i64> {
    let mut parts = text.trim().split(':');
    let hour = number(parts.next()?, 1..=2)?;
    let minute = number(parts.next()?, 1..=2)?;
    let (second, micros) = match parts.next() {
        None => (0, 0),
        Some(second) => {
            let (second, fraction) = second.split_once('.').unwrap_or((second, ""));
            (number(second, 1..=2)?, fraction_micros(fraction)?)
        }
    };
    let valid = parts.next().is_none() && hour <= 24 && minute < 60 && second <= 60;
    let total = ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros;
    (valid && total <= DAY_MICROS).then_some(total)
}

/// Microseconds of the digits after the point, rounded half up.
fn fraction_micros(fraction: &str) -> Option<i64> {
    if fraction.is_empty() {
        return Some(0);
    }
    let kept = number(&format!("{:0<7}", fraction).chars().take(7).collect::<String>(), 7..=7)?;
    fraction.bytes().all(|b| b.is_ascii_digit()).then_some((kept + 5) / 10)
}

/// Microseconds since 2000-01-01; with `zoned`, an offset may follow and is taken off.
pub(super) fn parse_timestamp(text: &str, zoned: bool) -> Option<i64> {
    match text.trim() {
        "infinity" => return Some(i64::MAX),
        "-infinity" => return Some(i64::MIN),
        _ => {}
    }
    let (text, before_christ) = strip_era(text.trim());
    let (date, rest) = match text.find([' ', 'T']) {
        Some(at) => (text.get(..at)?, text.get(at + 1..)?),
        None => (text, "00:00:00"),
    };
    let days = date_part(date, before_christ)?;
    let (clock, offset) = match rest.find(['+', '-', 'Z']) {
        Some(at) => (rest.get(..at)?, parse_offset(rest.get(at..)?)?),
        None => (rest, 0),
    };
    if !zoned && clock.len() != rest.len() {
        return None;
    }
    let micros = i128::from(days) * i128::from(DAY_MICROS) + i128::from(parse_time(clock)?)
        - i128::from(offset) * 1_000_000;
    let micros = i64::try_from(micros).ok()?;
    (TIMESTAMP_MIN..TIMESTAMP_END).contains(&micros).then_some(micros)
}

/// Seconds east of UTC of `Z`, `+HH`, `+HHMM`, `+HH:MM`, `+HH:MM:SS`.
fn parse_offset(text: &str) -> Option<i64> {
    if text == "Z" {
        return Some(0);
    }
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+')?),
    };
    let mut parts = digits.split(':');
    let first = parts.next()?;
    let (hour, minute) = match first.len() {
        4 => (number(first.get(..2)?, 2..=2)?, number(first.get(2..)?, 2..=2)?),
        _ => (number(first, 1..=2)?, parts.next().map_or(Some(0), |m| number(m, 2..=2))?),
    };
    let second = parts.next().map_or(Some(0), |s| number(s, 2..=2))?;
    let valid = parts.next().is_none() && hour < 16 && minute < 60 && second < 60;
    valid.then_some(sign * (hour * 3_600 + minute * 60 + second))
}
