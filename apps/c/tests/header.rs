//! The header is what cbindgen makes of the sources.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::path::{Path, PathBuf};

use cbindgen::{Builder, Config};

/// A type of Rust as it is called in C.
fn snake(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// Files in the order in which a reader of the header needs them.
const FILES: [&str; 13] = [
    "version",
    "error",
    "text",
    "cancel",
    "log",
    "engine",
    "model",
    "event",
    "options",
    "generation",
    "session",
    "chat",
    "tokenizer",
];

fn made() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut config = Config::from_file(root.join("cbindgen.toml")).unwrap();
    let files: Vec<PathBuf> =
        FILES.iter().map(|name| root.join("src").join(format!("{name}.rs"))).collect();
    let mut builder = Builder::new();
    for path in files {
        let text = std::fs::read_to_string(&path).unwrap();
        for line in text.lines() {
            let kinds = ["pub struct ", "pub enum ", "pub type "];
            let named = kinds.iter().find_map(|kind| line.strip_prefix(kind));
            if let Some(name) = named.and_then(|rest| rest.split([' ', '=']).next()) {
                config.export.rename.insert(name.to_owned(), snake(name));
            }
        }
        builder = builder.with_src(path);
    }
    let mut out = Vec::new();
    builder.with_config(config).generate().unwrap().write(&mut out);
    String::from_utf8(out).unwrap()
}

/// `NESTLING_WRITE=1` writes it.
#[test]
fn the_header_is_that_of_the_sources() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/include/nestling.h");
    let made = made();
    if std::env::var_os("NESTLING_WRITE").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap();
    assert!(made == committed, "include/nestling.h differs: NESTLING_WRITE=1 writes it");
}

/// CMake and pkg-config report the crate's version.
#[test]
fn the_package_has_the_version_of_the_crate() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/cmake/nestlingConfigVersion.cmake");
    let said = format!("set(PACKAGE_VERSION \"{}\")", env!("CARGO_PKG_VERSION"));
    assert!(std::fs::read_to_string(path).unwrap().contains(&said), "{path} lacks {said}");
}
