//! Sizes in bytes, as people type and read them.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Parses `8G`, `8GiB`, `1.5GB`, `500M` and plain numbers; a bare letter means
/// the binary unit (`8G` = 8 GiB), as llama.cpp and Docker read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1000.0;
            unit += 1;
        }
        match (unit, value) {
            (0, _) => write!(f, "{} B", self.0),
            (_, v) if v < 9.995 => write!(f, "{v:.2} {}", UNITS[unit]),
            (_, v) if v < 99.95 => write!(f, "{v:.1} {}", UNITS[unit]),
            (_, v) => write!(f, "{v:.0} {}", UNITS[unit]),
        }
    }
}

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let wrong = || format!("`{text}` is not a size; write for example 6G, 6GiB, 6.5GB or 800M");
        let scale = unit_scale(unit.trim()).ok_or_else(wrong)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole
                .checked_mul(scale)
                .map(Self)
                .ok_or_else(|| format!("`{text}` is too big"));
        }
        let value: f64 = number.parse().map_err(|_| wrong())?;
        let bytes = value * scale as f64;
        if !(0.0..1e18).contains(&bytes) {
            return Err(format!("`{text}` is too big"));
        }
        Ok(Self(bytes as u64))
    }
}

fn unit_scale(unit: &str) -> Option<u64> {
    Some(match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_people_type() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("8G", 8 << 30),
            ("8gib", 8 << 30),
            ("8GB", 8_000_000_000),
            ("1.5 GB", 1_500_000_000),
            ("500M", 500 << 20),
            ("64k", 64 << 10),
            ("2T", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "G", "8X", "-1", "1.2.3G", "99999999999T", "1e9"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn prints_three_figures() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1.00 kB"),
            (61_074_300_000, "61.1 GB"),
            (999_600_000, "1.00 GB"),
            (123_456, "123 kB"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
