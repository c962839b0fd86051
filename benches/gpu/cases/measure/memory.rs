//! Measures the bandwidth of device memory, the reference of all other bandwidths.

use std::error::Error;
use std::time::Duration;

use cudarc::driver::CudaContext;
use cudarc::driver::sys::CUevent_flags;
use nestling_core::EngineError;
use nestling_core::backend::Encoder;
use serde_json::json;

use super::device::{Measurement, TimedBackend, Timing, is_dry, repeated, tell};

/// Bytes of each side of a copy, many times the size of a cache.
const COPY_BYTES: usize = 512 << 20;

/// Measures copies within device memory by the driver.
pub fn copies() -> Result<(), Box<dyn Error>> {
    let found = nestling_cuda::device(&nestling_cuda::CudaDeviceChoice::default())?;
    let context = CudaContext::new(found.index)?;
    let stream = context.default_stream();
    let bytes = COPY_BYTES.min(context.mem_get_info()?.0 / 4);
    let source = stream.alloc_zeros::<u8>(bytes)?;
    let mut place = stream.alloc_zeros::<u8>(bytes)?;
    let mut time = |runs: u32| -> Result<Duration, Box<dyn Error>> {
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let start = stream.record_event(flags)?;
        for _ in 0..runs {
            stream.memcpy_dtod(&source, &mut place)?;
        }
        let end = stream.record_event(flags)?;
        Ok(Duration::from_secs_f64(f64::from(start.elapsed_ms(&end)?) / 1e3))
    };
    let mut failed = None;
    let timing = repeated(|runs| {
        Ok(time(runs).unwrap_or_else(|error| {
            failed = Some(error);
            Duration::ZERO
        }))
    })?;
    match failed {
        Some(error) => Err(error),
        None => {
            tell_rate("copy by the driver, read and written", 2 * bytes, timing);
            Ok(())
        }
    }
}

/// Measurement of a kernel that reads and writes every element once.
pub struct ScaleKernel;

impl Measurement for ScaleKernel {
    fn on<B: TimedBackend>(&self, mut device: B) -> Result<(), EngineError> {
        let (rows, cols) = if is_dry() { (4, 256) } else { (4096, 16_384) };
        let mut x = device.buffer(rows, cols)?;
        let mut encoder = device.encoder();
        encoder.clear(rows, &mut x)?;
        encoder.flush()?;
        drop(encoder);
        let timing = device.timed(|encoder| encoder.scale(-1.0, &mut x))?;
        tell_rate("kernel `scale`, read and written", 2 * 4 * rows * cols, timing);
        Ok(())
    }
}

fn tell_rate(what: &str, bytes: usize, Timing { microseconds, runs }: Timing) {
    tell(&json!({ "memory": [{
        "what": what,
        "bytes": bytes,
        "microseconds": microseconds,
        "launches": runs,
        "bytes_per_second": bytes as f64 / microseconds.max(1e-3) * 1e6,
    }] }));
}
