//! Split files: `model-00001-of-00003.gguf`.

use crate::ImportError;
use crate::limits::MAX_SHARDS;

/// Number of digits of a part number and of the part count.
const DIGITS: usize = 5;

/// Returns the file names of all parts, given the name of one of them. Returns only the given name for a file
/// that is not split.
///
/// # Errors
/// Returns an [`ImportError`] if the numbers in the name are invalid.
pub fn part_names(name: &str) -> Result<Vec<String>, ImportError> {
    let Some((stem, part, count)) = split(name) else { return Ok(vec![name.into()]) };
    if count > MAX_SHARDS {
        return Err(ImportError::Limit {
            file: name.into(),
            what: "the number of parts".into(),
            found: count as u64,
            limit: MAX_SHARDS as u64,
        });
    }
    if part == 0 || part > count {
        return Err(ImportError::Value {
            file: name.into(),
            key: "the number of the part".into(),
            expected: format!("a number from 1 to {count}"),
            found: part.to_string(),
        });
    }
    let ending = extension(name);
    Ok((1..=count).map(|part| format!("{stem}-{part:05}-of-{count:05}{ending}")).collect())
}

fn extension(name: &str) -> &str {
    // Default: a name shorter than the extension has none.
    name.len().checked_sub(".gguf".len()).and_then(|at| name.get(at..)).unwrap_or_default()
}

/// Returns the stem, the part number and the number of parts.
fn split(name: &str) -> Option<(&str, usize, usize)> {
    let stem = name.strip_suffix(extension(name))?;
    extension(name).eq_ignore_ascii_case(".gguf").then_some(())?;
    let (front, count) = number_at_end(stem)?;
    let (stem, part) = number_at_end(front.strip_suffix("-of")?)?;
    Some((stem, part, count))
}

/// Splits a suffix such as `-00012` off a text.
fn number_at_end(text: &str) -> Option<(&str, usize)> {
    let (front, number) = text.rsplit_once('-')?;
    let digits = number.len() == DIGITS && number.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| number.parse().ok()).flatten().map(|number| (front, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts() {
        let names = part_names("a-b-00002-of-00003.gguf").unwrap();
        assert_eq!(
            names,
            ["a-b-00001-of-00003.gguf", "a-b-00002-of-00003.gguf", "a-b-00003-of-00003.gguf"]
        );
        for single in ["a.gguf", "a-1-of-3.gguf", "a-00001-of-00002.bin", "ö", "", "-00001.gguf"] {
            assert_eq!(part_names(single).unwrap(), [single]);
        }
        assert!(part_names("a-00004-of-00003.gguf").is_err());
        assert!(part_names("a-00000-of-00003.gguf").is_err());
        assert!(part_names("a-00001-of-99999.gguf").is_err());
    }
}
