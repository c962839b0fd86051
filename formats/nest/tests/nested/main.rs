//! Tests of the nested code on random matrices: error compared with other quantizations, tables, rotation.
#![cfg_attr(
    test,
    expect(clippy::unwrap_used, reason = "a test that cannot go on should say where")
)]

mod codebooks;
mod kquants;
mod mwq;
mod samples;
mod table;
mod transform;
mod weight_error;
