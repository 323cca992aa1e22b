//! Tables and JSON on standard output.

use anyhow::Result;
use comfy_table::{Table, presets};
use serde_json::Value;
use std::fmt::Arguments;
use std::io::Write;

pub fn table<I, T>(header: I) -> Table
where
    I: IntoIterator<Item = T>,
    T: Into<comfy_table::Cell>,
{
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(header.into_iter().map(Into::into).collect::<Vec<comfy_table::Cell>>());
    table
}

/// One line to standard output. A reader that has seen enough (`| head`) ends the program quietly.
pub fn line(text: Arguments<'_>) {
    if writeln!(std::io::stdout().lock(), "{text}").is_err() {
        std::process::exit(0);
    }
}

pub fn print_table(table: &Table) {
    say!("{}", table.trim_fmt());
}

pub fn print_json(value: &Value) -> Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// `3.2 GiB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut units = UNITS.iter();
    let mut unit = units.next().copied().unwrap_or_default();
    for next in units {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if unit == "B" { format!("{count} B") } else { format!("{value:.1} {unit}") }
}

/// `1h02m`, `4m07s`, `3.1s`.
pub fn seconds(value: f64) -> String {
    let whole = value as u64;
    match whole {
        0..60 => format!("{value:.1}s"),
        60..3600 => format!("{}m{:02}s", whole / 60, whole % 60),
        _ => format!("{}h{:02}m", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations_read_like_a_person_says_them() {
        assert_eq!((bytes(512).as_str(), bytes(3 << 30).as_str()), ("512 B", "3.0 GiB"));
        assert_eq!((seconds(3.12).as_str(), seconds(247.0).as_str()), ("3.1s", "4m07s"));
        assert_eq!(seconds(3_725.0), "1h02m");
    }
}
