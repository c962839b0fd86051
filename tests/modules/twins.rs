//! Duplicate lines in the host code of the two GPU backends, which belong in `engine/gpu/`.
//!
//! Files with the same name below `shaders/src/` and `kernels/src/` are compared, after the names of the
//! backends are unified. Runs of at least three common lines of code are counted.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

/// Minimum length of a counted run in lines.
const RUN: usize = 3;

/// Number of lines in compared files, and of duplicate lines among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DuplicateCounts {
    pub same: usize,
    pub all: usize,
}

impl DuplicateCounts {
    /// Returns the percentage of duplicate lines, rounded up.
    pub fn percent(self) -> usize {
        (100 * self.same).div_ceil(self.all.max(1))
    }
}

/// Returns the lines of code without indentation, tests and comments, with unified backend names.
fn code(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]");
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    let plain = |line: &str| line.replace("Wgpu", "Gpu").replace("Cuda", "Gpu");
    lines.map(|line| plain(line).replace("wgpu", "gpu").replace("cuda", "gpu")).collect()
}

/// Returns the number of lines in runs that also occur in `others`.
fn in_runs(lines: &[String], others: &[String]) -> usize {
    let runs: HashSet<&[String]> = others.windows(RUN).collect();
    let mut is_same = vec![false; lines.len()];
    for (start, run) in lines.windows(RUN).enumerate() {
        if runs.contains(run) {
            is_same[start..start + RUN].fill(true);
        }
    }
    is_same.into_iter().filter(|same| *same).count()
}

/// Returns the duplicate lines of two texts, counted in both.
pub fn of_texts(one: &str, other: &str) -> DuplicateCounts {
    let (one, other) = (code(one), code(other));
    let same = in_runs(&one, &other) + in_runs(&other, &one);
    DuplicateCounts { same, all: one.len() + other.len() }
}

/// Collects the sources below a folder, by relative path.
fn sources(folder: &Path, below: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(below).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(folder, &path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && !path.ends_with("tests.rs")
        {
            let name = path.strip_prefix(folder).unwrap().to_string_lossy().into_owned();
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
}

/// Returns the duplicate lines of two folders, in total and per file.
pub fn of_folders(one: &Path, other: &Path) -> (DuplicateCounts, Vec<String>) {
    let [one, other] = [one, other].map(|folder| {
        let mut found = BTreeMap::new();
        sources(folder, folder, &mut found);
        found
    });
    let (mut sum, mut named) = (DuplicateCounts::default(), Vec::new());
    for (name, text) in &one {
        let Some(twin) = other.get(name) else { continue };
        let shared = of_texts(text, twin);
        (sum.same, sum.all) = (sum.same + shared.same, sum.all + shared.all);
        if shared.same > 0 {
            named.push(format!("{name}: {} of {} lines", shared.same, shared.all));
        }
    }
    (sum, named)
}

#[test]
fn lines_that_both_have_are_counted_in_both() {
    let one = "// A comment.\nfn a() {\n    b();\n    c::<WgpuThing>();\n}\nuse x;\n";
    let other = "use y;\nfn a() {\n    b();\n\n    c::<CudaThing>();\n}\n#[cfg(test)]\nuse x;\n";
    assert_eq!(of_texts(one, other), DuplicateCounts { same: 8, all: 10 });
    assert_eq!(of_texts(one, other).percent(), 80);
    // Two lines are too few for a run. A repeated run counts at each occurrence.
    assert_eq!(of_texts("a\nb\nc\n", "a\nb\nd\n"), DuplicateCounts { same: 0, all: 6 });
    assert_eq!(of_texts("a\nb\nc\na\nb\nc\n", "a\nb\nc\n"), DuplicateCounts { same: 9, all: 9 });
}
