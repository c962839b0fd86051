//! Streamed experts with biases, both quantized and in device slots.

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

/// Tokens computed in one step before the others; together they span two pages.
const BEFORE: usize = 48;

/// Number of runs of the model beside a waiting thread.
const ROUNDS: usize = 5;

/// Returns the bits of all logits and the bytes uploaded after the first step. The first tokens are one step;
/// the others are computed `piece` at a time.
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

/// Uses planes up to level 4 and up to level 8. Slots fit all experts, some of them, or the minimum, which
/// evicts experts in every step.
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
            // With the minimum number of slots, each step reloads experts evicted by the one before.
            assert!(budget > least || uploaded[2] > all, "{name}: {uploaded:?}");
            assert!(budget < all || uploaded[2] == 0, "{name}: {uploaded:?}");
        }
    }
}

/// Stops the other thread on drop, even after a panic.
struct StopsAtEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The waiting thread may receive the completion of another thread's request. Slots are written, and must be
/// unmapped before a step uses them.
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

pub fn suite() -> Vec<Test> {
    tests![
        streamed_experts_with_biases_give_the_bits_of_resident_ones,
        slots_are_written_while_another_thread_waits_for_the_device,
    ]
}
