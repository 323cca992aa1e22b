//! Tables and JSON on standard output.

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::fmt::Arguments;
use std::io::{self, ErrorKind, Write};

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
    done(writeln!(io::stdout().lock(), "{text}"));
}

/// The same, of text that is made as a whole.
pub fn whole(text: &[u8]) {
    let mut out = io::stdout().lock();
    done(out.write_all(text).and_then(|()| out.flush()));
}

/// A failure of the program, to standard error, which may be closed too.
pub fn complain(text: Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "error: {text}");
}

fn done(written: io::Result<()>) {
    match written {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            complain(format_args!("writing to standard output: {error}"));
            std::process::exit(1);
        }
    }
}

pub fn print_table(table: &Table) {
    say!("{}", table.trim_fmt());
}

pub fn print_json(value: &impl Serialize) -> Result<()> {
    say!("{}", serde_json::to_string_pretty(value)?);
    Ok(())
}

/// A JSON object that keeps the order of its fields: columns stand as the table has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Fields<T>(pub Vec<(String, T)>);

impl<T: Serialize> Serialize for Fields<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
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
    fn fields_keep_their_order() {
        let fields = Fields(vec![("s_id".to_owned(), 1), ("bit_2".to_owned(), 0)]);
        assert_eq!(serde_json::to_string(&fields).unwrap(), r#"{"s_id":1,"bit_2":0}"#);
    }

    #[test]
    fn sizes_and_durations_read_like_a_person_says_them() {
        assert_eq!((bytes(512).as_str(), bytes(3 << 30).as_str()), ("512 B", "3.0 GiB"));
        assert_eq!((seconds(3.12).as_str(), seconds(247.0).as_str()), ("3.1s", "4m07s"));
        assert_eq!(seconds(3_725.0), "1h02m");
    }
}
