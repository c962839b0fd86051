//! Fingerprint of a GGUF file in one state, used as a key of the store cache.
//!
//! Name, length and time are insufficient: package managers set all times to 0 or 1, and fine-tuned models
//! share names and shapes. The key therefore includes the file's path, device, inode and change time, its
//! header, and samples of every tensor. Hashing the whole file would take as long as the conversion that the
//! cache saves.

use crate::error::{HubError, Result};
use nestling_import::gguf::{GgufHeader, part_names};
use nestling_import::{ImportError, file_state};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// Number of samples per tensor, evenly spaced from its first byte to its last.
const SAMPLES: u64 = 4;

/// Size of a sample in bytes. Tensors of up to [`SAMPLES`] samples are hashed completely.
const SAMPLE_BYTES: u64 = 4096;

/// Maximum number of characters of a file name that a store's name starts with.
const STEM_CHARS: usize = 100;

const HASH_BYTES: usize = 16;

/// Identity of a model in a GGUF file or its parts, in one state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the first part without its extension.
    pub stem: String,
    /// Fingerprint in hexadecimal.
    pub hash: String,
}

impl Identity {
    /// Computes the identity of the file at `path` and its parts.
    pub fn of(path: &Path) -> Result<Self> {
        // Default: a path without a file name is refused as it is not a GGUF file.
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let parts = part_names(&name).map_err(|error| HubError::new(error.to_string()))?;
        let mut hash = Sha256::new();
        for part in &parts {
            add_part(&mut hash, &path.with_file_name(part))?;
        }
        let mut text = String::new();
        for byte in &hash.finalize()[..HASH_BYTES] {
            let _ = write!(text, "{byte:02x}");
        }
        let first = parts.first().map_or(&*name, String::as_str);
        // Default: an empty stem is acceptable, because the hash distinguishes files.
        let stem = Path::new(first).file_stem().unwrap_or_default().to_string_lossy();
        Ok(Self { stem: stem.chars().take(STEM_CHARS).collect(), hash: text })
    }
}

fn add_part(hash: &mut Sha256, path: &Path) -> Result<()> {
    let failed = |error| HubError::file("read", path, error);
    let canonical = path.canonicalize().map_err(failed)?;
    let mut file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    add_text(hash, canonical.as_os_str().as_encoded_bytes());
    for number in file_state(&metadata) {
        hash.update(number.to_le_bytes());
    }
    add_content(hash, path, &mut file, metadata.len())
}

/// Hashes a text with its length, so that its end is unambiguous.
fn add_text(hash: &mut Sha256, text: &[u8]) {
    hash.update((text.len() as u64).to_le_bytes());
    hash.update(text);
}

/// Hashes the header and samples of the tensors.
fn add_content(hash: &mut Sha256, path: &Path, file: &mut File, length: u64) -> Result<()> {
    let name = path.display().to_string();
    let mut read = |offset: u64, out: &mut [u8]| {
        read_at(file, offset, out).map_err(|source| ImportError::Io {
            file: name.clone(),
            action: "read",
            source,
        })?;
        hash.update(&*out);
        Ok(())
    };
    let header = GgufHeader::read(&name, length, &mut read)?;
    let mut sample = vec![0; SAMPLE_BYTES as usize];
    for tensor in &header.tensors {
        for (offset, count) in samples(tensor.length) {
            let sample = &mut sample[..count];
            read_at(file, tensor.offset + offset, sample)
                .map_err(|error| HubError::file("read", path, error))?;
            hash.update(sample);
        }
    }
    Ok(())
}

/// Returns the samples of a tensor as pairs of byte offset and length.
fn samples(length: u64) -> impl Iterator<Item = (u64, usize)> {
    let is_short = length <= SAMPLES * SAMPLE_BYTES;
    let last = length.saturating_sub(SAMPLE_BYTES);
    let count = if is_short { length.div_ceil(SAMPLE_BYTES) } else { SAMPLES };
    (0..count).map(move |number| {
        let spread = u128::from(last) * u128::from(number) / u128::from(SAMPLES - 1);
        let offset = if is_short { number * SAMPLE_BYTES } else { spread as u64 };
        (offset, (length - offset).min(SAMPLE_BYTES) as usize)
    })
}

fn read_at(file: &mut File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;
    use std::time::{Duration, UNIX_EPOCH};

    fn model() -> Vec<u8> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../engine/runtime/tests/data/gguf");
        std::fs::read(Path::new(path).join("qwen3-moe.gguf")).unwrap()
    }

    /// Writes a file with a fixed time, as package managers do.
    fn write(path: &Path, bytes: &[u8]) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
        let file = File::options().write(true).open(path).unwrap();
        file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
    }

    fn hash(path: &Path) -> String {
        let identity = Identity::of(path).unwrap();
        assert_eq!(identity.stem, "model");
        assert_eq!(identity.hash.len(), 2 * HASH_BYTES);
        identity.hash
    }

    fn content(path: &Path) -> Vec<u8> {
        let (mut hash, mut file) = (Sha256::new(), File::open(path).unwrap());
        let length = file.metadata().unwrap().len();
        add_content(&mut hash, path, &mut file, length).unwrap();
        hash.finalize().to_vec()
    }

    fn paths(folder: &tempfile::TempDir) -> (PathBuf, PathBuf) {
        let path = |name: &str| folder.path().join(name).join("model.gguf");
        (path("a"), path("b"))
    }

    #[test]
    fn files_of_one_name_length_and_time_differ() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = paths(&folder);
        let (mut tuned, bytes) = (model(), model());
        tuned[100_000..].iter_mut().for_each(|byte| *byte ^= 1);
        write(&a, &bytes);
        write(&b, &tuned);
        assert_ne!(hash(&a), hash(&b));
        // Different paths alone change the hash, and so do different contents.
        write(&b, &bytes);
        assert_ne!(hash(&a), hash(&b));
        let first = content(&a);
        assert_eq!(first, content(&b));
        write(&b, &tuned);
        assert_ne!(first, content(&b));
        assert_eq!(hash(&a), hash(&a));
    }

    #[test]
    fn a_file_that_is_replaced_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = paths(&folder);
        let mut bytes = model();
        write(&a, &bytes);
        let before = hash(&a);
        // The file is replaced by another one.
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        write(&b, &bytes);
        std::fs::rename(&b, &a).unwrap();
        let replaced = hash(&a);
        assert_ne!(before, replaced);
        // The same file is overwritten with other bytes.
        bytes[last] ^= 1;
        write(&a, &bytes);
        let rewritten = hash(&a);
        assert_ne!(rewritten, replaced);
        assert_ne!(rewritten, before);
    }

    #[test]
    fn every_tensor_is_sampled_from_end_to_end() {
        let folder = tempfile::tempdir().unwrap();
        let (a, _) = paths(&folder);
        let bytes = model();
        write(&a, &bytes);
        let whole = content(&a);
        let header = GgufHeader::parse("model.gguf", &bytes, bytes.len() as u64).unwrap();
        for tensor in &header.tensors {
            for at in [tensor.offset, tensor.offset + tensor.length - 1] {
                let mut changed = bytes.clone();
                changed[at as usize] ^= 1;
                write(&a, &changed);
                assert_ne!(content(&a), whole, "{} at {at}", tensor.name);
            }
        }
        for length in [1, 4096, 4097, 16_384, 16_385, 1 << 20, (1 << 34) + 7] {
            let read: Vec<(u64, usize)> = samples(length).collect();
            assert_eq!(read[0].0, 0);
            let (offset, count) = *read.last().unwrap();
            assert_eq!(offset + count as u64, length);
            let whole: u64 = read.iter().map(|(_, count)| *count as u64).sum();
            assert!(whole == length || length > SAMPLES * SAMPLE_BYTES, "{length}");
        }
    }
}
