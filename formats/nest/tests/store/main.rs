//! Tests of the store.

#![expect(clippy::unwrap_used, reason = "helpers of tests stop at once, as tests do")]

mod damage;
mod format_md;
mod malformed;
mod mapped;
mod mutations;
mod roundtrip;
mod rows;
mod shards;
mod simulated;
mod speed;
mod support;
mod writing;
