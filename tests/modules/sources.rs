//! The modules of a crate as written in its files: definitions, imports and used names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::buffer::{Cursor, TokenBuffer};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, Meta, TraitItem, UseTree};

/// Segments of a name as written.
pub type Name = Vec<String>;

/// An import of a name, or of everything in it.
pub struct Import {
    pub name: Name,
    pub is_public: bool,
    pub is_glob: bool,
}

#[derive(Default)]
pub struct Module {
    /// Index of the module's file in `Tree::files`.
    pub file: usize,
    pub parent: Option<usize>,
    pub children: BTreeMap<String, usize>,
    pub items: BTreeSet<String>,
    /// Index in `imports` of each imported name, by local name.
    pub aliases: BTreeMap<String, usize>,
    pub imports: Vec<Import>,
    /// Names used in the code.
    pub names: BTreeSet<Name>,
}

pub struct File {
    pub path: PathBuf,
    /// File that declares the module of this file.
    pub parent: Option<usize>,
}

/// The modules of one library or program, without tests.
#[derive(Default)]
pub struct Tree {
    pub modules: Vec<Module>,
    pub files: Vec<File>,
}

/// Function that returns a file's text, or `None` if the file does not exist.
type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Tree {
    pub fn read(first: &Path, read: ReadFile<'_>) -> Self {
        let mut tree = Self::default();
        let folder = first.parent().unwrap().to_owned();
        let text = read(first).unwrap_or_else(|| panic!("{}: is not there", first.display()));
        tree.file(first.to_owned(), &text, folder, None, read);
        tree
    }

    /// Adds a file and returns its module. Files of its child modules are in `folder`.
    fn file(
        &mut self,
        path: PathBuf,
        text: &str,
        folder: PathBuf,
        parent: Option<usize>,
        read: ReadFile<'_>,
    ) -> usize {
        let syntax = syn::parse_file(text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let file = self.files.len();
        let parent_file = parent.map(|module| self.modules[module].file);
        self.files.push(File { path, parent: parent_file });
        let module = self.modules.len();
        self.modules.push(Module { file, parent, ..Module::default() });
        let mut reader = Reader { tree: self, module, folder, read };
        reader.visit_file(&syntax);
        module
    }
}

/// Reader that adds a module and its inline modules to a tree.
struct Reader<'t, 'r> {
    tree: &'t mut Tree,
    module: usize,
    /// Folder of the files of child modules.
    folder: PathBuf,
    read: ReadFile<'r>,
}

impl Reader<'_, '_> {
    fn here(&mut self) -> &mut Module {
        &mut self.tree.modules[self.module]
    }

    fn inline_module(&mut self, name: &str, items: &[Item]) {
        let known = self.here().children.get(name).copied();
        let child = known.unwrap_or_else(|| {
            let (file, parent) = (self.here().file, Some(self.module));
            self.tree.modules.push(Module { file, parent, ..Module::default() });
            self.tree.modules.len() - 1
        });
        self.here().children.insert(name.into(), child);
        let folder = self.folder.join(name);
        let mut reader = Reader { tree: self.tree, module: child, folder, read: self.read };
        items.iter().for_each(|item| reader.visit_item(item));
    }

    fn file_module(&mut self, name: &str, elsewhere: Option<String>) {
        let own = self.folder.join(name);
        let candidates = match elsewhere {
            Some(path) => {
                let path = self.folder_of_paths().join(path);
                let folder = path.parent().unwrap().to_owned();
                vec![(path, folder)]
            }
            None => vec![(own.with_extension("rs"), own.clone()), (own.join("mod.rs"), own)],
        };
        let found = candidates.into_iter().find_map(|(path, folder)| {
            let text = (self.read)(&path)?;
            Some((path, folder, text))
        });
        let Some((path, folder, text)) = found else {
            let file = self.here().file;
            panic!("{}: no file of `mod {name}`", self.tree.files[file].path.display());
        };
        let child = self.tree.file(path, &text, folder, Some(self.module), self.read);
        self.here().children.insert(name.into(), child);
    }

    /// Returns the folder to which `#[path]` is relative: an inline module's own folder, or else the file's.
    fn folder_of_paths(&self) -> PathBuf {
        let here = &self.tree.modules[self.module];
        let is_inline = here.parent.is_some_and(|above| self.tree.modules[above].file == here.file);
        let file = &self.tree.files[here.file].path;
        if is_inline { self.folder.clone() } else { file.parent().unwrap().to_owned() }
    }

    fn import(&mut self, tree: &UseTree, mut prefix: Name, is_public: bool) {
        let (last, alias) = match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                return self.import(&path.tree, prefix, is_public);
            }
            UseTree::Group(group) => {
                for part in &group.items {
                    self.import(part, prefix.clone(), is_public);
                }
                return;
            }
            UseTree::Glob(_) => {
                self.here().imports.push(Import { name: prefix, is_public, is_glob: true });
                return;
            }
            UseTree::Name(name) => (name.ident.to_string(), None),
            UseTree::Rename(name) => (name.ident.to_string(), Some(name.rename.to_string())),
        };
        // `use a::{self}` is equivalent to `use a`.
        if last != "self" || prefix.is_empty() {
            prefix.push(last);
        }
        let alias = alias.or_else(|| prefix.last().cloned()).unwrap();
        let module = self.here();
        module.aliases.insert(alias, module.imports.len());
        module.imports.push(Import { name: prefix, is_public, is_glob: false });
    }

    /// Collects multi-segment names among the tokens of a macro. `depth` counts the modules that the macro
    /// opens around them. The same number of `super` segments leads back to this module.
    fn tokens(&mut self, mut at: Cursor<'_>, depth: usize) {
        let mut opens_module = false;
        while !at.eof() {
            if let Some((ident, mut after)) = at.ident() {
                let mut name = vec![ident.to_string()];
                while let Some((part, rest)) = colons(after).and_then(Cursor::ident) {
                    name.push(part.to_string());
                    after = rest;
                }
                opens_module = name == ["mod"] || (opens_module && name.len() == 1);
                if name.len() > 1 {
                    let inner = name.iter().take(depth).take_while(|part| *part == "super").count();
                    self.here().names.insert(name.split_off(inner));
                }
                at = after;
            } else if let Some((inside, _, _, after)) = at.any_group() {
                self.tokens(inside, depth + usize::from(opens_module));
                (at, opens_module) = (after, false);
            } else if let Some((punct, after)) = at.punct() {
                opens_module &= punct.as_char() == '$';
                at = after;
            } else {
                (_, at) = at.token_tree().unwrap();
            }
        }
    }
}

/// Returns the rest after `::`.
fn colons(at: Cursor<'_>) -> Option<Cursor<'_>> {
    let (first, at) = at.punct()?;
    let (second, at) = at.punct()?;
    (first.as_char() == ':' && second.as_char() == ':').then_some(at)
}

/// Returns true if an item is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    fn needs_test(meta: &Meta) -> bool {
        match meta {
            Meta::Path(path) => path.is_ident("test"),
            Meta::List(list) if list.path.is_ident("all") => parts(list).iter().any(needs_test),
            _ => false,
        }
    }
    fn parts(list: &syn::MetaList) -> Vec<Meta> {
        let separated = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
        list.parse_args_with(separated).unwrap().into_iter().collect()
    }
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => parts(list).iter().any(needs_test),
        meta => meta.path().is_ident("test"),
    })
}

/// Returns the value of `#[path = "…"]`.
fn path_of(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(value) = &pair.value else { return None };
        let syn::Lit::Str(text) = &value.lit else { return None };
        pair.path.is_ident("path").then(|| text.value())
    })
}

/// Returns an item's attributes, and its name if other code can use it.
fn described(item: &Item) -> (&[Attribute], Option<&syn::Ident>) {
    match item {
        Item::Const(item) => (&item.attrs, Some(&item.ident)),
        Item::Enum(item) => (&item.attrs, Some(&item.ident)),
        Item::ExternCrate(item) => (&item.attrs, None),
        Item::Fn(item) => (&item.attrs, Some(&item.sig.ident)),
        Item::ForeignMod(item) => (&item.attrs, None),
        Item::Impl(item) => (&item.attrs, None),
        Item::Macro(item) => (&item.attrs, item.ident.as_ref()),
        Item::Mod(item) => (&item.attrs, None),
        Item::Static(item) => (&item.attrs, Some(&item.ident)),
        Item::Struct(item) => (&item.attrs, Some(&item.ident)),
        Item::Trait(item) => (&item.attrs, Some(&item.ident)),
        Item::TraitAlias(item) => (&item.attrs, Some(&item.ident)),
        Item::Type(item) => (&item.attrs, Some(&item.ident)),
        Item::Union(item) => (&item.attrs, Some(&item.ident)),
        Item::Use(item) => (&item.attrs, None),
        _ => (&[], None),
    }
}

impl<'ast> Visit<'ast> for Reader<'_, '_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let (attributes, name) = described(item);
        if is_test(attributes) {
            return;
        }
        if let Some(name) = name {
            self.here().items.insert(name.to_string());
        }
        match item {
            Item::Use(import) => {
                let is_public = !matches!(import.vis, syn::Visibility::Inherited);
                self.import(&import.tree, Name::new(), is_public);
            }
            Item::Mod(module) => match &module.content {
                Some((_, items)) => self.inline_module(&module.ident.to_string(), items),
                None => self.file_module(&module.ident.to_string(), path_of(attributes)),
            },
            _ => visit::visit_item(self, item),
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes: &[Attribute] = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes: &[Attribute] = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if !is_test(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        if !is_test(&local.attrs) {
            visit::visit_local(self, local);
        }
    }

    /// Skips visibilities: their paths are not dependencies.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let name = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.here().names.insert(name);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(TokenBuffer::new2(call.tokens.clone()).begin(), 0);
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.tokens(TokenBuffer::new2(list.tokens.clone()).begin(), 0);
    }
}
