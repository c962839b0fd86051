//! Attention over latents on all kernel sets and thread counts, against the scalar reference: products of
//! heads with separate matrices, and pages whose keys start with the values.

use std::sync::Arc;

use nestling_formats::nested::Layout;
use nestling_formats::{DType, Level};
use nestling_import::RopePairs;

use super::tests::{float, nested, noise};
use super::*;
use crate::kernels::Kernels;
use crate::reference::Reference;
use crate::threads::ThreadPool;
use nestling_core::backend::{EncoderExt, HeadNorm};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::driver::block_on;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PageId};

/// Number of heads, and elements without and with rotation, of the latent and of values. No size is a
/// multiple of a group or tile, and tiles cross head borders.
const HEADS: usize = 5;
const NOPE: usize = 44;
const ROPE: usize = 6;
const LATENT: usize = 40;
const VALUE: usize = 20;

#[derive(Clone, Copy, Debug)]
struct Case {
    rows: usize,
    kv: KvDtype,
    mode: ActivationMode,
    float: Option<DType>,
}

impl Case {
    fn matrix(&self, rows: usize, cols: usize, seed: u32) -> MatrixWeights {
        match self.float {
            Some(dtype) => float(rows, cols, dtype, seed),
            None => nested(rows, cols, Layout::Tile16, seed),
        }
    }

    /// One sequence that crosses page borders, at all levels in turn.
    fn step_rows(&self) -> StepRows {
        let rows = (0..self.rows).map(|index| Row {
            token: 0,
            position: 60 + index as u32,
            sequence: 0,
            wants_logits: true,
            levels: LevelPolicy::Fixed(Level::ALL[index % 5]),
        });
        let pages = (0..4).rev().map(PageId).collect();
        let sequences = vec![SequenceRef { pages, ..SequenceRef::default() }];
        StepRows::of_batch(&Batch::new(rows.collect(), sequences))
    }

    /// Returns the latent queries, the attention output and its values.
    fn run<B: Backend>(&self, mut backend: B) -> [Vec<f32>; 3] {
        let rows = self.step_rows();
        let mut heads = |matrix: MatrixWeights| HeadMatrices {
            matrix: backend.upload_matrix(&matrix, self.mode).unwrap(),
            heads: HEADS,
        };
        let key_up = heads(self.matrix(HEADS * LATENT, NOPE, 2));
        let value_up = heads(self.matrix(HEADS * VALUE, LATENT, 4));
        let heads = AttentionHeads {
            num_attention_heads: HEADS,
            num_key_value_heads: 1,
            head_dim: LATENT + ROPE,
            scale: 0.2,
            rope_first: LATENT,
            rope_pairs: RopePairs::Adjacent,
            eps: 1e-6,
            query_norm: HeadNorm::Absent,
            value_norm: None,
            sliding_window: None,
            sinks: None,
            key_norm: HeadNorm::PerHead(backend.upload_floats(&noise(LATENT, 5)).unwrap()),
        };
        let shape = KvShape {
            num_key_value_heads: 1,
            head_dim: LATENT + ROPE,
            values: KvValues::KeyPrefix(LATENT),
            dtype: self.kv,
            pages: 4,
        };
        let mut pool = backend.kv_pool(&shape).unwrap();
        let width = LATENT + ROPE;
        let sizes = [HEADS * (NOPE + ROPE), HEADS * width, width, ROPE, HEADS * LATENT];
        let [mut queries, mut absorbed, mut latents, mut rope, mut attended] =
            sizes.map(|cols| backend.buffer(self.rows, cols).unwrap());
        let mut values = backend.buffer(self.rows, HEADS * VALUE).unwrap();
        let mut enc = backend.encoder();
        // Positions before those of the step.
        let before = Case { rows: 60, ..*self };
        let mut past = before.step_rows();
        past.positions = (0..60).collect();
        enc.write(&noise(60 * ROPE, 6), &mut rope).unwrap();
        enc.write(&noise(60 * width, 7), &mut latents).unwrap();
        enc.rope(&heads, &past, &rope, &mut latents, Some(&mut pool)).unwrap();
        enc.write(&noise(self.rows * ROPE, 8), &mut rope).unwrap();
        enc.write(&noise(self.rows * width, 9), &mut latents).unwrap();
        enc.rope(&heads, &rows, &rope, &mut latents, Some(&mut pool)).unwrap();
        enc.write(&noise(self.rows * sizes[0], 10), &mut queries).unwrap();
        let levels = &rows.dense_levels;
        enc.matmul_heads(&key_up, levels, &queries, &mut absorbed).unwrap();
        enc.rope(&heads, &rows, &rope, &mut absorbed, None).unwrap();
        enc.attend(&heads, &rows, &absorbed, &pool, &mut attended).unwrap();
        enc.matmul_heads(&value_up, levels, &attended, &mut values).unwrap();
        [absorbed, attended, values].map(|buffer| block_on(enc.read(&buffer)).unwrap())
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn latent_attention_gives_the_bits_of_the_reference() {
    let int8 = ActivationMode::Int8;
    let cases = [
        Case { rows: 1, kv: KvDtype::F32, mode: int8, float: None },
        Case { rows: 7, kv: KvDtype::F16, mode: int8, float: None },
        Case { rows: 131, kv: KvDtype::Int8, mode: int8, float: None },
        Case { rows: 5, kv: KvDtype::F32, mode: ActivationMode::Float, float: None },
        Case { rows: 3, kv: KvDtype::F32, mode: int8, float: Some(DType::F32) },
        Case { rows: 35, kv: KvDtype::F16, mode: int8, float: Some(DType::Bf16) },
    ];
    for case in cases {
        let wanted = case.run(Reference);
        for threads in [1, 2, HEADS] {
            let pool = Arc::new(ThreadPool::new(threads));
            for kernels in Kernels::available() {
                let found = case.run(Cpu::with(Arc::clone(&pool), kernels));
                for (what, (found, wanted)) in found.iter().zip(&wanted).enumerate() {
                    let name = kernels.name();
                    assert_eq!(bits(found), bits(wanted), "{case:?}, {name}, {threads}, {what}");
                }
            }
        }
    }
}

/// Latents take one row per position, with two scales for integers. Pages that were written to a snapshot and
/// read back give the same attention.
#[test]
fn pages_hold_one_row_for_a_position() {
    fn check<B: Backend>(mut backend: B, dtype: KvDtype) {
        let (width, values) = (LATENT + ROPE, KvValues::KeyPrefix(LATENT));
        let shape = KvShape { num_key_value_heads: 1, head_dim: width, values, dtype, pages: 2 };
        let row = width * dtype.bytes() + 2 * dtype.scale_bytes();
        assert_eq!(shape.page_bytes(), 64 * row);
        let mut pools = [(); 2].map(|()| backend.kv_pool(&shape).unwrap());
        let case = Case { rows: 3, kv: dtype, mode: ActivationMode::Int8, float: None };
        let mut rows = case.step_rows();
        rows.pages = vec![vec![PageId(1)]];
        rows.positions = vec![0, 1, 2];
        let heads = AttentionHeads {
            num_attention_heads: 1,
            num_key_value_heads: 1,
            head_dim: width,
            scale: 1.0,
            rope_first: LATENT,
            rope_pairs: RopePairs::Adjacent,
            eps: 1e-6,
            query_norm: HeadNorm::Absent,
            key_norm: HeadNorm::Absent,
            value_norm: None,
            sliding_window: None,
            sinks: None,
        };
        let [mut latents, mut rope, mut out] =
            [width, ROPE, LATENT].map(|cols| backend.buffer(3, cols).unwrap());
        let mut enc = backend.encoder();
        enc.write(&noise(3 * width, 1), &mut latents).unwrap();
        enc.write(&noise(3 * ROPE, 2), &mut rope).unwrap();
        enc.rope(&heads, &rows, &rope, &mut latents, Some(&mut pools[0])).unwrap();
        enc.attend(&heads, &rows, &latents, &pools[0], &mut out).unwrap();
        let wanted = block_on(enc.read(&out)).unwrap();
        drop(enc);
        let mut bytes = Vec::new();
        backend.read_page(&pools[0], PageId(1), &mut bytes).unwrap();
        assert_eq!(bytes.len(), shape.page_bytes());
        assert!(backend.write_page(&mut pools[1], PageId(1), &bytes[1..]).is_err());
        backend.write_page(&mut pools[1], PageId(1), &bytes).unwrap();
        let mut enc = backend.encoder();
        enc.attend(&heads, &rows, &latents, &pools[1], &mut out).unwrap();
        assert_eq!(block_on(enc.read(&out)).unwrap(), wanted);
    }
    for dtype in [KvDtype::F32, KvDtype::F16, KvDtype::Int8] {
        check(Reference, dtype);
        check(Cpu::new(1), dtype);
    }
}

/// Storing the latent beside the rotated key is equivalent to one large key and a separate value.
#[test]
fn a_prefix_is_a_value_of_its_own() {
    let (width, rows) = (LATENT + ROPE, 70);
    let attended = |values: KvValues, dtype: KvDtype| {
        let mut cpu = Cpu::new(1);
        let shape = KvShape { num_key_value_heads: 1, head_dim: width, values, dtype, pages: 4 };
        let heads = AttentionHeads {
            num_attention_heads: HEADS,
            num_key_value_heads: 1,
            head_dim: width,
            scale: 0.2,
            rope_first: 0,
            rope_pairs: RopePairs::Halves,
            eps: 1e-6,
            query_norm: HeadNorm::Absent,
            value_norm: None,
            sliding_window: None,
            sinks: None,
            key_norm: HeadNorm::Absent,
        };
        let case = Case { rows, kv: dtype, mode: ActivationMode::Int8, float: None };
        let mut step = case.step_rows();
        step.positions = (0..rows as u32).collect();
        let mut pool = cpu.kv_pool(&shape).unwrap();
        let key = noise(rows * width, 3);
        let twice = |row: &[f32]| [row, row].concat();
        let stored: Vec<f32> = match values {
            KvValues::Beside => key.chunks(width).flat_map(twice).collect(),
            KvValues::KeyPrefix(_) => key,
        };
        let [mut kv, mut rope, mut queries, mut out] =
            [stored.len() / rows, 2, HEADS * width, HEADS * values.dim(width)]
                .map(|cols| cpu.buffer(rows, cols).unwrap());
        let mut enc = cpu.encoder();
        enc.write(&stored, &mut kv).unwrap();
        enc.write(&[1.0, 0.0].repeat(rows), &mut rope).unwrap();
        enc.write(&noise(rows * HEADS * width, 4), &mut queries).unwrap();
        enc.rope(&heads, &step, &rope, &mut kv, Some(&mut pool)).unwrap();
        enc.attend(&heads, &step, &queries, &pool, &mut out).unwrap();
        block_on(enc.read(&out)).unwrap()
    };
    for dtype in [KvDtype::F32, KvDtype::F16] {
        let beside = attended(KvValues::Beside, dtype);
        let prefix = attended(KvValues::KeyPrefix(LATENT), dtype);
        let heads = beside.chunks(width).zip(prefix.chunks(LATENT));
        heads.for_each(|(beside, prefix)| assert_eq!(bits(&beside[..LATENT]), bits(prefix)));
    }
}
