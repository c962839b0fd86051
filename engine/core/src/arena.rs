//! Aligned memory for weights.

use bytemuck::{Pod, Zeroable};
#[cfg(not(target_family = "wasm"))]
use memmap2::MmapMut;
use nestling_formats::memory::{OutOfMemory, try_zeroed};

/// Minimum size in bytes of allocations in separate pages, which are huge pages if available.
#[cfg(not(target_family = "wasm"))]
const LARGE_BYTES: usize = 2 << 20;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes aligned to a cache line, so that no vector load of a kernel crosses a line boundary.
pub struct AlignedBytes {
    memory: Memory,
    length: usize,
}

enum Memory {
    Lines(Vec<Line>),
    #[cfg(not(target_family = "wasm"))]
    Pages(MmapMut),
}

impl std::fmt::Debug for AlignedBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBytes({})", self.length)
    }
}

impl AlignedBytes {
    /// Allocates `length` zeros; `what` names their purpose in errors.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the allocation fails.
    pub fn zeroed(what: &'static str, length: usize) -> Result<Self, OutOfMemory> {
        Ok(Self { memory: Memory::zeroed(what, length)?, length })
    }

    /// Returns an empty allocation.
    pub fn empty() -> Self {
        Self { memory: Memory::Lines(Vec::new()), length: 0 }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = match &mut self.memory {
            Memory::Lines(lines) => bytemuck::cast_slice_mut(lines),
            #[cfg(not(target_family = "wasm"))]
            Memory::Pages(pages) => pages,
        };
        &mut bytes[..self.length]
    }
}

impl Memory {
    fn zeroed(what: &'static str, length: usize) -> Result<Self, OutOfMemory> {
        #[cfg(not(target_family = "wasm"))]
        if length >= LARGE_BYTES
            && let Ok(pages) = MmapMut::map_anon(length)
        {
            // Huge pages reduce TLB misses while weights are read. The call may fail without harm.
            #[cfg(target_os = "linux")]
            let _ = pages.advise(memmap2::Advice::HugePage);
            return Ok(Self::Pages(pages));
        }
        Ok(Self::Lines(try_zeroed(what, length.div_ceil(64))?))
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        let bytes = match &self.memory {
            Memory::Lines(lines) => bytemuck::cast_slice(lines),
            #[cfg(not(target_family = "wasm"))]
            Memory::Pages(pages) => pages,
        };
        &bytes[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::AlignedBytes;

    #[test]
    fn bytes_begin_at_a_cache_line_and_have_their_length() {
        for length in [0, 1, 64, 65, 1 << 20, (5 << 20) + 3] {
            let mut bytes = AlignedBytes::zeroed("test", length).unwrap();
            assert!(bytes.as_ref().iter().all(|byte| *byte == 0));
            bytes.bytes_mut().fill(7);
            assert_eq!((bytes.as_ref().len(), bytes.len()), (length, length));
            assert!(length == 0 || bytes.as_ref().as_ptr().addr().is_multiple_of(64));
            assert!(bytes.as_ref().iter().all(|byte| *byte == 7));
        }
    }
}
