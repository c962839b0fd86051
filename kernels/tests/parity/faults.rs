//! The checks of the emulation detect faults: a deliberately faulty kernel, and every barrier missing from a
//! real one.

use std::collections::BTreeSet;

use nestling_cuda::emulation::{
    EmulationError, Fault, FaultKind, FaultThread, MemoryMap, Run, Schedule, Space,
};

use crate::harness::{barriers_of, run_named, seed};
use crate::{argmax, attention, experts, norms, products};

/// Grid of `emulation/faults/fault.cu`.
const BLOCKS: u32 = 2;
const THREADS: u32 = 256;

/// Elements of both vectors. They exceed the threads, so some are never written.
const COUNT: usize = 1024;

#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
struct FaultParams {
    x: u64,
    out: u64,
    which: u32,
    count: u32,
}

fn run(which: u32, schedule: Schedule, is_checked: bool) -> Result<(), Fault> {
    let (mut x, mut out) = (vec![0f32; COUNT], vec![0f32; COUNT]);
    let [x, out] = [&mut x, &mut out].map(|vector| vector.as_mut_ptr() as u64);
    let memory = MemoryMap::default();
    memory.filled(x, 4 * COUNT as u64);
    memory.allocated(out, 4 * COUNT as u64);
    let params = FaultParams { x, out, which, count: COUNT as u32 };
    let run = Run { schedule, checks: is_checked.then_some(&memory), ..Run::default() };
    let shape = ([BLOCKS, 1, 1], [THREADS, 1, 1], 0);
    match run_named("fault", shape, bytemuck::bytes_of(&params), run) {
        Ok(()) => Ok(()),
        Err(EmulationError::Fault(fault)) => Err(*fault),
        Err(error) => panic!("{error}"),
    }
}

fn schedules() -> [Schedule; 3] {
    [Schedule::Ascending, Schedule::Descending, Schedule::Random(seed())]
}

/// Checks that a fault is detected in every order.
fn expect(which: u32, is_checked: bool, is_expected: impl Fn(&Fault) -> bool) {
    for schedule in schedules() {
        let fault = run(which, schedule, is_checked).unwrap_err();
        assert!(is_expected(&fault), "{which} in {schedule:?}: {fault}");
    }
}

/// Returns whether the first threads of two have these blocks and indices, in any order.
fn are(threads: &[FaultThread], expected: [(u32, u32); 2]) -> bool {
    let mut found: Vec<_> = threads.iter().map(|at| (at.block[0], at.thread[0])).collect();
    found.sort_unstable();
    found == expected
}

fn is_shared(fault: &Fault) -> bool {
    matches!(fault.memory, Some((Space::Shared, _, 4)))
}

#[test]
fn what_is_right_has_no_fault() {
    for schedule in schedules() {
        for is_checked in [false, true] {
            assert_eq!(run(0, schedule, is_checked), Ok(()));
        }
    }
}

#[test]
fn races_are_found() {
    // A missing barrier: two mirrored threads write and read a value.
    expect(1, true, |fault| {
        let [one, other] = &fault.threads[..] else { return false };
        let mirrored = one.thread[0] + other.thread[0] == THREADS - 1;
        fault.kind == FaultKind::Race && is_shared(fault) && mirrored && one.writes != other.writes
    });
    // Two blocks write the elements of the same thread.
    expect(2, true, |fault| {
        let [one, other] = &fault.threads[..] else { return false };
        let is_global = matches!(fault.memory, Some((Space::Global, first, 4))
            if first == u64::from(4 * one.thread[0]));
        let is_both = one.writes && other.writes && one.thread == other.thread;
        fault.kind == FaultKind::Race && is_global && is_both && one.block != other.block
    });
    // Lanes that are separated only by a shuffle.
    expect(4, true, |fault| {
        let [one, other] = &fault.threads[..] else { return false };
        fault.kind == FaultKind::Race && is_shared(fault) && one.thread[0] ^ 1 == other.thread[0]
    });
}

/// A value is missing if its writer has not run yet.
#[test]
fn what_comes_too_early_is_found() {
    let is_early = |fault: &Fault| matches!(fault.kind, FaultKind::Race | FaultKind::Unwritten);
    expect(3, true, |fault| {
        let is_there = matches!(fault.memory, Some((Space::Global, 12, 4)));
        let reader = &fault.threads[0];
        is_early(fault) && is_there && (reader.block[0], reader.thread[0]) == (1, 7)
    });
    // A named barrier for half of its threads.
    expect(5, true, |fault| {
        is_early(fault) && is_shared(fault) && fault.threads[0].thread[0] < THREADS / 2
    });
}

#[test]
fn memory_that_is_not_there_is_found() {
    expect(6, true, |fault| {
        let is_there =
            fault.memory.is_some_and(|(space, _, bytes)| (space, bytes) == (Space::Global, 4));
        fault.kind == FaultKind::OutOfBounds && is_there && fault.threads[0].thread[0] == 9
    });
    expect(7, true, |fault| {
        let writes = fault.threads[0].writes && fault.threads[0].thread[0] == 200;
        fault.kind == FaultKind::OutOfBounds && is_shared(fault) && writes
    });
}

#[test]
fn what_nobody_wrote_is_found() {
    expect(8, true, |fault| {
        let at = Some((Space::Global, 4 * (COUNT as u64 - 1), 4));
        fault.kind == FaultKind::Unwritten && fault.memory == at && fault.threads[0].thread[0] == 5
    });
    expect(9, true, |fault| fault.kind == FaultKind::Unwritten && is_shared(fault));
}

#[test]
fn misaligned_vectors_are_found() {
    expect(10, true, |fault| {
        let is_vector = fault.memory.is_some_and(|(_, _, bytes)| bytes == 16);
        fault.kind == FaultKind::Misaligned && is_vector && fault.threads[0].thread[0] == 1
    });
}

/// Barriers and warp operations are checked in every run.
#[test]
fn threads_that_do_not_meet_are_found() {
    for is_checked in [false, true] {
        let lines = |fault: &Fault| {
            let lines: BTreeSet<_> =
                fault.threads.iter().filter_map(|at| at.place.clone()).collect();
            lines.len()
        };
        expect(11, is_checked, |fault| fault.kind == FaultKind::BarrierPlaces && lines(fault) == 2);
        expect(12, is_checked, |fault| {
            fault.kind == FaultKind::BarrierCount && fault.barrier == Some([1, 256, 128])
        });
        expect(13, is_checked, |fault| {
            fault.kind == FaultKind::BarrierExit
                && fault.barrier == Some([0, 256, 255])
                && fault.threads[1].thread[0] == 77
        });
        expect(14, is_checked, |fault| {
            let block = fault.threads[0].block[0];
            fault.kind == FaultKind::WarpLanes && are(&fault.threads, [(block, 32), (block, 40)])
        });
        expect(15, is_checked, |fault| fault.kind == FaultKind::WarpPlaces && lines(fault) == 2);
        expect(16, is_checked, |fault| fault.kind == FaultKind::Stuck && lines(fault) == 2);
    }
}

/// Checks that a kernel without any one of its barriers is detected as faulty.
#[test]
#[ignore = "35 s: `.ci/deep emulated`"]
fn every_barrier_is_needed() {
    let (met, needed) = barriers_of(|| {
        argmax::the_first_of_the_largest_is_found();
        attention::splits_give_the_bits_of_whole_rows();
        experts::more_uses_than_threads();
        experts::a_level_that_is_not_there_halts_and_is_noted();
        norms::rows_are_normed_as_on_the_cpu();
        products::one_row_at_all_levels_in_one_launch();
        products::some_rows_at_all_levels_in_one_launch();
        products::many_rows_at_all_levels_in_one_launch();
        products::gates_and_ups_are_joined_as_on_the_cpu();
        products::a_gate_without_its_up_computes_nothing();
    });
    assert!(met.len() > 15, "{met:?}");
    let not_needed: Vec<_> = met.difference(&needed).map(|(file, _)| file.as_str()).collect();
    // The last barrier of `sum_of_block`, which is needed only by kernels that call it twice. None does.
    assert_eq!(not_needed, ["reduce.cuh"], "{met:?}, {needed:?}");
}
