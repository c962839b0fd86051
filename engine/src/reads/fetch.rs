//! One read, from the request to checked bytes.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nestling_formats::store::{Extent, Store, StoreError};

use super::buffers::ArrivedPlane;
use super::queue::Job;
use super::shared::Shared;
use crate::error::EngineError;

/// How often one read is tried again after an interruption.
const RETRIES_MAX: usize = 64;

/// Reads and checks one extent. A storage that panics is an error of this read.
pub(super) fn fetch(shared: &Shared, job: &Job) -> Result<ArrivedPlane, EngineError> {
    let read = AssertUnwindSafe(|| read_through_storage(shared, &job.extent));
    catch_unwind(read).unwrap_or(Err(EngineError::Panicked { what: "a read of the store" }))
}

fn read_through_storage(shared: &Shared, extent: &Extent) -> Result<ArrivedPlane, EngineError> {
    let store = shared.store();
    let length = plane_length(store, extent)?;
    let mut buffer = shared.pool.take(length)?;
    let bytes = buffer.bytes_mut().get_mut(..length).unwrap_or_default();
    let mut retries = 0;
    while let Err(error) = store.read_raw(extent, bytes) {
        if !is_interruption(&error) || retries == RETRIES_MAX {
            return Err(error.into());
        }
        retries += 1;
        shared.count_retry();
    }
    store.check(extent, bytes)?;
    Ok(buffer.arrived(0..length))
}

/// Bytes of an extent that is there, so that nothing is allocated for one that is not.
fn plane_length(store: &Store, extent: &Extent) -> Result<usize, EngineError> {
    if !store.is_present(extent) {
        // Says what is absent, before the length of the buffer matters.
        return Err(store
            .read_extent_vec(extent)
            .err()
            .map_or(EngineError::EngineClosed, Into::into));
    }
    let limit = EngineError::Limit {
        what: "bytes of a plane",
        limit: usize::MAX as u64,
        found: extent.length,
    };
    usize::try_from(extent.length).map_err(|_| limit)
}

fn is_interruption(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
}
