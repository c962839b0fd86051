//! Runs kernels on the host, on host vectors.
#![expect(unsafe_code, reason = "kernels take addresses")]

use std::cell::RefCell;
use std::collections::BTreeSet;

use bytemuck::bytes_of;
use nestling_cuda::emulation::{
    EmulationError, LaunchShape, Line, MemoryMap, Run, Schedule, launch, launch_named,
};
use nestling_cuda::params::{KernelParams, Launch};

/// Half the distance from 1 to the next f32.
pub const EPSILON: f32 = f32::EPSILON / 2.0;

/// Default seed of random schedules. NESTLING_TEST_SEED overrides it.
const SEED: u64 = 1;

thread_local! {
    /// Vectors of a test that kernels may access.
    static MEMORY: RefCell<MemoryMap> = RefCell::default();
    /// Barriers, while they are skipped one at a time.
    static BARRIERS: RefCell<Option<Barriers>> = const { RefCell::new(None) };
}

/// Returns the address of the first element, after registering all elements as readable.
pub fn address<T>(values: &[T]) -> u64 {
    let first = values.as_ptr() as u64;
    MEMORY.with_borrow(|memory| memory.filled(first, size_of_val(values) as u64));
    first
}

pub fn seed() -> u64 {
    let given = std::env::var("NESTLING_TEST_SEED").ok();
    given.map_or(SEED, |seed| seed.parse().unwrap())
}

/// Runs a kernel, with all accesses checked or none.
fn run(
    shape: &Launch,
    params: &impl KernelParams,
    (run, is_checked): (Run<'_>, bool),
) -> Result<(), EmulationError> {
    assert!(!shape.is_empty(), "{}: nothing was started", shape.kernel.name());
    MEMORY.with_borrow(|memory| {
        let run = Run { checks: is_checked.then_some(memory), ..run };
        // SAFETY: tests pass addresses of live vectors, with sizes that match the shapes.
        unsafe { launch(shape, bytes_of(params), 0, run) }
    })
}

/// Runs a kernel by name, with the given grid, block and shared memory. The parameters contain addresses of
/// registered vectors.
pub fn run_named(
    name: &str,
    shape: ([u32; 3], [u32; 3], u32),
    params: &[u8],
    run: Run<'_>,
) -> Result<(), EmulationError> {
    let (grid, block, shared_bytes) = shape;
    let shape = LaunchShape { grid, block, shared_bytes };
    // SAFETY: as above; the checks detect accesses beyond the vectors before they happen.
    unsafe { launch_named(name, shape, params, 0, run) }
}

/// Returns the contents of two vectors after a kernel. Checks that they do not depend on the order of threads
/// and blocks, and that the kernel performs no invalid access.
pub fn outcomes<P: KernelParams, A: Copy, B: Copy>(
    (a, b): (&[A], &[B]),
    params: impl Fn(u64, u64) -> (Launch, P),
) -> (Vec<A>, Vec<B>) {
    let outcome = |how: Run<'_>, is_checked| {
        let (mut a, mut b) = (a.to_vec(), b.to_vec());
        let (to_a, to_b) = (a.as_mut_ptr() as u64, b.as_mut_ptr() as u64);
        address(&a);
        address(&b);
        let (shape, params) = params(to_a, to_b);
        let done = run(&shape, &params, (how, is_checked));
        MEMORY.with_borrow(|memory| [to_a, to_b].map(|first| memory.freed(first)));
        done.map(|()| (a, b)).map_err(|error| format!("{}: {error}", shape.kernel.name()))
    };
    let first = outcome(Run::default(), false).unwrap_or_else(|error| panic!("{error}"));
    let is_same = |found: &(Vec<A>, Vec<B>)| {
        bits(&first.0) == bits(&found.0) && bits(&first.1) == bits(&found.1)
    };
    let checked = [Schedule::Ascending, Schedule::Random(seed())].map(|order| (order, true));
    for (schedule, is_checked) in [(Schedule::Descending, false)].into_iter().chain(checked) {
        let found = outcome(Run { schedule, ..Run::default() }, is_checked);
        let found = found.unwrap_or_else(|error| panic!("{error} ({schedule:?})"));
        assert!(is_same(&found), "the result depends on the order of threads ({schedule:?})");
    }
    leave_out_barriers(|how| outcome(how, true).is_ok_and(|found| is_same(&found)));
    first
}

/// Barrier lines that were reached, and those without which a kernel was detected as faulty.
type Barriers = (BTreeSet<Line>, BTreeSet<Line>);

/// Runs `act`, and repeats each kernel without each of its barriers.
pub fn barriers_of(act: impl FnOnce()) -> Barriers {
    BARRIERS.with_borrow_mut(|barriers| *barriers = Some(Barriers::default()));
    act();
    BARRIERS.with_borrow_mut(Option::take).unwrap()
}

/// Skips each barrier that is not yet known, if requested. `is_right` returns whether the result is correct.
fn leave_out_barriers(is_right: impl Fn(Run<'_>) -> bool) {
    let Some((mut met, mut needed)) = BARRIERS.with_borrow_mut(Option::take) else { return };
    let lines = RefCell::default();
    assert!(is_right(Run { lines: Some(&lines), ..Run::default() }));
    for line in lines.into_inner() {
        let is_needed =
            |schedule| !is_right(Run { schedule, ignored: Some(&line), ..Run::default() });
        let schedules = [Schedule::Ascending, Schedule::Descending, Schedule::Random(seed())];
        if !needed.contains(&line) && schedules.into_iter().any(is_needed) {
            needed.insert(line.clone());
        }
        met.insert(line);
    }
    BARRIERS.with_borrow_mut(|barriers| *barriers = Some((met, needed)));
}

pub fn outcome<P: KernelParams, A: Copy>(out: &[A], params: impl Fn(u64) -> (Launch, P)) -> Vec<A> {
    outcomes((out, &[0u8]), |out, _| params(out)).0
}

/// Checks that each value is within its tolerance, `tolerance(expected)`.
pub fn expect_close(what: &str, found: &[f32], expected: &[f32], tolerance: impl Fn(f32) -> f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = (found - expected).abs() <= tolerance(*expected);
        assert!(same, "{what}, value {index}: {found} is not {expected}");
    }
}

pub fn expect_equal(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits();
        assert!(same, "{what}, value {index}: {found} is not {expected}");
    }
}

fn bits<T: Copy>(values: &[T]) -> Vec<u8> {
    let length = size_of_val(values);
    // SAFETY: the values are plain data and outlive the copy.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), length) }.to_vec()
}

/// Returns deterministic values in -1..1.
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
