//! Locations of files: the bundled store, the caches and the history.

use crate::failure::{Failure, Result};
use std::env;
use std::path::{Path, PathBuf};

/// File name of the bundled store. It is searched by name, since a folder above the program may hold other
/// stores.
const BUNDLED_STORE: &str = "nestling-storyteller.nest";

/// Returns the bundled store: next to the program, in `<prefix>/share/nestling`, or in the source tree.
pub fn bundled_store() -> Result<PathBuf> {
    let program = env::current_exe().ok().and_then(|path| path.canonicalize().ok());
    // Default: the path of the program is unavailable on some systems.
    let directories = program.as_deref().map(bundle_directories).unwrap_or_default();
    find_bundled(&directories).ok_or_else(|| {
        Failure::new("the bundled storyteller was not found beside the program").advise(
            "name a model with -m STORE, or download one with -hf OWNER/REPO \
             (for example -hf Qwen/Qwen3-30B-A3B)",
        )
    })
}

fn find_bundled(directories: &[PathBuf]) -> Option<PathBuf> {
    let mut stores = directories.iter().map(|directory| directory.join(BUNDLED_STORE));
    stores.find(|path| path.is_file())
}

/// Returns directories that may hold the bundled store, nearest first.
fn bundle_directories(program: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let Some(home) = program.parent() else { return out };
    out.push(home.to_path_buf());
    out.push(home.join("models"));
    if let Some(prefix) = home.parent() {
        out.push(prefix.join("share").join("nestling"));
    }
    // target/release/nestling, or target/debug/deps/... in tests: the source tree of the build.
    out.extend(home.ancestors().skip(1).take(4).map(|tree| tree.join("models")));
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    out.extend(tree.map(|tree| tree.join("models")));
    out
}

/// Returns the folders that hold Python versions, or on Windows packages: of the active environments, of the
/// user and of the system.
pub fn python_libraries() -> Vec<PathBuf> {
    let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable);
    if cfg!(windows) {
        return active.map(|prefix| prefix.join("Lib")).collect();
    }
    // Default: empty, since a user without a home has installed nothing there.
    let user = home().map(|home| home.join(".local")).into_iter();
    let system = ["/usr/local", "/usr"].map(PathBuf::from);
    let prefixes = active.chain(user).chain(system);
    prefixes.flat_map(|prefix| [prefix.join("lib"), prefix.join("lib64")]).collect()
}

fn variable(name: &str) -> Option<PathBuf> {
    env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn home() -> Result<PathBuf> {
    env::home_dir().filter(|path| !path.as_os_str().is_empty()).ok_or_else(|| {
        Failure::new("there is no home directory to keep downloads in")
            .advise("set NESTLING_CACHE and HF_HOME to directories")
    })
}

fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn system_cache() -> Result<PathBuf> {
    if let Some(path) = variable("XDG_CACHE_HOME") {
        return Ok(path);
    }
    if cfg!(windows)
        && let Some(path) = variable("LOCALAPPDATA")
    {
        return Ok(path);
    }
    let below = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    Ok(home()?.join(below))
}

/// Returns Nestling's cache directory, which holds converted stores and the chat history.
pub fn nestling_cache() -> Result<PathBuf> {
    match variable("NESTLING_CACHE") {
        Some(path) => Ok(absolute(path)),
        None => Ok(absolute(system_cache()?.join("nestling"))),
    }
}

/// Returns the file that stores the fastest number of threads.
pub fn thread_count_file() -> Result<PathBuf> {
    Ok(nestling_cache()?.join("threads.txt"))
}

/// Returns the file that stores measured memory and disk speeds.
pub fn speeds_file() -> Result<PathBuf> {
    Ok(nestling_cache()?.join("speeds.json"))
}

/// Returns the folder of compiled shaders.
pub fn shader_folder() -> Result<PathBuf> {
    Ok(nestling_cache()?.join("shaders"))
}

pub fn history_file() -> Result<PathBuf> {
    Ok(nestling_cache()?.join("history.txt"))
}

/// Returns `HF_HOME`, the folder in which the Hub's tools store the cache and the token.
pub fn hub_home() -> Result<PathBuf> {
    if let Some(path) = variable("HF_HOME") {
        return Ok(absolute(path));
    }
    if let Some(path) = variable("XDG_CACHE_HOME") {
        return Ok(absolute(path.join("huggingface")));
    }
    Ok(home()?.join(".cache").join("huggingface"))
}

/// Returns the Hub's standard cache of downloads.
pub fn hub_cache() -> Result<PathBuf> {
    match variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
        Some(path) => Ok(absolute(path)),
        None => Ok(hub_home()?.join("hub")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_is_looked_for_in_three_places() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("bin").join("nestling");
        let places = ["bin", "share/nestling", "models"];
        for place in places.iter().rev() {
            let directory = root.path().join(place);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("another.nest"), "").unwrap();
            std::fs::write(directory.join(BUNDLED_STORE), "").unwrap();
            let found = find_bundled(&bundle_directories(&program));
            assert_eq!(found, Some(directory.join(BUNDLED_STORE)), "{place}");
        }
    }
}
