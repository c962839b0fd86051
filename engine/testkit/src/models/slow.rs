//! A device assumed to be slow gets smaller launches: there are more launches and submissions, with identical
//! bits.

use nestling_core::backend::BackendCounters;
use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::Int8;

use super::common::{converted, step};
use crate::{ModelsDevice, Test, tests};

/// Returns the bits of the logits of steps with few and many rows, and the device's counters.
fn bits(runner: &mut dyn ModelRunner, tokens: &[u32]) -> (Vec<u32>, BackendCounters) {
    let (mut bits, mut first) = (Vec::new(), 0);
    let mut all = BackendCounters::default();
    for rows in [12, 1, 1, 20] {
        let output = step(runner, (first, &tokens[first..first + rows]), |_| true);
        bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        all.dispatches += output.stats.device.dispatches;
        all.submissions += output.stats.device.submissions;
        first += rows;
    }
    (bits, all)
}

fn slow_devices_compute_the_same_bits<D: ModelsDevice>() {
    let device = D::own_device();
    for family in ["qwen3-next", "gpt-oss", "deepseek-v3"] {
        let folder = tempfile::tempdir().unwrap();
        let parts = converted(family, folder.path());
        let mut runner = parts.runner(D::again(&device), Int8, None);
        let (expected, few) = bits(&mut runner, &parts.text);
        for rate in [1 << 22, 1 << 16] {
            let backend = D::with_work_rate(&device, rate);
            let mut runner = parts.runner(backend, Int8, None);
            let (found, many) = bits(&mut runner, &parts.text);
            assert!(found == expected, "{family} at {rate} multiplications a second");
            assert!(
                many.dispatches > few.dispatches && many.submissions > few.submissions,
                "{family} at {rate}: {few:?}, {many:?}"
            );
        }
    }
}

pub fn suite<D: ModelsDevice>() -> Vec<Test> {
    tests![slow_devices_compute_the_same_bits::<D>,]
}
