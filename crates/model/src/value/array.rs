//! Arrays in the backend's text form: dimensions, lower bounds and elements of one type.

use super::{ColumnType, Value, ValueError};
use std::cmp::Ordering;

/// The backend's limit.
const DIMENSIONS_MAX: usize = 6;
/// Bounds what a damaged text makes us allocate; the backend's own limit is of the same order.
const ELEMENTS_MAX: usize = 1 << 27;

/// A decoded array. Elements stand row by row; none is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Array {
    /// (elements, lower bound) per dimension; empty for the empty array.
    pub dimensions: Vec<(u32, i32)>,
    pub elements: Vec<Value>,
}

impl Array {
    /// Reads `{1,NULL,"a b"}`, nested braces, and `[0:1]={…}`.
    pub fn parse(element: &ColumnType, text: &str) -> Result<Self, ValueError> {
        let syntax = || ValueError::Syntax { sql_type: format!("{}[]", element.sql_name()) };
        let mut reader = Reader { rest: text.trim(), element, array: Self::default() };
        let bounds = reader.bounds().ok_or_else(syntax)?;
        reader.braces(0)?.ok_or_else(syntax)?;
        if !reader.rest.trim().is_empty() {
            return Err(syntax());
        }
        let mut array = reader.array;
        if array.elements.is_empty() {
            return if bounds.is_empty() { Ok(Self::default()) } else { Err(syntax()) };
        }
        if !bounds.is_empty() {
            let lengths = |dimensions: &[(u32, i32)]| -> Vec<u32> {
                dimensions.iter().map(|(length, _)| *length).collect()
            };
            if lengths(&bounds) != lengths(&array.dimensions) {
                return Err(syntax());
            }
            array.dimensions = bounds;
        }
        Ok(array)
    }

    /// The backend's output form.
    pub fn format(&self, element: &ColumnType) -> String {
        let mut out = String::new();
        if self.dimensions.iter().any(|(_, lower)| *lower != 1) {
            for (length, lower) in &self.dimensions {
                let upper = i64::from(*lower) + i64::from(*length) - 1;
                out.push_str(&format!("[{lower}:{upper}]"));
            }
            out.push('=');
        }
        let mut elements = self.elements.iter();
        write_level(&self.dimensions, element, &mut elements, &mut out);
        out
    }

    /// Element by element, then by size and shape, as the backend compares.
    pub fn compare(&self, other: &Self, element: &ColumnType) -> Option<Ordering> {
        for (a, b) in self.elements.iter().zip(&other.elements) {
            let order = match (a.is_null(), b.is_null()) {
                (true, true) => Ordering::Equal,
                (a_null, b_null) if a_null || b_null => a_null.cmp(&b_null),
                _ => element.compare(a, b)?,
            };
            if order.is_ne() {
                return Some(order);
            }
        }
        let sizes = self.elements.len().cmp(&other.elements.len());
        Some(sizes.then_with(|| self.dimensions.cmp(&other.dimensions)))
    }
}

fn write_level<'v>(
    dimensions: &[(u32, i32)],
    element: &ColumnType,
    elements: &mut impl Iterator<Item = &'v Value>,
    out: &mut String,
) {
    out.push('{');
    if let Some(((length, _), inner)) = dimensions.split_first() {
        for n in 0..*length {
            if n > 0 {
                out.push(',');
            }
            if !inner.is_empty() {
                write_level(inner, element, elements, out);
                continue;
            }
            match elements.next() {
                None | Some(Value::Null) => out.push_str("NULL"),
                Some(value) => write_element(&element.format(value), out),
            }
        }
    }
    out.push('}');
}

fn write_element(text: &str, out: &mut String) {
    let special = |c: char| "\"\\{},".contains(c) || is_space(c);
    if !text.is_empty() && !text.eq_ignore_ascii_case("null") && !text.contains(special) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        if c == '"' || c == '\\' {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\u{b}' | '\u{c}')
}

struct Reader<'a> {
    rest: &'a str,
    element: &'a ColumnType,
    array: Array,
}

impl Reader<'_> {
    /// `[l:u]…=`, if it is there.
    fn bounds(&mut self) -> Option<Vec<(u32, i32)>> {
        let mut bounds = Vec::new();
        while let Some(rest) = self.rest.strip_prefix('[') {
            let (inside, after) = rest.split_once(']')?;
            let (lower, upper) = match inside.split_once(':') {
                Some((lower, upper)) => (lower.trim().parse().ok()?, upper.trim()),
                None => (1, inside.trim()),
            };
            let upper: i32 = upper.parse().ok()?;
            let length = i64::from(upper) - i64::from(lower) + 1;
            bounds.push((u32::try_from(length).ok().filter(|length| *length > 0)?, lower));
            self.rest = after.trim_start();
        }
        if !bounds.is_empty() {
            self.rest = self.rest.strip_prefix('=')?.trim_start();
        }
        (bounds.len() <= DIMENSIONS_MAX).then_some(bounds)
    }

    /// One pair of braces; `Ok(None)`: the text is malformed.
    fn braces(&mut self, depth: usize) -> Result<Option<()>, ValueError> {
        let Some(rest) = self.rest.strip_prefix('{').filter(|_| depth < DIMENSIONS_MAX) else {
            return Ok(None);
        };
        self.rest = rest.trim_start_matches(is_space);
        let mut items = 0_u32;
        if let Some(rest) = self.rest.strip_prefix('}') {
            // only the empty array has empty braces
            self.rest = rest;
            return Ok((depth == 0).then_some(()));
        }
        let nested = self.rest.starts_with('{');
        loop {
            let item = if nested { self.braces(depth + 1)? } else { self.item(depth)? };
            if item.is_none() || self.array.elements.len() > ELEMENTS_MAX {
                return Ok(None);
            }
            items += 1;
            self.rest = self.rest.trim_start_matches(is_space);
            if let Some(rest) = self.rest.strip_prefix(',') {
                self.rest = rest.trim_start_matches(is_space);
                continue;
            }
            let Some(rest) = self.rest.strip_prefix('}') else { return Ok(None) };
            self.rest = rest;
            break;
        }
        Ok(self.level_is(depth, items))
    }

    /// All braces of one depth hold as many items.
    fn level_is(&mut self, depth: usize, items: u32) -> Option<()> {
        let dimensions = &mut self.array.dimensions;
        if dimensions.len() <= depth {
            dimensions.resize(depth + 1, (0, 1));
        }
        let place = dimensions.get_mut(depth)?;
        if place.0 == 0 {
            place.0 = items;
        }
        (place.0 == items).then_some(())
    }

    fn item(&mut self, depth: usize) -> Result<Option<()>, ValueError> {
        // an element beside braces of the same depth
        if self.array.dimensions.len() > depth + 1 {
            return Ok(None);
        }
        let Some((text, quoted)) = self.item_text() else { return Ok(None) };
        if !quoted && text.eq_ignore_ascii_case("null") {
            self.array.elements.push(Value::Null);
        } else {
            self.array.elements.push(self.element.parse_text(&text)?);
        }
        Ok(Some(()))
    }

    fn item_text(&mut self) -> Option<(String, bool)> {
        let mut text = String::new();
        let quoted = self.rest.starts_with('"');
        let mut characters = self.rest.char_indices();
        if quoted {
            characters.next();
        }
        while let Some((at, c)) = characters.next() {
            match c {
                '"' if quoted => {
                    self.rest = self.rest.get(at + 1..)?;
                    return Some((text, true));
                }
                ',' | '}' if !quoted => {
                    self.rest = self.rest.get(at..)?;
                    text.truncate(text.trim_end_matches(is_space).len());
                    return (!text.is_empty()).then_some((text, false));
                }
                '{' | '"' if !quoted => return None,
                '\\' => text.push(characters.next()?.1),
                _ => text.push(c),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(element: &ColumnType, text: &str) -> Option<String> {
        Array::parse(element, text).ok().map(|array| array.format(element))
    }

    #[test]
    fn arrays_print_as_the_backend_prints_them() {
        for (element, given, printed) in [
            (ColumnType::Int4, "{}", "{}"),
            (ColumnType::Int4, " { 1 , null, -3 } ", "{1,NULL,-3}"),
            (ColumnType::Int4, "{{1,2},{3,4}}", "{{1,2},{3,4}}"),
            (ColumnType::Int2, "[0:1]={1,2}", "[0:1]={1,2}"),
            (ColumnType::Int2, "[1:2]={1,2}", "{1,2}"),
            (
                ColumnType::Text,
                r#"{a,"b c","NULL","","q\"\\",é}"#,
                r#"{a,"b c","NULL","","q\"\\",é}"#,
            ),
            (ColumnType::Bool, "{true,f}", "{t,f}"),
            (ColumnType::Date, "{2026-11-30}", "{2026-11-30}"),
            (ColumnType::Timestamp, r#"{"2026-11-30 10:11:12"}"#, r#"{"2026-11-30 10:11:12"}"#),
            (ColumnType::Numeric { precision: None, scale: None }, "{1.50,-0}", "{1.50,0}"),
        ] {
            assert_eq!(canonical(&element, given).as_deref(), Some(printed), "{given}");
        }
        for wrong in [
            "",
            "1",
            "{",
            "{1",
            "{1,}",
            "{,1}",
            "{1}}",
            "{{1},2}",
            "{{1,2},{3}}",
            "{{}}",
            "{x}",
            "[0:1]={1}",
            "[1:0]={}",
            "[0:0={1}",
            "{1 2}",
            "{{{{{{{1}}}}}}}",
            "{\"1",
            "{40000000000}",
        ] {
            assert_eq!(canonical(&ColumnType::Int4, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn arrays_are_equal_when_their_elements_and_shapes_are() {
        let numeric = ColumnType::Numeric { precision: None, scale: None };
        let of = |text| Array::parse(&numeric, text).unwrap();
        let compare = |a, b| of(a).compare(&of(b), &numeric);
        assert_eq!(compare("{1.0,NULL}", "{1.00,NULL}"), Some(Ordering::Equal));
        assert_eq!(compare("{1}", "{1,2}"), Some(Ordering::Less));
        assert_eq!(compare("{1}", "{NULL}"), Some(Ordering::Less));
        assert_ne!(compare("{1,2}", "{{1,2}}"), Some(Ordering::Equal));
        assert_ne!(compare("{1,2}", "[0:1]={1,2}"), Some(Ordering::Equal));
    }
}
