//! `interval`: months, days and microseconds, which do not convert into each other but for
//! comparing.

use std::cmp::Ordering;
use std::fmt::Write as _;

const MICROS_PER_SECOND: i64 = 1_000_000;
const MICROS_PER_DAY: i128 = 86_400 * MICROS_PER_SECOND as i128;

/// A span of time as the backend keeps it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interval {
    pub months: i32,
    pub days: i32,
    pub micros: i64,
}

impl Interval {
    /// Reads amounts with units, a clock time with a sign, and a closing `ago`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        let (text, ago) = match text.strip_suffix("ago") {
            Some(rest) if rest.ends_with(' ') => (rest, true),
            _ => (text.as_str(), false),
        };
        let mut interval = Self::default();
        let mut words = text.split_ascii_whitespace().peekable();
        words.peek()?;
        while let Some(word) = words.next() {
            if word.contains(':') {
                interval.micros = interval.micros.checked_add(clock(word)?)?;
                continue;
            }
            let end = word.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(word.len());
            let (amount, unit) = word.split_at(end);
            let unit = if unit.is_empty() { words.next()? } else { unit };
            interval.add(amount, unit)?;
        }
        if ago { interval.negated() } else { Some(interval) }
    }

    fn add(&mut self, amount: &str, unit: &str) -> Option<()> {
        let whole = |times: i32| amount.parse::<i32>().ok()?.checked_mul(times);
        let micros = |each: i64| -> Option<i64> {
            let (negative, seconds, fraction) = parts(amount)?;
            let value =
                seconds.checked_mul(each)?.checked_add(fraction * each / MICROS_PER_SECOND)?;
            Some(if negative { -value } else { value })
        };
        match unit {
            "year" | "years" | "y" => self.months = self.months.checked_add(whole(12)?)?,
            "mon" | "mons" | "month" | "months" => {
                self.months = self.months.checked_add(whole(1)?)?;
            }
            "week" | "weeks" | "w" => self.days = self.days.checked_add(whole(7)?)?,
            "day" | "days" | "d" => self.days = self.days.checked_add(whole(1)?)?,
            _ => {
                let each = match unit {
                    "hour" | "hours" | "h" => 3_600 * MICROS_PER_SECOND,
                    "min" | "mins" | "minute" | "minutes" | "m" => 60 * MICROS_PER_SECOND,
                    "sec" | "secs" | "second" | "seconds" | "s" => MICROS_PER_SECOND,
                    _ => return None,
                };
                self.micros = self.micros.checked_add(micros(each)?)?;
            }
        }
        Some(())
    }

    fn negated(self) -> Option<Self> {
        Some(Self {
            months: self.months.checked_neg()?,
            days: self.days.checked_neg()?,
            micros: self.micros.checked_neg()?,
        })
    }

    /// The backend's output under `IntervalStyle = postgres`.
    pub fn format(self) -> String {
        let mut out = String::new();
        let mut before_negative = false;
        let named = [(self.months / 12, "year"), (self.months % 12, "mon"), (self.days, "day")];
        for (value, unit) in named {
            if value != 0 {
                let space = if out.is_empty() { "" } else { " " };
                let sign = if before_negative && value > 0 { "+" } else { "" };
                let plural = if value == 1 { "" } else { "s" };
                // writing to a String cannot fail
                let _ = write!(out, "{space}{sign}{value} {unit}{plural}");
                before_negative = value < 0;
            }
        }
        if out.is_empty() || self.micros != 0 {
            let space = if out.is_empty() { "" } else { " " };
            let sign = if self.micros < 0 {
                "-"
            } else if before_negative {
                "+"
            } else {
                ""
            };
            let micros = self.micros.unsigned_abs();
            let (seconds, fraction) = (micros / 1_000_000, micros % 1_000_000);
            let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
            let _ = write!(out, "{space}{sign}{hours:02}:{minutes:02}:{:02}", seconds % 60);
            if fraction != 0 {
                let digits = format!("{fraction:06}");
                let _ = write!(out, ".{}", digits.trim_end_matches('0'));
            }
        }
        out
    }

    /// A month is thirty days and a day is 24 hours, as the backend compares.
    pub fn compare(self, other: Self) -> Ordering {
        self.length().cmp(&other.length())
    }

    fn length(self) -> i128 {
        let days = i128::from(self.months) * 30 + i128::from(self.days);
        days * MICROS_PER_DAY + i128::from(self.micros)
    }
}

/// `[-]HH:MM[:SS[.ffffff]]` in microseconds.
fn clock(text: &str) -> Option<i64> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let mut fields = text.split(':');
    let (hours, minutes) = (digits(fields.next()?)?, digits(fields.next()?)?);
    let seconds = fields.next().unwrap_or("0");
    let (_, seconds, fraction) = parts(seconds).filter(|(negative, ..)| !negative)?;
    if fields.next().is_some() || minutes >= 60 || seconds >= 60 {
        return None;
    }
    let whole = hours.checked_mul(3_600)?.checked_add(minutes * 60 + seconds)?;
    let micros = whole.checked_mul(MICROS_PER_SECOND)?.checked_add(fraction)?;
    Some(if negative { -micros } else { micros })
}

/// Sign, whole part and millionths of a decimal number; more digits are refused.
fn parts(text: &str) -> Option<(bool, i64, i64)> {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.len() > 6 {
        return None;
    }
    let millionths = if fraction.is_empty() { 0 } else { digits(&format!("{fraction:0<6}"))? };
    Some((negative, digits(whole)?, millionths))
}

fn digits(text: &str) -> Option<i64> {
    let all = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if all { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_print_as_the_backend_prints_them() {
        for (given, printed) in [
            ("1 day", "1 day"),
            ("0 seconds", "00:00:00"),
            ("14 months", "1 year 2 mons"),
            ("-1 year -2 mons +3 days -04:05:06.7", "-1 years -2 mons +3 days -04:05:06.7"),
            ("1 mon -1 days 12:00", "1 mon -1 days +12:00:00"),
            ("2 weeks 3 hours ago", "-14 days -03:00:00"),
            ("1.5 sec", "00:00:01.5"),
            ("100:00:00.000001", "100:00:00.000001"),
        ] {
            let parsed = Interval::parse(given).unwrap();
            assert_eq!(parsed.format(), printed, "{given}");
            assert_eq!(Interval::parse(printed), Some(parsed), "{printed}");
        }
        for wrong in ["", "1", "day", "1 fortnight", "1:2:3:4", "1:60", "P1D", "9999999999 days"] {
            assert_eq!(Interval::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_day_is_24_hours_and_a_month_thirty_days_when_compared() {
        let of = |text| Interval::parse(text).unwrap();
        assert_eq!(of("1 day").compare(of("24:00:00")), Ordering::Equal);
        assert_eq!(of("1 mon").compare(of("30 days")), Ordering::Equal);
        assert_eq!(of("1 mon").compare(of("29 days 23:59:59")), Ordering::Greater);
    }
}
