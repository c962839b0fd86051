//! Deliberate faults are detected in every order, and correct programs pass.

use std::sync::Arc;

use crate::driver::commands::Commands;
use crate::driver::{DeviceMemory, Driver, Event, PinnedMemory, Stream};
use crate::error::CudaError;
use crate::kernel::Kernel;
use crate::params::{Launch, ScalarParams};

const SEEDS: u64 = 24;
const BYTES: usize = 1024;

/// Stands in for kernels: doubles every byte.
fn double(_: &Launch, params: &[u8], _: u64) -> Result<(), CudaError> {
    let params: ScalarParams = bytemuck::pod_read_unaligned(params);
    // SAFETY: tests pass memory of this size to kernels.
    let bytes = unsafe {
        let start = std::ptr::with_exposed_provenance_mut::<u8>(params.x as usize);
        std::slice::from_raw_parts_mut(start, params.count as usize)
    };
    bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(2));
    Ok(())
}

struct Device {
    driver: Arc<Driver>,
    compute: Stream,
    copies: Stream,
    copied: Event,
    memory: DeviceMemory,
    pinned: PinnedMemory,
}

impl Device {
    fn new(seed: u64) -> Self {
        let driver = Driver::emulated(Arc::new(double), None);
        driver.reorder(seed);
        let mut pinned = driver.allocate_pinned("transfers", BYTES).unwrap();
        pinned.write(0, &[3; BYTES]);
        Self {
            compute: driver.stream().unwrap(),
            copies: driver.stream().unwrap(),
            copied: driver.event().unwrap(),
            memory: driver.allocate("activations", BYTES as u64).unwrap(),
            pinned,
            driver,
        }
    }

    /// Returns commands that double the contents of memory.
    fn doubling(&self) -> Commands {
        let mut commands = Commands::default();
        let (x, count) = (self.memory.address(), BYTES as u64);
        let params = ScalarParams { x, count, value: 2.0, padding: 0 };
        commands.launch(params.launch(Kernel::Scale), &params, 0);
        commands
    }

    fn copy_in(&self) -> Result<(), CudaError> {
        self.copies.copy_in(&self.pinned, 0, BYTES, self.memory.address())
    }

    /// Returns the contents of memory after all copies are complete.
    fn contents(&self) -> Result<Vec<u8>, CudaError> {
        self.copies.synchronize()?;
        let mut out = self.driver.allocate_pinned("what is read back", BYTES)?;
        self.compute.copy_out(self.memory.address(), BYTES, &mut out, 0)?;
        self.compute.synchronize()?;
        Ok(out.bytes(BYTES).to_vec())
    }
}

/// Checks that a fault is detected in every order, with an error that contains `words`.
fn is_found(words: &[&str], fault: impl Fn(Device) -> Result<(), CudaError>) {
    for seed in 0..SEEDS {
        let device = Device::new(seed);
        let driver = Arc::clone(&device.driver);
        let found = fault(device).and(driver.check()).unwrap_err();
        let text = found.to_string();
        assert!(matches!(found, CudaError::Lost { .. }), "seed {seed}: {text}");
        assert!(words.iter().all(|word| text.contains(word)), "seed {seed}: {text}");
    }
}

#[test]
fn what_events_order_is_done_in_that_order() {
    for seed in 0..SEEDS {
        let device = Device::new(seed);
        let doubling = device.doubling();
        device.copy_in().unwrap();
        device.copies.record(&device.copied).unwrap();
        device.compute.wait_for(&device.copied).unwrap();
        device.compute.run(&doubling).unwrap();
        let graph = device.compute.capture(&doubling).unwrap();
        device.compute.launch(&graph).unwrap();
        // The next copy follows both.
        device.compute.record(&device.copied).unwrap();
        assert_eq!(device.contents().unwrap(), [12; BYTES], "seed {seed}");
        device.copies.wait_for(&device.copied).unwrap();
        device.copy_in().unwrap();
        assert_eq!(device.contents().unwrap(), [3; BYTES], "seed {seed}");
    }
}

#[test]
fn a_wait_that_was_left_out_is_found() {
    is_found(&["kernel scale", "a copy to the device", "nothing orders them"], |device| {
        device.copy_in()?;
        device.copies.record(&device.copied)?;
        device.compute.run(&device.doubling())?;
        device.compute.synchronize()?;
        device.copies.synchronize()
    });
}

#[test]
fn a_wait_for_an_event_before_it_is_recorded_is_none() {
    is_found(&["nothing orders them"], |device| {
        device.compute.wait_for(&device.copied)?;
        device.copy_in()?;
        device.copies.record(&device.copied)?;
        device.compute.run(&device.doubling())?;
        device.compute.synchronize()?;
        device.copies.synchronize()
    });
}

#[test]
fn memory_that_is_released_while_a_copy_is_under_way_is_found() {
    is_found(&["the release of activations", "a copy to the device"], |device| {
        device.copy_in()?;
        let Device { memory, copies, .. } = device;
        drop(memory);
        copies.synchronize()
    });
    is_found(&["the release of transfers", "a copy to the device"], |device| {
        device.copy_in()?;
        let Device { pinned, copies, memory: _memory, .. } = device;
        drop(pinned);
        copies.synchronize()
    });
}

#[test]
fn memory_that_is_released_before_a_kernel_ran_is_found() {
    is_found(&["activations"], |device| {
        device.compute.run(&device.doubling())?;
        let Device { memory, compute, .. } = device;
        drop(memory);
        compute.synchronize()
    });
}

#[test]
fn pinned_memory_that_is_written_too_early_is_found() {
    is_found(&["a write by the host", "a copy to the device"], |mut device| {
        device.copy_in()?;
        device.pinned.write(BYTES - 4, &[7; 4]);
        device.copies.synchronize()
    });
}

#[test]
fn pinned_memory_that_is_read_too_early_is_found() {
    is_found(&["a read by the host", "a copy from the device"], |mut device| {
        let from = device.memory.address();
        device.copies.copy_out(from, BYTES, &mut device.pinned, 0)?;
        assert_eq!(device.pinned.bytes(BYTES).len(), BYTES);
        device.copies.synchronize()
    });
}

#[test]
fn a_graph_of_addresses_that_are_gone_is_found() {
    is_found(&["kernel scale", "activations that were released"], |mut device| {
        let graph = device.compute.capture(&device.doubling())?;
        device.memory = device.driver.allocate("activations", BYTES as u64)?;
        device.compute.launch(&graph)?;
        device.compute.synchronize()
    });
}

#[test]
fn a_copy_beyond_memory_is_found() {
    is_found(&["end beyond the 1024 of activations"], |device| {
        let to = device.memory.address() + 4;
        device.copies.copy_in(&device.pinned, 0, BYTES, to)?;
        device.copies.synchronize()
    });
}

#[test]
fn what_nobody_wrote_is_no_number() {
    let device = Device::new(0);
    let all_ones = device.contents().unwrap();
    assert_eq!(all_ones, [0xff; BYTES]);
    assert!(bytemuck::pod_read_unaligned::<f32>(&all_ones[..4]).is_nan());
    // Reassigned memory is invalidated.
    device.copy_in().unwrap();
    device.copies.synchronize().unwrap();
    device.memory.forget(0, 256);
    let contents = device.contents().unwrap();
    assert!(contents[..256] == [0xff; 256] && contents[256..] == [3; BYTES - 256]);
}

#[test]
fn memory_that_is_given_away_while_it_is_in_use_is_found() {
    is_found(&["giving memory away", "a copy to the device"], |device| {
        device.copy_in()?;
        device.memory.forget(0, 256);
        device.copies.synchronize()
    });
}

#[test]
fn bytes_that_are_written_in_front_of_memory_are_found() {
    is_found(&["something was written beside the 1024 bytes of activations"], |device| {
        let mut commands = Commands::default();
        let (x, count) = (device.memory.address(), BYTES as u64);
        let params = ScalarParams { x, count, value: 2.0, padding: 0 };
        let outside = ScalarParams { x: x - 8, ..params };
        // Simulates a kernel that counts from the wrong end: its parameters refer to valid memory.
        commands.launch(params.launch(Kernel::Scale), &params, 0);
        double(&outside.launch(Kernel::Scale), bytemuck::bytes_of(&outside), 0)?;
        drop(device);
        Ok(())
    });
}

/// Environment variable that selects the invalid read of a child process.
#[cfg(unix)]
const OUTSIDE: &str = "NESTLING_TEST_OUTSIDE";

#[cfg(unix)]
#[test]
fn who_reads_beside_memory_or_where_it_was_goes_no_further() {
    use std::os::unix::process::ExitStatusExt;

    if let Ok(what) = std::env::var(OUTSIDE) {
        let Device { memory, driver, .. } = Device::new(0);
        let start = memory.address() as usize;
        // SAFETY: queries a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
        let at = match what.as_str() {
            "inside" => start + BYTES - 1,
            "behind" => start + BYTES,
            // The page before the first page of the allocation.
            "in front" => start / page * page - 1,
            _ => {
                drop(memory);
                start
            }
        };
        let at = std::ptr::with_exposed_provenance::<u8>(at);
        // SAFETY: the process is isolated, and is meant to die here unless the byte is valid.
        let byte = unsafe { at.read_volatile() };
        assert!(byte == 0xff && driver.check().is_ok());
        return;
    }
    let segv = Some(libc::SIGSEGV);
    let name = std::thread::current().name().unwrap().to_owned();
    for (what, signal) in
        [("inside", None), ("behind", segv), ("in front", segv), ("released", segv)]
    {
        let mut process = std::process::Command::new(std::env::current_exe().unwrap());
        process.args([name.as_str(), "--exact"]).env(OUTSIDE, what);
        assert_eq!(process.output().unwrap().status.signal(), signal, "{what}");
    }
}
