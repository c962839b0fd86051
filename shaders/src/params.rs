//! Parameter structs of shaders, with the fields used in `wgsl/`. `build.rs` generates them from naga's parse
//! result and asserts their layouts.

include!(concat!(env!("OUT_DIR"), "/params.rs"));
