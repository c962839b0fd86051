//! A KV head whose queries several threads attend to.

use std::sync::Arc;

use super::tests::noise;
use crate::device::Cpu;
use crate::kernels::Kernels;
use crate::reference::Reference;
use crate::threads::ThreadPool;
use nestling_core::backend::{AttentionHeads, Backend, Encoder, EncoderExt, HeadNorm};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef, StepRows};
use nestling_core::driver::block_on;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PageId};
use nestling_formats::Level;
use nestling_import::RopePairs;

/// Query heads of the one KV head, and their size.
const HEADS: usize = 8;
const HEAD_DIM: usize = 32;

/// Enough positions for several pages, and for a fork.
const POSITIONS: usize = 300;

fn rows(positions: std::ops::Range<usize>) -> StepRows {
    let rows = positions.map(|position| Row {
        token: 0,
        position: position as u32,
        sequence: 0,
        wants_logits: true,
        levels: LevelPolicy::Fixed(Level::L4),
    });
    let pages = (0..5).map(PageId).collect();
    let sequences = vec![SequenceRef { pages, ..SequenceRef::default() }];
    StepRows::of_batch(&Batch::new(rows.collect(), sequences))
}

/// Returns what two rows attend to, with sinks and with or without a window.
fn attended<B: Backend>(mut backend: B, sliding_window: Option<usize>) -> Vec<u32> {
    let sinks = Some(backend.upload_floats(&noise(HEADS, 1)).unwrap());
    let heads = AttentionHeads {
        num_attention_heads: HEADS,
        num_key_value_heads: 1,
        head_dim: HEAD_DIM,
        scale: 0.2,
        rope_first: 0,
        rope_pairs: RopePairs::Halves,
        eps: 1e-6,
        query_norm: HeadNorm::Absent,
        key_norm: HeadNorm::Absent,
        value_norm: None,
        sliding_window,
        sinks,
    };
    let shape = KvShape {
        num_key_value_heads: 1,
        head_dim: HEAD_DIM,
        values: KvValues::Beside,
        dtype: KvDtype::F16,
        pages: 5,
    };
    let mut pool = backend.kv_pool(&shape).unwrap();
    let [keys, queries, values] = [2, HEADS + 2, HEADS].map(|heads| heads * HEAD_DIM);
    let (past, now) = (rows(0..POSITIONS), rows(POSITIONS..POSITIONS + 2));
    let mut before = backend.buffer(POSITIONS, keys).unwrap();
    let mut rope = backend.buffer(POSITIONS, HEAD_DIM).unwrap();
    let mut qkv = backend.buffer(2, queries).unwrap();
    let mut out = backend.buffer(2, values).unwrap();
    let mut enc = backend.encoder();
    enc.write(&noise(POSITIONS * HEAD_DIM, 2), &mut rope).unwrap();
    enc.write(&noise(POSITIONS * keys, 3), &mut before).unwrap();
    enc.rope(&heads, &past, &rope, &mut before, Some(&mut pool)).unwrap();
    enc.write(&noise(2 * HEAD_DIM, 4), &mut rope).unwrap();
    enc.write(&noise(2 * queries, 5), &mut qkv).unwrap();
    enc.rope(&heads, &now, &rope, &mut qkv, Some(&mut pool)).unwrap();
    enc.attend(&heads, &now, &qkv, &pool, &mut out).unwrap();
    block_on(enc.read(&out)).unwrap().iter().map(|value| value.to_bits()).collect()
}

#[test]
fn queries_of_one_head_have_the_same_bits_on_any_number_of_threads() {
    for window in [None, Some(100)] {
        let wanted = attended(Reference, window);
        for threads in [1, 2, 3, 8, 11] {
            let pool = Arc::new(ThreadPool::new(threads));
            let cpu = Cpu::with(pool, Kernels::detect());
            assert_eq!(attended(cpu, window), wanted, "{threads} threads, window {window:?}");
        }
    }
}

#[test]
fn queries_are_divided_while_threads_have_no_head() {
    for (group, heads, threads, wanted) in [
        (8, 1, 1, 1),
        (8, 1, 2, 2),
        (8, 1, 3, 2),
        (8, 1, 16, 8),
        (8, 4, 16, 4),
        (8, 4, 4, 1),
        (5, 1, 4, 1),
        (1, 2, 8, 1),
        (12, 2, 16, 6),
    ] {
        let parts = super::attention::split_heads(group, heads, threads);
        assert_eq!(parts, wanted, "{group} queries, {heads} heads, {threads} threads");
    }
}
