//! Models of scaled integers: the same bits on all paths that run nested codes.

use std::sync::Arc;

use half::f16;
use nestling_core::weights::ActivationMode;
use nestling_cpu::reference::Reference;
use nestling_experts::expert::StoreSource;
use nestling_experts::expert::source::ExpertSource;
use nestling_formats::nested::{
    GROUP, LinearValues, Minima, NestedTables, ScaleType, ScaledCodec, ScaledForm, ScaledRows,
    SubScale,
};
use nestling_formats::store::Store;
use nestling_formats::{Level, MatrixKind};
use nestling_runtime::model::RunnerOptions;

use super::build::{Codes, Recipe, build_store};
use nestling_testkit::runners::{all_logits, checkpoint, data, runner, runners, some_tokens};

const Q4_K: ScaledForm = ScaledForm {
    bits: 4,
    sub_block: 32,
    span: 8,
    scale: ScaleType::F16,
    sub_scale: SubScale::U8,
    minima: Minima::SubBlocks,
};
const Q6_K: ScaledForm =
    ScaledForm { bits: 6, sub_block: 16, sub_scale: SubScale::I8, minima: Minima::None, ..Q4_K };
const Q5_1: ScaledForm =
    ScaledForm { bits: 5, span: 1, sub_scale: SubScale::None, minima: Minima::Spans, ..Q4_K };
const Q8_0: ScaledForm = ScaledForm { bits: 8, minima: Minima::None, ..Q5_1 };

/// Forms under test, named after the GGUF types that use them.
pub const FORMS: [ScaledForm; 4] = [Q4_K, Q6_K, Q5_1, Q8_0];

/// Level of the experts' complete codes, and therefore of the model.
const TOP: Level = Level::L6;

/// Returns the form of a kind of matrix.
pub fn form(kind: MatrixKind, codes: Codes) -> ScaledForm {
    if codes == Codes::Q8 {
        return Q8_0;
    }
    match kind {
        MatrixKind::Gate | MatrixKind::Up => Q4_K,
        MatrixKind::Down | MatrixKind::Head => Q6_K,
        MatrixKind::Embedding => Q8_0,
        _ => Q5_1,
    }
}

/// Returns the value of the middle code.
fn zero(form: &ScaledForm) -> i16 {
    match form.minima {
        Minima::None => 1 << (form.bits - 1),
        _ => 0,
    }
}

/// Creates a codec. Complete codes are integers; the value of a prefix is the middle of its range.
pub fn codec(form: ScaledForm) -> ScaledCodec {
    let value = |prefix: usize, bits: u8| {
        let below = form.bits.saturating_sub(bits);
        let value = ((prefix << below) + ((1 << below) >> 1)) as i16 - zero(&form);
        value.clamp(-127, 127) as i8
    };
    let linear = [Level::L6, Level::L8].map(|level| {
        let below = form.bits.saturating_sub(level.bits());
        match level <= form.top() {
            true => LinearValues { stride: 1 << below, zero: zero(&form) - ((1 << below) >> 1) },
            false => LinearValues::default(),
        }
    });
    let tables = NestedTables {
        t2: std::array::from_fn(|prefix| value(prefix, 2)),
        t3: std::array::from_fn(|prefix| value(prefix, 3)),
        t4: std::array::from_fn(|prefix| value(prefix, 4)),
    };
    ScaledCodec { form, units: [0; 5], tables, linear }
}

/// Returns step and minimum of a block of weights. The minimum is at most 0.
fn range(weights: &[f32], form: &ScaledForm) -> (f32, f32) {
    let least = weights.iter().copied().fold(0.0, f32::min);
    let most = weights.iter().copied().fold(0.0, f32::max);
    match form.minima {
        Minima::None => (most.max(-least) / (f32::from(zero(form)) - 1.0), 0.0),
        _ => ((most - least) / ((1 << form.bits) - 1) as f32, least),
    }
}

/// Quantizes a matrix by a simple rule.
pub fn quantize(weights: &[f32], rows: usize, cols: usize, form: &ScaledForm) -> ScaledRows {
    let mut out = ScaledRows { rows, cols, ..ScaledRows::default() };
    let (columns, span) = (usize::from(form.sub_block), usize::from(form.span) * GROUP);
    for row in weights.chunks(cols) {
        for span in row.chunks(span) {
            let ranges: Vec<_> = span.chunks(columns).map(|block| range(block, form)).collect();
            let has_subs = form.sub_scale != SubScale::None;
            let parts = if has_subs { 63.0 } else { 1.0 };
            let step = ranges.iter().map(|range| range.0).fold(0.0, f32::max) / parts;
            let least = -ranges.iter().map(|range| range.1).fold(0.0, f32::min) / parts;
            let sign = if has_subs { 1.0 } else { -1.0 };
            let (step, least) = (f16::from_f32(step), f16::from_f32(sign * least));
            out.scales.extend(step.to_le_bytes());
            if form.minima != Minima::None {
                out.minima.extend(least.to_le_bytes());
            }
            for (block, range) in span.chunks(columns).zip(&ranges) {
                let units = |value: f32, unit: f16| match unit.to_f32() {
                    0.0 => 0.0,
                    unit => (value / unit).round().clamp(0.0, 63.0),
                };
                let (mut scale, mut minimum) = (step.to_f32(), least.to_f32());
                if has_subs {
                    let (sub, sub_minimum) = (units(range.0, step), units(-range.1, least));
                    out.sub_scales.push(sub as u8);
                    (scale, minimum) = (scale * sub, -(minimum * sub_minimum));
                    if form.has_sub_minima() {
                        out.sub_minima.push(sub_minimum as u8);
                    }
                }
                for weight in block {
                    let steps = if scale == 0.0 { 0.0 } else { (weight - minimum) / scale };
                    let most = ((1u32 << form.bits) - 1) as f32;
                    let code = (steps.round() + f32::from(zero(form))).clamp(0.0, most) as u8;
                    out.codes.push(code << (8 - form.bits));
                }
            }
        }
        // Padding for sub-blocks beyond the last column.
        let subs = cols.div_ceil(GROUP) * form.sub_blocks();
        for of_blocks in [&mut out.sub_scales, &mut out.sub_minima] {
            if !of_blocks.is_empty() {
                of_blocks.resize(of_blocks.len().next_multiple_of(subs), 0);
            }
        }
    }
    out
}

fn source(path: &std::path::Path) -> Arc<dyn ExpertSource> {
    Arc::new(StoreSource::owned(Arc::new(Store::open(path).unwrap()), None).unwrap())
}

#[test]
fn every_encoder_gives_the_same_bits_at_every_level_and_chunking() {
    for name in ["tiny-qwen3-moe", "tiny-tied"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scaled.nest");
        build_store(&data(name), &path, &Recipe { codes: Codes::Scaled, ..Recipe::default() });
        let source = source(&path);
        let tokens = some_tokens(12, source.config().vocab_size, 4);
        let modes: &[ActivationMode] = match name {
            "tiny-tied" => &[ActivationMode::Int8],
            _ => &[ActivationMode::Int8, ActivationMode::Float],
        };
        for &activations in modes {
            let options = RunnerOptions { activations, ..RunnerOptions::default() };
            let mut all = runners(&source, &options);
            for level in Level::ALL.into_iter().filter(|level| *level <= TOP) {
                let mut expected = None;
                for (encoder, runner) in &mut all {
                    let chunks: &[usize] = if encoder == "reference" { &[12] } else { &[12, 1, 5] };
                    for &chunk in chunks {
                        let found = all_logits(&mut **runner, &tokens, level, chunk);
                        assert!(found.iter().all(|logit| logit.is_finite()));
                        let expected = expected.get_or_insert_with(|| found.clone());
                        let what = format!("{name} {encoder} {activations:?} {level} {chunk}");
                        assert!(found == *expected, "{what}");
                    }
                }
            }
        }
    }
}

/// A store of complete codes has the logits of its checkpoint; lower levels differ more.
#[test]
fn scaled_integers_are_the_weights_of_the_checkpoint() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("scaled.nest");
    let folder = data("tiny-qwen3-moe");
    build_store(&folder, &path, &Recipe { codes: Codes::Q8, ..Recipe::default() });
    let checkpoint: Arc<dyn ExpertSource> = checkpoint(&folder);
    let tokens = some_tokens(20, checkpoint.config().vocab_size, 5);
    let options = RunnerOptions { activations: ActivationMode::Float, ..RunnerOptions::default() };
    let logits = |source: &Arc<dyn ExpertSource>, level| {
        let mut runner = runner(Reference, source, &options);
        all_logits(&mut runner, &tokens, level, 20)
    };
    let squares = |values: &mut dyn Iterator<Item = f32>| -> f64 {
        values.map(|value| f64::from(value).powi(2)).sum()
    };
    let expected = logits(&checkpoint, Level::L8);
    let source = source(&path);
    let distance = |level| {
        let found = logits(&source, level);
        let apart = squares(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
        (apart / squares(&mut expected.iter().copied())).sqrt()
    };
    let distances = Level::ALL.map(distance);
    assert!(distances.is_sorted_by(|coarse, fine| coarse > fine), "{distances:?}");
    // Most of the remaining difference comes from tokens routed differently (0.087).
    assert!(distances[4] < 0.1 && distances[0] > 0.5, "{distances:?}");
}
