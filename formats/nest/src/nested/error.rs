//! Errors of quantization and of decoding quantized matrices.

use crate::memory::OutOfMemory;
use crate::{InternalError, Level, Plane};

/// An error of the nested code.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NestedError {
    /// A memory allocation failed.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A weight is NaN or infinite.
    #[error("weight at row {row}, column {col} is {value}; only finite weights can be quantized")]
    NotFinite {
        /// Row of the weight.
        row: usize,
        /// Column of the weight.
        col: usize,
        /// The weight.
        value: f32,
    },
    /// A block of weights is not valid MXFP4.
    #[error("the 32 weights from row {row}, column {col} are not an MXFP4 block")]
    NotMxfp4 {
        /// Row of the block.
        row: usize,
        /// First column of the block.
        col: usize,
    },
    /// A weight is too large for an fp16 row scale.
    #[error("row {row} has a weight of magnitude {magnitude}; the largest row scale is 65504")]
    RowTooLarge {
        /// The row.
        row: usize,
        /// Largest magnitude in the row.
        magnitude: f32,
    },
    /// The matrix has no rows or no columns, or its size overflows.
    #[error("a matrix of {rows} rows and {cols} columns cannot be coded")]
    Shape {
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// A slice has the wrong length.
    #[error("{what}: expected {expected} elements, found {found}")]
    Length {
        /// Name of the slice.
        what: &'static str,
        /// Expected number of elements.
        expected: usize,
        /// Actual number of elements.
        found: usize,
    },
    /// A column's importance is negative, NaN or infinite.
    #[error("importance of column {col} is {value}; it must be finite and not negative")]
    Importance {
        /// The column.
        col: usize,
        /// Importance of the column.
        value: f32,
    },
    /// A second moment is not finite, or negative on the diagonal.
    #[error(
        "second moment at row {row}, column {col} is {value}; it must be finite, and not negative on the diagonal"
    )]
    Moment {
        /// Row of the moment.
        row: usize,
        /// Column of the moment.
        col: usize,
        /// Value of the moment.
        value: f32,
    },
    /// The damping is negative, NaN or infinite.
    #[error("damping is {damping}; it must be finite and not negative")]
    Damping {
        /// The damping.
        damping: f32,
    },
    /// Feedback requires the factor of the second moments, which was not computed.
    #[error("feedback needs the factor of the second moments of {dim} columns")]
    NotFactored {
        /// Columns of the matrix.
        dim: usize,
    },
    /// The second moments are not positive definite, even with maximum damping.
    #[error(
        "second moments of {dim} columns are not positive definite, even with {damping} added to their diagonal"
    )]
    NotPositive {
        /// Columns of the matrix.
        dim: usize,
        /// Value added to the diagonal, relative to its mean.
        damping: f32,
    },
    /// A level's weight in the options is not in 0..=1e6, or all are zero.
    #[error("level weights {weights:?}: expected numbers in 0..=1e6, not all zero")]
    LevelWeights {
        /// Weights of levels 2, 3, 4, 6 and 8.
        weights: [f32; 5],
    },
    /// A plane's bytes have the wrong length.
    #[error("plane {plane:?}: expected {expected} bytes, found {found}")]
    PlaneLength {
        /// The plane.
        plane: Plane,
        /// Expected length in bytes.
        expected: usize,
        /// Actual length in bytes.
        found: usize,
    },
    /// A requested level needs planes that are not present.
    #[error("level {wanted} was requested, but the planes present reach level {present}")]
    LevelMissing {
        /// Requested level.
        wanted: Level,
        /// Highest level that the present planes support.
        present: Level,
    },
    /// A row, tile or group is outside the matrix.
    #[error("{what} {index} lies outside of 0..{limit}")]
    OutOfRange {
        /// Kind of index.
        what: &'static str,
        /// The index.
        index: usize,
        /// One more than the last valid index.
        limit: usize,
    },
    /// A codec's bytes or parameters are not valid.
    #[error("codec: {what} is {found}, expected {expected}")]
    Codec {
        /// Name of the parameter.
        what: &'static str,
        /// Value of the parameter.
        found: i64,
        /// Allowed values.
        expected: &'static str,
    },
    /// A tile refers to a table that its codec does not have.
    #[error("tile {tile} names table {table} of a codec with {tables}")]
    TableIndex {
        /// The tile.
        tile: usize,
        /// Table index of the tile.
        table: u8,
        /// Number of tables in the codec.
        tables: usize,
    },
    /// A row scale is negative, NaN or infinite.
    #[error("row {row} has the scale {scale}; it must be finite and not negative")]
    RowScale {
        /// The row.
        row: usize,
        /// Scale of the row.
        scale: f32,
    },
    /// A scale or minimum of scaled integers is NaN or infinite.
    #[error(
        "row {row}, group {group} has the scale {scale} and the minimum {minimum:?}; they must be finite"
    )]
    GroupScale {
        /// The row.
        row: usize,
        /// The group within the row.
        group: usize,
        /// Product of scale and sub-scale.
        scale: f32,
        /// Minimum, if the codec has minima.
        minimum: Option<f32>,
    },
    /// A stored step does not fit in five bits.
    #[error("row {row}, group {group} has the step {step}; the largest is 31")]
    Step {
        /// The row.
        row: usize,
        /// The group within the row.
        group: usize,
        /// The step.
        step: u8,
    },
    /// An invariant of the program is violated.
    #[error(transparent)]
    Internal(#[from] InternalError),
}
