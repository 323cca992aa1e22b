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
    let inside = |text: &str| {
        let (up, down) = (v.next_up(), v.next_down());
        text.parse() == Ok(v) && !is_midpoint(text, v, up) && !is_midpoint(text, v, down)
    };
    layout(&shortest(format!("{v:e}"), 16, |digits| format!("{v:.digits$e}"), inside), 15)
}

/// `float4`: plain notation for decimal exponents -4..=5.
pub(super) fn format_f32(v: f32) -> String {
    if !v.is_finite() {
        return format_f64(f64::from(v));
    }
    let wide = f64::from(v);
    let inside = |text: &str| {
        let (up, down) = (f64::from(v.next_up()), f64::from(v.next_down()));
        text.parse() == Ok(v) && !is_midpoint(text, wide, up) && !is_midpoint(text, wide, down)
    };
    layout(&shortest(format!("{v:e}"), 8, |digits| format!("{v:.digits$e}"), inside), 6)
}

/// The backend's choice among the texts that read back as the same float: the shortest that lies
/// strictly between the midpoints to the neighbours, ties in the last digit to even. Rust's own
/// (`candidate`) also takes a midpoint itself and rounds ties up.
fn shortest(
    candidate: String,
    digits_max: usize,
    exact: impl Fn(usize) -> String,
    inside: impl Fn(&str) -> bool,
) -> String {
    let mantissa = candidate.split_once('e').map_or("", |(m, _)| m);
    let fraction = mantissa.split_once('.').map_or(0, |(_, f)| f.len());
    (fraction..=digits_max).map(exact).find(|text| inside(text)).unwrap_or(candidate)
}

/// Whether the text is exactly half way between two whole neighbours; only there can a midpoint
/// be a text that short.
fn is_midpoint(text: &str, v: f64, neighbour: f64) -> bool {
    const WHOLE_FROM: f64 = 16_777_216.0;
    const WHOLE_BELOW: f64 = 9.2e18;
    let (low, high) = (v.abs(), neighbour.abs());
    let whole = low.fract() == 0.0 && high.fract() == 0.0;
    if !whole || !(WHOLE_FROM..WHOLE_BELOW).contains(&low) || high >= WHOLE_BELOW {
        return false;
    }
    let Some((mantissa, exponent)) = text.trim_start_matches('-').split_once('e') else {
        return false;
    };
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let scale = exponent.parse::<i32>().map_or(-1, |e| e - digits.len() as i32 + 1);
    let (Ok(digits), Ok(scale)) = (digits.parse::<u128>(), u32::try_from(scale)) else {
        return false;
    };
    digits * 10_u128.pow(scale) * 2 == low as u128 + high as u128
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
