//! Memory for weights.

use bytemuck::{Pod, Zeroable};

/// One cache line.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes that begin at a cache line, so that no vector that a kernel loads lies across two.
pub struct AlignedBytes {
    lines: Vec<Line>,
    length: usize,
}

impl AlignedBytes {
    /// That many zeros.
    pub fn zeroed(length: usize) -> Self {
        Self { lines: vec![Line([0; 64]); length.div_ceil(64)], length }
    }

    /// The bytes, to fill.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        bytemuck::cast_slice_mut(&mut self.lines).get_mut(..length).unwrap_or_default()
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.lines).get(..self.length).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::AlignedBytes;

    #[test]
    fn bytes_begin_at_a_cache_line_and_have_their_length() {
        for length in [0, 1, 64, 65, 1 << 20] {
            let mut bytes = AlignedBytes::zeroed(length);
            bytes.bytes_mut().fill(7);
            assert_eq!(bytes.as_ref().len(), length);
            assert!(length == 0 || bytes.as_ref().as_ptr().addr().is_multiple_of(64));
            assert!(bytes.as_ref().iter().all(|byte| *byte == 7));
        }
    }
}
