//! GGUF files run where they lie: a store whose extents are made of the file's blocks when they are
//! read.
//!
//! Every matrix of blocks is scaled integers, every other one floats, so nothing is rounded. A group
//! is one extent with all its planes: the blocks of a file hold the bits of a code together, so no
//! level reads less than another.
//!
//! ```text
//! read of an extent -> blocks of the file -> codes and scales, row by row -> planes in tiles
//! ```

mod plan;
mod storage;

use std::sync::Arc;

use nestling_formats::Level;
use nestling_formats::store::{Digits, Index, Store};
use nestling_import::Checkpoint;

use crate::convert::ConvertError;

/// Opens a checkpoint of a GGUF file as a store, without reading weights. The CPU computes with merged
/// digits; devices take them apart.
///
/// # Errors
/// [`ConvertError::Checkpoint`] for files that cannot be read; [`ConvertError::Store`] for a model that
/// no store can hold; [`ConvertError::Refused`] without a tokenizer.
pub fn open_in_place(checkpoint: Arc<Checkpoint>, digits: Digits) -> Result<Store, ConvertError> {
    let planned = plan::plan(&checkpoint, digits)?;
    let assets = planned.assets;
    let store = Store::derived(&planned.plan, planned.level, digits, |index| {
        Arc::new(storage::InPlaceStorage::new(checkpoint, index.clone(), digits, assets))
    })?;
    Ok(store)
}

/// What [`open_in_place`] would open, and its level, without reading more than headers: for a file that
/// is not here yet.
///
/// # Errors
/// As [`open_in_place`].
pub fn plan_in_place(checkpoint: &Checkpoint) -> Result<(Index, Level), ConvertError> {
    let planned = plan::plan(checkpoint, Digits::Merged)?;
    Ok((Store::derived_index(&planned.plan, planned.level)?, planned.level))
}
