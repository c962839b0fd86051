//! Execution of one read, from the request to verified bytes.

use std::io;
#[cfg(target_os = "linux")]
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nestling_formats::store::{Extent, RangeSource, StoreError};

use super::buffers::ArrivedPlane;
#[cfg(target_os = "linux")]
use super::buffers::Buffer;
use super::options::RETRIES_MAX;
#[cfg(target_os = "linux")]
use super::plain::{AccessPath, PlainFiles, Transfer, TransferState};
use super::shared::{QueuedRead, SharedReads};
#[cfg(target_os = "linux")]
use super::staging::copy_past_cache;
use super::thread_staging::ThreadStaging;
use nestling_core::error::EngineError;

/// Reads and verifies one extent. A panic in the storage becomes an error of this read.
pub(super) fn fetch(shared: &SharedReads, job: &QueuedRead) -> Result<ArrivedPlane, EngineError> {
    fetch_staged(shared, job, &mut ThreadStaging::default())
}

/// Works like [`fetch`]. Direct reads land in `staging` where they fit.
pub(super) fn fetch_staged(
    shared: &SharedReads,
    job: &QueuedRead,
    staging: &mut ThreadStaging,
) -> Result<ArrivedPlane, EngineError> {
    let read = AssertUnwindSafe(|| {
        check_present(shared, &job.extent)?;
        let plane = match read_direct(shared, &job.extent, staging)? {
            DirectRead::Final(plane) => plane,
            #[cfg(target_os = "linux")]
            DirectRead::Staged(range) => return keep_staged(shared, job, &staging.bytes()[range]),
            DirectRead::Impossible => read_through_storage(shared, job, staging)?,
        };
        shared.landed(job);
        shared.check(&job.extent, plane.as_ref())?;
        Ok(plane)
    });
    catch_unwind(read).unwrap_or(Err(EngineError::Panicked { what: "a read of the store" }))
}

/// Result of a read past the page cache.
enum DirectRead {
    #[cfg_attr(
        not(target_os = "linux"),
        expect(dead_code, reason = "read there through the storage")
    )]
    Final(ArrivedPlane),
    /// The plane's range in the thread's staging area.
    #[cfg(target_os = "linux")]
    Staged(Range<usize>),
    /// The system or the storage does not support it.
    Impossible,
}

/// Verifies bytes in a staging area and copies them to their final buffer, while other threads read.
#[cfg(target_os = "linux")]
fn keep_staged(
    shared: &SharedReads,
    job: &QueuedRead,
    bytes: &[u8],
) -> Result<ArrivedPlane, EngineError> {
    shared.landed(job);
    shared.count_staged();
    shared.check(&job.extent, bytes)?;
    let mut buffer = shared.pool.take(bytes.len())?;
    copy_past_cache(bytes, buffer.bytes_mut());
    Ok(buffer.arrived(0..bytes.len()))
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

/// Reads past the page cache.
#[cfg(target_os = "linux")]
fn read_direct(
    shared: &SharedReads,
    extent: &Extent,
    staging: &mut ThreadStaging,
) -> Result<DirectRead, EngineError> {
    use std::os::unix::fs::FileExt;

    let files = shared.files.as_ref().filter(|files| files.is_direct());
    let Some(place) = files.and_then(|files: &PlainFiles| files.place(extent, AccessPath::Direct))
    else {
        return Ok(DirectRead::Impossible);
    };
    let is_staged = place.length <= staging.bytes().len();
    let mut buffer = if is_staged { None } else { Some(place.buffer(&shared.pool)?) };
    let mut transfer = Transfer::new(&place);
    loop {
        let (offset, range) = transfer.next();
        let landing = buffer.as_mut().map_or_else(|| staging.bytes_mut(), Buffer::bytes_mut);
        match transfer.advance(place.file.read_at(&mut landing[range], offset)) {
            TransferState::Again => shared.count_retry(),
            TransferState::Refused => {
                shared.count_retry();
                return Ok(DirectRead::Impossible);
            }
            TransferState::Complete => {
                shared.store().check_unchanged(extent)?;
                let range = transfer.plane();
                return Ok(match buffer {
                    Some(buffer) => DirectRead::Final(buffer.arrived(range)),
                    None => DirectRead::Staged(range),
                });
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
fn read_direct(
    _: &SharedReads,
    _: &Extent,
    _: &mut ThreadStaging,
) -> Result<DirectRead, EngineError> {
    Ok(DirectRead::Impossible)
}

fn read_through_storage(
    shared: &SharedReads,
    job: &QueuedRead,
    staging: &mut ThreadStaging,
) -> Result<ArrivedPlane, EngineError> {
    let extent = &job.extent;
    if let Some(source) = shared.store().storage().source(extent.offset, extent.length) {
        if shared.has_source_room(source.buffer_bytes()) {
            return read_derived(shared, job, &*source, staging);
        }
        staging.release_source();
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
    staging: &mut ThreadStaging,
) -> Result<ArrivedPlane, EngineError> {
    let failed = |error| shared.store().read_error(&job.extent, error);
    let read = staging.source(&shared.pool, source.buffer_bytes())?;
    source.read(read).map_err(failed)?;
    shared.landed(job);
    let length = plane_length(&job.extent)?;
    let mut buffer = shared.pool.take(length)?;
    let built = source.build(read, &mut buffer.bytes_mut()[..length]);
    // Checked after the read: bytes that changed are reported as such, not as wrong blocks.
    shared.store().check_unchanged(&job.extent)?;
    built.map_err(failed)?;
    Ok(buffer.arrived(0..length))
}

fn is_interruption(error: &StoreError) -> bool {
    matches!(error, StoreError::Io { source, .. } if source.kind() == io::ErrorKind::Interrupted)
}
