//! Parsing and formatting of sizes in bytes.

use std::fmt;
use std::str::FromStr;

/// A number of bytes. Parses `8G`, `8GiB`, `1.5GB`, `500M` and plain numbers. A bare letter means the binary
/// unit (`8G` = 8 GiB), as in llama.cpp and Docker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Units::Decimal.show(self.0))
    }
}

/// Unit system of a size: decimal as on disk labels, or binary as for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    /// Units of 1000: kB, MB and GB.
    Decimal,
    /// Units of 1024: KiB, MiB and GiB.
    Binary,
}

impl Units {
    /// Guesses the units in which a size was typed. Multiples of 1024 that are no multiples of 1000 are
    /// binary.
    pub fn of_typed(bytes: u64) -> Self {
        match bytes > 0 && bytes.is_multiple_of(1024) && !bytes.is_multiple_of(1000) {
            true => Self::Binary,
            false => Self::Decimal,
        }
    }

    /// Formats a size with three significant digits.
    pub fn show(self, bytes: u64) -> String {
        let (thousand, names) = match self {
            Self::Decimal => (1000.0, ["B", "kB", "MB", "GB", "TB"]),
            Self::Binary => (1024.0, ["B", "KiB", "MiB", "GiB", "TiB"]),
        };
        let mut value = bytes as f64;
        let mut unit = 0;
        while value >= 999.5 && unit + 1 < names.len() {
            value /= thousand;
            unit += 1;
        }
        match (unit, value) {
            (0, _) => format!("{bytes} B"),
            (_, v) if v < 9.995 => format!("{v:.2} {}", names[unit]),
            (_, v) if v < 99.95 => format!("{v:.1} {}", names[unit]),
            (_, v) => format!("{v:.0} {}", names[unit]),
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

    #[test]
    fn a_size_is_answered_in_the_units_that_it_was_typed_in() {
        for (typed, shown) in [
            ("5M", "5.00 MiB"),
            ("6G", "6.00 GiB"),
            ("64KiB", "64.0 KiB"),
            ("5MB", "5.00 MB"),
            ("5000000", "5.00 MB"),
            ("0", "0 B"),
            ("99999G", "97.7 TiB"),
        ] {
            let ByteSize(bytes) = typed.parse().unwrap();
            assert_eq!(Units::of_typed(bytes).show(bytes), shown, "{typed}");
        }
        assert_eq!(Units::Binary.show(5_954_070), "5.68 MiB");
    }
}
