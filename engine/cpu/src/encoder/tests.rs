//! A layer's operations on all kernel sets and thread counts, against the scalar reference.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use nestling_formats::nested::{
    CodecFitter, GROUP, InputTransform, Layout, LinearValues, Minima, NestedTables, PlaneForm,
    QuantizeOptions, ScaleType, ScaledCodec, ScaledForm, ScaledRows, SubScale, pack_plane,
    pack_scaled_plane, plane_bytes, quantize_matrix,
};
use nestling_formats::{DType, Level, Plane};
use nestling_import::{Activation, ExpertGroups, GroupScore, RopePairs, RouterConfig, RouterScore};

use super::inner::RUN;
use super::*;
use crate::kernels::Kernels;
use crate::reference::Reference;
use crate::threads::ThreadPool;
use nestling_core::backend::{Backend, EncoderExt, ExpertUse, HeadNorm};
use nestling_core::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling_core::driver::block_on;
use nestling_core::kv_cache::{KvDtype, KvShape, KvValues, PageId};
use nestling_core::weights::{
    ActivationMode, ByteRegion, FloatMatrix, MatrixWeights, NestedMatrix, PlaneRegions,
};

/// Deterministic values in -1..1.
pub(super) fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

pub(super) fn nested(rows: usize, cols: usize, layout: Layout, seed: u32) -> MatrixWeights {
    let weights = noise(rows * cols, seed);
    let options = QuantizeOptions::default();
    let mut fitter = CodecFitter::new(&options);
    fitter.add(&weights, rows, cols, None).unwrap();
    let mut codec = fitter.finish().unwrap();
    if cols == INNER_ROTATED {
        codec.inputs = InputTransform::Hadamard;
    }
    let matrix = quantize_matrix(&weights, rows, cols, &codec, None, &options).unwrap();
    let region = |plane| {
        let mut bytes = vec![0; plane_bytes(layout, rows, cols, plane).unwrap()];
        pack_plane(&matrix, layout, plane, &mut bytes).unwrap();
        Some(ByteRegion::from_vec(bytes))
    };
    let regions = PlaneRegions {
        p2: region(Plane::P2).unwrap(),
        p3: region(Plane::P3),
        p4: region(Plane::P4),
        p34: None,
        p6: region(Plane::P6),
        p8: region(Plane::P8),
    };
    // Levels as for a `down` matrix with an extra plane.
    let levels = [Level::L3, Level::L4, Level::L6, Level::L8, Level::L8];
    let levels = if seed.is_multiple_of(2) { Level::ALL } else { levels };
    let matrix = NestedMatrix::new(rows, cols, layout, Arc::new(codec), regions, levels);
    MatrixWeights::Nested(matrix.unwrap())
}

/// Scaled integers: four bits with minima, or six bits in sub-blocks of 16.
fn scaled(rows: usize, cols: usize, seed: u32) -> MatrixWeights {
    let (four, span) = (seed.is_multiple_of(2), 8);
    let form = ScaledForm {
        bits: if four { 4 } else { 6 },
        sub_block: if four { 32 } else { 16 },
        span,
        scale: ScaleType::F16,
        sub_scale: if four { SubScale::U8 } else { SubScale::I8 },
        minima: if four { Minima::SubBlocks } else { Minima::None },
    };
    let tables = NestedTables {
        t2: [-24, -8, 8, 24],
        t3: [-28, -20, -12, -4, 4, 12, 20, 28],
        t4: std::array::from_fn(|i| if four { i as i8 } else { 4 * i as i8 - 30 }),
    };
    let six = LinearValues { stride: u8::from(!four), zero: if four { 0 } else { 32 } };
    let linear = [six, LinearValues::default()];
    let codec = ScaledCodec { form, units: [0; 5], tables, linear };
    let groups = cols.div_ceil(GROUP);
    let bytes = |count: usize, seed: u32| -> Vec<u8> {
        noise(count, seed).iter().map(|x| (x * 127.0) as i8 as u8).collect()
    };
    let scales = |count: usize, seed: u32| -> Vec<u8> {
        let scales = noise(count, seed).into_iter().map(|x| half::f16::from_f32(x / 1024.0));
        scales.flat_map(half::f16::to_le_bytes).collect()
    };
    let (spans, subs) = (rows * groups.div_ceil(span.into()), rows * groups * form.sub_blocks());
    let matrix = ScaledRows {
        rows,
        cols,
        codes: bytes(rows * cols, seed),
        scales: scales(spans, seed + 100),
        minima: scales(if four { spans } else { 0 }, seed + 200),
        sub_scales: bytes(subs, seed + 300),
        sub_minima: bytes(if four { subs } else { 0 }, seed + 400),
    };
    let region = |plane: Plane| {
        let sizes = PlaneForm::Scaled(form);
        let mut bytes = vec![0; sizes.plane_bytes(Layout::Tile16, rows, cols, plane).unwrap()];
        pack_scaled_plane(&matrix, &form, Layout::Tile16, plane, &mut bytes).unwrap();
        (form.plane_bits(plane) > 0).then(|| ByteRegion::from_vec(bytes))
    };
    let regions = PlaneRegions {
        p2: region(Plane::P2).unwrap(),
        p3: region(Plane::P3),
        p4: region(Plane::P4),
        p34: None,
        p6: region(Plane::P6),
        p8: region(Plane::P8),
    };
    let levels = Level::ALL.map(|level| level.min(form.top()));
    let matrix = NestedMatrix::new(rows, cols, Layout::Tile16, codec, regions, levels);
    MatrixWeights::Nested(matrix.unwrap())
}

pub(super) fn float(rows: usize, cols: usize, dtype: DType, seed: u32) -> MatrixWeights {
    let values = noise(rows * cols, seed);
    let bytes = values.iter().flat_map(|x| match dtype {
        DType::F32 => x.to_le_bytes().to_vec(),
        DType::F16 => half::f16::from_f32(*x).to_le_bytes().to_vec(),
        DType::Bf16 => half::bf16::from_f32(*x).to_le_bytes().to_vec(),
        DType::U8 => vec![*x as u8],
    });
    let region = ByteRegion::from_vec(bytes.collect());
    MatrixWeights::Float(FloatMatrix::new(rows, cols, dtype, region).unwrap())
}

#[derive(Debug)]
struct Case {
    rows: usize,
    mode: ActivationMode,
    kv: KvDtype,
    /// Type of the weights, if they are floats.
    float: Option<DType>,
    /// True if the weights are scaled integers.
    scaled: bool,
    /// True if the rows have several levels.
    mixed: bool,
    inner: usize,
    /// Matrices created so far, keyed by seed.
    made: RefCell<BTreeMap<u32, MatrixWeights>>,
}

const D: usize = 72; // hidden size
const HEADS: (usize, usize, usize) = (6, 2, 20);
/// Inner widths. Inputs of down are rotated if they are whole groups.
const INNER: usize = 40;
const INNER_ROTATED: usize = 64;
const EXPERTS: usize = 5;
const PER_TOKEN: usize = 2;

impl Case {
    fn weights(&self, rows: usize, cols: usize, seed: u32) -> MatrixWeights {
        let make = || match self.float {
            Some(dtype) => float(rows, cols, dtype, seed),
            // Small matrices stay float in a store.
            None if seed == 3 => float(rows, cols, DType::F32, seed),
            None if self.scaled => scaled(rows, cols, seed),
            None => nested(rows, cols, Layout::Tile16, seed),
        };
        self.made.borrow_mut().entry(seed).or_insert_with(make).clone()
    }

    fn step_rows(&self) -> StepRows {
        let level = |index: usize| match self.mixed {
            true => Level::ALL[index % 5],
            false => Level::L4,
        };
        // Two sequences; the first crosses a page border.
        let rows = (0..self.rows).map(|index| Row {
            token: (index * 7 % 50) as u32,
            position: (index / 2) as u32,
            sequence: (index % 2) as u32,
            wants_logits: true,
            levels: LevelPolicy::Fixed(level(index)),
        });
        let pages = |first: u32| SequenceRef::of_pages((first..first + 2).map(PageId).collect());
        StepRows::of_batch(&Batch::new(rows.collect(), vec![pages(2), pages(0)]))
    }

    fn pages(&self) -> KvShape {
        let (_, num_key_value_heads, head_dim) = HEADS;
        let values = KvValues::Beside;
        KvShape { num_key_value_heads, head_dim, values, dtype: self.kv, pages: 4 }
    }

    fn embedding(&self) -> MatrixWeights {
        let mut made = self.made.borrow_mut();
        made.entry(4).or_insert_with(|| nested(50, D, Layout::RowMajor, 4)).clone()
    }

    /// Returns the results of all operations of a layer.
    fn run<B: Backend>(&self, mut backend: B) -> Vec<(&'static str, Vec<f32>)> {
        let rows = self.step_rows();
        let levels = &rows.dense_levels;
        let (h, g, d) = HEADS;
        let mut upload = |rows, cols, seed: u32, bias: bool| -> Linear<B> {
            let matrix = backend.upload_matrix(&self.weights(rows, cols, seed), self.mode).unwrap();
            let bias = bias.then(|| backend.upload_floats(&noise(rows, seed + 100)).unwrap());
            Linear::new(matrix, bias)
        };
        let qkv_weights =
            [upload(h * d, D, 2, true), upload(g * d, D, 3, false), upload(g * d, D, 5, true)];
        let attention_out = upload(D, h * d, 6, true);
        let mut ffn = |seed, bias| FeedForward {
            activation: Activation::Silu,
            gate: Some(upload(self.inner, D, seed, bias)),
            up: upload(self.inner, D, seed + 2, false),
            down: upload(D, self.inner, seed + 3, bias),
        };
        let experts: Vec<_> =
            (0..EXPERTS as u32).map(|e| Arc::new(ffn(10 + 10 * e, e == 2))).collect();
        let shared = ffn(8, true);
        let embedding = backend.upload_matrix(&self.embedding(), self.mode).unwrap();
        let embedding = Linear::new(embedding, None);
        let norm = backend.upload_floats(&noise(D, 31)).unwrap();
        let (router, heads) = (router(self, &mut backend), heads(self, &mut backend));
        let mut pool = backend.kv_pool(&self.pages()).unwrap();
        let sizes = [D, D, (h + 2 * g) * d, d, h * d, D, 50];
        let [mut x, mut normed, mut qkv, mut rope, mut attended, mut expert_rows, mut logits] =
            sizes.map(|cols| backend.buffer(self.rows * PER_TOKEN, cols).unwrap());
        let [mut other, mut gate] = [D, 1].map(|cols| backend.buffer(self.rows, cols).unwrap());
        let mut routing = backend.routing(self.rows, PER_TOKEN).unwrap();
        let mut enc = backend.encoder();
        enc.embed(&embedding, &rows, &mut x).unwrap();
        let mut out = vec![("embed", block_on(enc.read(&x)).unwrap())];
        enc.write(&noise(self.rows * d, 34), &mut rope).unwrap();
        enc.rms_norm(&x, &norm, 1e-6, Write::Set, &mut normed).unwrap();
        out.push(("rms_norm", block_on(enc.read(&normed)).unwrap()));
        enc.matmul(&qkv_weights, levels, &normed, Write::Set, &mut qkv).unwrap();
        out.push(("matmul", block_on(enc.read(&qkv)).unwrap()));
        enc.rope(&heads, &rows, &rope, &mut qkv, Some(&mut pool)).unwrap();
        out.push(("rope", block_on(enc.read(&qkv)).unwrap()));
        enc.attend(&heads, &rows, &qkv, &pool, &mut attended).unwrap();
        out.push(("attend", block_on(enc.read(&attended)).unwrap()));
        enc.matmul(&qkv_weights, levels, &normed, Write::Add, &mut qkv).unwrap();
        out.push(("several matrices added", block_on(enc.read(&qkv)).unwrap()));
        enc.matmul(std::slice::from_ref(&attention_out), levels, &attended, Write::Add, &mut x)
            .unwrap();
        out.push(("matmul, added", block_on(enc.read(&x)).unwrap()));
        enc.ffn(&shared, levels, &normed, Write::Add, &mut x).unwrap();
        out.push(("ffn, added", block_on(enc.read(&x)).unwrap()));
        enc.ffn(&shared, levels, &normed, Write::Set, &mut other).unwrap();
        enc.scale(0.3, &mut other).unwrap();
        out.push(("ffn, scale", block_on(enc.read(&other)).unwrap()));
        enc.write(&noise(self.rows, 36), &mut gate).unwrap();
        enc.add_gated(&gate, &other, &mut x).unwrap();
        out.push(("add_gated", block_on(enc.read(&x)).unwrap()));
        enc.route(&router, &normed, &mut routing).unwrap();
        let chosen = block_on(enc.read_routing(&routing)).unwrap();
        let ids = chosen.expert_ids.iter().map(|id| *id as f32);
        out.push(("route", chosen.expert_weights.iter().copied().chain(ids).collect()));
        let all: Vec<_> = (0..EXPERTS as u32).map(|expert| uses(expert, &chosen, levels)).collect();
        let pinned = pinned(&experts, &all);
        let (first, second) = pinned.split_at(3);
        enc.experts(second, &routing, &normed, &mut expert_rows).unwrap();
        enc.experts(first, &routing, &normed, &mut expert_rows).unwrap();
        out.push(("experts", block_on(enc.read(&expert_rows)).unwrap()));
        enc.experts_sum(&routing, &mut expert_rows, &mut x).unwrap();
        out.push(("experts_sum", block_on(enc.read(&x)).unwrap()));
        enc.gather_rows(&x, &[0, 2 % self.rows as u32], &mut normed).unwrap();
        out.extend(head_results::<B>(&mut enc, embedding, &levels[..2], &normed, &mut logits));
        out
    }
}

/// Returns the results of the head for two rows.
fn head_results<B: Backend>(
    enc: &mut B::Encoder<'_>,
    embedding: Linear<B>,
    levels: &[Level],
    normed: &B::Buffer,
    logits: &mut B::Buffer,
) -> [(&'static str, Vec<f32>); 3] {
    let head = [embedding];
    enc.matmul(&head, levels, normed, Write::Set, logits).unwrap();
    let products = block_on(enc.read(logits)).unwrap();
    enc.write_rows(&noise(50, 37), &[1], logits).unwrap();
    let written = block_on(enc.read(logits)).unwrap();
    let mut columns = Vec::new();
    block_on(enc.argmax_into(logits, 40, &mut columns)).unwrap();
    let columns = columns.into_iter().map(|column| column.map_or(f32::NAN, |c| c as f32));
    [("head", products), ("write_rows", written), ("argmax", columns.collect())]
}

fn pinned<'a, B: Backend>(
    experts: &[Arc<FeedForward<B>>],
    uses: &'a [Vec<ExpertUse>],
) -> Vec<PinnedExpert<'a, B>> {
    let all = (0u32..).zip(experts.iter().zip(uses));
    let pin = |(expert, (weights, uses)): (u32, (&Arc<_>, &'a Vec<_>))| PinnedExpert {
        expert,
        weights: Arc::clone(weights),
        uses,
    };
    all.map(pin).collect()
}

/// Returns a plain router, or one with all options if the KV cache is f16.
fn router<B: Backend>(case: &Case, backend: &mut B) -> Router<B> {
    let weights = float(EXPERTS, D, DType::F32, 9);
    let mut rule = RouterConfig::softmax(true);
    let mut biases = [37, 38].map(|_| None);
    if case.kv == KvDtype::F16 {
        let groups = ExpertGroups { n_group: EXPERTS, topk_group: 4, score: GroupScore::Best };
        rule = RouterConfig { score: RouterScore::Sigmoid, scale: 1.8, ..rule };
        rule.groups = Some(groups);
        biases = [37, 38].map(|seed| Some(backend.upload_floats(&noise(EXPERTS, seed)).unwrap()));
    }
    let [logit_bias, selection_bias] = biases;
    let scaled = case.kv == KvDtype::Int8;
    let expert_scale = scaled.then(|| backend.upload_floats(&noise(EXPERTS, 39)).unwrap());
    Router {
        weights: backend.upload_matrix(&weights, ActivationMode::Float).unwrap(),
        num_experts_per_tok: PER_TOKEN,
        rule,
        logit_bias,
        selection_bias,
        expert_scale,
    }
}

/// Runs the last layer of a prompt: keys and values of all rows, then only queries.
fn queries_alone<B: Backend>(case: &Case, mut backend: B) -> [Vec<f32>; 2] {
    let rows = case.step_rows();
    let (h, g, d) = HEADS;
    let heads = heads(case, &mut backend);
    let shape = case.pages();
    let mut pools = [(); 2].map(|()| backend.kv_pool(&shape).unwrap());
    let all = noise(case.rows * (h + 2 * g) * d, 35);
    let part = |range: std::ops::Range<usize>| -> Vec<f32> {
        let rows = all.chunks((h + 2 * g) * d);
        rows.flat_map(|row| row[range.start * d..range.end * d].to_vec()).collect()
    };
    let sizes = [d, (h + 2 * g) * d, 2 * g * d, h * d, h * d];
    let [mut rope, mut qkv, mut keys_values, mut queries, mut attended] =
        sizes.map(|cols| backend.buffer(case.rows, cols).unwrap());
    let mut enc = backend.encoder();
    enc.write(&noise(case.rows * d, 34), &mut rope).unwrap();
    enc.write(&all, &mut qkv).unwrap();
    enc.rope(&heads, &rows, &rope, &mut qkv, Some(&mut pools[0])).unwrap();
    enc.attend(&heads, &rows, &qkv, &pools[0], &mut attended).unwrap();
    let together = block_on(enc.read(&attended)).unwrap();
    enc.write(&part(h..h + 2 * g), &mut keys_values).unwrap();
    enc.rope(&heads, &rows, &rope, &mut keys_values, Some(&mut pools[1])).unwrap();
    enc.write(&part(0..h), &mut queries).unwrap();
    enc.rope(&heads, &rows, &rope, &mut queries, None).unwrap();
    enc.attend(&heads, &rows, &queries, &pools[1], &mut attended).unwrap();
    [together, block_on(enc.read(&attended)).unwrap()]
}

/// Runs the operations of families with norms after parts and bounded logits.
fn normed_and_capped<B: Backend>(mut backend: B, rows: usize) -> Vec<f32> {
    let norm = backend.upload_floats(&noise(D, 31)).unwrap();
    let [mut x, mut sum] = [D, D].map(|cols| backend.buffer(rows, cols).unwrap());
    let mut enc = backend.encoder();
    enc.write(&noise(rows * D, 41), &mut x).unwrap();
    enc.clear(rows, &mut sum).unwrap();
    for _ in 0..2 {
        enc.rms_norm(&x, &norm, 1e-6, Write::Add, &mut sum).unwrap();
    }
    enc.softcap(0.7, &mut sum).unwrap();
    block_on(enc.read(&sum)).unwrap()
}

#[test]
fn norms_are_added_and_values_capped() {
    for rows in [1, 37] {
        let wanted = normed_and_capped(Reference, rows);
        assert!(wanted.iter().all(|value| value.abs() <= 0.7));
        for kernels in Kernels::available() {
            let cpu = Cpu::with(Arc::new(ThreadPool::new(2)), kernels);
            assert_eq!(normed_and_capped(cpu, rows), wanted, "{}", kernels.name());
        }
    }
}

#[test]
fn queries_alone_attend_as_beside_their_keys() {
    for (rows, kv) in [(3, KvDtype::F32), (37, KvDtype::Int8), (131, KvDtype::F16)] {
        let case = Case {
            rows,
            mode: ActivationMode::Int8,
            kv,
            float: None,
            scaled: false,
            mixed: false,
            inner: INNER,
            made: RefCell::default(),
        };
        let [expected, alone] = queries_alone(&case, Reference);
        assert_eq!(expected, alone);
        assert_eq!([expected.clone(), expected], queries_alone(&case, Cpu::new(2)));
    }
}

/// Returns heads with separate norms. With an f16 KV cache, one norm covers all heads. With an integer KV
/// cache, norms follow RoPE, and there is a window, sinks and a norm of values.
fn heads<B: Backend>(case: &Case, backend: &mut B) -> AttentionHeads<B> {
    let (num_attention_heads, num_key_value_heads, head_dim) = HEADS;
    let mut norm = |heads: usize, seed| match case.kv {
        KvDtype::F16 => {
            let weight = noise(heads * head_dim, seed);
            HeadNorm::FullWidth(backend.upload_floats(&weight).unwrap())
        }
        KvDtype::Int8 => {
            HeadNorm::PerHeadAfterRope(backend.upload_floats(&noise(head_dim, seed)).unwrap())
        }
        _ => HeadNorm::PerHead(backend.upload_floats(&noise(head_dim, seed)).unwrap()),
    };
    let query_norm = norm(num_attention_heads, 32);
    let key_norm = norm(num_key_value_heads, 33);
    let windowed = case.kv == KvDtype::Int8;
    let value_norm = windowed.then(|| backend.upload_floats(&noise(head_dim, 40)).unwrap());
    let sinks = windowed.then(|| backend.upload_floats(&noise(num_attention_heads, 91)).unwrap());
    AttentionHeads {
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        scale: 0.2,
        rope_first: 0,
        rope_pairs: RopePairs::Halves,
        eps: 1e-6,
        query_norm,
        key_norm,
        value_norm,
        sliding_window: windowed.then_some(37),
        sinks,
    }
}

fn uses(expert: u32, chosen: &Routing, levels: &[Level]) -> Vec<ExpertUse> {
    let slots = chosen.expert_ids.iter().enumerate().filter(|(_, id)| **id == expert);
    let uses = slots.map(|(slot, _)| ExpertUse {
        row: (slot / PER_TOKEN) as u32,
        rank: (slot % PER_TOKEN) as u32,
        level: levels[slot / PER_TOKEN],
    });
    uses.collect()
}

fn compare(case: &Case) {
    let wanted = case.run(Reference);
    for threads in [1, 2] {
        let pool = Arc::new(ThreadPool::new(threads));
        for kernels in Kernels::available() {
            let found = case.run(Cpu::with(Arc::clone(&pool), kernels));
            for ((name, found), (_, wanted)) in found.iter().zip(&wanted) {
                assert_eq!(found.len(), wanted.len(), "{name}");
                for (index, (a, b)) in found.iter().zip(wanted).enumerate() {
                    let same = a.to_bits() == b.to_bits();
                    assert!(
                        same,
                        "{} rows, {:?}, {} {threads} threads: {name}[{index}] is {a}, not {b}",
                        case.rows,
                        case.mode,
                        kernels.name()
                    );
                }
            }
        }
    }
}

#[test]
fn int8_products_give_the_bits_of_the_reference() {
    for (rows, mixed) in [(2, false), (3, true), (37, false), (36, true), (131, true)] {
        let kv = [KvDtype::F32, KvDtype::F16, KvDtype::Int8][rows % 3];
        let inner = if rows < 37 { INNER_ROTATED } else { INNER };
        compare(&Case {
            rows,
            mode: ActivationMode::Int8,
            kv,
            float: None,
            scaled: false,
            mixed,
            inner,
            made: RefCell::default(),
        });
    }
}

/// Inner widths of more than one run of gate and up, with a short last run.
#[test]
fn runs_of_gate_and_up_give_the_bits_of_the_reference() {
    // With two rows, some experts get one row.
    for rows in [2, 5] {
        compare(&Case {
            rows,
            mode: ActivationMode::Int8,
            kv: KvDtype::F32,
            float: None,
            scaled: false,
            mixed: rows == 5,
            inner: GROUP * (RUN + 1) + 8,
            made: RefCell::default(),
        });
    }
}

#[test]
fn float_activations_give_the_bits_of_the_reference() {
    for (rows, mixed) in [(2, true), (37, false)] {
        let mode = ActivationMode::Float;
        let inner = if mixed { INNER_ROTATED } else { INNER };
        compare(&Case {
            rows,
            mode,
            kv: KvDtype::F32,
            float: None,
            scaled: false,
            mixed,
            inner,
            made: RefCell::default(),
        });
    }
}

#[test]
fn float_weights_give_the_bits_of_the_reference() {
    for (rows, dtype) in [(2, DType::F32), (5, DType::F16), (37, DType::Bf16)] {
        let (mode, kv) = (ActivationMode::Int8, KvDtype::F32);
        compare(&Case {
            rows,
            mode,
            kv,
            float: Some(dtype),
            scaled: false,
            mixed: false,
            inner: INNER,
            made: RefCell::default(),
        });
    }
}

/// Large outputs use non-temporal stores and have the same bits as outputs of few rows.
#[test]
fn outputs_that_fill_the_caches_are_those_of_few_rows() {
    const ROWS: usize = 130;
    const COLS: usize = 4104;
    assert!(ROWS * COLS * size_of::<f32>() >= 2 << 20, "too few to be written past the caches");
    let weights = nested(COLS, 40, Layout::Tile16, 2);
    let inputs = noise(ROWS * 40, 1);
    for (kernels, threads) in Kernels::available().into_iter().flat_map(|set| [(set, 1), (set, 2)])
    {
        let mut cpu = Cpu::with(Arc::new(ThreadPool::new(threads)), kernels);
        let matrix = cpu.upload_matrix(&weights, ActivationMode::Int8).unwrap();
        let head = [Linear::new(matrix, None)];
        let mut product = |inputs: &[f32]| {
            let rows = inputs.len() / 40;
            let [mut x, mut out] = [40, COLS].map(|cols| cpu.buffer(rows, cols).unwrap());
            let mut enc = cpu.encoder();
            enc.write(inputs, &mut x).unwrap();
            enc.matmul(&head, &vec![Level::L4; rows], &x, Write::Set, &mut out).unwrap();
            block_on(enc.read(&out)).unwrap()
        };
        let all = product(&inputs);
        for first in [0, 64, ROWS - 2] {
            let wanted = product(&inputs[first * 40..][..80]);
            assert!(all[first * COLS..][..2 * COLS] == wanted, "{kernels:?}, rows from {first}");
        }
    }
}

#[test]
fn scaled_integers_give_the_bits_of_the_reference() {
    for (rows, mode) in
        [(3, ActivationMode::Int8), (37, ActivationMode::Int8), (3, ActivationMode::Float)]
    {
        compare(&Case {
            rows,
            mode,
            kv: KvDtype::F32,
            float: None,
            scaled: true,
            mixed: true,
            inner: INNER,
            made: RefCell::default(),
        });
    }
}
