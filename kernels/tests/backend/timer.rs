//! Timed work runs exactly as often as requested, and never before.

use std::time::Duration;

use nestling_core::backend::{Backend, Encoder, EncoderExt};
use nestling_core::driver::block_on;
use nestling_cuda::TimedAs;

use nestling_testkit::values::{buffer, read};
use nestling_testkit::{Device, Test, note, tests};

use super::harness::Cuda;

/// Number of operations that would be submitted in parts without a timer.
const OPERATIONS: i32 = 40;
const ROWS: usize = 20;

fn work_runs_as_often_as_it_is_timed() {
    let mut device = Cuda::device();
    for timed_as in [TimedAs::Commands, TimedAs::Graph] {
        let mut x = buffer(&mut device, 3, &[1.0; 3 * ROWS]);
        let record = |encoder: &mut nestling_cuda::CudaEncoder<'_>| {
            // Exceeds the rows of the previous step, and uses tables.
            (0..OPERATIONS).try_for_each(|at| {
                encoder.scale(if at % 2 == 0 { 2.0 } else { 0.5 }, &mut x)?;
                encoder.scale(if at == 0 { 2.0 } else { 1.0 }, &mut x)
            })
        };
        let mut timer = device.timer(timed_as, record).unwrap();
        assert_eq!(timer.launches(), 2 * OPERATIONS as usize);
        let (once, thrice) = (timer.time(1).unwrap(), timer.time(3).unwrap());
        assert!(once > Duration::ZERO && thrice > Duration::ZERO);
        note!("{timed_as:?}: {once:?}, three times {thrice:?}");
        drop(timer);
        assert_eq!(read(&mut device, &x), [16.0; 3 * ROWS]);
    }
}

fn work_that_waits_is_not_timed_and_the_device_goes_on() {
    let mut device = Cuda::device();
    let mut x = buffer(&mut device, 3, &[1.0; 3]);
    let reads = device.timer(TimedAs::Graph, |encoder| {
        encoder.scale(2.0, &mut x)?;
        block_on(encoder.read(&x)).map(drop)
    });
    assert!(reads.is_err());
    drop(reads);
    let mut encoder = device.encoder();
    encoder.scale(3.0, &mut x).unwrap();
    encoder.flush().unwrap();
    drop(encoder);
    assert_eq!(read(&mut device, &x), [3.0; 3]);
}

pub fn suite() -> Vec<Test> {
    tests![work_runs_as_often_as_it_is_timed, work_that_waits_is_not_timed_and_the_device_goes_on,]
}
