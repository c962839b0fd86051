//! Resolution of names to the files that define them.

use super::sources::Tree;

/// Maximum number of imports followed for one name. Only a name imported from itself needs more.
const STEPS_MAX: usize = 32;

/// Resolution of a name within the crate.
#[derive(Clone, Copy)]
pub enum Resolution<'a> {
    Module(usize),
    /// An item: its file and its name there.
    Item(usize, &'a str),
}

/// Resolves `name` in a module. Returns `None` for names of other crates.
pub fn meaning<'a>(tree: &'a Tree, module: usize, name: &'a [String]) -> Option<Resolution<'a>> {
    follow(tree, module, name, STEPS_MAX)
}

fn follow<'a>(
    tree: &'a Tree,
    module: usize,
    name: &'a [String],
    steps: usize,
) -> Option<Resolution<'a>> {
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
            Some(Resolution::Module(child)) => at = child,
            Some(item) => return Some(item),
            // The name belongs to no other crate, so a macro of this module defined it.
            None if is_ours && !here.aliases.contains_key(first) => {
                return Some(Resolution::Item(here.file, first));
            }
            None => return None,
        }
        (rest, is_ours) = (after, true);
    }
    Some(Resolution::Module(at))
}

/// Resolves one segment of a name in a module. The last segment prefers items to modules, the others prefer
/// modules.
fn lookup<'a>(
    tree: &'a Tree,
    at: usize,
    name: &'a str,
    is_last: bool,
    steps: usize,
) -> Option<Resolution<'a>> {
    let here = &tree.modules[at];
    let child = here.children.get(name).map(|child| Resolution::Module(*child));
    let item = here.items.contains(name).then_some(Resolution::Item(here.file, name));
    let alias = || {
        let import = &here.imports[*here.aliases.get(name)?];
        follow(tree, at, &import.name, steps)
    };
    let glob = || {
        let globs = here.imports.iter().filter(|import| import.is_glob);
        let modules = globs.filter_map(|import| match follow(tree, at, &import.name, steps)? {
            Resolution::Module(module) if module != at => Some(module),
            _ => None,
        });
        let mut found =
            modules.map(|module| lookup(tree, module, name, is_last, steps.checked_sub(1)?));
        found.find_map(|found| found)
    };
    let alias_to_item = || alias().filter(|found| matches!(found, Resolution::Item(..)));
    match is_last {
        true => item.or_else(alias_to_item).or(child).or_else(alias).or_else(glob),
        false => child.or_else(alias).or(item).or_else(glob),
    }
}
