//! Kernel images: embedded in the build, cached in a folder, or compiled on demand.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use super::{CompileError, Target, compile, hash, nvrtc};
use crate::kernel::Kernel;
use crate::version::Version;

include!(concat!(env!("OUT_DIR"), "/embedded_images.rs"));

/// Bytes of the checksum before an image.
const CHECKSUM_BYTES: usize = 16;

/// Maximum size of an image file in bytes. Larger files are ignored.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Source of kernel images.
#[derive(Clone, Debug, Default)]
pub struct KernelImages {
    folder: Option<PathBuf>,
}

/// Returns the file name of an image, without the compiler's version.
fn stem(kernel: Kernel, target: Target) -> String {
    format!("{}-{:032x}-{target}", kernel.name(), hash(kernel, target))
}

impl KernelImages {
    /// Creates a source with an optional cache folder. The folder is created on demand; a folder that cannot
    /// be written is not an error.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// Returns an image for devices of a compute capability. Tries embedded binaries, the cache folder,
    /// compilation, and embedded PTX, in this order.
    ///
    /// # Errors
    /// Fails with [`CompileError`].
    pub fn image(&self, kernel: Kernel, capability: Version) -> Result<Vec<u8>, CompileError> {
        let binary = |target| embedded(kernel, target);
        if let Some(image) = Target::binaries_for(capability).find_map(binary) {
            return Ok(image);
        }
        self.compiled(kernel, Target::Device(capability.major, capability.minor)).or_else(|error| {
            // The compiler is missing, or older than the device.
            let text =
                |target| embedded(kernel, target).or_else(|| self.compiled(kernel, target).ok());
            Target::texts_for(capability).find_map(text).ok_or(error)
        })
    }

    /// Writes an image to the folder, if there is one.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written.
    pub fn keep(&self, kernel: Kernel, target: Target, image: &[u8]) -> std::io::Result<()> {
        match self.file(kernel, target) {
            Some(file) => write(&file, image),
            None => Ok(()),
        }
    }

    /// Returns the cache file of an image, which depends on the compiler's version.
    fn file(&self, kernel: Kernel, target: Target) -> Option<PathBuf> {
        let (major, minor) = nvrtc::version()?;
        let name = format!("{}-{major}.{minor}", stem(kernel, target));
        self.folder.as_ref().map(|folder| folder.join(name))
    }

    /// Returns an image from the cache folder, or compiles and caches it.
    fn compiled(&self, kernel: Kernel, target: Target) -> Result<Vec<u8>, CompileError> {
        if let Some(image) = self.file(kernel, target).and_then(|file| read(&file)) {
            return Ok(image);
        }
        let image = compile(kernel, target)?.image;
        // A cache that cannot be written only costs time.
        let _ = self.keep(kernel, target, &image);
        Ok(image)
    }
}

/// Returns an embedded image, regardless of the version of its compiler.
fn embedded(kernel: Kernel, target: Target) -> Option<Vec<u8>> {
    let stem = stem(kernel, target);
    let found = EMBEDDED.iter().find(|(name, _)| {
        name.strip_prefix(stem.as_str()).is_some_and(|version| version.starts_with('-'))
    });
    found.and_then(|(_, bytes)| checked(bytes))
}

/// Returns the image after a valid checksum.
fn checked(bytes: &[u8]) -> Option<Vec<u8>> {
    let (checksum, image) = bytes.split_first_chunk::<CHECKSUM_BYTES>()?;
    (u128::from_le_bytes(*checksum) == xxh3_128(image)).then(|| image.to_vec())
}

fn read(file: &Path) -> Option<Vec<u8>> {
    if fs::metadata(file).ok()?.len() > FILE_BYTES_MAX {
        return None;
    }
    checked(&fs::read(file).ok()?)
}

/// Writes an image atomically, so that readers never see a partial file.
fn write(file: &Path, image: &[u8]) -> std::io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut partial = tempfile::NamedTempFile::new_in(folder)?;
    partial.write_all(&xxh3_128(image).to_le_bytes())?;
    partial.write_all(image)?;
    partial.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("inside/image");
        write(&file, b"an image").unwrap();
        assert_eq!(read(&file).unwrap(), b"an image");
        let whole = fs::read(&file).unwrap();
        let mut damaged = whole.clone();
        damaged[CHECKSUM_BYTES] ^= 1;
        for bytes in [&damaged[..], &whole[..7], &[]] {
            fs::write(&file, bytes).unwrap();
            assert_eq!(read(&file), None);
        }
    }

    /// Checks that a build with a folder of images embeds all of them.
    #[test]
    fn what_a_release_embeds_is_whole() {
        if EMBEDDED.is_empty() {
            return;
        }
        for &kernel in Kernel::ALL {
            for target in Target::RELEASED {
                assert!(embedded(kernel, target).is_some(), "{} {target}", kernel.name());
            }
            // A device without its own image runs the image of an older device.
            let older = embedded(kernel, Target::Device(8, 0));
            assert_eq!(KernelImages::default().image(kernel, Version::new(8, 6)).ok(), older);
            // Devices newer than the compiler run the newest PTX.
            let newest = embedded(kernel, Target::Ptx(9, 0));
            assert_eq!(KernelImages::default().image(kernel, Version::new(99, 0)).ok(), newest);
        }
    }

    /// Checks that an image is compiled once and read from the folder afterwards.
    #[test]
    fn what_was_compiled_is_kept() {
        if nvrtc::version().is_none() {
            eprintln!("SKIPPED, nothing was tested: no libnvrtc was found");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let images = KernelImages::new(Some(folder.path().join("kernels")));
        let made = images.compiled(Kernel::Scale, Target::Device(9, 0)).unwrap();
        assert!(made.starts_with(b"\x7fELF"));
        let file = fs::read_dir(folder.path().join("kernels")).unwrap().next().unwrap().unwrap();
        assert!(read(&file.path()).unwrap() == made);
        write(&file.path(), b"something else").unwrap();
        let again = images.compiled(Kernel::Scale, Target::Device(9, 0)).unwrap();
        assert!(again == b"something else", "was compiled again");
    }
}
