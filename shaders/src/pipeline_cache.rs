//! On-disk cache of compiled shaders.
//!
//! A file contains a checksum and the driver's data. A file that is damaged or from another driver is
//! ignored. If writing fails, the shaders are compiled again next time.
#![expect(unsafe_code, reason = "drivers trust the pipeline caches that they are given")]

use std::fs;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use crate::device::Gpu;

/// Bytes of the checksum before the data.
const CHECKSUM_BYTES: usize = 16;

/// Maximum size of a file in bytes. All shaders together take a few megabytes.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Compiled shaders of one adapter.
#[derive(Debug)]
pub(crate) struct PipelineCache {
    pub raw: wgpu::PipelineCache,
    file: PathBuf,
    /// Checksum of the data that was read.
    known: Option<u128>,
}

impl PipelineCache {
    /// Opens the cache of an adapter in a folder. Returns `None` if the driver does not support caching.
    pub fn open(gpu: &Gpu, adapter: &wgpu::AdapterInfo, folder: &Path) -> Option<Self> {
        if !gpu.features.contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let file = folder.join(wgpu::util::pipeline_cache_key(adapter)?);
        let kept = read(&file);
        let data = kept.as_deref().map(|kept| &kept[CHECKSUM_BYTES..]);
        let descriptor = wgpu::PipelineCacheDescriptor { label: None, data, fallback: true };
        // SAFETY: the data was returned by `get_data` and written by `keep`; the checksum confirms it.
        let raw = unsafe { gpu.device.create_pipeline_cache(&descriptor) };
        Some(Self { raw, known: data.map(xxh3_128), file })
    }

    /// Writes the compiled shaders to a temporary file, then renames it. Does nothing if they are unchanged.
    pub fn keep(&self) {
        // Default: a driver that returns no data has nothing to cache.
        let Some(data) = self.raw.get_data() else { return };
        let checksum = xxh3_128(&data);
        if self.known == Some(checksum) {
            return;
        }
        let bytes = [&checksum.to_le_bytes()[..], &data].concat();
        let beside = self.file.with_extension(format!("{}.part", std::process::id()));
        let folder = self.file.parent().map_or(Ok(()), fs::create_dir_all);
        let written = folder.and_then(|()| fs::write(&beside, bytes));
        if written.and_then(|()| fs::rename(&beside, &self.file)).is_err() {
            // The only cost of a failed write is compiling again.
            let _ = fs::remove_file(&beside);
        }
    }
}

/// Reads a file. Returns `None` if it is too large, unreadable or its checksum is wrong.
fn read(file: &Path) -> Option<Vec<u8>> {
    if fs::metadata(file).ok()?.len() > FILE_BYTES_MAX {
        return None;
    }
    let bytes = fs::read(file).ok()?;
    let (checksum, data) = bytes.split_first_chunk::<CHECKSUM_BYTES>()?;
    (u128::from_le_bytes(*checksum) == xxh3_128(data)).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AdapterChoice, WgpuBackend, WgpuOptions, adapters};

    fn cache_file(folder: &Path) -> Option<PathBuf> {
        let mut files = fs::read_dir(folder).unwrap();
        let file = files.next().map(|file| file.unwrap().path());
        assert!(files.next().is_none());
        file
    }

    #[test]
    fn what_was_compiled_is_kept_and_damage_is_passed_over() {
        let choice = AdapterChoice::Index(0);
        let keeps = |adapter: &wgpu::Adapter| {
            let features = adapter.features();
            features.contains(wgpu::Features::PIPELINE_CACHE)
                && wgpu::util::pipeline_cache_key(&adapter.get_info()).is_some()
        };
        if !adapters::choose(&choice).is_ok_and(|(adapter, _)| keeps(&adapter)) {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let inside = folder.path().join("shaders");
        let open = || {
            let options = WgpuOptions {
                adapter: choice.clone(),
                pipeline_cache: Some(inside.clone()),
                ..WgpuOptions::default()
            };
            WgpuBackend::open(&options).map(drop).unwrap();
            let file = cache_file(&inside).unwrap();
            assert!(read(&file).is_some(), "{}", file.display());
            file
        };
        let file = open();
        let whole = fs::read(&file).unwrap();
        let mut damaged = whole.clone();
        damaged[CHECKSUM_BYTES] ^= 1;
        for bytes in [&damaged[..], &whole[..7], &[]] {
            fs::write(&file, bytes).unwrap();
            assert!(read(&file).is_none());
            assert_eq!(open(), file);
        }
    }
}
