//! Artificial crates with and without dependency cycles.

use super::circles;
use super::sources::Tree;
use std::path::Path;

/// Paths and texts; the root file comes first.
type Files<'a> = &'a [(&'a str, &'a str)];

fn circles_in(files: Files<'_>) -> Vec<String> {
    let read = |path: &Path| {
        let file = files.iter().find(|(name, _)| Path::new(name) == path);
        file.map(|(_, text)| (*text).to_owned())
    };
    circles::of(&Tree::read(Path::new(files[0].0), &read))
}

#[test]
fn a_circle_is_described_by_its_files_and_names() {
    let found = circles_in(&[
        ("lib.rs", "mod a; mod b; mod c; mod d; use a::A;"),
        ("a.rs", "use crate::b::{B, make}; pub struct A; pub struct Other;"),
        ("b.rs", "pub struct B(crate::c::C); pub fn make() {}"),
        ("c.rs", "use super::a; pub struct C(a::A, a::Other);"),
        ("d.rs", "use crate::{a::A, b::B};"),
    ]);
    let expected = "a circle of 3 files:
    a.rs needs b.rs for B, make
    b.rs needs c.rs for C
    c.rs needs a.rs for A, Other";
    assert_eq!(found, [expected]);
}

#[test]
fn circles_apart_are_counted_apart() {
    let found = circles_in(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::a::A; use crate::c::C; pub struct B;"),
        ("c.rs", "use crate::d::D; pub struct C;"),
        ("d.rs", "use crate::c::C; pub struct D;"),
    ]);
    assert_eq!(found.len(), 2, "{found:?}");
}

/// Texts of `a.rs` that depend on `B` of `b.rs` in various spellings.
#[test]
fn every_spelling_of_a_name_is_found() {
    for text in [
        "use crate::b::B;",
        "use super::b::B as Other;",
        "use crate::{b::{self, Another}}; type T = b::B;",
        "use crate::b as other; fn f() -> other::B { todo!() }",
        "type T = crate::b::B;",
        "fn f() { let _ = crate::b::B::new(1); }",
        "fn f() { use crate::b::B; }",
        "fn f() { println!(\"{}\", crate::b::B); }",
        "fn f<T: crate::b::B>() {}",
        "impl crate::b::B for u8 {}",
        "#[arg(value_parser = crate::b::B)] struct S;",
        "mod inner { use super::super::b::B; }",
        "use crate::b::*; type T = B;",
        "use crate::*; type T = B;",
        "use crate::B;",
        "use crate::face::B;",
        "pub use crate::b::B;",
        "macro_rules! m { () => { mod inner { type T = super::super::b::B; } } }",
        "macro_rules! m { () => { $crate::b::B } }",
        "#[cfg(not(test))] use crate::b::B;",
        "#[cfg(any(test, unix))] use crate::b::B;",
    ] {
        let found = circles_in(&[
            ("lib.rs", "mod a; mod b; mod face; pub use b::B;"),
            ("a.rs", &format!("{text} pub struct A;")),
            ("b.rs", "use crate::a::A; pub struct B; pub struct Another;"),
            ("face.rs", "pub use crate::b::B;"),
        ]);
        assert!(found.len() == 1 && found[0].contains("a.rs needs b.rs for "), "{text}: {found:?}");
        assert!(found[0].contains("B") && !found[0].contains("lib.rs"), "{text}: {found:?}");
    }
}

/// Texts of `a.rs` that do not depend on `b.rs`.
#[test]
fn what_is_no_need_is_left_alone() {
    for text in [
        "",
        "#[cfg(test)] use crate::b::B;",
        "#[cfg(all(test, unix))] use crate::b::B;",
        "#[cfg(test)] mod tests { use crate::b::B; }",
        "#[cfg(test)] mod tests;",
        "impl A { #[cfg(test)] fn f(_: crate::b::B) {} }",
        "fn f() { #[cfg(test)] let b = crate::b::B; }",
        "struct S { #[cfg(test)] b: crate::b::B }",
        "pub(in crate::b) fn f() {}",
        "/// See [`crate::b::B`].\nfn f() {}",
        "use other::b::B;",
        "macro_rules! m { () => { mod b { struct B; type T = self::B; } } }",
    ] {
        let found = circles_in(&[
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", &format!("{text} pub struct A;")),
            ("a/tests.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A; pub struct B;"),
        ]);
        assert!(found.is_empty(), "{text}: {found:?}");
    }
}

#[test]
fn a_module_and_its_child_may_know_each_other_and_a_face_is_no_need() {
    let face = [
        ("lib.rs", "mod a; pub use a::Inner; pub struct Error;"),
        ("a/mod.rs", "mod inner; pub use inner::Inner; pub struct Shared;"),
        ("a/inner.rs", "use super::Shared; use crate::Error; pub struct Inner;"),
    ];
    assert!(circles_in(&face).is_empty());
    // A name that is both re-exported and used is a dependency.
    let mut used = face;
    used[0].1 = "mod a; pub use a::Inner; pub struct Error(Inner);";
    let found = circles_in(&used);
    assert!(
        found.len() == 1 && found[0].contains("lib.rs needs a/inner.rs for Inner"),
        "{found:?}"
    );
}

#[test]
fn modules_are_read_from_where_they_are_said_to_be() {
    let found = circles_in(&[
        (
            "src/main.rs",
            "#[path = \"elsewhere/b.rs\"] mod a; mod c { mod d; #[path = \"f.rs\"] mod e; }",
        ),
        ("src/elsewhere/b.rs", "mod child; use crate::c::d::D; pub struct A;"),
        ("src/elsewhere/child.rs", "pub struct Child;"),
        ("src/c/d.rs", "use super::e::E; pub struct D;"),
        ("src/c/f.rs", "use crate::a::A; pub struct E;"),
    ]);
    let expected = "a circle of 3 files:
    src/elsewhere/b.rs needs src/c/d.rs for D
    src/c/d.rs needs src/c/f.rs for E
    src/c/f.rs needs src/elsewhere/b.rs for A";
    assert_eq!(found, [expected]);
}
