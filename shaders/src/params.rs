//! What shaders are given, field by field as in `wgsl/`: `build.rs` makes these structs of what naga
//! parses, and has their layouts checked.

include!(concat!(env!("OUT_DIR"), "/params.rs"));
