//! Attention: norms, rotation and storage of heads, and reads from their pages.

use nestling_core::backend::{AttentionHeads, Backend, Encoder, HeadNorm};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef, StepRows};
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PageId};
use nestling_cpu::Cpu;
use nestling_formats::Level;
use nestling_import::RopePairs;

use crate::values::{buffer, expect_close, noise, read};
use crate::{OperationsDevice, Test, tests};

/// Parameters of a case.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    heads: (usize, usize, usize),
    dtype: KvDtype,
    values: KvValues,
    norm: Norm,
    pairs: RopePairs,
    rope: (usize, usize),
    window: Option<usize>,
    sinks: bool,
    /// Number of positions of the sequence.
    pub positions: usize,
}

#[derive(Clone, Copy, Debug)]
enum Norm {
    Absent,
    PerHead,
    PerHeadAfterRope,
    FullWidth,
}

const PLAIN: Case = Case {
    heads: (6, 2, 20),
    dtype: KvDtype::F32,
    values: KvValues::Beside,
    norm: Norm::Absent,
    pairs: RopePairs::Halves,
    rope: (0, 20),
    window: None,
    sinks: false,
    // Crosses two page boundaries.
    positions: 150,
};

/// Positions whose pages exceed a block.
const LONG: usize = 600;

impl Case {
    fn heads<B: Backend>(&self, backend: &mut B) -> AttentionHeads<B> {
        let (h, g, d) = self.heads;
        let mut norm = |heads: usize, seed| match self.norm {
            Norm::Absent => HeadNorm::Absent,
            Norm::PerHead => HeadNorm::PerHead(backend.upload_floats(&noise(d - 4, seed)).unwrap()),
            Norm::PerHeadAfterRope => {
                HeadNorm::PerHeadAfterRope(backend.upload_floats(&noise(d - 4, seed)).unwrap())
            }
            Norm::FullWidth => {
                HeadNorm::FullWidth(backend.upload_floats(&noise(heads * d, seed)).unwrap())
            }
        };
        let (query_norm, key_norm) = (norm(h, 5), norm(g, 6));
        let per_head = matches!((self.norm, self.values), (Norm::PerHead, KvValues::Beside));
        let sinks: Vec<f32> = noise(h, 8).iter().map(|x| 3.0 * x).collect();
        AttentionHeads {
            num_attention_heads: h,
            num_key_value_heads: g,
            head_dim: d,
            scale: 1.0 / (d as f32).sqrt(),
            rope_first: self.rope.0,
            rope_pairs: self.pairs,
            eps: 1e-6,
            query_norm,
            key_norm,
            value_norm: per_head.then(|| backend.upload_floats(&noise(d, 7)).unwrap()),
            sliding_window: self.window,
            sinks: self.sinks.then(|| backend.upload_floats(&sinks).unwrap()),
        }
    }

    /// Returns the tolerance of attended values if half floats below 2^-14, the smallest normal one, are
    /// flushed to zero; 0 for other page types. Each element of a key changes a score by up to 2^-14 times
    /// the query's element, and each value changes by up to 2^-14. The logarithm of a weight changes by twice
    /// the change of a score.
    pub fn subnormal_tolerance(&self, stored: &[f32]) -> f32 {
        if self.dtype != KvDtype::F16 {
            return 0.0;
        }
        let smallest = 1.0 / (1 << 14) as f32;
        let largest = stored.iter().fold(0.0, |most: f32, value| most.max(value.abs()));
        let score = self.heads.2 as f32 * largest * smallest / (self.heads.2 as f32).sqrt();
        smallest + 2.0 * (2.0 * score).exp_m1() * largest
    }

    /// Returns everything stored in steps of the given row counts, and the results of the last step's
    /// attention.
    pub fn attended<B: Backend>(&self, backend: &mut B, steps: &[usize]) -> [Vec<f32>; 2] {
        let (h, g, d) = self.heads;
        let (values, dtype) = (self.values, self.dtype);
        let shape = KvShape { num_key_value_heads: g, head_dim: d, values, dtype, pages: 12 };
        let mut pool = backend.kv_pool(&shape).unwrap();
        let heads = self.heads(backend);
        let stored = if values == KvValues::Beside { 2 * g * d } else { g * d };
        let cols = h * d + stored;
        let all = noise(self.positions * cols, 3);
        let angles = noise(self.positions * self.rope.1, 4);
        let (mut first, mut results) = (0, [Vec::new(), Vec::new()]);
        for count in steps {
            let end = first + count;
            let rows = step_rows(first, end);
            let mut qkv = buffer(backend, cols, &all[first * cols..end * cols]);
            let rope =
                buffer(backend, self.rope.1, &angles[first * self.rope.1..end * self.rope.1]);
            let mut out = backend.buffer(self.positions, h * values.dim(d)).unwrap();
            let mut encoder = backend.encoder();
            encoder.rope(&heads, &rows, &rope, &mut qkv, Some(&mut pool)).unwrap();
            encoder.attend(&heads, &rows, &qkv, &pool, &mut out).unwrap();
            encoder.flush().unwrap();
            drop(encoder);
            results[0].extend(read(backend, &qkv));
            results[1].extend(read(backend, &out));
            first = end;
        }
        results
    }
}

/// Returns rows of a sequence. Its pages are in no order, across all buffers that hold pages.
fn step_rows(first: usize, end: usize) -> StepRows {
    let rows = (first..end).map(|position| Row {
        token: 0,
        position: position as u32,
        sequence: 0,
        wants_logits: false,
        levels: LevelPolicy::Fixed(Level::L8),
    });
    let pages = (0..10).map(|page| PageId((page * 5 + 8) % 12)).collect();
    StepRows::of_batch(&Batch::new(rows.collect(), vec![SequenceRef::of_pages(pages)]))
}

pub fn cases() -> Vec<Case> {
    let latent = Case {
        heads: (6, 1, 24),
        values: KvValues::KeyPrefix(16),
        rope: (16, 8),
        pairs: RopePairs::Adjacent,
        ..PLAIN
    };
    vec![
        PLAIN,
        Case { dtype: KvDtype::F16, norm: Norm::PerHead, ..PLAIN },
        Case { dtype: KvDtype::Int8, norm: Norm::FullWidth, ..PLAIN },
        Case { norm: Norm::PerHead, pairs: RopePairs::Adjacent, rope: (4, 12), ..PLAIN },
        Case { norm: Norm::PerHeadAfterRope, ..PLAIN },
        Case { norm: Norm::PerHeadAfterRope, pairs: RopePairs::Adjacent, rope: (8, 12), ..PLAIN },
        Case { window: Some(70), sinks: true, ..PLAIN },
        Case { window: Some(1), heads: (4, 4, 132), rope: (0, 64), ..PLAIN },
        latent,
        Case { dtype: KvDtype::F16, ..latent },
        Case { dtype: KvDtype::Int8, ..latent },
        Case { heads: (2, 1, 20), sinks: true, positions: LONG, ..PLAIN },
        Case { heads: (2, 2, 20), dtype: KvDtype::F16, positions: LONG, ..PLAIN },
        Case {
            heads: (2, 1, 24),
            dtype: KvDtype::Int8,
            window: Some(90),
            positions: LONG,
            ..latent
        },
    ]
}

fn attention_is_that_of_the_cpu<D: OperationsDevice>() {
    let mut device = D::device();
    for case in cases() {
        let found = case.attended(&mut device, &[case.positions]);
        let expected = case.attended(&mut Cpu::new(1), &[case.positions]);
        // A norm of noise and its weights stay below 2; sums have 24 squares.
        expect_close(&format!("heads, {case:?}"), &found[0], &expected[0], |_| 1e-5);
        // Rotated values below 2 differ by about 1e-6. An integer or half float may then round to the next
        // one, at one position in thousands; a step is 2 / 127, or 2^-10, of a value.
        let step = match case.dtype {
            KvDtype::Int8 => 2.0 / 127.0,
            KvDtype::F16 => 1.0 / 1024.0,
            _ => 0.0,
        };
        expect_close(&format!("{case:?}"), &found[1], &expected[1], |_| 2e-5 + step);
    }
}

fn a_row_does_not_depend_on_how_the_prompt_was_cut<D: OperationsDevice>() {
    let mut device = D::device();
    for case in cases() {
        let whole = case.attended(&mut device, &[case.positions]);
        // The last rows of a long sequence are so few that blocks get separate workgroups.
        let rest = case.positions - 63 - 2 - 1 - 9;
        let cut = case.attended(&mut device, &[63, 2, 1, rest, 8, 1]);
        assert!(whole == cut, "{case:?}");
    }
}

/// Returns the launches of a step of five rows on a device.
fn launches_at(backend: &mut impl Backend) -> u64 {
    backend.take_counters();
    Case { positions: 5, ..PLAIN }.attended(backend, &[5]);
    backend.take_counters().dispatches
}

fn slow_devices_are_given_less_at_once_and_compute_the_same_bits<D: OperationsDevice>() {
    let mut device = D::device();
    for (rate, cases) in [(1, &cases()[..2]), (1 << 20, &cases())] {
        let mut slow = D::with_work_rate(&device, rate);
        for case in cases {
            let whole = case.attended(&mut device, &[case.positions]);
            assert!(case.attended(&mut slow, &[case.positions]) == whole, "{case:?} at {rate}");
        }
    }
    let at = |rate| launches_at(&mut D::with_work_rate(&device, rate));
    let least = at(1 << 45);
    // A row sees a page: 64 positions, 6 heads, and 20 elements of keys and of values. A quarter of a second
    // is enough for two rows, one, or none.
    let row = 64 * 6 * 40;
    assert_eq!(at(4 * 5 * row), least);
    let more = |pieces| least + pieces * D::ATTEND_LAUNCHES;
    assert_eq!(at(4 * 5 * row - 1), more(1));
    assert_eq!(at(4 * 2 * row), more(2));
    assert_eq!(at(4 * row), more(4));
    assert_eq!(at(1), more(5 * 6 / D::attended_at_least(6) - 1));
}

/// Returns the attention result at the second of two positions. Their scores are 0 and `score`, and their
/// values 0 and 10^38.
fn weighted(backend: &mut impl Backend, score: f32) -> f32 {
    let case = Case { heads: (1, 1, 4), rope: (2, 2), positions: 2, ..PLAIN };
    let shape = KvShape {
        num_key_value_heads: 1,
        head_dim: 4,
        values: case.values,
        dtype: case.dtype,
        pages: 12,
    };
    let mut pool = backend.kv_pool(&shape).unwrap();
    let heads = AttentionHeads { scale: 1.0, ..case.heads(backend) };
    // A row has a query, a key and a value; the rotated part is 0.
    let mut all = [0.0; 24];
    (all[12], all[16], all[20]) = (1.0, score, 1e38);
    let (mut qkv, rope) = (buffer(backend, 12, &all), buffer(backend, 2, &[1.0, 0.0, 1.0, 0.0]));
    let mut out = backend.buffer(2, 4).unwrap();
    let rows = step_rows(0, 2);
    let mut encoder = backend.encoder();
    encoder.rope(&heads, &rows, &rope, &mut qkv, Some(&mut pool)).unwrap();
    encoder.attend(&heads, &rows, &qkv, &pool, &mut out).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    read(backend, &out)[4]
}

/// e^x becomes zero between -103.9 and -103.98, at half of the smallest subnormal number. Masked scores are
/// far below. A device may flush to zero earlier, below the smallest normal number.
fn weights_end_where_the_least_number_does<D: OperationsDevice>() {
    let mut device = D::device();
    for score in [-103.98, -104.0, -104.1, -1e30, f32::NEG_INFINITY] {
        assert_eq!(weighted(&mut Cpu::new(1), score), 0.0, "{score} on the CPU");
        assert_eq!(weighted(&mut device, score), 0.0, "{score}");
    }
    for score in [-103.9, -103.0, -95.0, -88.0, -87.0] {
        let expected = weighted(&mut Cpu::new(1), score);
        let found = weighted(&mut device, score);
        let is_subnormal = score < -87.4;
        // The tolerance covers one smallest number times 10^38. The reduced argument also has the error of
        // 88, rounded, on devices that round a fused multiply-add twice.
        let close = (found - expected).abs() <= 1.5e-7 + 1e-5 * expected;
        let is_passed = close || (is_subnormal && D::KEEPS_NO_SUBNORMAL && found == 0.0);
        assert!(expected > 0.0 && is_passed, "{score}: {found} is not {expected}");
        assert!(D::KEEPS_NO_SUBNORMAL || found.to_bits() == expected.to_bits(), "{score}: {found}");
    }
}

fn pages_survive_a_copy_and_a_snapshot<D: OperationsDevice>() {
    let mut device = D::device();
    let shape = KvShape {
        num_key_value_heads: 3,
        head_dim: 8,
        values: KvValues::Beside,
        dtype: KvDtype::F16,
        pages: 6,
    };
    let mut pool = device.kv_pool(&shape).unwrap();
    let bytes: Vec<u8> = (0..shape.page_bytes()).map(|i| (i * 31 % 251) as u8).collect();
    device.write_page(&mut pool, PageId(1), &bytes).unwrap();
    for to in [0, 5] {
        device.copy_page(&mut pool, PageId(1), PageId(to)).unwrap();
        let mut read = Vec::new();
        device.read_page(&pool, PageId(to), &mut read).unwrap();
        assert!(read == bytes, "page {to}");
    }
    assert!(device.copy_page(&mut pool, PageId(2), PageId(0)).is_err(), "never written");
    assert!(device.write_page(&mut pool, PageId(6), &bytes).is_err(), "no such page");
    assert!(device.write_page(&mut pool, PageId(1), &bytes[1..]).is_err());
}

pub fn suite<D: OperationsDevice>() -> Vec<Test> {
    tests![
        attention_is_that_of_the_cpu::<D>,
        a_row_does_not_depend_on_how_the_prompt_was_cut::<D>,
        slow_devices_are_given_less_at_once_and_compute_the_same_bits::<D>,
        weights_end_where_the_least_number_does::<D>,
        pages_survive_a_copy_and_a_snapshot::<D>,
    ]
}
