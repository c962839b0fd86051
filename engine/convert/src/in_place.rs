//! GGUF files that run in place: a store whose extents are built from the file's blocks when they are read.
//!
//! Each matrix of blocks becomes scaled integers and all others stay floats, so that nothing is rounded. A
//! group is a single extent with all planes. A file's blocks hold all bits of a code together, so that a
//! lower level would not read less.
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
/// digits; devices need them apart.
///
/// ```no_run
/// use std::sync::Arc;
/// use nestling_convert::in_place::open_in_place;
/// use nestling_formats::store::Digits;
/// use nestling_import::Checkpoint;
///
/// let checkpoint = Arc::new(Checkpoint::open("model.gguf")?);
/// let store = open_in_place(checkpoint, Digits::Merged)?;
/// assert!(store.is_derived());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// Fails with [`ConvertError::Checkpoint`] if files cannot be read, [`ConvertError::Store`] if no store can
/// hold the model, or [`ConvertError::Refused`] without a tokenizer.
pub fn open_in_place(checkpoint: Arc<Checkpoint>, digits: Digits) -> Result<Store, ConvertError> {
    let planned = plan::plan(&checkpoint, digits)?;
    let assets = planned.assets;
    let store = Store::derived(&planned.plan, planned.level, digits, |index| {
        Arc::new(storage::InPlaceStorage::new(checkpoint, index.clone(), digits, assets))
    })?;
    Ok(store)
}

/// Returns the index and the level of the store that [`open_in_place`] would open. Only headers are read, so
/// that the file need not be present yet.
///
/// # Errors
/// Fails like [`open_in_place`].
pub fn plan_in_place(checkpoint: &Checkpoint) -> Result<(Index, Level), ConvertError> {
    let planned = plan::plan(checkpoint, Digits::Merged)?;
    Ok((Store::derived_index(&planned.plan, planned.level)?, planned.level))
}
