//! Sizes and shares as text.

/// Formats a size in decimal units with three significant digits, as the program `nestling` does.
pub fn size(bytes: u64) -> String {
    let names = ["B", "kB", "MB", "GB", "TB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 999.5 && unit + 1 < names.len() {
        value /= 1000.0;
        unit += 1;
    }
    match (unit, value) {
        (0, _) => format!("{bytes} B"),
        (_, v) if v < 9.995 => format!("{v:.2} {}", names[unit]),
        (_, v) if v < 99.95 => format!("{v:.1} {}", names[unit]),
        (_, v) => format!("{v:.0} {}", names[unit]),
    }
}

/// Parses a size such as `24M`, `6.5GB`, `8GiB` or a number of bytes. Single letters are binary units. Returns `None` for other texts.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let scale = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1048576.0,
        "g" | "gib" => 1073741824.0,
        _ => return None,
    };
    let bytes = number.parse::<f64>().ok()? * scale;
    (1.0..1e18).contains(&bytes).then_some(bytes as u64)
}

/// Formats a share as a percentage.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        let sizes = [0, 999, 1000, 27_400_000, 999_600, 1_500_000_000_000];
        assert_eq!(sizes.map(size), ["0 B", "999 B", "1.00 kB", "27.4 MB", "1.00 MB", "1.50 TB"]);
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!(parse_size("24M"), Some(24 << 20));
        assert_eq!(parse_size("24MB"), Some(24_000_000));
        assert_eq!(parse_size(" 1.5 GiB"), Some(3 << 29));
        assert_eq!(parse_size("4096"), Some(4096));
        for wrong in ["", "M", "-1M", "1.2.3M", "1X", "1e400", "0", "99999999999999999999G"] {
            assert_eq!(parse_size(wrong), None, "{wrong}");
        }
    }
}
