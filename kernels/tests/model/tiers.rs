//! Experts in device memory, pinned host memory and on disk. Each plane is in one place, and results equal
//! those of resident experts bit for bit.

use nestling_core::runner::ModelRunner;
use nestling_core::weights::ActivationMode::Int8;
use nestling_formats::Level;

use nestling_testkit::models::common::{parts, step};
use nestling_testkit::models::streamed::{PROMPT, expert_bytes};
use nestling_testkit::{ModelsDevice, Test, note, tests};

use super::harness::Cuda;

/// Logits of a pass over some tokens, and bytes read and recalled.
#[derive(Debug, Default)]
struct Pass {
    bits: Vec<u32>,
    read_bytes: u64,
    recalled_bytes: u64,
}

fn pass(runner: &mut dyn ModelRunner, tokens: &[u32]) -> Pass {
    let mut pass = Pass::default();
    for (first, rows) in std::iter::once((0, &tokens[..PROMPT]))
        .chain((PROMPT..tokens.len()).map(|at| (at, &tokens[at..=at])))
    {
        let output = step(runner, (first, rows), |at| at + 1 == rows.len());
        pass.bits.extend(output.logits.iter().map(|logit| logit.to_bits()));
        pass.read_bytes += output.stats.streaming.read_total();
        pass.recalled_bytes += output.stats.streaming.recalled_bytes;
    }
    pass
}

fn what_leaves_the_device_comes_back_from_the_host() {
    for level in [Level::L3, Level::L8] {
        let (device, parts) = (Cuda::own_device(), parts(Some(level)));
        let tokens = &parts.text[..PROMPT + 4];
        let expected = pass(&mut parts.runner(device.again().unwrap(), Int8, None), tokens).bits;
        let (all, least) = expert_bytes(&parts);
        let idle = device.pinned_bytes();
        // Host memory fits all evicted experts, some of them, or none.
        let tiers = [(all, all / 4), (all / 4, least), (0, all / 4)];
        // Higher levels only add planes, so one case suffices.
        let count = if level == Level::L3 { tiers.len() } else { 1 };
        for (host_bytes, on_device) in tiers.into_iter().take(count) {
            let backend = device.with_host_bytes(host_bytes).unwrap();
            let mut runner = parts.runner(backend, Int8, Some(on_device));
            let first = pass(&mut runner, tokens);
            let second = pass(&mut runner, tokens);
            assert!(first.bits == expected && second.bits == expected, "level {level}");
            note!(
                "level {level}, {on_device} on the device, {host_bytes} on the host, of {all}: read {} and {}, \
                 recalled {} and {}",
                first.read_bytes,
                second.read_bytes,
                first.recalled_bytes,
                second.recalled_bytes
            );
            // Tables and staging buffers are pinned in addition to planes.
            assert!(device.pinned_bytes() - idle <= host_bytes + (32 << 20));
            match host_bytes {
                0 => assert!(second.recalled_bytes == 0 && second.read_bytes > 0),
                bytes if bytes == all => {
                    assert!(second.recalled_bytes > 0 && second.read_bytes == 0);
                }
                _ => assert!(second.recalled_bytes > 0 && second.read_bytes > 0),
            }
        }
    }
}

fn slots_and_the_host_s_planes_may_be_fewer_while_running() {
    let (device, parts) = (Cuda::own_device(), parts(Some(Level::L3)));
    let tokens = &parts.text[..PROMPT + 4];
    let expected = pass(&mut parts.runner(device.again().unwrap(), Int8, None), tokens).bits;
    let (all, least) = expert_bytes(&parts);
    let backend = device.with_host_bytes(all).unwrap();
    let mut runner = parts.runner(backend, Int8, Some(all / 2));
    let memory = runner.expert_memory().unwrap();
    assert!(pass(&mut runner, tokens).bits == expected);
    // The contents of removed slots move to the host, and nothing is read again.
    memory.set_budget(least);
    runner.change_expert_memory().unwrap();
    let moved = pass(&mut runner, tokens);
    assert!(moved.bits == expected && moved.read_bytes == 0, "{} bytes read", moved.read_bytes);
    // If system memory is short, host memory is released first.
    memory.shed(2 * all);
    let shed = pass(&mut runner, tokens);
    assert!(shed.bits == expected && shed.read_bytes > 0);
}

pub fn suite() -> Vec<Test> {
    tests![
        what_leaves_the_device_comes_back_from_the_host,
        slots_and_the_host_s_planes_may_be_fewer_while_running,
    ]
}
