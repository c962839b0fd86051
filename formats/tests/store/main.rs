//! Tests of the store.

#![expect(clippy::unwrap_used, reason = "helpers of tests stop at once, as tests do")]

mod mapped;
mod roundtrip;
mod support;
