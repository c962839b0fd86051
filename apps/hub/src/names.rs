//! Validation of names that are used in paths and addresses.

/// Maximum length of a file name in bytes. File systems allow 255, and suffixes are added.
const NAME_BYTES_MAX: usize = 200;

/// Maximum number of path components of a file in a repository.
pub const FOLDERS_MAX: usize = 4;

/// Returns true for a valid owner, repository, or component of a revision.
pub fn is_name(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    !text.is_empty() && text.len() <= 96 && text.chars().all(plain) && !text.starts_with('.')
}

/// Returns true for a relative path that cannot leave its folder.
pub fn is_path(text: &str) -> bool {
    text.split('/').count() <= FOLDERS_MAX && text.split('/').all(is_file_name)
}

/// Returns true for a file name that is safe on all supported systems.
pub fn is_file_name(name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=NAME_BYTES_MAX).contains(&name.len())
        && !name.starts_with('.')
        && !name.ends_with('.')
        && name.chars().all(plain)
        && !is_device(name)
}

/// Returns true if Windows treats a name as a device, regardless of its extension.
fn is_device(name: &str) -> bool {
    // Default: a name without a dot has no extension.
    let stem = name.split('.').next().unwrap_or(name).to_ascii_uppercase();
    let numbered = |port: &str| {
        let number = stem.strip_prefix(port);
        number.is_some_and(|number| matches!(number.as_bytes(), [b'0'..=b'9']))
    };
    ["CON", "PRN", "AUX", "NUL"].contains(&stem.as_str()) || numbered("COM") || numbered("LPT")
}

/// Returns true for a commit hash.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && is_hash(text)
}

/// Returns true for a hexadecimal hash of git or SHA-256, which is safe as a file name.
pub fn is_hash(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_some_system_reads_otherwise_are_not_taken() {
        let longest = "a".repeat(NAME_BYTES_MAX);
        for name in ["model.safetensors", "a-b_c.d", "console.json", "com.txt", "COM10", &longest] {
            assert!(is_file_name(name), "{name}");
        }
        let long = format!("{longest}a");
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "a.",
            "a/b",
            "a\\b",
            "a:b",
            "a b",
            "ä",
            "a\0",
            "nul",
            "NUL.txt",
            "con",
            "Aux.json",
            "prn.a.b",
            "COM1",
            "lpt9.nest",
            &long,
        ] {
            assert!(!is_file_name(name), "{name:?}");
        }
        assert!(is_path("a/b/c/d") && !is_path("a/b/c/d/e") && !is_path("a//b") && !is_path("/a"));
        assert!(!is_path("a/../b") && !is_path("a/nul"));
    }
}
