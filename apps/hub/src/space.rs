//! Disk space required by a download and its conversion.

use crate::disk::{Disk, existing};
use crate::error::Result;
use crate::listing::{Listing, RemoteFile};
use crate::observer::{Notice, Observer};
use crate::repository::RepositoryCache;
use crate::room;
use crate::store_cache::ConvertedModel;
use std::path::{Path, PathBuf};

/// Planned disk usage.
pub struct Plan {
    files: usize,
    /// Size of all files in bytes, and the part still to be downloaded.
    pub total: u64,
    pub missing: u64,
    /// Size in bytes of the converted store; `None` without a conversion.
    store: Option<u64>,
    download_directory: PathBuf,
    pub store_directory: PathBuf,
    /// One disk, or two if the caches are on different disks.
    pub disks: Vec<Disk>,
}

impl Plan {
    pub fn new(
        cache: &RepositoryCache,
        listing: &Listing,
        weights: &[RemoteFile],
        obtained: &ConvertedModel,
        store: Option<u64>,
    ) -> Result<Self> {
        let checkpoint = cache.snapshot(&listing.commit);
        let there = |file: &RemoteFile| present(cache, &checkpoint, file).min(file.size);
        let total: u64 = weights.iter().map(|file| file.size).sum();
        let missing = total - weights.iter().map(there).sum::<u64>();
        let store_directory = parent(&obtained.store);
        // The partial file of an interrupted conversion already occupies space.
        let half_done = || room::half_done(&obtained.store);
        let store_missing = store.map_or(0, |store| store.saturating_sub(half_done()));
        let mut disks = vec![Disk::new(&cache.root, missing)?];
        if store.is_none() || same_disk(&disks[0].directory, &existing(&store_directory)) {
            disks[0].needed += store_missing;
        } else {
            disks.push(Disk::new(&store_directory, store_missing)?);
        }
        let (files, download_directory) = (weights.len(), cache.root.clone());
        Ok(Self { files, total, missing, store, download_directory, store_directory, disks })
    }

    /// Reports the plan. Fails if the disk space is insufficient.
    pub fn announce(&self, observer: &dyn Observer) -> Result<()> {
        observer.notice(&Notice::Download {
            total_bytes: self.total,
            files: self.files,
            missing_bytes: self.missing,
            folder: &self.download_directory,
        });
        if let Some(store_bytes) = self.store {
            let folder = &self.store_directory;
            observer.notice(&Notice::Conversion { store_bytes, folder });
        }
        for disk in &self.disks {
            observer.notice(&Notice::Disk(disk));
        }
        self.disks.iter().try_for_each(Disk::check)
    }
}

/// Returns the number of bytes of a file that are in the cache, complete or partial.
pub fn present(cache: &RepositoryCache, checkpoint: &Path, file: &RemoteFile) -> u64 {
    let length = |path: PathBuf| std::fs::metadata(path).map(|data| data.len()).ok();
    let blob = cache.blob(&file.blob);
    // Default: 0 if no part of the file is cached.
    length(checkpoint.join(&file.name))
        .or_else(|| length(blob.clone()))
        .or_else(|| length(blob.with_extension("part")))
        .unwrap_or(0)
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new(".")).to_path_buf()
}

#[cfg(unix)]
fn same_disk(a: &Path, b: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|data| data.dev()).ok();
    device(a) == device(b)
}

#[cfg(not(unix))]
fn same_disk(a: &Path, b: &Path) -> bool {
    a.components().next() == b.components().next()
}

#[cfg(test)]
mod tests {
    use nestling_convert::convert::{ConvertOptions, estimate_store_bytes};
    use nestling_import::ModelConfig;

    #[test]
    fn the_estimate_for_a_real_model_is_what_the_first_screen_says() {
        let small = include_str!("../../cli/tests/data/published-layout/config.json");
        let mut config: serde_json::Value = serde_json::from_str(small).unwrap();
        for (key, value) in [
            ("hidden_size", 2048),
            ("intermediate_size", 6144),
            ("moe_intermediate_size", 768),
            ("num_attention_heads", 32),
            ("num_key_value_heads", 4),
            ("head_dim", 128),
            ("num_experts", 128),
            ("num_experts_per_tok", 8),
            ("num_hidden_layers", 48),
            ("max_window_layers", 48),
            ("vocab_size", 151_936),
        ] {
            config[key] = value.into();
        }
        let config = ModelConfig::from_json("config.json", config.to_string().as_bytes()).unwrap();
        let bytes = estimate_store_bytes(&config, &ConvertOptions::default()).unwrap();
        assert_eq!((bytes + 500_000_000) / 1_000_000_000, 31, "{bytes} bytes");
    }
}
