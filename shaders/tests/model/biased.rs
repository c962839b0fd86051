//! Streamed experts with biases, coded and in slots of the device.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nestling_core::backend::{Backend, Encoder, EncoderExt};
use nestling_core::driver::block_on;
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::Int8;

use nestling_testkit::models::common::{TOKENS, converted, step};
use nestling_testkit::models::streamed::expert_bytes;
use nestling_testkit::{Device, Test, note, tests};

use super::harness::Vulkan;

/// Tokens that are computed at once before others are one by one: these lie in both pages.
const BEFORE: usize = 48;

/// Times that a model is computed beside a thread that waits.
const ROUNDS: usize = 5;

/// Bits of all logits, of the first tokens computed at once and of the others so many at a time, and the
/// bytes that were uploaded for these.
fn bits(runner: &mut dyn ModelRunner, tokens: &[u32], piece: usize) -> (Vec<u32>, u64) {
    let (before, after) = tokens.split_at(BEFORE);
    let (mut bits, mut bytes) = (Vec::new(), 0);
    let mut first = 0;
    for tokens in [before].into_iter().chain(after.chunks(piece)) {
        let output = step(runner, (first, tokens), |_| true);
        bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        bytes += if first > 0 { output.stats.device.upload_bytes } else { 0 };
        first += tokens.len();
    }
    (bits, bytes)
}

/// Planes that end at level 4, and such that go on to 8: with all experts, with slots for some, and
/// with the fewest, where experts leave in every step.
fn streamed_experts_with_biases_give_the_bits_of_resident_ones() {
    let device = Vulkan::device();
    for name in ["gpt-oss", "gpt-oss-bf16"] {
        let folder = tempfile::tempdir().unwrap();
        let parts = converted(name, folder.path());
        let (all, least) = expert_bytes(&parts);
        let mut resident = parts.runner(device.again().unwrap(), Int8, None);
        let (expected, _) = bits(&mut resident, &parts.text, TOKENS);
        for budget in [least, (all / 2).max(least), 2 * all] {
            let mut streamed = parts.runner(device.again().unwrap(), Int8, Some(budget));
            let mut uploaded = Vec::new();
            for piece in [TOKENS, 10, 1] {
                let (found, bytes) = bits(&mut streamed, &parts.text, piece);
                assert!(found == expected, "{name}, {budget} of {all} bytes, {piece} rows");
                uploaded.push(bytes);
            }
            note!("{name}, {budget} of {all} bytes for experts: {uploaded:?} bytes uploaded");
            // With the fewest slots every step brings what the one before let go of.
            assert!(budget > least || uploaded[2] > all, "{name}: {uploaded:?}");
            assert!(budget < all || uploaded[2] == 0, "{name}: {uploaded:?}");
        }
    }
}

/// Stops the other thread whatever becomes of this one.
struct StopsAtEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread that waits for the device may be the one that is told what another asked for: slots are
/// written, and are no longer mapped when a step uses them.
fn slots_are_written_while_another_thread_waits_for_the_device() {
    let device = Vulkan::device();
    let folder = tempfile::tempdir().unwrap();
    let parts = converted("gpt-oss", folder.path());
    let (_, least) = expert_bytes(&parts);
    let mut streamed = parts.runner(device.again().unwrap(), Int8, Some(least));
    let (expected, _) = bits(&mut streamed, &parts.text, 1);
    let mut other = device.again().unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let stopping = StopsAtEnd(&stop);
        scope.spawn(|| {
            let mut buffer = other.buffer(1, 32).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let mut encoder = other.encoder();
                encoder.write(&[1.0; 32], &mut buffer).unwrap();
                assert_eq!(block_on(encoder.read(&buffer)).unwrap(), [1.0; 32]);
            }
        });
        for round in 0..ROUNDS {
            let (found, bytes) = bits(&mut streamed, &parts.text, 1);
            assert!(found == expected && bytes > 0, "round {round}");
        }
        drop(stopping);
    });
}

/// The tests of this file.
pub fn suite() -> Vec<Test> {
    tests![
        streamed_experts_with_biases_give_the_bits_of_resident_ones,
        slots_are_written_while_another_thread_waits_for_the_device,
    ]
}
