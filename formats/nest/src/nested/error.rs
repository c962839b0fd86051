//! What can be wrong with a matrix to quantize, or with the bytes of a quantized one.

use crate::memory::OutOfMemory;
use crate::{InternalError, Level, Plane};

/// An error of the nested code.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NestedError {
    /// The system gave no memory.
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
    /// A block of weights that should be MXFP4 is not.
    #[error("the 32 weights from row {row}, column {col} on are no block of MXFP4")]
    NotMxfp4 {
        /// Row of the block.
        row: usize,
        /// Its first column.
        col: usize,
    },
    /// A weight is too large for an fp16 row scale.
    #[error("row {row} has a weight of magnitude {magnitude}; the largest row scale is 65504")]
    RowTooLarge {
        /// The row.
        row: usize,
        /// Its largest magnitude.
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
        /// Which slice.
        what: &'static str,
        /// Elements it must have.
        expected: usize,
        /// Elements it has.
        found: usize,
    },
    /// A column's importance is negative, NaN or infinite.
    #[error("importance of column {col} is {value}; it must be finite and not negative")]
    Importance {
        /// The column.
        col: usize,
        /// Its importance.
        value: f32,
    },
    /// A second moment is not finite, or negative on the diagonal.
    #[error(
        "second moment at row {row}, column {col} is {value}; it must be finite, and not negative on the diagonal"
    )]
    Moment {
        /// Its row.
        row: usize,
        /// Its column.
        col: usize,
        /// Its value.
        value: f32,
    },
    /// The damping is negative, NaN or infinite.
    #[error("damping is {damping}; it must be finite and not negative")]
    Damping {
        /// The damping.
        damping: f32,
    },
    /// Feedback needs the factor of the second moments, and it was not made.
    #[error("feedback needs the factor of the second moments of {dim} columns")]
    NotFactored {
        /// Columns of the matrix.
        dim: usize,
    },
    /// Second moments that are not positive definite, however damped.
    #[error(
        "second moments of {dim} columns are not positive definite, even with {damping} added to their diagonal"
    )]
    NotPositive {
        /// Columns of the matrix.
        dim: usize,
        /// What was added, relative to the mean of the diagonal.
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
        /// Bytes it must have.
        expected: usize,
        /// Bytes it has.
        found: usize,
    },
    /// A level was asked for whose planes are not all there.
    #[error("level {wanted} was asked for, but the planes present reach level {present}")]
    LevelMissing {
        /// The level asked for.
        wanted: Level,
        /// The level that the planes reach.
        present: Level,
    },
    /// A row, tile or group lies outside of the matrix.
    #[error("{what} {index} lies outside of 0..{limit}")]
    OutOfRange {
        /// What the index counts.
        what: &'static str,
        /// The index.
        index: usize,
        /// One more than the last valid index.
        limit: usize,
    },
    /// A codec's bytes or parameters are not valid.
    #[error("codec: {what} is {found}, expected {expected}")]
    Codec {
        /// Which parameter.
        what: &'static str,
        /// Its value.
        found: i64,
        /// What is allowed.
        expected: &'static str,
    },
    /// A tile names a table that its codec does not have.
    #[error("tile {tile} names table {table} of a codec with {tables}")]
    TableIndex {
        /// The tile.
        tile: usize,
        /// The table that it names.
        table: u8,
        /// Tables of the codec.
        tables: usize,
    },
    /// A row scale is negative, NaN or infinite.
    #[error("row {row} has the scale {scale}; it must be finite and not negative")]
    RowScale {
        /// The row.
        row: usize,
        /// Its scale.
        scale: f32,
    },
    /// A scale or minimum of scaled integers is not a number, or too large for one.
    #[error(
        "row {row}, group {group} has the scale {scale} and the minimum {minimum:?}; they must be finite"
    )]
    GroupScale {
        /// The row.
        row: usize,
        /// The group within the row.
        group: usize,
        /// Scale times sub-scale.
        scale: f32,
        /// The minimum, if the codec has any.
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
    /// A condition of the program itself that does not hold.
    #[error(transparent)]
    Internal(#[from] InternalError),
}
