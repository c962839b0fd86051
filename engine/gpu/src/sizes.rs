//! Sizes of operations, laid out as kernels of both backends take them.

use bytemuck::{Pod, Zeroable};

/// Heads that are rotated, as kernels take them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RopeSizes {
    /// Heads of queries.
    pub queries: u32,
    /// Heads of keys.
    pub keys: u32,
    /// Elements from one row to the next.
    pub stride: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// First element of a head that is rotated.
    pub rope_first: u32,
    /// Elements of a head that are rotated.
    pub rope_dims: u32,
}

/// Sizes of keys and values, as kernels take them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct StoreSizes {
    /// Heads of keys.
    pub heads: u32,
    /// Elements from one row to the next.
    pub stride: u32,
    /// Column of the first key.
    pub first: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Elements of a key that are its value; 0 where values follow the keys.
    pub prefix: u32,
}

/// Sizes of attention, as kernels take them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct AttendSizes {
    /// Heads of queries.
    pub heads: u32,
    /// Heads of queries that share a key.
    pub sharing: u32,
    /// Elements from one row of queries to the next.
    pub stride: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
    /// Positions that a row sees.
    pub window: u32,
}

/// A router's rule and sizes, as kernels take them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RouteSizes {
    /// Rows.
    pub rows: u32,
    /// Experts of the layer.
    pub experts: u32,
    /// Experts of a row.
    pub per_token: u32,
    /// 1 where scores are sigmoids, 0 where they are a softmax.
    pub is_sigmoid: u32,
    /// 1 where the weights of a row are made to add up to 1.
    pub normalizes: u32,
    /// What weights are multiplied with.
    pub scale: f32,
    /// Groups of experts; 0 where there are none.
    pub groups: u32,
    /// Groups that are kept.
    pub groups_kept: u32,
    /// 1 where a group's score is the sum of its two best.
    pub two_best: u32,
}
