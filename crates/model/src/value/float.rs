//! Floats in the backend's shortest exact output form.

pub(super) fn parse<T: std::str::FromStr>(text: &str) -> Option<T> {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let known = matches!(lower.trim_start_matches(['+', '-']), "nan" | "inf" | "infinity");
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    if known {
        lower.parse().ok()
    } else if plain {
        text.parse().ok()
    } else {
        None
    }
}

/// `float8`: plain notation for decimal exponents -4..=14.
pub(super) fn format_f64(v: f64) -> String {
    if v.is_nan() {
        return "NaN".to_owned();
    }
    if v.is_infinite() {
        return if v > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    layout(&format!("{v:e}"), 15)
}

/// `float4`: plain notation for decimal exponents -4..=5.
pub(super) fn format_f32(v: f32) -> String {
    if !v.is_finite() {
        return format_f64(f64::from(v));
    }
    layout(&format!("{v:e}"), 6)
}

/// From Rust's `d.ddde±x` (shortest digits that round-trip) to the backend's notation.
fn layout(scientific: &str, plain_below: i32) -> String {
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    if exponent < -4 || exponent >= plain_below {
        let direction = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{mantissa}e{direction}{:02}", exponent.abs());
    }
    if exponent < 0 {
        let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
        return format!("{sign}0.{zeros}{digits}");
    }
    let point = exponent as usize + 1;
    if digits.len() <= point {
        return format!("{sign}{digits}{}", "0".repeat(point - digits.len()));
    }
    let (integer, fraction) = digits.split_at(point);
    format!("{sign}{integer}.{fraction}")
}
