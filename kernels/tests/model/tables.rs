//! Steps whose row and page tables exceed the arena give the same results.

use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::Int8;

use nestling_testkit::models::common::{converted, step};
use nestling_testkit::{ModelsDevice, Test, tests};

use super::harness::Cuda;

/// Rows of a step that is submitted as a whole.
const FEW: usize = 12;
/// Rows of a step that is submitted in parts.
const MANY: usize = 36;

/// Returns the bits of logits after steps of few rows, of one row and of many.
fn bits(runner: &mut dyn ModelRunner, tokens: &[u32]) -> Vec<u32> {
    let mut bits = Vec::new();
    let mut first = 0;
    for rows in [FEW, 1, 1, MANY, 1] {
        let output = step(runner, (first, &tokens[first..first + rows]), |_| true);
        bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        first += rows;
    }
    bits
}

fn tables_that_do_not_fit_change_no_bit() {
    let device = Cuda::own_device();
    for family in ["qwen3-next", "gpt-oss"] {
        let folder = tempfile::tempdir().unwrap();
        let parts = converted(family, folder.path());
        let mut runner = parts.runner(device.again().unwrap(), Int8, None);
        let expected = bits(&mut runner, &parts.text);
        for arena_bytes in [4 << 10, 9 << 10] {
            let backend = device.with_arena_bytes(arena_bytes).unwrap();
            let mut runner = parts.runner(backend, Int8, None);
            let found = bits(&mut runner, &parts.text);
            assert!(found == expected, "{family}, an arena of {arena_bytes} bytes");
        }
    }
}

pub fn suite() -> Vec<Test> {
    tests![tables_that_do_not_fit_change_no_bit,]
}
