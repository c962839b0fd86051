//! Measures one token through layers with the shape of Qwen3-30B-A3B, recorded as in a decode step.

use std::sync::Arc;

use half::bf16;
use nestling_benches::RandomMatrix;
use nestling_core::EngineError;
use nestling_core::backend::{
    AttentionHeads, Backend, DeviceRouting, Encoder, FeedForward, HeadNorm, Linear, Router, Write,
};
use nestling_core::batch::StepRows;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PAGE_POSITIONS, PageId};
use nestling_core::weights::{ActivationMode, ByteRegion, FloatMatrix, MatrixWeights};
use nestling_formats::{DType, Level};
use nestling_import::{Activation, RopePairs, RouterConfig};
use serde_json::json;

use super::device::{Measurement, TimedBackend, buffer, is_dry, tell};

/// Measurement of consecutive layers with different weights, so that caches do not help.
pub struct Layers;

#[derive(Clone, Copy)]
pub struct Sizes {
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    inner: usize,
    experts: usize,
    per_token: usize,
    layers: usize,
}

impl Sizes {
    pub fn requested() -> Self {
        let qwen3 = Self {
            hidden: 2048,
            heads: 32,
            kv_heads: 4,
            head_dim: 128,
            inner: 768,
            experts: 128,
            per_token: 8,
            layers: 4,
        };
        let small = Self {
            hidden: 128,
            heads: 2,
            kv_heads: 1,
            head_dim: 32,
            inner: 64,
            experts: 4,
            per_token: 2,
            layers: 2,
        };
        if is_dry() { small } else { qwen3 }
    }

    fn qkv(self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }
}

/// Levels of dense matrices and of experts.
const DENSE: Level = Level::L6;
const EXPERT: Level = Level::L4;

/// Parts of a layer, in order.
const PARTS: [&str; 8] =
    ["norm", "qkv", "rope and store", "attend", "output", "route", "experts", "experts' sum"];

/// Numbers of positions, including the token's own.
const CONTEXTS: [usize; 3] = [1, 1024, 4096];

impl Measurement for Layers {
    fn on<B: TimedBackend>(&self, mut device: B) -> Result<(), EngineError> {
        let sizes = Sizes::requested();
        let mut model = Model::new(&mut device, sizes)?;
        for context in CONTEXTS.into_iter().filter(|context| !is_dry() || *context < 100) {
            let rows = rows_at(context);
            let whole = device.timed(|encoder| model.record(encoder, &rows, None))?;
            let of_one = |microseconds: f64| microseconds / sizes.layers as f64;
            let microseconds = of_one(whole.microseconds);
            if context <= 1024 {
                // Later values replace earlier ones in the record.
                tell(&json!({ "layer_microseconds": microseconds, "layer_context": context }));
            }
            tell(&json!({ "layer": [{
                "part": "whole", "context": context, "microseconds": microseconds, "launches": whole.runs,
                "clock": B::CLOCK,
            }] }));
            for (part, name) in PARTS.into_iter().enumerate() {
                let timing = device.timed(|encoder| model.record(encoder, &rows, Some(part)))?;
                tell(&json!({ "layer": [{
                    "part": name, "context": context, "microseconds": of_one(timing.microseconds),
                    "launches": timing.runs, "clock": B::CLOCK,
                }] }));
            }
        }
        Ok(())
    }
}

/// Returns one row at the last of `context` positions.
fn rows_at(context: usize) -> StepRows {
    let pages = (0..context.div_ceil(PAGE_POSITIONS) as u32).map(PageId).collect();
    StepRows {
        positions: vec![context as u32 - 1],
        tokens: vec![0],
        sequences: vec![0],
        dense_levels: vec![DENSE],
        pages: vec![pages],
        ..StepRows::default()
    }
}

struct Layer<B: Backend> {
    norm: B::Floats,
    qkv: [Linear<B>; 3],
    heads: AttentionHeads<B>,
    output: Linear<B>,
    router: Router<B>,
    table: B::ExpertTable,
    pool: B::KvPool,
}

/// Layers and their activations.
pub struct Model<B: Backend> {
    layers: Vec<Layer<B>>,
    x: B::Buffer,
    normed: B::Buffer,
    qkv: B::Buffer,
    rope: B::Buffer,
    attended: B::Buffer,
    routing: B::Routing,
    expert_rows: B::Buffer,
}

fn linear<B: Backend>(device: &mut B, weights: &MatrixWeights) -> Result<Linear<B>, EngineError> {
    Ok(Linear::new(device.upload_matrix(weights, ActivationMode::Int8)?, None))
}

fn router<B: Backend>(device: &mut B, sizes: Sizes) -> Result<Router<B>, EngineError> {
    let (experts, hidden) = (sizes.experts, sizes.hidden);
    let value = |i: usize| bf16::from_f32(((i * 7919) % 1009) as f32 / 50_000.0 - 0.01);
    let bytes = (0..experts * hidden).flat_map(|i| value(i).to_le_bytes()).collect();
    let matrix = FloatMatrix::new(experts, hidden, DType::Bf16, ByteRegion::from_vec(bytes))?;
    let weights = MatrixWeights::Float(matrix);
    Ok(Router {
        weights: device.upload_matrix(&weights, ActivationMode::Float)?,
        num_experts_per_tok: sizes.per_token,
        rule: RouterConfig::softmax(true),
        logit_bias: None,
        selection_bias: None,
        expert_scale: None,
    })
}

impl<B: Backend> Layer<B> {
    fn new(device: &mut B, sizes: Sizes) -> Result<Self, EngineError> {
        let Sizes { hidden, heads, kv_heads, head_dim, inner, .. } = sizes;
        let random = |rows, cols, level| RandomMatrix::new(rows, cols, level)?.weights(true);
        let query = random(heads * head_dim, hidden, DENSE)?;
        let key = random(kv_heads * head_dim, hidden, DENSE)?;
        let output = random(hidden, heads * head_dim, DENSE)?;
        let (wide, narrow) = (random(inner, hidden, EXPERT)?, random(hidden, inner, EXPERT)?);
        let mut experts = Vec::new();
        for _ in 0..sizes.experts {
            experts.push(Arc::new(FeedForward {
                activation: Activation::Silu,
                gate: Some(linear(device, &wide)?),
                up: linear(device, &wide)?,
                down: linear(device, &narrow)?,
            }));
        }
        let table = device.expert_table(&experts)?;
        let pages = CONTEXTS[if is_dry() { 0 } else { 2 }].div_ceil(PAGE_POSITIONS);
        let shape = KvShape {
            num_key_value_heads: kv_heads,
            head_dim,
            values: KvValues::Beside,
            dtype: KvDtype::F16,
            pages,
        };
        let mut norm = |length| device.upload_floats(&vec![1.0; length]);
        let heads = AttentionHeads {
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            scale: 0.1,
            rope_first: 0,
            rope_pairs: RopePairs::Halves,
            eps: 1e-6,
            query_norm: HeadNorm::PerHead(norm(head_dim)?),
            key_norm: HeadNorm::PerHead(norm(head_dim)?),
            value_norm: None,
            sliding_window: None,
            sinks: None,
        };
        Ok(Self {
            norm: norm(hidden)?,
            qkv: [linear(device, &query)?, linear(device, &key)?, linear(device, &key)?],
            heads,
            output: linear(device, &output)?,
            router: router(device, sizes)?,
            table: table.unwrap(),
            pool: device.kv_pool(&shape)?,
        })
    }
}

impl<B: Backend> Model<B> {
    pub fn new(device: &mut B, sizes: Sizes) -> Result<Self, EngineError> {
        let layers = (0..sizes.layers).map(|_| Layer::new(device, sizes));
        let layers = layers.collect::<Result<_, _>>()?;
        let Sizes { hidden, heads, head_dim, per_token, .. } = sizes;
        let mut model = Self {
            layers,
            x: buffer(device, (1, hidden))?,
            normed: buffer(device, (1, hidden))?,
            qkv: buffer(device, (1, sizes.qkv()))?,
            rope: buffer(device, (1, head_dim))?,
            attended: buffer(device, (1, heads * head_dim))?,
            routing: device.routing(1, per_token)?,
            expert_rows: buffer(device, (per_token, hidden))?,
        };
        // Fills all buffers, so that each part can run alone.
        let mut encoder = device.encoder();
        model.record(&mut encoder, &rows_at(1), None)?;
        encoder.flush()?;
        drop(encoder);
        Ok(model)
    }

    /// Records all layers, or one part of each.
    pub fn record(
        &mut self,
        encoder: &mut B::Encoder<'_>,
        rows: &StepRows,
        part: Option<usize>,
    ) -> Result<(), EngineError> {
        let Self { layers, x, normed, qkv, rope, attended, routing, expert_rows } = self;
        let dense = &rows.dense_levels;
        for layer in layers {
            let wanted = |index| part.is_none_or(|part| part == index);
            if wanted(0) {
                encoder.rms_norm(x, &layer.norm, 1e-6, Write::Set, normed)?;
            }
            if wanted(1) {
                encoder.matmul(&layer.qkv, dense, normed, Write::Set, qkv)?;
            }
            if wanted(2) {
                encoder.rope(&layer.heads, rows, rope, qkv, Some(&mut layer.pool))?;
            }
            if wanted(3) {
                encoder.attend(&layer.heads, rows, qkv, &layer.pool, attended)?;
            }
            if wanted(4) {
                encoder.matmul(
                    std::slice::from_ref(&layer.output),
                    dense,
                    attended,
                    Write::Add,
                    x,
                )?;
            }
            if part.is_none() {
                encoder.rms_norm(x, &layer.norm, 1e-6, Write::Set, normed)?;
            }
            if wanted(5) {
                encoder.route(&layer.router, normed, routing)?;
            }
            if wanted(6) {
                let table = &layer.table;
                table.routed_experts(encoder, &[EXPERT], routing, normed, expert_rows)?;
            }
            if wanted(7) {
                encoder.experts_sum(routing, expert_rows, x)?;
            }
        }
        Ok(())
    }
}

/// Returns one token after many positions, for a profiler.
pub fn rows_of_profile() -> StepRows {
    rows_at(if is_dry() { 1 } else { 1024 })
}
