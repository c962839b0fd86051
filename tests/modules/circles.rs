//! Dependency cycles among the files of a crate.

use super::names::{Resolution, meaning};
use super::sources::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Direct dependencies of each file, with the names that cause them.
type Needs = Vec<BTreeMap<usize, BTreeSet<String>>>;

/// Returns a description of each dependency cycle, with the names that cause it.
pub fn of(tree: &Tree) -> Vec<String> {
    let needs = needs(tree);
    let reached: Vec<BTreeSet<usize>> = (0..needs.len()).map(|file| reach(&needs, file)).collect();
    let mut found = Vec::new();
    for file in 0..needs.len() {
        let is_with = |other: &usize| reached[*other].contains(&file);
        let circle: BTreeSet<usize> = reached[file].iter().copied().filter(is_with).collect();
        if circle.first() == Some(&file) {
            found.push(describe(tree, &needs, &circle));
        }
    }
    found
}

fn needs(tree: &Tree) -> Needs {
    let mut needs: Needs = tree.files.iter().map(|_| BTreeMap::new()).collect();
    for (at, module) in tree.modules.iter().enumerate() {
        let mut need = |name: &[String], is_face: bool| {
            let Some(Resolution::Item(file, item)) = meaning(tree, at, name) else { return };
            let is_near = is_parent(tree, file, module.file) || is_parent(tree, module.file, file);
            let is_handed_on = is_face && is_below(tree, file, module.file);
            if file != module.file && !is_near && !is_handed_on {
                needs[module.file].entry(file).or_default().insert(item.to_owned());
            }
        };
        module.imports.iter().for_each(|import| need(&import.name, import.is_public));
        module.names.iter().for_each(|name| need(name, false));
    }
    needs
}

fn is_parent(tree: &Tree, parent: usize, child: usize) -> bool {
    tree.files[child].parent == Some(parent)
}

fn is_below(tree: &Tree, file: usize, above: usize) -> bool {
    let parent = tree.files[file].parent;
    parent.is_some_and(|parent| parent == above || is_below(tree, parent, above))
}

/// Returns the transitive dependencies of a file.
fn reach(needs: &Needs, from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        open.extend(needs[file].keys().filter(|next| found.insert(**next)));
    }
    found
}

fn describe(tree: &Tree, needs: &Needs, circle: &BTreeSet<usize>) -> String {
    let path = |file: &usize| tree.files[*file].path.display();
    let mut text = format!("a circle of {} files:", circle.len());
    for file in circle {
        for (other, names) in needs[*file].iter().filter(|(other, _)| circle.contains(other)) {
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            text += &format!("\n    {} needs {}", path(file), path(other));
            text += &format!(" for {}", names.join(", "));
        }
    }
    text
}
