//! Conversion of checkpoints to stores, calibration, and evaluation of stores by perplexity and divergence.
//!
//! A conversion reads a checkpoint layer by layer and writes a store. It can be resumed, and its output does not
//! depend on the number of threads.
//!
//! ```no_run
//! use std::path::Path;
//! use nestling_convert::convert::{ConvertOptions, convert};
//! use nestling_core::CancelToken;
//! use nestling_import::Checkpoint;
//!
//! let checkpoint = Checkpoint::open("Qwen3-30B-A3B")?;
//! let (options, cancel) = (ConvertOptions::default(), CancelToken::new());
//! let destination = Path::new("qwen3.nest");
//! let report = convert(&checkpoint, destination, &options, &cancel, &mut |_progress| ())?;
//! println!("{} bytes", report.store_bytes);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | task | items |
//! |---|---|
//! | convert a checkpoint | [`convert::convert`], [`convert::ConvertOptions`], [`convert::ConvertReport`] |
//! | predict the size of a store | [`convert::estimate_store`], [`convert::estimate_store_bytes`] |
//! | shrink a store to a budget | [`convert::cut_store`] |
//! | choose a rotation by trial | [`convert::convert_with_best_rotation`] |
//! | run a GGUF file unconverted | [`in_place::open_in_place`], [`in_place::plan_in_place`] |
//! | collect statistics of activations | [`calibrate`], [`convert::Calibration`] |
//! | evaluate levels | [`judge::judge`], [`judge::PlainSet`] |

pub mod calibrate;
pub mod convert;
pub mod in_place;
pub mod judge;
