//! Images of kernels: those that the build embedded, those of a folder, and new ones.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use super::{CompileError, Target, compile, hash, nvrtc};
use crate::kernel::Kernel;
use crate::version::Version;

include!(concat!(env!("OUT_DIR"), "/embedded_images.rs"));

/// Bytes in front of an image: its checksum.
const CHECKSUM_BYTES: usize = 16;

/// A file that is larger is none of ours.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Where images of kernels come from.
#[derive(Clone, Debug, Default)]
pub struct KernelImages {
    folder: Option<PathBuf>,
}

/// The file name of an image, up to the compiler's version.
fn stem(kernel: Kernel, target: Target) -> String {
    format!("{}-{:032x}-{target}", kernel.name(), hash(kernel, target))
}

impl KernelImages {
    /// With a folder that keeps what was compiled, or none. It is made when there is something to keep;
    /// one that cannot be written is no error.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// An image that devices of this compute capability run, major and minor number: one that the build
    /// embedded, one from the folder, a new one, or embedded PTX.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn image(&self, kernel: Kernel, capability: Version) -> Result<Vec<u8>, CompileError> {
        let binary = |target| embedded(kernel, target);
        if let Some(image) = Target::binaries_for(capability).find_map(binary) {
            return Ok(image);
        }
        self.compiled(kernel, Target::Device(capability.major, capability.minor)).or_else(|error| {
            // The compiler is not there, or older than the device.
            let text =
                |target| embedded(kernel, target).or_else(|| self.compiled(kernel, target).ok());
            Target::texts_for(capability).find_map(text).ok_or(error)
        })
    }

    /// Keeps an image in the folder, if there is one, for a release's build.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn keep(&self, kernel: Kernel, target: Target, image: &[u8]) -> std::io::Result<()> {
        match self.file(kernel, target) {
            Some(file) => write(&file, image),
            None => Ok(()),
        }
    }

    /// Where the image of the compiler that is there is kept.
    fn file(&self, kernel: Kernel, target: Target) -> Option<PathBuf> {
        let (major, minor) = nvrtc::version()?;
        let name = format!("{}-{major}.{minor}", stem(kernel, target));
        self.folder.as_ref().map(|folder| folder.join(name))
    }

    /// From the folder, or new and kept there.
    fn compiled(&self, kernel: Kernel, target: Target) -> Result<Vec<u8>, CompileError> {
        if let Some(image) = self.file(kernel, target).and_then(|file| read(&file)) {
            return Ok(image);
        }
        let image = compile(kernel, target)?.image;
        // A cache that cannot be written costs time only.
        let _ = self.keep(kernel, target, &image);
        Ok(image)
    }
}

/// An image that the build embedded, whichever compiler made it.
fn embedded(kernel: Kernel, target: Target) -> Option<Vec<u8>> {
    let stem = stem(kernel, target);
    let found = EMBEDDED.iter().find(|(name, _)| {
        name.strip_prefix(stem.as_str()).is_some_and(|version| version.starts_with('-'))
    });
    found.and_then(|(_, bytes)| checked(bytes))
}

/// The image behind its checksum.
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

/// Nobody ever sees half a file.
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

    /// A build with a folder of images has all of them.
    #[test]
    fn what_a_release_embeds_is_whole() {
        if EMBEDDED.is_empty() {
            return;
        }
        for &kernel in Kernel::ALL {
            for target in Target::RELEASED {
                assert!(embedded(kernel, target).is_some(), "{} {target}", kernel.name());
            }
            // Devices between those that were compiled for run what was made for older ones.
            let older = embedded(kernel, Target::Device(8, 0));
            assert_eq!(KernelImages::default().image(kernel, Version::new(8, 6)).ok(), older);
            // Devices that no compiler knows run the newest text.
            let newest = embedded(kernel, Target::Ptx(9, 0));
            assert_eq!(KernelImages::default().image(kernel, Version::new(99, 0)).ok(), newest);
        }
    }

    /// Compiled once, and from the folder afterwards.
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
