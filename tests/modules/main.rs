//! Checks that no crate of the workspace has dependency cycles among its source files.
//!
//! A file depends on the files that define the names it uses, regardless of re-exports. A re-export (`pub
//! use`) is not a dependency. A module and its direct child may depend on each other. Tests are ignored, and
//! so are method calls, because they name no file.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

mod circles;
mod names;
mod planted;
mod sources;
mod twins;

use sources::Tree;
use std::fs;
use std::path::{Path, PathBuf};

/// Maximum percentage of lines that `shaders/src/` and `kernels/src/` have in common, rounded up. It may only
/// be lowered.
const TWIN_PERCENT: usize = 10;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folders of all crates, including the root.
fn crates() -> Vec<String> {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let members = manifest.split_once("\nmembers = [").and_then(|(_, rest)| rest.split_once(']'));
    let (members, _) = members.unwrap_or_else(|| panic!("Cargo.toml has no members"));
    let named = members.split('"').skip(1).step_by(2).map(str::to_owned);
    [".".into()].into_iter().chain(named).collect()
}

/// Returns the root file of each library and program below `src/` of a crate.
fn first_files(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> =
        ["lib.rs", "main.rs"].map(|name| folder.join("src").join(name)).into();
    if let Ok(programs) = fs::read_dir(folder.join("src/bin")) {
        let paths = programs.map(|entry| entry.unwrap().path());
        found.extend(paths.map(|path| if path.is_dir() { path.join("main.rs") } else { path }));
    }
    found.retain(|path| path.is_file());
    found
}

/// Returns the dependency cycles of a crate's libraries and programs.
fn circles_of(folder: &str) -> Vec<String> {
    let read = |path: &Path| fs::read_to_string(root().join(path)).ok();
    let files = first_files(&root().join(folder));
    assert!(!files.is_empty(), "{folder}/src has neither lib.rs nor main.rs");
    let trees = files.iter().map(|file| Tree::read(file.strip_prefix(root()).unwrap(), &read));
    trees.flat_map(|tree| circles::of(&tree)).collect()
}

#[test]
fn no_files_need_each_other_in_a_circle() {
    let found: Vec<String> = crates().iter().flat_map(|folder| circles_of(folder)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
}

#[test]
fn gpu_backends_share_code_and_do_not_repeat_it() {
    let (shared, files) =
        twins::of_folders(&root().join("shaders/src"), &root().join("kernels/src"));
    let percent = shared.percent();
    assert!(
        percent <= TWIN_PERCENT,
        "{percent} % of the lines are twins, at most {TWIN_PERCENT} %; share them in engine/gpu:\n{}",
        files.join("\n")
    );
    assert_eq!(percent, TWIN_PERCENT, "fewer lines are twins: lower TWIN_PERCENT");
}
