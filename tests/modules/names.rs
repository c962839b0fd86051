//! Which file a name is defined in.

use super::sources::Tree;

/// Imports of imports that are followed before a name is given up: enough for any but a name that
/// is imported from itself.
const STEPS_MAX: usize = 32;

/// What a name stands for, where that is part of the crate.
#[derive(Clone, Copy)]
pub enum Meaning<'a> {
    Module(usize),
    /// Something that a file defines, and how it is called there.
    Item(usize, &'a str),
}

/// What `name` stands for in a module, if not something of another crate.
pub fn meaning<'a>(tree: &'a Tree, module: usize, name: &'a [String]) -> Option<Meaning<'a>> {
    follow(tree, module, name, STEPS_MAX)
}

fn follow<'a>(
    tree: &'a Tree,
    module: usize,
    name: &'a [String],
    steps: usize,
) -> Option<Meaning<'a>> {
    let (mut at, mut rest, mut is_ours) = (module, name, false);
    while let Some((first, after)) = rest.split_first() {
        at = match first.as_str() {
            "crate" => 0,
            "self" => at,
            "super" => tree.modules[at].parent?,
            _ => break,
        };
        (rest, is_ours) = (after, true);
    }
    while let Some((first, after)) = rest.split_first() {
        let here = &tree.modules[at];
        match lookup(tree, at, first, after.is_empty(), steps.checked_sub(1)?) {
            Some(Meaning::Module(child)) => at = child,
            Some(item) => return Some(item),
            // No other crate has it: a macro made it here.
            None if is_ours && !here.aliases.contains_key(first) => {
                return Some(Meaning::Item(here.file, first));
            }
            None => return None,
        }
        (rest, is_ours) = (after, true);
    }
    Some(Meaning::Module(at))
}

/// What one segment of a name is in a module. The last one names an item sooner than a module, the
/// others a module sooner than an item.
fn lookup<'a>(
    tree: &'a Tree,
    at: usize,
    name: &'a str,
    is_last: bool,
    steps: usize,
) -> Option<Meaning<'a>> {
    let here = &tree.modules[at];
    let child = here.children.get(name).map(|child| Meaning::Module(*child));
    let item = here.items.contains(name).then_some(Meaning::Item(here.file, name));
    let alias = || {
        let import = &here.imports[*here.aliases.get(name)?];
        follow(tree, at, &import.name, steps)
    };
    let glob = || {
        let globs = here.imports.iter().filter(|import| import.is_glob);
        let modules = globs.filter_map(|import| match follow(tree, at, &import.name, steps)? {
            Meaning::Module(module) if module != at => Some(module),
            _ => None,
        });
        let mut found =
            modules.map(|module| lookup(tree, module, name, is_last, steps.checked_sub(1)?));
        found.find_map(|found| found)
    };
    let alias_to_item = || alias().filter(|found| matches!(found, Meaning::Item(..)));
    match is_last {
        true => item.or_else(alias_to_item).or(child).or_else(alias).or_else(glob),
        false => child.or_else(alias).or(item).or_else(glob),
    }
}
