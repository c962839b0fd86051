//! Numbers in Python's text format.

/// Formats a number with the fewest digits that read back exactly. An exponent is used below 1e-4 and from
/// 1e16.
pub(crate) fn float_text(number: f64) -> String {
    if number.is_nan() {
        return "nan".into();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{number:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let Ok(exponent) = exponent.parse::<i32>() else { return scientific };
    if (-4..16).contains(&exponent) {
        let plain = number.to_string();
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// Implements `int(text)`: digits with an optional sign and single underscores between them.
pub(crate) fn parse_int(text: &str, base: u32) -> Option<i64> {
    let text = text.trim_matches(super::lexer::is_space);
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        2 => "0b",
        8 => "0o",
        16 => "0x",
        _ => "",
    };
    let lower = digits.to_ascii_lowercase();
    let digits = lower.strip_prefix(prefix).unwrap_or(&lower);
    if digits.starts_with(['_', '+', '-']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let digits = format!("{}{}", if negative { "-" } else { "" }, digits.replace('_', ""));
    i64::from_str_radix(&digits, base).ok()
}

/// Implements `float(text)`.
pub(crate) fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(super::lexer::is_space);
    if text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    text.replace('_', "").parse().ok()
}
