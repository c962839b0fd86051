//! Sizes of operations as kernel arguments, shared by both backends.

use bytemuck::{Pod, Zeroable};

/// Sizes of rotated heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RopeSizes {
    /// Number of query heads.
    pub queries: u32,
    /// Number of key heads.
    pub keys: u32,
    /// Distance between the starts of two rows, in elements.
    pub stride: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// First rotated element of a head.
    pub rope_first: u32,
    /// Number of rotated elements of a head.
    pub rope_dims: u32,
}

/// Sizes of keys and values to store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct StoreSizes {
    /// Number of key heads.
    pub heads: u32,
    /// Distance between the starts of two rows, in elements.
    pub stride: u32,
    /// Column of the first key.
    pub first: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Number of leading elements of a key that are its value, or 0 if values follow keys.
    pub prefix: u32,
}

/// Sizes of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct AttendSizes {
    /// Number of query heads.
    pub heads: u32,
    /// Number of query heads that share a key head.
    pub sharing: u32,
    /// Distance between the starts of two rows of queries, in elements.
    pub stride: u32,
    /// Elements of a head.
    pub head_dim: u32,
    /// Elements of a value.
    pub value_dim: u32,
    /// Number of positions visible to a row.
    pub window: u32,
}

/// Rule and sizes of a router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Pod, Zeroable)]
#[repr(C)]
pub struct RouteSizes {
    /// Number of rows.
    pub rows: u32,
    /// Experts of the layer.
    pub experts: u32,
    /// Experts of a row.
    pub per_token: u32,
    /// 1 if scores are sigmoids, 0 if they are a softmax.
    pub is_sigmoid: u32,
    /// 1 if the weights of a row are normalized to a sum of 1.
    pub normalizes: u32,
    /// Factor of the weights.
    pub scale: f32,
    /// Number of groups of experts, or 0 if experts are not grouped.
    pub groups: u32,
    /// Number of selected groups.
    pub groups_kept: u32,
    /// 1 if a group's score is the sum of its two best experts' scores.
    pub two_best: u32,
}
