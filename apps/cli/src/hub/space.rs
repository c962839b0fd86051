//! How much disk a download and its conversion take, said before either starts.

use super::Obtained;
use super::listing::{Listing, Wanted};
use super::repository::RepositoryCache;
use crate::bytes::ByteSize;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::room;
use std::path::{Path, PathBuf};

/// A disk and what is to be written to it.
#[derive(Clone, Debug)]
pub struct Disk {
    pub directory: PathBuf,
    pub free: u64,
    pub needed: u64,
}

/// What will be written where.
pub struct Plan {
    files: usize,
    /// Bytes of all the files, and those still to be fetched.
    pub total: u64,
    pub missing: u64,
    store: u64,
    download_directory: PathBuf,
    pub store_directory: PathBuf,
    /// One disk, or two if the caches lie apart.
    pub disks: Vec<Disk>,
}

impl Plan {
    pub fn new(
        cache: &RepositoryCache,
        listing: &Listing,
        weights: &[Wanted],
        (obtained, store): (&Obtained, u64),
    ) -> Result<Self> {
        let checkpoint = cache.snapshot(&listing.commit);
        let there = |file: &Wanted| present(cache, &checkpoint, file).min(file.size);
        let total: u64 = weights.iter().map(|file| file.size).sum();
        let missing = total - weights.iter().map(there).sum::<u64>();
        let store_directory = parent(&obtained.store);
        // A conversion that stopped half-way has its file already.
        let store_missing = store.saturating_sub(room::half_done(&obtained.store));
        let mut disks = vec![Disk::new(&cache.root, missing)?];
        if same_disk(&disks[0].directory, &existing(&store_directory)) {
            disks[0].needed += store_missing;
        } else {
            disks.push(Disk::new(&store_directory, store_missing)?);
        }
        let (files, download_directory) = (weights.len(), cache.root.clone());
        Ok(Self { files, total, missing, store, download_directory, store_directory, disks })
    }

    /// Says what is going to happen; an error if it cannot.
    pub fn announce(&self, console: &Console) -> Result<()> {
        console.note(format_args!(
            "download: {} in {} files, {} still to fetch, into {}",
            ByteSize(self.total),
            self.files,
            ByteSize(self.missing),
            self.download_directory.display(),
        ));
        console.note(format_args!(
            "store:    about {} into {}",
            ByteSize(self.store),
            self.store_directory.display(),
        ));
        for disk in &self.disks {
            console.note(format_args!("disk:     {}", disk.words()));
        }
        self.disks.iter().try_for_each(Disk::check)
    }
}

impl Disk {
    pub fn new(directory: &Path, needed: u64) -> Result<Self> {
        let directory = existing(directory);
        let free = fs4::available_space(&directory)
            .map_err(|error| Failure::file("measure the free space of", &directory, &error))?;
        Ok(Self { directory, free, needed })
    }

    pub fn words(&self) -> String {
        let (needed, free) = (ByteSize(self.needed), ByteSize(self.free));
        format!("needs {needed} more at its peak, {free} free at {}", self.directory.display())
    }

    pub fn check(&self) -> Result<()> {
        let Some(lacking) = self.needed.checked_sub(self.free).filter(|bytes| *bytes > 0) else {
            return Ok(());
        };
        Err(Failure::new(format!(
            "not enough disk space at {}: {} needed at the peak, {} free",
            self.directory.display(),
            ByteSize(self.needed),
            ByteSize(self.free),
        ))
        .advise(format!(
            "free {}, or move the caches with HF_HOME (download) and NESTLING_CACHE (store)",
            ByteSize(lacking),
        )))
    }
}

/// Bytes of a file that are in the cache, complete or in part.
pub fn present(cache: &RepositoryCache, checkpoint: &Path, file: &Wanted) -> u64 {
    let length = |path: PathBuf| std::fs::metadata(path).map(|data| data.len()).ok();
    let blob = cache.blob(&file.blob);
    length(checkpoint.join(&file.name))
        .or_else(|| length(blob.clone()))
        .or_else(|| length(blob.with_extension("part")))
        .unwrap_or(0)
}

fn parent(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new(".")).to_path_buf()
}

/// The nearest directory on the way up that is there.
fn existing(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_path_buf()
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
    use super::Disk;
    use nestling::engine::convert::{ConvertOptions, estimate_store_bytes};
    use nestling::import::ModelConfig;

    #[test]
    fn the_estimate_for_a_real_model_is_what_the_first_screen_says() {
        let small = include_str!("../../tests/data/published-layout/config.json");
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

    #[test]
    fn too_little_room_is_said_with_figures() {
        let (free, needed) = (20_000_000_000, 94_000_000_000);
        let disk = Disk { directory: "/home".into(), free, needed };
        let failure = disk.check().unwrap_err();
        assert!(failure.message.contains("94.0 GB needed at the peak, 20.0 GB free"), "{failure}");
        assert!(failure.advice.unwrap().contains("free 74.0 GB"));
        assert!(Disk { free: needed, ..disk }.check().is_ok());
    }
}
