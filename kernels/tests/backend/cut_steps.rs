//! Submission of split steps. A step split into several launches is submitted as a whole, and as a graph if
//! it repeats, unless that would keep the device busy for too long.

use nestling_core::backend::{Backend, BackendCounters, Encoder, Write};
use nestling_core::driver::block_on;
use nestling_core::weights::ActivationMode;
use nestling_formats::Level;

use nestling_testkit::operations::matrices::{MatrixForm, linear, weights};
use nestling_testkit::values::{buffer, noise, read};
use nestling_testkit::{Test, tests};

use super::harness::own_device;

const ROWS: usize = 300;
const COLS: usize = 64;
/// Number of activation rows.
const COUNT: usize = 8;

/// Runs the same step four times. Returns its output and the device counters of each run.
fn steps(backend: &mut impl Backend) -> (Vec<f32>, Vec<BackendCounters>) {
    let matrix = weights(MatrixForm::Tiled, ROWS, COLS, 3);
    let all = [linear(backend, &matrix, ActivationMode::Int8, None)];
    let x = buffer(backend, COLS, &noise(COUNT * COLS, 9));
    let mut out = backend.buffer(COUNT, ROWS).unwrap();
    let mut counters = Vec::new();
    for _ in 0..4 {
        block_on(backend.encoder().finish()).unwrap();
        backend.take_counters();
        let mut encoder = backend.encoder();
        encoder.matmul(&all, &[Level::L4; COUNT], &x, Write::Set, &mut out).unwrap();
        encoder.scale(3.0, &mut out).unwrap();
        encoder.scale(0.5, &mut out).unwrap();
        block_on(encoder.finish()).unwrap();
        drop(encoder);
        counters.push(backend.take_counters());
    }
    (read(backend, &out), counters)
}

fn steps_that_are_cut_are_graphs_where_they_are_short() {
    let device = own_device();
    let (expected, whole) = steps(&mut device.with_work_rate(1 << 45).unwrap());
    assert!(whole.iter().all(|one| (one.dispatches, one.submissions) == (4, 1)), "{whole:?}");
    let work = (ROWS * COLS * COUNT) as u64;
    // A launch of 0.4 seconds fits 128 rows of the matrix, then 172.
    let before = device.graph_counts();
    let (found, cut) = steps(&mut device.with_work_rate(work * 5 / 2).unwrap());
    assert!(found == expected);
    assert!(cut.iter().all(|one| (one.dispatches, one.submissions) == (5, 1)), "{cut:?}");
    let now = device.graph_counts();
    assert_eq!((now.captured - before.captured, now.started - before.started), (1, 3));
    // The step takes a second: three launches of up to 128 rows, the smallest split. A submission of half a
    // second does not fit two.
    let (found, slow) = steps(&mut device.with_work_rate(work).unwrap());
    assert!(found == expected);
    assert!(slow.iter().all(|one| (one.dispatches, one.submissions) == (6, 3)), "{slow:?}");
    assert_eq!(device.graph_counts(), now);
}

pub fn suite() -> Vec<Test> {
    tests![steps_that_are_cut_are_graphs_where_they_are_short,]
}
