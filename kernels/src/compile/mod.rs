//! From the text of kernels to what a device runs: compiled when a release is built, or at run time by
//! NVIDIA's compiler, NVRTC, where the binary form is missing.
//!
//! An image is named by its kernel, a hash of everything that it is made of, and its target; the name
//! of a file in a cache and of an embedded image are the same. A release is built with a folder of
//! images, named by `NESTLING_CUDA_IMAGES`, that the example `compile` filled.

mod images;
mod nvrtc;

use std::fmt;

use thiserror::Error;
use xxhash_rust::xxh3::Xxh3;

pub use images::KernelImages;

use crate::kernel::{HEADERS, Kernel};
use crate::version::Version;

/// What an image is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Devices of one compute capability, major and minor number: binary.
    Device(u32, u32),
    /// Devices of this compute capability and of later ones: a text that the driver compiles.
    Ptx(u32, u32),
}

impl Target {
    /// All that a release has images for. A text holds the way of the architecture that it was made for,
    /// whatever device it is compiled for, so there is one for each way.
    pub const RELEASED: [Self; 7] = [
        Self::Device(7, 5),
        Self::Device(8, 0),
        Self::Device(8, 9),
        Self::Device(9, 0),
        Self::Ptx(7, 5),
        Self::Ptx(8, 0),
        Self::Ptx(9, 0),
    ];

    /// Binaries that a device of this compute capability runs, best first: those for the same major number
    /// and no higher minor one.
    fn binaries_for(capability: Version) -> impl Iterator<Item = Self> {
        let Version { major, minor } = capability;
        (0..=minor).rev().map(move |minor| Self::Device(major, minor))
    }

    /// Texts of a release that the driver compiles for a device of this compute capability, the newest
    /// first.
    fn texts_for(capability: Version) -> impl Iterator<Item = Self> {
        let runs = move |target: &Self| match target {
            Self::Ptx(major, minor) => Version::new(*major, *minor) <= capability,
            Self::Device(..) => false,
        };
        Self::RELEASED.into_iter().rev().filter(runs)
    }

    /// The target of this name, as [`fmt::Display`] writes it.
    pub fn of_name(name: &str) -> Option<Self> {
        let (form, digits) = name.split_once('_')?;
        let (major, minor) = digits.split_at_checked(digits.len().checked_sub(1)?)?;
        let (major, minor) = (major.parse().ok()?, minor.parse().ok()?);
        match form {
            "sm" => Some(Self::Device(major, minor)),
            "compute" => Some(Self::Ptx(major, minor)),
            _ => None,
        }
    }

    /// The architecture as the compiler names it.
    fn architecture(self) -> String {
        match self {
            Self::Device(major, minor) => format!("sm_{major}{minor}"),
            Self::Ptx(major, minor) => format!("compute_{major}{minor}"),
        }
    }

    fn kind(self) -> nvrtc::ImageKind {
        match self {
            Self::Device(..) => nvrtc::ImageKind::Cubin,
            Self::Ptx(..) => nvrtc::ImageKind::Ptx,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.architecture())
    }
}

/// What a compiled kernel takes of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelResources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of registers that go to memory and come back, because there are too few of them.
    pub spill_bytes: u32,
    /// Bytes of a thread's arrays that lie in memory.
    pub stack_bytes: u32,
    /// Bytes of shared memory that a block declares itself.
    pub shared_bytes: u32,
}

impl KernelResources {
    /// From what the assembler reports of one kernel.
    fn of_log(log: &str) -> Self {
        // The number before a text.
        let before = |what: &str| -> u32 {
            let numbers = log.match_indices(what).map(|(at, _)| {
                let digits = log[..at].rsplit(|c: char| !c.is_ascii_digit()).next();
                // Default: a text without a number before it counts nothing.
                digits.and_then(|digits| digits.parse::<u32>().ok()).unwrap_or(0)
            });
            // Default: the assembler is silent about what a kernel has none of.
            numbers.max().unwrap_or(0)
        };
        Self {
            registers: before(" registers"),
            spill_bytes: before(" bytes spill stores").max(before(" bytes spill loads")),
            stack_bytes: before(" bytes stack frame"),
            shared_bytes: before(" bytes smem"),
        }
    }
}

/// A compiled kernel.
#[derive(Clone, Debug)]
pub struct CompiledKernel {
    /// What the driver loads: a cubin, or PTX that ends with a zero.
    pub image: Vec<u8>,
    /// What it takes; unknown (zero) in PTX.
    pub resources: KernelResources,
}

/// Why there is no image of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// There is neither an image nor a compiler.
    #[error(
        "this build has no kernel {kernel} for {target}, and NVIDIA's compiler (libnvrtc) is not there"
    )]
    NoCompiler {
        /// Which kernel.
        kernel: &'static str,
        /// For which devices.
        target: Target,
    },
    /// The compiler refused the kernel or the target.
    #[error("NVIDIA's compiler refused kernel {kernel} for {target}: {reason}\n{log}")]
    Refused {
        /// Which kernel.
        kernel: &'static str,
        /// For which devices.
        target: Target,
        /// Its answer.
        reason: String,
        /// What it wrote.
        log: String,
    },
}

/// Options of every compilation. Nothing is fused but what says so, so that the bits are the CPU's.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "--ptxas-options=-v"];

/// A hash of everything that an image of a kernel is made of but the compiler.
fn hash(kernel: Kernel, target: Target) -> u128 {
    let mut state = Xxh3::new();
    let mut part = |text: &str| {
        state.update(&(text.len() as u64).to_le_bytes());
        state.update(text.as_bytes());
    };
    part(kernel.name());
    part(kernel.source());
    for header in HEADERS {
        part(header.name);
        part(header.text);
    }
    OPTIONS.iter().for_each(|option| part(option));
    part(&target.architecture());
    state.digest128()
}

/// Compiles a kernel with NVRTC.
///
/// # Errors
/// [`CompileError`].
pub fn compile(kernel: Kernel, target: Target) -> Result<CompiledKernel, CompileError> {
    let name = kernel.name();
    if nvrtc::version().is_none() {
        return Err(CompileError::NoCompiler { kernel: name, target });
    }
    let refused =
        |reason: String, log: String| CompileError::Refused { kernel: name, target, reason, log };
    let file = format!("{name}.cu");
    let program = nvrtc::Include { name: &file, text: kernel.source() };
    let includes = HEADERS.iter();
    let includes = includes.map(|header| nvrtc::Include { name: header.name, text: header.text });
    let mut options = vec![format!("--gpu-architecture={target}")];
    options.extend(OPTIONS.map(str::to_owned));
    let includes: Vec<_> = includes.collect();
    let outcome = nvrtc::compile(&program, &includes, &options, target.kind())
        .map_err(|reason| refused(reason, String::new()))?;
    let image = outcome.image.map_err(|reason| refused(reason, outcome.log.clone()))?;
    Ok(CompiledKernel { image, resources: KernelResources::of_log(&outcome.log) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_from_the_log() {
        let log = "ptxas info    : 0 bytes gmem\n\
            ptxas info    : Compiling entry function 'route' for 'sm_90'\n\
            ptxas info    : Function properties for route\n    \
            96 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n\
            ptxas info    : Used 36 registers, used 1 barriers, 10052 bytes smem\n";
        let expected =
            KernelResources { registers: 36, spill_bytes: 8, stack_bytes: 96, shared_bytes: 10052 };
        assert_eq!(KernelResources::of_log(log), expected);
    }

    #[test]
    fn hashes_tell_kernels_and_targets_apart() {
        let [route, scale] = [Kernel::Route, Kernel::Scale]
            .map(|kernel| Target::RELEASED.map(|target| hash(kernel, target)).to_vec());
        let mut all = [route, scale].concat();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 2 * Target::RELEASED.len());
    }

    #[test]
    fn targets_are_read_as_they_are_written() {
        for target in Target::RELEASED.into_iter().chain([Target::Device(12, 1)]) {
            assert_eq!(Target::of_name(&target.to_string()), Some(target));
        }
        for name in ["", "sm_", "sm_9", "sm_9x", "sm_9\u{e9}", "gfx_90", "sm90"] {
            assert_eq!(Target::of_name(name), None, "{name}");
        }
    }

    /// Images of a release that a device runs, best first.
    fn runs(major: u32, minor: u32) -> Vec<Target> {
        let capability = Version::new(major, minor);
        let binaries = Target::binaries_for(capability);
        let binaries = binaries.filter(|target| Target::RELEASED.contains(target));
        binaries.chain(Target::texts_for(capability)).collect()
    }

    #[test]
    fn devices_get_the_newest_image_that_they_run() {
        use Target::{Device, Ptx};
        for ((major, minor), expected) in [
            ((7, 5), Device(7, 5)),
            ((8, 0), Device(8, 0)),
            ((8, 6), Device(8, 0)),
            ((8, 7), Device(8, 0)),
            ((8, 9), Device(8, 9)),
            ((9, 0), Device(9, 0)),
            ((10, 0), Ptx(9, 0)),
            ((10, 3), Ptx(9, 0)),
            ((11, 0), Ptx(9, 0)),
            ((12, 0), Ptx(9, 0)),
            ((12, 1), Ptx(9, 0)),
            ((13, 0), Ptx(9, 0)),
            ((99, 9), Ptx(9, 0)),
        ] {
            assert_eq!(runs(major, minor).first(), Some(&expected), "{major}.{minor}");
        }
        assert_eq!(runs(8, 6), [Device(8, 0), Ptx(8, 0), Ptx(7, 5)]);
        assert_eq!(runs(12, 0), [Ptx(9, 0), Ptx(8, 0), Ptx(7, 5)]);
        assert_eq!(runs(7, 0), []);
    }
}
