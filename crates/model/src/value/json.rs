//! JSON: validity for `json`, and the backend's stored form for `jsonb` (keys by length then
//! bytes, the last of equal keys, one space after `:` and `,`, numbers as plain decimals).

use super::decimal;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Deeper documents are refused, so that the recursion below is bounded.
const DEPTH_MAX: usize = 256;

enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(Vec<Json>),
    /// Ordered as the backend orders keys.
    Object(BTreeMap<(usize, String), Json>),
}

pub(super) fn validate(text: &str) -> bool {
    parse(text, false).is_some()
}

pub(super) fn normalise(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    print(&parse(text, true)?, &mut out);
    Some(out)
}

/// One form for all that the backend calls equal: numbers do not show their scale.
pub(super) fn canonical(text: &str) -> Option<String> {
    let mut value = parse(text, true)?;
    strip_scales(&mut value);
    let mut out = String::with_capacity(text.len());
    print(&value, &mut out);
    Some(out)
}

fn strip_scales(value: &mut Json) {
    match value {
        Json::Number(n) => n.truncate(decimal::without_trailing_zeros(n).len()),
        Json::Array(items) => items.iter_mut().for_each(strip_scales),
        Json::Object(members) => members.values_mut().for_each(strip_scales),
        Json::Null | Json::Bool(_) | Json::Text(_) => {}
    }
}

fn parse(text: &str, binary: bool) -> Option<Json> {
    let mut parser = Parser { rest: text, binary };
    let value = parser.value(0)?;
    parser.space();
    parser.rest.is_empty().then_some(value)
}

struct Parser<'a> {
    rest: &'a str,
    /// For `jsonb`: numbers must be storable and `\u0000` is refused.
    binary: bool,
}

impl Parser<'_> {
    fn space(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\n', '\r']);
    }

    fn eat(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn value(&mut self, depth: usize) -> Option<Json> {
        if depth > DEPTH_MAX {
            return None;
        }
        self.space();
        match self.rest.bytes().next()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string().map(Json::Text),
            b't' => self.eat("true").then_some(Json::Bool(true)),
            b'f' => self.eat("false").then_some(Json::Bool(false)),
            b'n' => self.eat("null").then_some(Json::Null),
            _ => self.number(),
        }
    }

    fn object(&mut self, depth: usize) -> Option<Json> {
        self.eat("{");
        let mut members = BTreeMap::new();
        self.space();
        if self.eat("}") {
            return Some(Json::Object(members));
        }
        loop {
            self.space();
            let key = self.string()?;
            self.space();
            if !self.eat(":") {
                return None;
            }
            let value = self.value(depth + 1)?;
            members.insert((key.len(), key), value);
            self.space();
            if self.eat("}") {
                return Some(Json::Object(members));
            }
            if !self.eat(",") {
                return None;
            }
        }
    }

    fn array(&mut self, depth: usize) -> Option<Json> {
        self.eat("[");
        let mut items = Vec::new();
        self.space();
        if self.eat("]") {
            return Some(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.space();
            if self.eat("]") {
                return Some(Json::Array(items));
            }
            if !self.eat(",") {
                return None;
            }
        }
    }

    fn string(&mut self) -> Option<String> {
        if !self.eat("\"") {
            return None;
        }
        let mut out = String::new();
        loop {
            let at = self.rest.find(['"', '\\'])?;
            let (plain, rest) = self.rest.split_at(at);
            if plain.bytes().any(|b| b < 0x20) {
                return None;
            }
            out.push_str(plain);
            self.rest = rest;
            if self.eat("\"") {
                return Some(out);
            }
            self.eat("\\");
            let escape = self.rest.chars().next()?;
            self.rest = self.rest.get(escape.len_utf8()..)?;
            out.push(match escape {
                '"' | '\\' | '/' => escape,
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => self.unicode()?,
                _ => return None,
            });
        }
    }

    fn hex(&mut self) -> Option<u32> {
        let digits = self.rest.get(..4)?;
        self.rest = self.rest.get(4..)?;
        if !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        u32::from_str_radix(digits, 16).ok()
    }

    fn unicode(&mut self) -> Option<char> {
        let first = self.hex()?;
        let code = if (0xd800..0xdc00).contains(&first) {
            let low = |s: &u32| (0xdc00..0xe000).contains(s);
            let second = if self.eat("\\u") { self.hex().filter(low) } else { None };
            let Some(second) = second else {
                return self.lone_surrogate();
            };
            0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)
        } else {
            first
        };
        match char::from_u32(code) {
            Some(c) => Some(c).filter(|c| !(self.binary && *c == '\0')),
            None => self.lone_surrogate(),
        }
    }

    /// `json` keeps its text and looks at escapes only lexically; `jsonb` must decode them.
    fn lone_surrogate(&self) -> Option<char> {
        (!self.binary).then_some(char::REPLACEMENT_CHARACTER)
    }

    fn number(&mut self) -> Option<Json> {
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit() && !matches!(c, '-' | '+' | '.' | 'e' | 'E'))
            .unwrap_or(self.rest.len());
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let unsigned = text.strip_prefix('-').unwrap_or(text);
        let leading = unsigned.bytes().take_while(u8::is_ascii_digit).count();
        let valid_start = leading > 0 && (leading == 1 || !unsigned.starts_with('0'));
        let fraction_ok = unsigned
            .split_once('.')
            .is_none_or(|(_, f)| f.starts_with(|c: char| c.is_ascii_digit()));
        if !valid_start || !fraction_ok || text.starts_with('+') {
            return None;
        }
        match decimal::normalise(text, None, None) {
            Ok(plain) => Some(Json::Number(plain)),
            Err(decimal::Fault::Range) if !self.binary => Some(Json::Number(String::new())),
            Err(_) => None,
        }
    }
}

fn print(value: &Json, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Json::Number(n) => out.push_str(n),
        Json::Text(s) => print_string(s, out),
        Json::Array(items) => {
            out.push('[');
            for (n, item) in items.iter().enumerate() {
                out.push_str(if n == 0 { "" } else { ", " });
                print(item, out);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (n, ((_, key), item)) in members.iter().enumerate() {
                out.push_str(if n == 0 { "" } else { ", " });
                print_string(key, out);
                out.push_str(": ");
                print(item, out);
            }
            out.push('}');
        }
    }
}

fn print_string(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => {
                // writing to a String cannot fail
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}
