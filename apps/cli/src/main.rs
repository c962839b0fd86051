//! The `nestling` program.
fn main() {}
