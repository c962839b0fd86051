//! A device memory budget limits all memory: weights, slots, pages and step buffers.

use nestling_core::EngineError;
use nestling_core::weights::ActivationMode::Int8;
use nestling_formats::Level;
use nestling_wgpu::{AdapterChoice, BudgetTooSmall, WgpuBackend, WgpuError, WgpuOptions};

use nestling_testkit::models::common::{Parts, ROWS_MAX, converted, parts, step};
use nestling_testkit::{Device, Test, note, tests};

use super::harness::Vulkan;

fn open(device_budget: u64) -> Result<WgpuBackend, WgpuError> {
    let (adapter, device_budget) = (AdapterChoice::Index(0), Some(device_budget));
    WgpuBackend::open(&WgpuOptions { adapter, device_budget, ..WgpuOptions::default() })
}

fn refused(error: EngineError) -> BudgetTooSmall {
    note!("{error}");
    let refusal = match &error {
        EngineError::Device(error) => match error.downcast_ref() {
            Some(WgpuError::BudgetTooSmall(refusal)) => Some(**refusal),
            _ => None,
        },
        _ => None,
    };
    refusal.unwrap()
}

/// Returns the bits of the logits of the longest step, followed by steps of a few rows.
fn run(parts: &Parts, device: &WgpuBackend, budget: u64, experts: Option<u64>) -> Vec<u32> {
    let tokens = &parts.text[..ROWS_MAX + 20];
    let mut runner = parts.try_runner(device.again().unwrap(), Int8, experts).unwrap();
    let mut bits = Vec::new();
    for (first, count) in [(0, ROWS_MAX), (ROWS_MAX, 16), (ROWS_MAX + 16, 1), (ROWS_MAX + 17, 3)] {
        let rows = (first, &tokens[first..first + count]);
        let output = step(&mut runner, rows, |at| at % 3 == 0 || at + 1 == count);
        bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        let taken = device.taken_bytes();
        assert!(taken <= budget, "{taken} of {budget} bytes");
    }
    bits
}

/// Checks that the minimum budget suffices, and that one byte less is refused before loading.
fn is_bounded(parts: &Parts, experts: Option<u64>) {
    let unbounded = Vulkan::device();
    let expected = run(parts, &unbounded, u64::MAX, experts);
    let refuse = |budget| {
        let device = open(budget).unwrap();
        let before = device.taken_bytes();
        let refusal =
            refused(parts.try_runner(device.again().unwrap(), Int8, experts).err().unwrap());
        assert_eq!(device.taken_bytes(), before);
        refusal
    };
    let first = refuse(4 << 20);
    let all = [first.weight_bytes, first.expert_bytes, first.kv_bytes, first.work_bytes];
    assert!(all.iter().sum::<u64>() <= first.least && first.weight_bytes > 0 && first.kv_bytes > 0);
    assert_eq!(first.expert_bytes > 0, experts.is_some());
    let least = first.least;
    assert_eq!(refuse(least - 1).least, least);
    let device = open(least).unwrap();
    assert!(run(parts, &device, least, experts) == expected);
}

fn a_streamed_model_keeps_within_the_least_budget() {
    let parts = parts(Some(Level::L3));
    is_bounded(&parts, Some(64 << 20));
}

fn a_resident_model_keeps_within_the_least_budget() {
    let parts = parts(Some(Level::L3));
    is_bounded(&parts, None);
}

/// The budget includes the biases of streamed experts.
fn experts_with_biases_keep_within_the_least_budget() {
    let folder = tempfile::tempdir().unwrap();
    let mut parts = converted("gpt-oss", folder.path());
    parts.text = parts.text.iter().chain(&parts.text).copied().collect();
    is_bounded(&parts, Some(1 << 20));
}

/// The budget is too small for the device's own tables.
fn a_budget_of_nothing_opens_no_device() {
    let error = open(1 << 10).err().unwrap();
    assert!(matches!(error, WgpuError::OverBudget { budget: 1024, .. }), "{error}");
}

pub fn suite() -> Vec<Test> {
    tests![
        a_streamed_model_keeps_within_the_least_budget,
        a_resident_model_keeps_within_the_least_budget,
        experts_with_biases_keep_within_the_least_budget,
        a_budget_of_nothing_opens_no_device,
    ]
}
