//! A device memory budget limits all memory. A budget that is too small is refused before loading, with the
//! minimum budget.

use nestling_core::EngineError;
use nestling_core::weights::ActivationMode::Int8;
use nestling_cuda::{CudaBackend, CudaError};
use nestling_formats::Level;

use nestling_testkit::models::common::{ROWS_MAX, parts, step};
use nestling_testkit::{ModelsDevice, Test, note, tests};

use super::harness::Cuda;

/// Returns the minimum budget reported by an error.
fn least(error: EngineError) -> u64 {
    note!("{error}");
    let EngineError::Device(error) = error else { return 0 };
    match error.downcast_ref() {
        Some(CudaError::BudgetTooSmall(refused)) => {
            let all = [refused.weight_bytes, refused.kv_bytes, refused.work_bytes];
            assert!(all.iter().all(|bytes| *bytes > 0) && all.iter().sum::<u64>() <= refused.least);
            refused.least
        }
        _ => 0,
    }
}

fn the_least_budget_is_enough_and_one_byte_less_is_refused() {
    let (unbounded, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let mut expected = None;
    for experts in [None, Some(64 << 20)] {
        let run = |device: &CudaBackend, budget: u64| {
            let mut runner = parts.try_runner(device.again().unwrap(), Int8, experts).unwrap();
            let mut bits = Vec::new();
            for (first, count) in [(0, ROWS_MAX), (ROWS_MAX, 16), (ROWS_MAX + 16, 1)] {
                let rows = (first, &parts.text[first..first + count]);
                let output = step(&mut runner, rows, |at| at + 1 == count);
                bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
                assert!(device.allocated_bytes() <= budget);
            }
            bits
        };
        let refuse = |budget| {
            let device = Cuda::limited_device(budget);
            let before = device.allocated_bytes();
            let error = parts.try_runner(device.again().unwrap(), Int8, experts).err().unwrap();
            assert_eq!(device.allocated_bytes(), before);
            least(error)
        };
        let expected = expected.get_or_insert_with(|| run(&unbounded, u64::MAX));
        // Twice the device's own tables, and little more.
        let least = refuse(10 << 20);
        assert_eq!(refuse(least - 1), least);
        assert!(run(&Cuda::limited_device(least), least) == *expected);
    }
}

pub fn suite() -> Vec<Test> {
    tests![the_least_budget_is_enough_and_one_byte_less_is_refused,]
}
