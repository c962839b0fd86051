//! Grouping of a repository's GGUF files into models, and choice of a model.

use crate::bytes::ByteSize;
use crate::error::{HubError, Result};
use crate::listing::{LISTED_MAX, RemoteFile};
use nestling_import::limits::MAX_SHARDS;
use std::collections::BTreeMap;

/// Default quantization, as in llama.cpp.
const DEFAULT: &str = "Q4_K_M";

/// Supported types as spelled in file names; a suffix of [`SIZES`] may follow.
const READ: [&str; 25] = [
    "F32", "F16", "BF16", "Q1_0", "Q2_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K",
    "Q4_K", "Q5_K", "Q6_K", "Q8_K", "IQ1", "IQ2", "IQ3", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4",
    "TQ1_0", "TQ2_0",
];

/// Suffixes that file names add to a type.
const SIZES: [&str; 7] = ["_XXS", "_XS", "_S", "_M", "_L", "_XL", "_MOE"];

/// A model in one GGUF file or in several parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufFiles {
    /// Name without the part number, such as `Q4_K_M/model-Q4_K_M.gguf`.
    pub name: String,
    /// Parts in order; some may be missing.
    pub parts: Vec<RemoteFile>,
    /// Expected number of parts.
    pub parts_total: usize,
}

impl GgufFiles {
    pub fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.size).sum()
    }

    /// Returns the quantization given in the name in upper case, such as `UD-Q4_K_XL`.
    pub fn quantization(&self) -> Option<String> {
        let stem = self.name.rsplit('/').next()?.strip_suffix(".gguf")?.to_ascii_uppercase();
        let parts: Vec<&str> = stem.split(['-', '.']).collect();
        let at = parts.iter().rposition(|part| is_quantization(part))?;
        let dynamic = at > 0 && parts[at - 1] == "UD";
        Some(if dynamic { format!("UD-{}", parts[at]) } else { parts[at].into() })
    }

    /// Returns true if a name on the command line refers to this model.
    fn is(&self, wanted: &str) -> bool {
        let file = self.name.rsplit('/').next().unwrap_or(&self.name);
        let part =
            |part: &RemoteFile| part.name == wanted || part.name.rsplit('/').next() == Some(wanted);
        if self.name == wanted || file == wanted || self.parts.iter().any(part) {
            return true;
        }
        let wanted = wanted.to_ascii_uppercase();
        self.quantization().is_some_and(|found| found == wanted)
    }

    /// Returns true if the type given in the name is supported, or if the name contains none.
    fn is_readable(&self) -> bool {
        let Some(found) = self.quantization() else { return true };
        let found = found.strip_prefix("UD-").unwrap_or(&found);
        let sized = |found: &str, read: &str| {
            let rest = found.strip_prefix(read);
            rest.is_some_and(|rest| rest.is_empty() || SIZES.contains(&rest))
        };
        READ.iter().any(|read| sized(found, read))
    }

    fn whole(self) -> Result<Self> {
        if self.parts.len() == self.parts_total {
            return Ok(self);
        }
        let (found, total) = (self.parts.len(), self.parts_total);
        Err(HubError::new(format!("{} has {found} of its {total} parts", self.name))
            .advise("choose another file of the repository"))
    }
}

fn is_quantization(part: &str) -> bool {
    let letters = part.strip_prefix("IQ").or(part.strip_prefix("TQ")).or(part.strip_prefix('Q'));
    let numbered = letters.is_some_and(|rest| {
        let mut chars = rest.chars();
        chars.next().is_some_and(|digit| digit.is_ascii_digit())
            && chars.next() == Some('_')
            && chars.all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
    });
    numbered || ["F32", "F16", "BF16", "MXFP4", "MXFP4_MOE", "NVFP4"].contains(&part)
}

/// Returns all models of a repository, with split files joined. Projectors and importance matrices are
/// excluded.
pub fn models(files: &[RemoteFile]) -> Vec<GgufFiles> {
    let mut found: BTreeMap<String, GgufFiles> = BTreeMap::new();
    for file in files.iter().filter(|file| is_model(&file.name)) {
        let (name, part, total) = numbered(&file.name);
        let empty = || GgufFiles { name: name.clone(), parts: Vec::new(), parts_total: total };
        let model = found.entry(name.clone()).or_insert_with(empty);
        // The parts of a model are listed in order, each once.
        if part == model.parts.len() + 1 && total == model.parts_total {
            model.parts.push(file.clone());
        }
    }
    found.into_values().collect()
}

fn is_model(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_ascii_lowercase();
    let beside = ["mmproj", "imatrix", "lora", "adapter"];
    file.ends_with(".gguf") && !beside.iter().any(|word| file.contains(word))
}

/// Returns the name without its part number, the part number starting at 1, and the number of parts.
fn numbered(name: &str) -> (String, usize, usize) {
    let whole = (name.to_owned(), 1, 1);
    let Some(stem) = name.strip_suffix(".gguf") else { return whole };
    let mut pieces = stem.rsplitn(4, '-');
    let (total, of, part) = (pieces.next(), pieces.next(), pieces.next());
    let number = |piece: Option<&str>| {
        piece.filter(|digits| digits.len() == 5).and_then(|digits| digits.parse().ok())
    };
    match (number(part), of, number(total), pieces.next()) {
        (Some(part), Some("of"), Some(total), Some(start))
            if (1..=total).contains(&part) && total <= MAX_SHARDS =>
        {
            (format!("{start}.gguf"), part, total)
        }
        _ => whole,
    }
}

/// Chooses the requested model, or the best one for `room` bytes of memory.
pub fn choose(models: Vec<GgufFiles>, wanted: Option<&str>, room: u64) -> Result<GgufFiles> {
    let Some(wanted) = wanted else { return best(models, room) };
    let mut fitting: Vec<GgufFiles> = models.iter().filter(|m| m.is(wanted)).cloned().collect();
    // Several files may have the same quantization; the shortest name is that of the plain file.
    fitting.sort_by_key(|model| model.name.len());
    match fitting.into_iter().next() {
        Some(model) => model.whole(),
        None => Err(HubError::new(format!("no GGUF file of the repository is a `{wanted}`"))
            .advise(format!("choose one of {}", listed(&models)))),
    }
}

/// Returns the Q4_K_M model, else the largest that fits in memory, else the smallest.
fn best(models: Vec<GgufFiles>, room: u64) -> Result<GgufFiles> {
    let all = listed(&models);
    let whole = |model: &GgufFiles| model.parts.len() == model.parts_total;
    let mut usable: Vec<GgufFiles> =
        models.into_iter().filter(|model| whole(model) && model.is_readable()).collect();
    usable.sort_by_key(GgufFiles::bytes);
    let default = usable.iter().find(|model| model.is(DEFAULT));
    let fitting = || usable.iter().rev().find(|model| model.bytes() <= room);
    default.or_else(fitting).or(usable.first()).cloned().ok_or_else(|| {
        HubError::new(format!("none of the repository's GGUF files has types that are read: {all}"))
            .advise("name a repository with Q4_K_M, Q8_0, MXFP4 or another of the usual types")
    })
}

/// Lists quantizations with their sizes for an error message.
fn listed(models: &[GgufFiles]) -> String {
    let mut sorted: Vec<&GgufFiles> = models.iter().collect();
    sorted.sort_by_key(|model| model.bytes());
    let name = |model: &&GgufFiles| {
        let name = model.quantization().unwrap_or_else(|| model.name.clone());
        format!("{name} ({})", ByteSize(model.bytes()))
    };
    let mut names: Vec<String> = sorted.iter().take(LISTED_MAX).map(name).collect();
    if sorted.len() > LISTED_MAX {
        names.push(format!("{} more", sorted.len() - LISTED_MAX));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, size: u64) -> RemoteFile {
        RemoteFile { name: name.into(), size, blob: "0".repeat(64) }
    }

    fn repository() -> Vec<GgufFiles> {
        models(&[
            file("BF16/Small-BF16-00001-of-00002.gguf", 40),
            file("BF16/Small-BF16-00002-of-00002.gguf", 20),
            file("README.md", 1),
            file("Small-IQ2_XXS.gguf", 8),
            file("Small-Q4_K_M.gguf", 18),
            file("Small-Q6_K-00001-of-00002.gguf", 20),
            file("Small-Q8_0.gguf", 32),
            file("Small-UD-Q4_K_XL.gguf", 19),
            file("mmproj-F16.gguf", 2),
        ])
    }

    fn chosen(wanted: Option<&str>, room: u64) -> Result<String> {
        Ok(choose(repository(), wanted, room)?.name)
    }

    #[test]
    fn names_tell_quantizations() {
        for (name, told) in [
            ("Qwen3-30B-A3B-Q4_K_M.gguf", Some("Q4_K_M")),
            ("a/b.q8_0.gguf", Some("Q8_0")),
            ("gpt-oss-20b-mxfp4.gguf", Some("MXFP4")),
            ("X-UD-IQ4_XS.gguf", Some("UD-IQ4_XS")),
            ("X-NVFP4.gguf", Some("NVFP4")),
            ("Q4-but-not.gguf", None),
            ("model.gguf", None),
        ] {
            let model = GgufFiles { name: name.into(), parts: Vec::new(), parts_total: 1 };
            assert_eq!(model.quantization().as_deref(), told, "{name}");
        }
    }

    /// Part numbers that no splitter writes belong to the name.
    #[test]
    fn parts_that_make_no_sense_are_whole_files() {
        for name in ["a-00000-of-00000.gguf", "a-00003-of-00002.gguf", "a-00001-of-99999.gguf"] {
            let found = models(&[file(name, 5)]);
            assert_eq!((found[0].name.as_str(), found[0].parts.len()), (name, 1));
            assert_eq!(choose(found, None, 9).unwrap().bytes(), 5);
        }
    }

    #[test]
    fn the_model_that_is_meant() {
        assert_eq!(chosen(None, 100).unwrap(), "Small-Q4_K_M.gguf");
        assert_eq!(chosen(Some("q8_0"), 0).unwrap(), "Small-Q8_0.gguf");
        assert_eq!(chosen(Some("UD-Q4_K_XL"), 0).unwrap(), "Small-UD-Q4_K_XL.gguf");
        let split = choose(repository(), Some("BF16"), 0).unwrap();
        assert_eq!((split.name.as_str(), split.bytes()), ("BF16/Small-BF16.gguf", 60));
        let by_part = chosen(Some("BF16/Small-BF16-00001-of-00002.gguf"), 0);
        assert_eq!(by_part.unwrap(), "BF16/Small-BF16.gguf");
        let missing = chosen(Some("Q6_K"), 0).unwrap_err();
        assert!(missing.to_string().contains("has 1 of its 2 parts"), "{missing}");
        let unknown = chosen(Some("Q5_K_M"), 0).unwrap_err();
        assert!(unknown.to_string().contains("`Q5_K_M`"), "{unknown}");
        assert!(unknown.advice().unwrap().contains("Q4_K_M (18 B)"));
    }

    #[test]
    fn without_the_usual_one_the_largest_that_fits() {
        let others = |room| {
            let mut models = repository();
            models.retain(|model| !model.is("Q4_K_M"));
            choose(models, None, room).map(|model| model.name)
        };
        assert_eq!(others(1000).unwrap(), "BF16/Small-BF16.gguf");
        assert_eq!(others(59).unwrap(), "Small-Q8_0.gguf");
        assert_eq!(others(5).unwrap(), "Small-IQ2_XXS.gguf");
        let unread = choose(models(&[file("a-IQ4_KSS.gguf", 1)]), None, 9).unwrap_err();
        assert!(unread.to_string().contains("IQ4_KSS (1 B)"), "{unread}");
    }
}
