//! Upload methods of planes.

use nestling_core::backend::BackendCounters;
use nestling_core::weights::ActivationMode::Int8;
use nestling_formats::Level;
use nestling_wgpu::{Uploads, WgpuBackend};

use nestling_testkit::models::common::parts;
use nestling_testkit::models::streamed::{PROMPT, expert_bytes, run};
use nestling_testkit::{Test, note, tests};

use super::harness::device_with;

/// Direct and staged uploads give the same bits, and counters distinguish them.
fn uploads_are_the_same_straight_and_staged() {
    let parts = parts(Some(Level::L3));
    let (shared, staging) = (device_with(None), device_with(Some(Uploads::Staged)));
    let tokens = &parts.text[..PROMPT + 6];
    let (all, least) = expert_bytes(&parts);
    let run_on = |device: &WgpuBackend, budget| {
        let mut runner = parts.runner(device.again().unwrap(), Int8, Some(budget));
        let mut sum = BackendCounters::default();
        let (bits, counters) = run(&mut runner, tokens, &mut |_, _| {});
        counters.into_iter().for_each(|counters| sum += counters);
        (bits, sum)
    };
    let kind = nestling_wgpu::devices().remove(0).features.uploads;
    for budget in [least, all / 2] {
        let (expected, staged) = run_on(&staging, budget);
        let (found, straight) = run_on(&shared, budget);
        assert!(found == expected, "{budget} bytes");
        assert!(staged.upload_bytes > 0 && staged.staged_bytes == staged.upload_bytes);
        assert_eq!(straight.upload_bytes, staged.upload_bytes);
        let (staged, uploaded) = (straight.staged_bytes, straight.upload_bytes);
        note!("{kind:?}, {budget} of {all}: {staged} of {uploaded} bytes staged");
        match kind {
            // The number depends on the device's activity when planes arrive.
            Uploads::Straight => assert!(staged < uploaded, "{staged} of {uploaded}"),
            Uploads::Staged => assert_eq!(staged, uploaded),
        }
    }
}

pub fn suite() -> Vec<Test> {
    tests![uploads_are_the_same_straight_and_staged,]
}
