//! Timestamps and durations in the format of Ollama's API.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Maximum keep-alive time in seconds.
const KEEP_SECONDS_MAX: f64 = 1e9;

/// Formats a time as RFC 3339, in UTC with nanoseconds.
pub(super) fn written(time: SystemTime) -> String {
    // Default: 1970 for a clock before 1970.
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let nanoseconds = since.subsec_nanos();
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{nanoseconds:09}Z")
}

/// Returns year, month and day of a day since 1970-01-01. The calendar repeats after 400 years, or 146,097
/// days.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    // Years of this computation start in March, so that a leap day is the last day.
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + 400 * era + u64::from(month <= 2);
    (year, month, day)
}

pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Parses a keep-alive time: seconds as a number, or a duration such as `5m` or `1h30m`. A negative value is
/// returned as `Some(None)` and means forever. `None` for other values.
#[expect(clippy::option_option, reason = "for good is a time, too")]
pub(super) fn parse_keep_alive(value: &serde_json::Value) -> Option<Option<Duration>> {
    let seconds = match value {
        serde_json::Value::Number(number) => number.as_f64()?,
        serde_json::Value::String(text) => seconds(text)?,
        _ => return None,
    };
    if seconds < 0.0 {
        return Some(None);
    }
    (seconds <= KEEP_SECONDS_MAX).then(|| Some(Duration::from_secs_f64(seconds)))
}

/// Parses a duration in the format of Go and returns seconds.
fn seconds(text: &str) -> Option<f64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    if rest.is_empty() {
        return None;
    }
    // A number without a unit is in seconds.
    if rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return rest.parse::<f64>().ok().map(|seconds| sign * seconds);
    }
    let mut all = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return None,
        };
        all += number.parse::<f64>().ok()? * scale;
        rest = after;
    }
    Some(sign * all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn points_in_time_are_dates() {
        let at = |seconds| written(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000000Z");
        // The leap days of 2000 and 2024, and March 1 of a year without one.
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000000000Z");
        assert_eq!(at(1_709_210_096), "2024-02-29T12:34:56.000000000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000000000Z");
    }

    #[test]
    fn durations_are_numbers_or_texts() {
        let seconds =
            |value| parse_keep_alive(&value).map(|kept| kept.map(|time| time.as_secs_f64()));
        for (value, expected) in [
            (json!(0), 0.0),
            (json!(1.5), 1.5),
            (json!("90"), 90.0),
            (json!("5m"), 300.0),
            (json!("1h30m"), 5400.0),
            (json!("250ms"), 0.25),
        ] {
            assert_eq!(seconds(value.clone()), Some(Some(expected)), "{value}");
        }
        for forever in [json!(-1), json!("-1"), json!("-5m")] {
            assert_eq!(seconds(forever), Some(None));
        }
        for wrong in [json!(""), json!("m"), json!("5 m"), json!("1e3"), json!(true), json!(1e300)]
        {
            assert_eq!(seconds(wrong.clone()), None, "{wrong}");
        }
    }
}
