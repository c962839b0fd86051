//! Execution of one read, from the request to verified bytes.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nestling_formats::store::{Extent, RangeSource, StoreError};

use super::buffers::ArrivedPlane;
use super::options::RETRIES_MAX;
#[cfg(target_os = "linux")]
use super::plain::{AccessPath, PlainFiles, Transfer, TransferState};
use super::shared::{QueuedRead, SharedReads};
use nestling_core::error::EngineError;

/// Reads and verifies one extent. A panic in the storage becomes an error of this read.
pub(super) fn fetch(shared: &SharedReads, job: &QueuedRead) -> Result<ArrivedPlane, EngineError> {
    let read = AssertUnwindSafe(|| {
        check_present(shared, &job.extent)?;
        let plane = match read_direct(shared, &job.extent)? {
            Some(plane) => plane,
            None => read_through_storage(shared, job)?,
        };
        shared.landed(job);
        shared.check(&job.extent, plane.as_ref())?;
        Ok(plane)
    });
    catch_unwind(read).unwrap_or(Err(EngineError::Panicked { what: "a read of the store" }))
}

/// Checks that an extent is present and its size is addressable, before memory is allocated.
pub(super) fn check_present(shared: &SharedReads, extent: &Extent) -> Result<(), EngineError> {
    if !shared.store().is_present(extent) {
        // Returns the error of the absent extent; nothing is read.
        shared.store().read_extent_vec(extent)?;
    }
    plane_length(extent).map(|_| ())
}

fn plane_length(extent: &Extent) -> Result<usize, EngineError> {
    let limit = EngineError::Limit {
        what: "bytes of a plane",
        limit: usize::MAX as u64,
        found: extent.length,
    };
    usize::try_from(extent.length).map_err(|_| limit)
}

/// Reads past the page cache. Returns `None` if that is not possible.
#[cfg(target_os = "linux")]
fn read_direct(shared: &SharedReads, extent: &Extent) -> Result<Option<ArrivedPlane>, EngineError> {
    use std::os::unix::fs::FileExt;

    let files = shared.files.as_ref().filter(|files| files.is_direct());
    let Some(place) = files.and_then(|files: &PlainFiles| files.place(extent, AccessPath::Direct))
    else {
        return Ok(None);
    };
    let mut buffer = place.buffer(&shared.pool)?;
    let mut transfer = Transfer::new(&place);
    loop {
        let (offset, range) = transfer.next();
        let bytes = &mut buffer.bytes_mut()[range];
        match transfer.advance(place.file.read_at(bytes, offset)) {
            TransferState::Again => shared.count_retry(),
            TransferState::Refused => {
                shared.count_retry();
                return Ok(None);
            }
            TransferState::Complete => {
                shared.store().check_unchanged(extent)?;
                return Ok(Some(buffer.arrived(transfer.plane())));
            }
            TransferState::Failed(error) => {
                shared.store().check_unchanged(extent)?;
                return Err(shared.store().read_error(extent, error).into());
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::unnecessary_wraps, reason = "the other one has errors")]
fn read_direct(_: &SharedReads, _: &Extent) -> Result<Option<ArrivedPlane>, EngineError> {
    Ok(None)
}

fn read_through_storage(
    shared: &SharedReads,
    job: &QueuedRead,
) -> Result<ArrivedPlane, EngineError> {
    let extent = &job.extent;
    let source = shared.store().storage().source(extent.offset, extent.length);
    if let Some(source) = source.filter(|it| shared.has_source_room(it.buffer_bytes())) {
        return read_derived(shared, job, &*source);
    }
    let length = plane_length(extent)?;
    let mut buffer = shared.pool.take(length)?;
    let bytes = &mut buffer.bytes_mut()[..length];
    let mut retries = 0;
    while let Err(error) = shared.store().read_raw(extent, bytes) {
        if !is_interruption(&error) || retries == RETRIES_MAX {
            return Err(error.into());
        }
        retries += 1;
        shared.count_retry();
    }
    Ok(buffer.arrived(0..length))
}

/// Reads the source of a derived extent and builds the extent, while other threads read.
fn read_derived(
    shared: &SharedReads,
    job: &QueuedRead,
    source: &dyn RangeSource,
) -> Result<ArrivedPlane, EngineError> {
    let failed = |error| shared.store().read_error(&job.extent, error);
    let bytes = source.buffer_bytes();
    let mut read = shared.pool.take(bytes)?;
    source.read(&mut read.bytes_mut()[..bytes]).map_err(failed)?;
    shared.landed(job);
    let length = plane_length(&job.extent)?;
    let mut buffer = shared.pool.take(length)?;
    let built = source.build(&read.bytes()[..bytes], &mut buffer.bytes_mut()[..length]);
    // Checked after the read: bytes that changed are reported as such, not as wrong blocks.
    shared.store().check_unchanged(&job.extent)?;
    built.map_err(failed)?;
    Ok(buffer.arrived(0..length))
}

fn is_interruption(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
}
