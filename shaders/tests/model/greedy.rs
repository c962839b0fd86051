//! Free-running greedy text.

use nestling_engine::weights::ActivationMode;
use nestling_wgpu::WgpuBackend;

use crate::common::{Choice, Parts, device, greedy, parts};

/// Tokens of a prompt. Prompts are taken one after another from the validation text, not chosen.
const PROMPT: usize = 32;

/// Most that a logit may differ: see `forced.rs` for float activations. With int8 it is what rounding
/// to int8 changes a logit by, at its largest, on the CPU (PERF.md).
fn tolerance(activations: ActivationMode) -> f32 {
    match activations {
        ActivationMode::Float => 0.005,
        ActivationMode::Int8 => 0.3,
    }
}

/// Where two texts differ first, if they do.
fn first_difference(found: &[Choice], expected: &[Choice]) -> Option<usize> {
    found.iter().zip(expected).position(|(found, expected)| found.token != expected.token)
}

/// Texts of so many prompts on both devices: those that differ are shown, and must do so between
/// tokens that are nearly as likely.
fn compare(
    (parts, device): (&Parts, WgpuBackend),
    activations: ActivationMode,
    (prompts, tokens): (usize, usize),
) {
    let mut cpu = parts.on_cpu(activations);
    let mut gpu = parts.runner(device, activations, None);
    let (mut differ, mut too_far) = (0, 0);
    for (index, prompt) in parts.text.chunks_exact(PROMPT).take(prompts).enumerate() {
        let expected = greedy(&mut cpu, prompt, tokens);
        let found = greedy(&mut gpu, prompt, tokens);
        let Some(at) = first_difference(&found, &expected) else { continue };
        let (found, expected) = (found[at], expected[at]);
        eprintln!(
            "{activations:?}, prompt {index}, token {at}: {found:?}, on the CPU {expected:?}"
        );
        differ += 1;
        // Both logits may be off, in opposite directions.
        too_far += usize::from(expected.margin > 2.0 * tolerance(activations));
    }
    eprintln!("{activations:?}: {differ} of {prompts} texts of {tokens} tokens differ somewhere");
    assert_eq!(too_far, 0, "texts that differ between tokens that are not nearly as likely");
}

#[test]
fn greedy_text_is_that_of_the_cpu() {
    let (Some(device), Some(parts)) = (device(), parts(None)) else { return };
    compare((&parts, device), ActivationMode::Int8, (2, 12));
}

#[test]
#[ignore = "takes minutes on a software device"]
fn greedy_text_of_32_prompts_is_that_of_the_cpu() {
    let (Some(device), Some(parts)) = (device(), parts(None)) else { return };
    for activations in [ActivationMode::Int8, ActivationMode::Float] {
        compare((&parts, device.again().unwrap()), activations, (32, 64));
    }
}
