//! Attention: norms and rotates heads, stores keys and values in KV pages, and attends over them.

use nestling_core::EngineError;
use nestling_core::backend::{AttentionHeads, HeadNorm};
use nestling_core::batch::StepRows;
use nestling_core::kv_cache::KvValues;
use nestling_import::RopePairs;

use crate::device::Device;
use crate::heads::HeadCounts;
use crate::memory::{GpuBuffer, GpuFloats};
use crate::operation::{Attend, NormParts, NormWeight, Operation, Rope, StoreKeys};
use crate::page_layout::PageLayout;
use crate::page_lists::place_of;
use crate::pages::GpuPages;
use crate::sizes::{AttendSizes, RopeSizes, StoreSizes};
use crate::storage::word;

/// The rows of a step and the layout of their attention heads.
pub(super) struct HeadRows<'a, D: Device> {
    pub heads: &'a AttentionHeads<D>,
    pub rows: &'a StepRows,
}

/// Numbers of query and key heads at the start of a row.
#[derive(Clone, Copy)]
struct RotatedHeads {
    queries: usize,
    keys: usize,
}

/// Adjacent parts of a row, starting at column `first`.
#[derive(Clone, Copy)]
struct RowParts {
    first: usize,
    parts: usize,
}

impl<D: Device> HeadRows<'_, D> {
    /// Norms and rotates query heads. With `pages`, also norms and rotates key heads and stores keys and
    /// values.
    pub fn rope(
        &self,
        device: &mut D,
        angles: &GpuBuffer<D>,
        qkv: &GpuBuffer<D>,
        pages: Option<&mut GpuPages<D>>,
    ) -> Result<(), EngineError> {
        if let Some(pages) = pages {
            return self.rope_store(device, angles, qkv, pages);
        }
        let heads = self.heads.num_attention_heads;
        self.rotate(device, angles, qkv, RotatedHeads { queries: heads, keys: 0 })
    }

    fn rope_store(
        &self,
        device: &mut D,
        angles: &GpuBuffer<D>,
        qkv: &GpuBuffer<D>,
        pages: &mut GpuPages<D>,
    ) -> Result<(), EngineError> {
        let counts = HeadCounts::of(self.heads);
        let queries = counts.stored_queries(&pages.shape, qkv.cols);
        self.rotate(device, angles, qkv, RotatedHeads { queries, keys: counts.keys })?;
        if let Some(weight) = &self.heads.value_norm {
            let first = (queries + counts.keys) * counts.dim;
            let parts = (qkv.cols - first) / weight.count.max(1);
            self.norm_parts(device, weight, qkv, RowParts { first, parts })?;
        }
        for row in 0..self.rows.len() {
            let (page, _) = place_of(self.rows, row)?;
            pages.prepare(device, page)?;
        }
        let prefix = match pages.shape.values {
            KvValues::Beside => 0,
            KvValues::KeyPrefix(dim) => dim,
        };
        let shape = &pages.shape;
        let sizes = StoreSizes {
            heads: word("key heads", shape.num_key_value_heads)?,
            stride: word("columns", qkv.cols)?,
            first: word("first column", queries * counts.dim)?,
            head_dim: word("elements of a head", shape.head_dim)?,
            prefix: word("elements of a value", prefix)?,
        };
        let (rows, words) = (self.rows, PageLayout::of(shape).words()?);
        device.record(Operation::StoreKeys(StoreKeys { rows, x: qkv, sizes, pages, words }))
    }

    /// Norms and rotates the first heads of each row: queries, then keys.
    fn rotate(
        &self,
        device: &mut D,
        angles: &GpuBuffer<D>,
        x: &GpuBuffer<D>,
        RotatedHeads { queries, keys }: RotatedHeads,
    ) -> Result<(), EngineError> {
        let Self { heads, rows } = *self;
        let d = heads.head_dim;
        for (norm, first, count) in
            [(&heads.query_norm, 0, queries), (&heads.key_norm, queries, keys)]
        {
            match norm {
                HeadNorm::FullWidth(weight) if count > 0 => {
                    let parts = RowParts { first: first * d, parts: 1 };
                    self.norm_parts(device, weight, x, parts)?;
                }
                HeadNorm::PerHead(_)
                | HeadNorm::PerHeadAfterRope(_)
                | HeadNorm::FullWidth(_)
                | HeadNorm::Absent => {}
            }
        }
        device.record(Operation::Rope(Rope {
            x: x.binding(),
            angles: angles.binding(),
            query_norm: per_head(&heads.query_norm)?,
            key_norm: per_head(&heads.key_norm)?,
            rows: word("rows", rows.len())?,
            sizes: RopeSizes {
                queries: word("query heads", queries)?,
                keys: word("key heads", keys)?,
                stride: word("columns", x.cols)?,
                head_dim: word("elements of a head", d)?,
                rope_first: word("first rotated element", heads.rope_first)?,
                rope_dims: word("rotated elements", angles.cols)?,
            },
            is_adjacent: matches!(heads.rope_pairs, RopePairs::Adjacent),
            late_norms: [&heads.query_norm, &heads.key_norm]
                .map(|norm| matches!(norm, HeadNorm::PerHeadAfterRope(_))),
            eps: heads.eps,
        }))
    }

    /// Applies RMSNorm to parts of each row, in place.
    fn norm_parts(
        &self,
        device: &mut D,
        weight: &GpuFloats<D>,
        x: &GpuBuffer<D>,
        RowParts { first, parts }: RowParts,
    ) -> Result<(), EngineError> {
        device.record(Operation::NormParts(NormParts {
            weight: weight.binding(),
            x: x.binding(),
            count: word("parts of a step", x.rows * parts)?,
            parts: word("parts of a row", parts.max(1))?,
            stride: word("columns", x.cols)?,
            first: word("first column", first)?,
            length: word("norm", weight.count)?,
            eps: self.heads.eps,
        }))
    }

    pub fn attend(
        &self,
        device: &mut D,
        queries: &GpuBuffer<D>,
        pages: &GpuPages<D>,
        out: &mut GpuBuffer<D>,
    ) -> Result<(), EngineError> {
        let Self { heads, rows } = *self;
        let counts = HeadCounts::of(heads);
        out.resize(device, rows.len())?;
        let window = heads.sliding_window;
        let sizes = AttendSizes {
            heads: word("query heads", counts.queries)?,
            sharing: word("query heads", counts.queries / counts.keys.max(1))?,
            stride: word("columns", queries.cols)?,
            head_dim: word("elements of a head", counts.dim)?,
            value_dim: word("elements of a value", pages.shape.values.dim(counts.dim))?,
            window: window.map_or(u32::MAX, |size| u32::try_from(size).unwrap_or(u32::MAX)),
        };
        let words = PageLayout::of(&pages.shape).words()?;
        device.record(Operation::Attend(Attend { heads, rows, queries, pages, out, sizes, words }))
    }
}

fn per_head<D: Device>(norm: &HeadNorm<D>) -> Result<Option<NormWeight<D::Binding>>, EngineError> {
    match norm {
        HeadNorm::PerHead(weight) | HeadNorm::PerHeadAfterRope(weight) => {
            let length = word("norm", weight.count)?;
            Ok(Some(NormWeight { binding: weight.binding(), length }))
        }
        HeadNorm::FullWidth(_) | HeadNorm::Absent => Ok(None),
    }
}
