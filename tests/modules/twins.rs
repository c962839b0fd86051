//! Lines that the hosts of the two GPU backends spell alike: what both need belongs in `engine/gpu/`.
//!
//! Files of the same name below `shaders/src/` and `kernels/src/` are compared, with the names of the
//! backends taken for one. Counted are the lines of code of every run of three or more that both have.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::Path;

/// Lines of a run that is counted, at the least.
const RUN: usize = 3;

/// Lines of code of files that have a twin, and how many of them are in such runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    pub same: usize,
    pub all: usize,
}

impl Shared {
    /// In percent, rounded up.
    pub fn percent(self) -> usize {
        (100 * self.same).div_ceil(self.all.max(1))
    }
}

/// Lines of code without indentation, tests and comments, the same for both backends.
fn code(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).take_while(|line| *line != "#[cfg(test)]");
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    let plain = |line: &str| line.replace("Wgpu", "Gpu").replace("Cuda", "Gpu");
    lines.map(|line| plain(line).replace("wgpu", "gpu").replace("cuda", "gpu")).collect()
}

/// How many of these lines are in runs that the others have, too.
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

/// What two texts share, counted in both.
pub fn of_texts(one: &str, other: &str) -> Shared {
    let (one, other) = (code(one), code(other));
    let same = in_runs(&one, &other) + in_runs(&other, &one);
    Shared { same, all: one.len() + other.len() }
}

/// All sources below a folder by their names from there.
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

/// What the files of the same names below two folders share, and each of them that shares something.
pub fn of_folders(one: &Path, other: &Path) -> (Shared, Vec<String>) {
    let [one, other] = [one, other].map(|folder| {
        let mut found = BTreeMap::new();
        sources(folder, folder, &mut found);
        found
    });
    let (mut sum, mut named) = (Shared::default(), Vec::new());
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
    assert_eq!(of_texts(one, other), Shared { same: 8, all: 10 });
    assert_eq!(of_texts(one, other).percent(), 80);
    // Two lines are no run, and none is twice what it was.
    assert_eq!(of_texts("a\nb\nc\n", "a\nb\nd\n"), Shared { same: 0, all: 6 });
    assert_eq!(of_texts("a\nb\nc\na\nb\nc\n", "a\nb\nc\n"), Shared { same: 9, all: 9 });
}
