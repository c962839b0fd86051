//! Free-running greedy text.
//!
//! Texts diverge at a nearly even choice: of a token, or of an expert at an earlier token, which changes
//! everything after it. The tests print each such place.

use std::fmt;
use std::ops::Range;

use nestling_core::backend::Backend;
use nestling_core::routing_trace::{LayerRouting, TraceStep};
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode;

use super::common::{Choice, Parts, ROWS_MAX, all_logits, best, greedy, parts, recorded};
use crate::{ModelsDevice, Test, note, tests};

/// Number of tokens in a prompt. Prompts are consecutive parts of the validation text.
const PROMPT: usize = 32;

/// Returns the maximum difference of a logit. For float activations, see `forced.rs`. For int8, the largest
/// change of a logit by int8 rounding on the CPU (docs/perf/023).
fn tolerance(activations: ActivationMode) -> f32 {
    match activations {
        ActivationMode::Float => 0.005,
        ActivationMode::Int8 => 0.3,
    }
}

/// First choice that differs between two devices.
#[derive(Clone, Copy, Debug)]
enum DifferentChoice {
    /// Choice of the token.
    Output,
    /// Choice of an expert.
    Router { position: usize, layer: usize },
}

/// Place where two texts diverge.
struct Difference {
    /// Token of the continuation.
    at: usize,
    place: DifferentChoice,
    /// Margin between the two choices.
    margin: f32,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, place, margin } = self;
        match place {
            DifferentChoice::Output => write!(f, "token {at}: margin {margin:.4} at the output"),
            DifferentChoice::Router { position, layer } => {
                write!(f, "token {at}: margin {margin:.4} at the router of layer {layer}")?;
                write!(f, ", position {position}")
            }
        }
    }
}

/// Returns the routing of all positions, `[steps][layers]`.
fn routing(runner: &mut dyn ModelRunner, tokens: &[u32]) -> Vec<TraceStep> {
    let pieces = tokens.chunks(ROWS_MAX).enumerate();
    pieces.map(|(index, piece)| recorded(runner, (index * ROWS_MAX, piece)).1).collect()
}

/// Returns the margin between two experts, of which each device chose a different one. `None` if both chose
/// the same experts. Weights are a softmax, so the log ratio of two weights is the difference of their
/// logits.
fn router_margin(found: (&[u32], &[f32]), expected: (&[u32], &[f32])) -> Option<f32> {
    // Logits up to a constant per row.
    let logit = |(ids, weights): (&[u32], &[f32]), id: u32| {
        ids.iter().position(|other| *other == id).map(|at| weights[at].ln())
    };
    let own = expected.0.iter().find(|id| !found.0.contains(id))?;
    let other = found.0.iter().find(|id| !expected.0.contains(id))?;
    let common = expected.0.iter().find(|id| found.0.contains(id));
    let reference = |row| common.and_then(|id| logit(row, *id)).unwrap_or(0.0);
    let own = logit(expected, *own)? - reference(expected);
    let other = logit(found, *other)? - reference(found);
    Some((own - other).abs())
}

fn row_of(layer: &LayerRouting, row: usize) -> (&[u32], &[f32]) {
    let of = row * PER_TOKEN..(row + 1) * PER_TOKEN;
    (&layer.ids[of.clone()], &layer.weights[of])
}

/// Returns the first different choice of experts, by position, then by layer.
fn first_router(found: &[TraceStep], expected: &[TraceStep]) -> Option<(DifferentChoice, f32)> {
    for (step, (found, expected)) in found.iter().zip(expected).enumerate() {
        for row in 0..expected.layers[0].ids.len() / PER_TOKEN {
            for (layer, (a, b)) in found.layers.iter().zip(&expected.layers).enumerate() {
                if let Some(margin) = router_margin(row_of(a, row), row_of(b, row)) {
                    let position = step * ROWS_MAX + row;
                    return Some((DifferentChoice::Router { position, layer }, margin));
                }
            }
        }
    }
    None
}

/// Experts per token of the bundled model.
const PER_TOKEN: usize = 4;

/// Method of computing the device's choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChoiceMode {
    /// One token at a time, each after the device's own earlier tokens.
    Free,
    /// Many tokens at once, each after the CPU's earlier tokens. Equal to `Free` up to the first difference,
    /// because a row's result does not depend on the number of rows in a step (`residency.rs`).
    Forced,
}

impl ChoiceMode {
    fn choices(
        self,
        gpu: &mut dyn ModelRunner,
        prompt: &[u32],
        expected: &[Choice],
    ) -> Vec<Choice> {
        if self == Self::Free {
            return greedy(gpu, prompt, expected.len());
        }
        let text = prompt.iter().copied().chain(expected.iter().map(|choice| choice.token));
        let text: Vec<u32> = text.take(prompt.len() + expected.len() - 1).collect();
        let logits = all_logits(gpu, &text, ROWS_MAX);
        let rows = logits.chunks_exact(logits.len() / text.len());
        rows.skip(prompt.len() - 1).map(best).collect()
    }
}

/// Returns the place where the continuations of a prompt diverge, if they do.
fn difference(
    (gpu, way): (&mut dyn ModelRunner, ChoiceMode),
    cpu: &mut dyn ModelRunner,
    prompt: &[u32],
    tokens: usize,
) -> Option<Difference> {
    let expected = greedy(cpu, prompt, tokens);
    let found = way.choices(gpu, prompt, &expected);
    let at = found.iter().zip(&expected).position(|(a, b)| a.token != b.token)?;
    let same = expected[..at].iter().map(|choice| choice.token);
    let text: Vec<u32> = prompt.iter().copied().chain(same).collect();
    let by_router = first_router(&routing(gpu, &text), &routing(cpu, &text));
    let (place, margin) = by_router.unwrap_or((DifferentChoice::Output, expected[at].margin));
    Some(Difference { at, place, margin })
}

/// Returns the prompts to run: all, or the range `FIRST..END` in `NESTLING_TEST_PROMPTS`, for devices that
/// would take hours.
fn asked(prompts: usize) -> Range<usize> {
    let Ok(asked) = std::env::var("NESTLING_TEST_PROMPTS") else { return 0..prompts };
    let (first, end) = asked.split_once("..").unwrap();
    first.parse().unwrap()..prompts.min(end.parse().unwrap())
}

/// Compares the texts of `prompts` prompts on both devices. Prints the texts that differ, and fails unless
/// each diverges at a nearly even choice.
fn compare(
    (parts, device): (&Parts, impl Backend),
    (activations, way): (ActivationMode, ChoiceMode),
    (prompts, tokens): (usize, usize),
) {
    let mut cpu = parts.on_cpu(activations);
    let mut gpu = parts.runner(device, activations, None);
    let (mut differ, mut too_far) = (0, 0);
    let prompts = asked(prompts);
    let of_text = parts.text.chunks_exact(PROMPT).enumerate().skip(prompts.start);
    for (index, prompt) in of_text.take(prompts.len()) {
        let found = difference((&mut gpu, way), &mut cpu, prompt, tokens);
        let Some(found) = found else {
            note!("{activations:?}, prompt {index}: the same");
            continue;
        };
        note!("{activations:?}, prompt {index}, {found}");
        differ += 1;
        // Both logits may be off, in opposite directions.
        too_far += usize::from(found.margin > 2.0 * tolerance(activations));
    }
    note!("{activations:?}: {differ} of the texts {prompts:?} of {tokens} tokens differ somewhere");
    assert_eq!(too_far, 0, "texts that differ between choices that are not nearly even");
}

fn greedy_text_is_that_of_the_cpu<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(None));
    compare((&parts, device), (ActivationMode::Int8, ChoiceMode::Free), (2, 12));
}

fn greedy_text_of_32_prompts_is_that_of_the_cpu<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(None));
    compare((&parts, device), (ActivationMode::Int8, ChoiceMode::Free), (32, 64));
}

fn greedy_text_with_float_activations_is_that_of_the_cpu<D: ModelsDevice>() {
    let (device, parts) = (D::device(), parts(None));
    compare((&parts, device), (ActivationMode::Float, ChoiceMode::Forced), (32, 64));
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![
        greedy_text_is_that_of_the_cpu::<D>,
        greedy_text_of_32_prompts_is_that_of_the_cpu::<D> => "takes minutes on a software device",
        greedy_text_with_float_activations_is_that_of_the_cpu::<D> => "products with float activations take minutes on a software device",
    ]
}
