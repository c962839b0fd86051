//! The bit-nested weight code: one 8-bit code per weight whose leading bits are themselves codes.
//!
//! A matrix `[rows, cols]` is divided into groups of [`GROUP`] weights along its input dimension and tiles of
//! [`TILE_ROWS`] rows. A weight is `weight_scale * value`. The value is decoded from the first 2, 3, 4, 6 or
//! 8 bits of its code: by a small table at levels 2, 3 and 4, by an integer formula at 6 and 8. `FORMAT.md`
//! specifies the exact arithmetic.

mod any_codec;
mod calibrated;
mod chooser;
mod codec;
mod coder;
mod damped;
mod descent;
mod digits;
mod error;
mod fit;
mod layout;
mod matrix;
mod moments;
mod mxfp4;
mod order;
mod pack;
mod pairs;
mod quantize;
mod refit;
mod rows;
mod scale;
mod scaled;
mod scaled_pack;
mod scaled_planes;
mod scaled_unpack;
mod shrinkage;
mod strided;
mod tables;
mod transform;
mod transposed;
mod view;
mod wide;

#[cfg(test)]
mod calibrated_tests;
#[cfg(test)]
mod scaled_tests;
#[cfg(test)]
mod shrinkage_tests;
#[cfg(test)]
mod strided_tests;
#[cfg(test)]
mod tests;

pub use any_codec::{Codec, CodecRef};
pub use calibrated::{InputCalibration, level_errors, quantize_calibrated};
pub use codec::{NestedCodec, NestedTables, TABLE_BYTES, VALUE_LIMIT};
pub use damped::DampedMoments;
pub use error::NestedError;
pub use fit::CodecFitter;
pub use layout::{
    BaseParts, Layout, PART_ALIGN, PlaneForm, ScaledParts, base_parts, merged_bytes, plane_bytes,
};
pub use matrix::QuantizedMatrix;
pub use moments::SecondMoments;
pub use mxfp4::{Mxfp4Block, Mxfp4Fitter, decode_mxfp4, quantize_mxfp4};
pub use order::{NeuronOrder, reorder_columns, reorder_moments, reorder_rows};
pub use pack::{merge_p3_p4, pack_plane};
pub use quantize::{CalibratedOptions, QuantizeOptions, quantize_matrix};
pub use refit::TableRefit;
pub use rows::PlaneRows;
pub use scale::ScaleSteps;
pub use scaled::{
    LinearValues, Minima, SCALED_CODEC_BYTES, ScaleType, ScaledCodec, ScaledForm, SubScale,
};
pub use scaled_pack::ScaledRows;
pub use scaled_planes::{ScaledPlanes, pack_scaled_merged, pack_scaled_plane};
pub use shrinkage::Shrinkage;
pub use strided::round_tables;
pub use transform::{InputTransform, hadamard};
pub use view::{CheckedSizes, GroupScales, NestedPlanes, NestedView};

use scale::STEPS;

/// Number of weights along the input dimension that share one scale step.
pub const GROUP: usize = 32;

/// Number of rows that are stored interleaved and share a table.
pub const TILE_ROWS: usize = 16;

/// Maximum number of tables per codec.
pub const MAX_TABLES: usize = 16;

/// Scale step that makes a group zero.
pub const ZERO_STEP: u8 = 31;

/// 2^(-k/8) for k = 0..8, rounded to the nearest f32.
const FRACTIONS: [u32; 8] = [
    0x3f80_0000,
    0x3f6a_c0c7,
    0x3f57_44fd,
    0x3f45_672a,
    0x3f35_04f3,
    0x3f25_fed7,
    0x3f18_37f0,
    0x3f0b_95c2,
];
