//! Planes of codes in tiles of 16 rows, as used by both codecs, and their digits.
//!
//! The files of the instruction sets contain the code that the kernels of both codecs share: reading digits.

use std::ops::Range;

use nestling_formats::nested::{GROUP, Layout, NestedError, NestedView, TILE_ROWS};
use nestling_formats::{Invariant, Level};

use super::rows::QuantizedGroup;

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(super) mod simd128;

/// Leading planes of a level, as parameters of functions that are compiled for each.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) mod leading {
    pub const TWO: u8 = 0;
    pub const P3: u8 = 1;
    pub const SPLIT: u8 = 2;
    pub const MERGED: u8 = 3;
}

/// Tables that kernels index by four bits.
#[cfg(any(
    target_arch = "x86_64",
    target_arch = "aarch64",
    all(target_arch = "wasm32", target_feature = "simd128")
))]
mod tables {
    /// The same bits as the even bits of a byte.
    pub const EVEN_BITS: [u8; 16] = [
        0x00, 0x01, 0x04, 0x05, 0x10, 0x11, 0x14, 0x15, 0x40, 0x41, 0x44, 0x45, 0x50, 0x51, 0x54,
        0x55,
    ];
    /// The lower two bits.
    pub const LOWER_DIGITS: [u8; 16] = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3];
    /// The upper two bits.
    pub const UPPER_DIGITS: [u8; 16] = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3];
}

/// Planes P3 and P4, as far as a level needs them.
#[derive(Clone, Copy, Debug)]
pub(super) enum MiddlePlanes<'a> {
    None,
    P3(&'a [u8]),
    Split(&'a [u8], &'a [u8]),
    Merged(&'a [u8]),
}

/// Codes of a matrix, as far as a level reads them.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodePlanes<'a> {
    pub p2: &'a [u8], // [tiles, groups, 128]
    pub middle: MiddlePlanes<'a>,
    pub p6: &'a [u8], // [tiles, groups, 128], empty below level 6; a bit each: [tiles, groups, 64]
    pub p8: &'a [u8], // [tiles, groups, 128], empty below level 8
}

impl<'a> CodePlanes<'a> {
    /// Returns the planes of a tiled view that `level` reads. `codes` is the range of the codes in plane P2.
    ///
    /// # Errors
    /// Fails with [`NestedError::LevelMissing`] if planes of the level are missing, and with
    /// [`NestedError::OutOfRange`] for the row-major layout.
    pub fn new(
        view: &NestedView<'a>,
        codes: Range<usize>,
        level: Level,
    ) -> Result<Self, NestedError> {
        if level > view.level() {
            return Err(NestedError::LevelMissing { wanted: level, present: view.level() });
        }
        if view.layout() != Layout::Tile16 {
            let index = usize::from(view.layout().code());
            return Err(NestedError::OutOfRange { what: "layout of a product", index, limit: 1 });
        }
        let planes = *view.planes();
        let middle = match (planes.p34, planes.p3, planes.p4) {
            _ if level == Level::L2 => MiddlePlanes::None,
            (Some(merged), _, _) => MiddlePlanes::Merged(merged),
            (None, Some(p3), Some(p4)) if level > Level::L3 => MiddlePlanes::Split(p3, p4),
            (None, p3, _) => MiddlePlanes::P3(p3.invariant("a view has the planes of its level")?),
        };
        let from = |plane: Option<&'a [u8]>, lowest| -> Result<&'a [u8], NestedError> {
            if level < lowest {
                return Ok(&[]);
            }
            Ok(plane.invariant("a view has the planes of its level")?)
        };
        let (p6, p8) = (from(planes.p6, Level::L6)?, from(planes.p8, Level::L8)?);
        Ok(Self { p2: &planes.p2[codes], middle, p6, p8 })
    }

    pub fn bytes(&self) -> usize {
        let middle = match self.middle {
            MiddlePlanes::None => 0,
            MiddlePlanes::P3(p3) => p3.len(),
            MiddlePlanes::Split(p3, p4) => p3.len() + p4.len(),
            MiddlePlanes::Merged(merged) => merged.len(),
        };
        self.p2.len() + middle + self.p6.len() + self.p8.len()
    }

    /// Adds the digits of P3 and P4 to codes, with P4's bit at `shift`.
    #[inline(always)]
    pub fn middle_digits(&self, cell: usize, out: &mut GroupCodes, shift: u8) {
        match self.middle {
            MiddlePlanes::None => {}
            MiddlePlanes::P3(p3) => bits(p3, cell, out, shift + 1),
            MiddlePlanes::Split(p3, p4) => {
                bits(p3, cell, out, shift + 1);
                bits(p4, cell, out, shift);
            }
            MiddlePlanes::Merged(merged) => digits(merged, cell, out, shift),
        }
    }
}

/// Codes of one group: `[chunk][row * 4 + column % 4]`, where chunk c holds columns 4c to 4c + 3.
pub(super) type GroupCodes = [[u8; 64]; GROUP / 4];

/// Values of one group, in the same layout.
pub(super) type GroupValues = [[i16; 64]; GROUP / 4];

/// Adds a 2-bit digit of each weight of a group.
#[inline(always)]
pub(super) fn digits(plane: &[u8], cell: usize, out: &mut GroupCodes, shift: u8) {
    for (vector, bytes) in
        plane[cell * 128..(cell + 1) * 128].as_chunks::<64>().0.iter().enumerate()
    {
        for i in 0..4 {
            let chunk = &mut out[vector * 4 + i];
            for lane in 0..64 {
                chunk[lane] |= (bytes[lane] >> (2 * i) & 3) << shift;
            }
        }
    }
}

/// Adds a 1-bit digit of each weight of a group.
#[inline(always)]
pub(super) fn bits(plane: &[u8], cell: usize, out: &mut GroupCodes, shift: u8) {
    let bytes = &plane[cell * 64..(cell + 1) * 64];
    for (i, chunk) in out.iter_mut().enumerate() {
        for (lane, byte) in chunk.iter_mut().zip(bytes) {
            *lane |= (byte >> i & 1) << shift;
        }
    }
}

/// Returns the exact sums of 16 rows with the activations of a group. The chunks start at `first`, and
/// `values` gives their number.
#[inline(always)]
pub(super) fn chunk_sums(
    values: &[[i16; 64]],
    x: &QuantizedGroup,
    first: usize,
) -> [i32; TILE_ROWS] {
    let mut sums = [0i32; TILE_ROWS];
    for (values, x) in values.iter().zip(&x.values.as_chunks::<4>().0[first..]) {
        for row in 0..TILE_ROWS {
            for k in 0..4 {
                sums[row] += i32::from(values[row * 4 + k]) * i32::from(x[k]);
            }
        }
    }
    sums
}
