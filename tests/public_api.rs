//! Compares the library's public names with the committed list `docs/public-api.txt`.
//!
//! The list contains the exports of `src/lib.rs` and `src/engine.rs`, with the public fields, variants and
//! inherent methods of their types. Signatures are not listed, and neither are the contents of re-exported
//! modules and crates. After a change, run the test with `NESTLING_WRITE=1` and review the diff.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on should say where")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::{Fields, ImplItem, Item, TraitItem, Type, UseTree, Visibility};

const LIST: &str = "docs/public-api.txt";

/// Crates with re-exported items, and their folders.
const CRATES: [(&str, &str); 15] = [
    ("nestling_convert", "engine/convert/src"),
    ("nestling_core", "engine/core/src"),
    ("nestling_cpu", "engine/cpu/src"),
    ("nestling_cuda", "kernels/src"),
    ("nestling_experts", "engine/experts/src"),
    ("nestling_formats", "formats/nest/src"),
    ("nestling_guide", "engine/guide/src"),
    ("nestling_import", "formats/import/src"),
    ("nestling_levels", "engine/levels/src"),
    ("nestling_ranks", "engine/ranks/src"),
    ("nestling_runtime", "engine/runtime/src"),
    ("nestling_text", "engine/text/src"),
    ("nestling_threads", "engine/threads/src"),
    ("nestling_wgpu", "shaders/src"),
    ("crate", "src"),
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Public members of one crate's types, by type name.
type Members = BTreeMap<String, BTreeSet<String>>;

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn note_fields(members: &mut BTreeSet<String>, fields: &Fields) {
    for (place, field) in fields.iter().enumerate().filter(|(_, field)| is_public(&field.vis)) {
        let name = field.ident.as_ref().map_or(place.to_string(), ToString::to_string);
        members.insert(format!(".{name}"));
    }
}

fn note_item(found: &mut Members, item: &Item) {
    match item {
        Item::Struct(item) if is_public(&item.vis) => {
            note_fields(found.entry(item.ident.to_string()).or_default(), &item.fields);
        }
        Item::Enum(item) if is_public(&item.vis) => {
            let members = found.entry(item.ident.to_string()).or_default();
            for variant in &item.variants {
                members.insert(format!("::{}", variant.ident));
                let fields = variant.fields.iter().filter_map(|field| field.ident.as_ref());
                members.extend(fields.map(|field| format!("::{}.{field}", variant.ident)));
            }
        }
        Item::Trait(item) if is_public(&item.vis) => {
            let members = found.entry(item.ident.to_string()).or_default();
            for item in &item.items {
                if let TraitItem::Fn(item) = item {
                    members.insert(format!("::{}", item.sig.ident));
                }
            }
        }
        Item::Impl(item) if item.trait_.is_none() => {
            let Type::Path(path) = &*item.self_ty else { return };
            let Some(name) = path.path.segments.last() else { return };
            let members = found.entry(name.ident.to_string()).or_default();
            for item in &item.items {
                match item {
                    ImplItem::Fn(item) if is_public(&item.vis) => {
                        members.insert(format!("::{}", item.sig.ident));
                    }
                    ImplItem::Const(item) if is_public(&item.vis) => {
                        members.insert(format!("::{}", item.ident));
                    }
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn note_files(found: &mut Members, folder: &Path) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            note_files(found, &path);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let file = syn::parse_file(&fs::read_to_string(&path).unwrap());
            let file = file.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            file.items.iter().for_each(|item| note_item(found, item));
        }
    }
}

/// Collects the exports of a `pub use`: crate, original name and exported name.
fn exports(tree: &UseTree, origin: Option<&str>, found: &mut Vec<[String; 3]>) {
    let mut add = |name: String, here: String| {
        let origin = origin.unwrap_or(&name).to_owned();
        found.push([origin, name, here]);
    };
    match tree {
        UseTree::Path(path) => {
            let name = path.ident.to_string();
            exports(&path.tree, Some(origin.unwrap_or(&name)), found);
        }
        UseTree::Name(name) => add(name.ident.to_string(), name.ident.to_string()),
        UseTree::Rename(name) => add(name.ident.to_string(), name.rename.to_string()),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| exports(tree, origin, found));
        }
        UseTree::Glob(_) => panic!("the facade exports names one by one, no `*`"),
    }
}

/// Returns the lines for one file: its exports with their members.
fn lines_of(file: &str, prefix: &str, members: &BTreeMap<&str, Members>) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join(file)).unwrap();
    let mut names = Vec::new();
    for item in &syn::parse_file(&text).unwrap().items {
        let own = |name: &syn::Ident| ["crate".into(), name.to_string(), name.to_string()];
        match item {
            Item::Use(item) if is_public(&item.vis) => exports(&item.tree, None, &mut names),
            Item::Struct(item) if is_public(&item.vis) => names.push(own(&item.ident)),
            Item::Fn(item) if is_public(&item.vis) => names.push(own(&item.sig.ident)),
            Item::Mod(item) if is_public(&item.vis) => names.push(own(&item.ident)),
            _ => {}
        }
    }
    let mut lines = BTreeSet::new();
    for [origin, name, here] in names {
        // An item that is not from another crate is from a module of this crate.
        let origin = if origin.starts_with("nestling_") { &origin } else { "crate" };
        let known = members.get(origin).unwrap_or_else(|| panic!("{origin} is not in the list"));
        lines.insert(format!("{prefix}::{here}"));
        let all = known.get(&name).into_iter().flatten();
        lines.extend(all.map(|member| format!("{prefix}::{here}{member}")));
    }
    lines
}

#[test]
fn the_public_names_are_those_of_the_list() {
    let mut members = BTreeMap::new();
    for (name, folder) in CRATES {
        let found: &mut Members = members.entry(name).or_default();
        note_files(found, &root().join(folder));
    }
    let mut lines = lines_of("src/lib.rs", "nestling", &members);
    // Members of types that the root also exports are listed there only.
    let engine = lines_of("src/engine.rs", "nestling::engine", &members);
    let at_root = |line: &String| lines.contains(&line.replacen("::engine", "", 1));
    let engine: Vec<_> = engine.into_iter().filter(|line| !at_root(line)).collect();
    lines.extend(engine);
    let found: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if std::env::var_os("NESTLING_WRITE").is_some() {
        fs::write(root().join(LIST), &found).unwrap();
    }
    let listed = fs::read_to_string(root().join(LIST)).unwrap();
    let listed: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let gone: Vec<_> = listed.difference(&lines).map(|line| format!("- {line}")).collect();
    let new: Vec<_> = lines.difference(&listed).map(|line| format!("+ {line}")).collect();
    let changed = [gone, new].concat().join("\n");
    assert!(changed.is_empty(), "NESTLING_WRITE=1 writes these to {LIST}:\n{changed}");
}
