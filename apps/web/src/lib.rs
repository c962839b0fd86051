//! Nestling in a browser's dedicated worker.
//!
//! A store is fetched section by section with range requests and kept in a [`blocks::BlockFile`]; a GGUF file is fetched whole.
//! A [`tab::Tab`] answers with the highest level that has arrived, alone or with further [`workers`]. Everything except `browser` is free of the
//! browser, and tested
//! with a source that fails.

pub mod answer;
pub mod arrival;
pub mod blocks;
#[cfg(target_family = "wasm")]
mod browser;
pub mod error;
pub mod gguf_arrival;
pub mod options;
pub mod ranges;
pub mod rings;
mod slots;
pub mod storage;
pub mod tab;
pub mod workers;
