//! Compiles kernels for devices: when a release is built, or at run time with NVIDIA's compiler, NVRTC, if
//! the binary is missing.
//!
//! An image is identified by its kernel, a hash of all its sources and options, and its target. Cache files
//! and embedded images use the same names. A release is built with a folder of images in
//! `NESTLING_CUDA_IMAGES`, which the example `compile` writes.

mod images;
mod nvrtc;

use std::fmt;

use thiserror::Error;
use xxhash_rust::xxh3::Xxh3;

pub use images::KernelImages;

use crate::kernel::{HEADERS, Kernel};
use crate::version::Version;

/// Compilation target of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// Binary for devices of one compute capability, given as major and minor number.
    Device(u32, u32),
    /// PTX for devices of this compute capability or later ones, which the driver compiles.
    Ptx(u32, u32),
}

impl Target {
    /// Targets of a release. PTX keeps the code path of the architecture that it was compiled for, so there
    /// is one for each code path.
    pub const RELEASED: [Self; 7] = [
        Self::Device(7, 5),
        Self::Device(8, 0),
        Self::Device(8, 9),
        Self::Device(9, 0),
        Self::Ptx(7, 5),
        Self::Ptx(8, 0),
        Self::Ptx(9, 0),
    ];

    /// Returns the binaries that a device can run, best first. They have the same major number and at most
    /// the same minor number.
    fn binaries_for(capability: Version) -> impl Iterator<Item = Self> {
        let Version { major, minor } = capability;
        (0..=minor).rev().map(move |minor| Self::Device(major, minor))
    }

    /// Returns the PTX targets of a release that the driver can compile for a device, newest first.
    fn texts_for(capability: Version) -> impl Iterator<Item = Self> {
        let runs = move |target: &Self| match target {
            Self::Ptx(major, minor) => Version::new(*major, *minor) <= capability,
            Self::Device(..) => false,
        };
        Self::RELEASED.into_iter().rev().filter(runs)
    }

    /// Parses a target name in the format of [`fmt::Display`].
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

/// Resources used by a compiled kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KernelResources {
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of spilled registers of a thread.
    pub spill_bytes: u32,
    /// Bytes of a thread's stack frame.
    pub stack_bytes: u32,
    /// Bytes of statically declared shared memory of a block.
    pub shared_bytes: u32,
}

impl KernelResources {
    /// Parses the assembler's report of one kernel.
    fn of_log(log: &str) -> Self {
        // Returns the maximum number before the text `what`.
        let before = |what: &str| -> u32 {
            let numbers = log.match_indices(what).map(|(at, _)| {
                let digits = log[..at].rsplit(|c: char| !c.is_ascii_digit()).next();
                // Default: text without a number before it counts as zero.
                digits.and_then(|digits| digits.parse::<u32>().ok()).unwrap_or(0)
            });
            // Default: the assembler omits resources that a kernel does not use.
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
    /// Image as the driver loads it: a cubin, or NUL-terminated PTX.
    pub image: Vec<u8>,
    /// Used resources, all zero for PTX because they are unknown.
    pub resources: KernelResources,
}

/// Failure to obtain an image of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CompileError {
    /// The image is missing and no compiler is available.
    #[error(
        "this build has no kernel {kernel} for {target}, and NVIDIA's compiler (libnvrtc) is not there"
    )]
    NoCompiler {
        /// Name of the kernel.
        kernel: &'static str,
        /// Compilation target.
        target: Target,
    },
    /// The compiler refused the kernel or the target.
    #[error("NVIDIA's compiler refused kernel {kernel} for {target}: {reason}\n{log}")]
    Refused {
        /// Name of the kernel.
        kernel: &'static str,
        /// Compilation target.
        target: Target,
        /// Error code of the compiler.
        reason: String,
        /// Compiler log.
        log: String,
    },
}

/// Options of every compilation. Only explicit fused operations are used, so that results equal the CPU's bit
/// for bit.
const OPTIONS: [&str; 3] = ["--std=c++17", "--fmad=false", "--ptxas-options=-v"];

/// Returns a hash of all inputs of an image except the compiler.
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
/// Fails with [`CompileError`].
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

    /// Returns the images of a release that a device can run, best first.
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
