//! Choice of the kernels' instruction set.

use std::str::FromStr;

use nestling_core::error::EngineError;
use serde::{Deserialize, Serialize};

use super::Kernels;

/// Instruction set of the kernels. All sets give the same bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum InstructionSet {
    /// The fastest set that the machine has.
    #[default]
    Fastest,
    /// Instructions that every machine has.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with AVX-VNNI.
    AvxVnni,
    /// AVX-512 with VNNI, VBMI and GFNI.
    Avx512,
    /// NEON.
    Neon,
    /// NEON with dot products.
    NeonDot,
    /// SIMD128 of WebAssembly.
    Simd128,
}

impl InstructionSet {
    /// Sets with the names by which [`Self::from_str`] reads them, and by which [`Kernels::name`] shows them.
    const NAMES: [(Self, &'static str, &'static str); 7] = [
        (Self::Portable, "portable", "portable"),
        (Self::Avx2, "avx2", "AVX2"),
        (Self::AvxVnni, "avx-vnni", "AVX-VNNI"),
        (Self::Avx512, "avx512", "AVX-512 VNNI"),
        (Self::Neon, "neon", "NEON"),
        (Self::NeonDot, "neon-dot", "NEON with dot products"),
        (Self::Simd128, "simd128", "SIMD128"),
    ];
}

impl FromStr for InstructionSet {
    type Err = EngineError;

    fn from_str(text: &str) -> Result<Self, EngineError> {
        let named = Self::NAMES.iter().find(|(_, name, _)| name.eq_ignore_ascii_case(text));
        let expected = || Self::NAMES.map(|(_, name, _)| name).join(", ");
        let set = named.map(|(set, ..)| *set);
        set.ok_or_else(|| EngineError::mismatch("instruction set", expected(), text))
    }
}

impl Kernels {
    /// Returns the kernels that run on any machine.
    pub fn portable() -> &'static Self {
        &super::portable::KERNELS
    }

    /// Returns all sets that this machine can run, fastest last.
    ///
    /// ```
    /// use nestling_cpu::kernels::Kernels;
    ///
    /// let names: Vec<&str> = Kernels::available().iter().map(|kernels| kernels.name()).collect();
    /// assert_eq!(names.last(), Some(&Kernels::detect().name()));
    /// ```
    pub fn available() -> Vec<&'static Self> {
        std::iter::once(Self::portable()).chain(Self::native()).collect()
    }

    #[cfg(not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        all(target_arch = "wasm32", target_feature = "simd128")
    )))]
    fn native() -> Vec<&'static Self> {
        Vec::new()
    }

    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    fn native() -> Vec<&'static Self> {
        vec![&super::simd128::KERNELS]
    }

    #[cfg(target_arch = "aarch64")]
    fn native() -> Vec<&'static Self> {
        let dotprod = std::arch::is_aarch64_feature_detected!("dotprod");
        let sets = [(true, &super::neon::KERNELS), (dotprod, &super::NEON_DOT)];
        sets.into_iter().filter(|(there, _)| *there).map(|(_, set)| set).collect()
    }

    #[cfg(target_arch = "x86_64")]
    fn native() -> Vec<&'static Self> {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        let avx512 = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512vbmi")
            && is_x86_feature_detected!("gfni");
        let sets = [
            (avx2, &super::avx2::KERNELS),
            (avx2 && is_x86_feature_detected!("avxvnni"), &super::AVX_VNNI),
            (avx2 && avx512, &super::avx512::KERNELS),
        ];
        sets.into_iter().filter(|(there, _)| *there).map(|(_, set)| set).collect()
    }

    /// Returns the fastest set that this machine can run.
    pub fn detect() -> &'static Self {
        Self::available().last().copied().unwrap_or(Self::portable())
    }

    /// Returns the kernels of an instruction set.
    ///
    /// ```
    /// use nestling_cpu::kernels::{InstructionSet, Kernels};
    ///
    /// assert_eq!(Kernels::of("portable".parse()?)?.name(), "portable");
    /// assert_eq!(Kernels::of(InstructionSet::Fastest)?.name(), Kernels::detect().name());
    /// # Ok::<(), nestling_core::error::EngineError>(())
    /// ```
    ///
    /// # Errors
    /// Fails with [`EngineError::Mismatch`] if the machine lacks the set.
    pub fn of(set: InstructionSet) -> Result<&'static Self, EngineError> {
        let named = InstructionSet::NAMES.iter().find(|(named, ..)| *named == set);
        let Some((_, _, name)) = named else { return Ok(Self::detect()) };
        let available = Self::available();
        let found = available.iter().find(|kernels| kernels.name() == *name);
        found.copied().ok_or_else(|| {
            let names = available.iter().map(|kernels| kernels.name());
            let expected = names.collect::<Vec<_>>().join(", ");
            EngineError::mismatch("instruction set of this machine", expected, *name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_of_the_machine_has_a_name() {
        for kernels in Kernels::available() {
            let names = InstructionSet::NAMES.iter().find(|(.., shown)| *shown == kernels.name());
            let (set, name, _) = names.unwrap();
            assert_eq!(name.to_uppercase().parse::<InstructionSet>().unwrap(), *set);
            assert_eq!(Kernels::of(*set).unwrap().name(), kernels.name());
        }
    }

    #[test]
    fn a_set_that_the_machine_lacks_is_an_error() {
        let foreign = match cfg!(target_arch = "aarch64") {
            true => InstructionSet::Avx2,
            false => InstructionSet::Neon,
        };
        let error = Kernels::of(foreign).unwrap_err();
        assert!(error.to_string().contains("portable"), "{error}");
        let error = "avx3".parse::<InstructionSet>().unwrap_err();
        assert!(error.to_string().contains("avx-vnni"), "{error}");
    }
}
