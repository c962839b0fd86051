//! Kernels run by the host, on vectors of the host.
#![expect(unsafe_code, reason = "kernels take addresses")]

use bytemuck::bytes_of;
use nestling_cuda::emulation::{ThreadOrder, launch};
use nestling_cuda::params::{KernelParams, Launch};

/// Half the distance from 1 to the next f32.
pub const EPSILON: f32 = f32::EPSILON / 2.0;

/// The address of the first element.
pub fn address<T>(values: &[T]) -> u64 {
    values.as_ptr() as u64
}

/// Runs a kernel, with the threads between two barriers in one order or the other.
fn run(shape: &Launch, params: &impl KernelParams, order: ThreadOrder) {
    let name = shape.kernel.name();
    assert!(!shape.is_empty(), "{name}: nothing was started");
    // SAFETY: tests give addresses of vectors that live on, as long as the shapes say.
    let outcome = unsafe { launch(shape, (bytes_of(params), 0), order) };
    outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// What a kernel leaves of two vectors, whose addresses its parameters are made of: the same, whichever
/// order threads run in.
pub fn outcomes<P: KernelParams, A: Copy, B: Copy>(
    (a, b): (&[A], &[B]),
    params: impl Fn(u64, u64) -> (Launch, P),
) -> (Vec<A>, Vec<B>) {
    let run = |order| {
        let (mut a, mut b) = (a.to_vec(), b.to_vec());
        let (shape, params) = params(a.as_mut_ptr() as u64, b.as_mut_ptr() as u64);
        run(&shape, &params, order);
        (shape.kernel.name(), a, b)
    };
    let (name, a, b) = run(ThreadOrder::Ascending);
    let (_, other_a, other_b) = run(ThreadOrder::Descending);
    let same = bits(&a) == bits(&other_a) && bits(&b) == bits(&other_b);
    assert!(same, "{name}: depends on the order of threads");
    (a, b)
}

/// [`outcomes`] with one vector.
pub fn outcome<P: KernelParams, A: Copy>(out: &[A], params: impl Fn(u64) -> (Launch, P)) -> Vec<A> {
    outcomes((out, &[0u8]), |out, _| params(out)).0
}

/// Every value is within its tolerance, `tolerance(expected)`.
pub fn expect_close(what: &str, found: &[f32], expected: &[f32], tolerance: impl Fn(f32) -> f32) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = (found - expected).abs() <= tolerance(*expected);
        assert!(same, "{what}, value {index}: {found} is not {expected}");
    }
}

/// Every value has the same bits.
pub fn expect_equal(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let same = found.to_bits() == expected.to_bits();
        assert!(same, "{what}, value {index}: {found} is not {expected}");
    }
}

fn bits<T: Copy>(values: &[T]) -> Vec<u8> {
    let length = size_of_val(values);
    // SAFETY: the values are plain and live as long as the copy takes.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), length) }.to_vec()
}

/// Deterministic values in -1..1.
pub fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) * 2 + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
