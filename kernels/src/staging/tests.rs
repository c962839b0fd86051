//! Checks that transfers wait where necessary. The emulated device reports unordered accesses.

use std::sync::Arc;

use nestling_gpu::{CommandRecorder, WorkRates};

use super::{BUFFER_BYTES, BUFFERS, Staging};
use crate::driver::{Address, DeviceMemory, Driver, Event, Stream};
use crate::error::CudaError;
use crate::params::Launch;
use crate::recorder::{Recorder, Recording};

const SEEDS: u64 = 8;
const BYTES: usize = 1024;

fn no_kernel(_: &Launch, _: &[u8], _: u64) -> Result<(), CudaError> {
    Ok(())
}

struct Device {
    driver: Arc<Driver>,
    staging: Staging,
    compute: Stream,
    passed: Event,
    memory: DeviceMemory,
}

impl Device {
    /// Creates a device whose host memory fits one block.
    fn new(seed: u64) -> Self {
        let driver = Driver::emulated(Arc::new(no_kernel), None);
        driver.reorder(seed);
        // Queries never report completion.
        driver.delay_copies(u64::MAX);
        Self {
            staging: Staging::new(&driver, BYTES as u64).unwrap(),
            compute: driver.stream().unwrap(),
            passed: driver.event().unwrap(),
            memory: driver.allocate("experts", BYTES as u64).unwrap(),
            driver,
        }
    }

    fn at(&self) -> Address {
        self.memory.address()
    }

    fn upload(&mut self, byte: u8) {
        let to = self.at();
        self.staging.upload(&[byte; BYTES], to).unwrap();
    }

    /// Returns the memory contents visible to the stream of kernels.
    fn read(&self) -> Vec<u8> {
        read(&self.driver, &self.compute, self.at(), BYTES)
    }
}

fn read(driver: &Arc<Driver>, stream: &Stream, from: Address, bytes: usize) -> Vec<u8> {
    let mut out = driver.allocate_pinned("what is read back", bytes).unwrap();
    stream.copy_out(from, bytes, &mut out, 0).unwrap();
    stream.synchronize().unwrap();
    out.bytes(bytes).to_vec()
}

fn with_every_order(check: impl Fn(Device)) {
    for seed in 0..SEEDS {
        let device = Device::new(seed);
        let driver = Arc::clone(&device.driver);
        check(device);
        driver.check().unwrap();
    }
}

#[test]
fn kernels_wait_for_what_is_uploaded_and_uploads_for_kernels() {
    with_every_order(|mut device| {
        device.upload(1);
        device.staging.settle(&device.compute).unwrap();
        let mut early = device.driver.allocate_pinned("what is read back", BYTES).unwrap();
        device.compute.copy_out(device.at(), BYTES, &mut early, 0).unwrap();
        device.compute.record(&device.passed).unwrap();
        device.staging.wait_for(&device.passed).unwrap();
        device.upload(2);
        device.staging.settle(&device.compute).unwrap();
        assert_eq!(device.read(), [2; BYTES]);
        assert_eq!(early.bytes(BYTES), [1; BYTES]);
    });
}

#[test]
fn pieces_are_not_written_before_they_are_copied() {
    for seed in 0..2 {
        let mut device = Device::new(seed);
        let bytes = (BUFFERS + 1) * BUFFER_BYTES;
        device.memory = device.driver.allocate("weights", bytes as u64).unwrap();
        let expected: Vec<u8> = (0..bytes).map(|at| (at / BUFFER_BYTES) as u8).collect();
        let to = device.at();
        device.staging.upload(&expected, to).unwrap();
        device.staging.settle(&device.compute).unwrap();
        assert!(read(&device.driver, &device.compute, to, bytes) == expected);
    }
}

#[test]
fn the_host_waits_for_planes_that_come_to_it() {
    with_every_order(|mut device| {
        device.upload(3);
        let parts = [(device.at(), 0..BYTES)];
        let block = device.staging.fetch(&parts, BYTES).unwrap().unwrap();
        assert_eq!((*block).as_ref(), [3; BYTES]);
    });
}

#[test]
fn memory_of_planes_is_not_given_back_while_they_come_or_go() {
    with_every_order(|mut device| {
        device.upload(4);
        let (whole, half) = ([(device.at(), 0..BYTES)], [(device.at(), 0..BYTES / 2)]);
        // A block of another size takes the space of a released block.
        drop(device.staging.fetch(&whole, BYTES).unwrap().unwrap());
        let block = device.staging.fetch(&half, BYTES / 2).unwrap().unwrap();
        let to = device.at() + BYTES as u64 / 2;
        device.staging.upload((*block).as_ref(), to).unwrap();
        device.staging.settle(&device.compute).unwrap();
        drop(block);
        assert!(device.staging.fetch(&whole, BYTES).unwrap().is_none());
        assert_eq!(device.read(), [4; BYTES]);
        device.staging.finished();
        assert!(device.staging.fetch(&whole, BYTES).unwrap().is_some());
    });
}

#[test]
fn transfers_are_behind_uploads_and_kernels() {
    with_every_order(|mut device| {
        device.upload(5);
        device.compute.record(&device.passed).unwrap();
        device.staging.begin_async_copies(&device.passed).unwrap();
        device.staging.queue_upload(&[6; BYTES], device.at()).unwrap();
        let first = device.staging.end_async_copies().unwrap();
        assert_eq!(device.staging.completed_copies(first, &device.compute).unwrap(), first);
        let mut early = device.driver.allocate_pinned("what is read back", BYTES).unwrap();
        device.compute.copy_out(device.at(), BYTES, &mut early, 0).unwrap();
        device.compute.record(&device.passed).unwrap();
        device.staging.begin_async_copies(&device.passed).unwrap();
        device.staging.queue_upload(&[7; BYTES], device.at()).unwrap();
        device.staging.end_async_copies().unwrap();
        device.staging.finish_all().unwrap();
        assert_eq!(device.read(), [7; BYTES]);
        assert_eq!(early.bytes(BYTES), [6; BYTES]);
    });
}

#[test]
fn what_is_awaited_is_there_for_uploads_too() {
    with_every_order(|mut device| {
        device.compute.record(&device.passed).unwrap();
        device.staging.begin_async_copies(&device.passed).unwrap();
        device.staging.queue_upload(&[8; BYTES], device.at()).unwrap();
        let number = device.staging.end_async_copies().unwrap();
        assert_eq!(device.staging.completed_copies(0, &device.compute).unwrap(), 0);
        device.staging.completed_copies(number, &device.compute).unwrap();
        device.upload(9);
        device.staging.settle(&device.compute).unwrap();
        assert_eq!(device.read(), [9; BYTES]);
    });
}

#[test]
fn memory_can_go_when_all_is_finished() {
    with_every_order(|mut device| {
        device.compute.record(&device.passed).unwrap();
        device.staging.begin_async_copies(&device.passed).unwrap();
        device.staging.queue_upload(&[1; BYTES], device.at()).unwrap();
        device.staging.end_async_copies().unwrap();
        device.staging.finish_all().unwrap();
        let parts = [(device.at(), 0..BYTES)];
        let block = device.staging.fetch(&parts, BYTES).unwrap();
        device.staging.finish_all().unwrap();
        device.memory = device.driver.allocate("experts", BYTES as u64).unwrap();
        drop(block);
    });
}

#[test]
fn transfers_that_nobody_waited_for_are_done_before_their_memory_goes() {
    with_every_order(|mut device| {
        device.upload(2);
        device.compute.record(&device.passed).unwrap();
        device.staging.begin_async_copies(&device.passed).unwrap();
        device.staging.queue_upload(&[3; BYTES], device.at()).unwrap();
        device.staging.end_async_copies().unwrap();
        let Device { staging, memory: _memory, .. } = device;
        drop(staging);
    });
}

#[test]
fn tables_and_memory_that_is_retired_stay_until_commands_are_done() {
    for seed in 0..SEEDS {
        let driver = Driver::emulated(Arc::new(no_kernel), None);
        driver.reorder(seed);
        let recording = Recording { arena_bytes: 4096, rates: WorkRates::UNWATCHED };
        let mut recorder = Recorder::new(&driver, 0, recording).unwrap();
        let out = driver.allocate("activations", 64 * 256).unwrap();
        for at in 0..64u8 {
            recorder.begin_operation().unwrap();
            let between = driver.allocate("activations", 256).unwrap();
            let table = recorder.table(&[at; 256]).unwrap();
            recorder.copy(&table, &between.address(), 256).unwrap();
            let to = out.address() + 256 * u64::from(at);
            recorder.copy(&between.address(), &to, 256).unwrap();
            recorder.retire(Some(between));
        }
        let expected: Vec<u8> = (0..64).flat_map(|at| [at; 256]).collect();
        let parts = [(out.address(), expected.len() as u64)];
        recorder.read(&parts, |found| assert!(found == expected, "seed {seed}")).unwrap();
    }
}
