//! The measured device, timing of its work, and output of results.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::time::{Duration, Instant};

use nestling_core::EngineError;
use nestling_core::backend::{Backend, Encoder, EncoderExt};
use nestling_core::driver::block_on;
use nestling_cuda::{CudaBackend, CudaOptions, TimedAs};
use nestling_wgpu::{AdapterChoice, WgpuBackend, WgpuOptions};
use serde_json::Value;

/// Approximate duration of one timing in seconds, and number of timings.
const SECONDS: f64 = 0.02;
const TIMINGS: usize = 5;

/// Maximum and minimum number of runs in a timing.
const RUNS_MAX: u32 = 500;
const RUNS_MIN: u32 = 3;

/// Duration of measured work.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Duration of one run in microseconds, the median of several timings.
    pub microseconds: f64,
    /// Total number of runs of all timings.
    pub runs: u32,
}

/// A backend whose work can be timed.
pub trait TimedBackend: Backend {
    /// Description of the clock.
    const CLOCK: &'static str;

    /// Measures the duration of recorded work by running it repeatedly.
    fn timed(
        &mut self,
        record: impl FnMut(&mut Self::Encoder<'_>) -> Result<(), EngineError>,
    ) -> Result<Timing, EngineError>;

    /// Creates another backend on the same device, with `bytes` bytes of host memory for experts.
    fn with_host(&self, bytes: u64) -> Result<Self, EngineError>;
}

impl TimedBackend for CudaBackend {
    const CLOCK: &'static str = "events around launches of one graph";

    fn timed(
        &mut self,
        record: impl FnMut(&mut Self::Encoder<'_>) -> Result<(), EngineError>,
    ) -> Result<Timing, EngineError> {
        let mut timer = self.timer(TimedAs::Graph, record)?;
        repeated(|runs| timer.time(runs))
    }

    fn with_host(&self, bytes: u64) -> Result<Self, EngineError> {
        Ok(self.with_host_bytes(bytes)?)
    }
}

impl TimedBackend for WgpuBackend {
    const CLOCK: &'static str = "the host's, of twice as many runs less that of once";

    fn timed(
        &mut self,
        mut record: impl FnMut(&mut Self::Encoder<'_>) -> Result<(), EngineError>,
    ) -> Result<Timing, EngineError> {
        let mut mark = self.buffer(1, 1)?;
        let mut step = |runs: u32| -> Result<Duration, EngineError> {
            let begun = Instant::now();
            let mut encoder = self.encoder();
            encoder.clear(1, &mut mark)?;
            (0..runs).try_for_each(|_| record(&mut encoder))?;
            // Returns when all work is complete.
            block_on(encoder.read(&mark))?;
            Ok(begun.elapsed())
        };
        repeated(|runs| Ok(step(2 * runs)?.saturating_sub(step(runs)?)))
    }

    fn with_host(&self, _: u64) -> Result<Self, EngineError> {
        Ok(self.again()?)
    }
}

/// Times work. `time` returns the duration of a given number of runs.
pub fn repeated(
    mut time: impl FnMut(u32) -> Result<Duration, EngineError>,
) -> Result<Timing, EngineError> {
    // Warm-up: clocks rise and caches fill.
    time(1)?;
    let once = (time(RUNS_MIN)?.as_secs_f64() / f64::from(RUNS_MIN)).max(1e-7);
    let runs = match is_dry() {
        true => 1,
        false => ((SECONDS / once) as u32).clamp(RUNS_MIN, RUNS_MAX),
    };
    let mut found = Vec::new();
    for _ in 0..if is_dry() { 1 } else { TIMINGS } {
        found.push(time(runs)?.as_secs_f64() * 1e6 / f64::from(runs));
    }
    let timings = found.len() as u32;
    Ok(Timing { microseconds: median(found), runs: runs * timings })
}

pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// A measurement that runs on any device.
pub trait Measurement {
    /// Runs the measurement and writes the results.
    fn on<B: TimedBackend>(&self, device: B) -> Result<(), EngineError>;
}

/// Returns the device that the kit requests: `cuda`, `emulated` or `vulkan`.
pub fn name() -> String {
    env::var("NESTLING_KIT_DEVICE").unwrap_or_else(|_| "cuda".into())
}

/// Returns whether this is a dry run with small shapes.
pub fn is_dry() -> bool {
    env::var_os("NESTLING_KIT_DRY").is_some()
}

/// Runs a measurement on the device that the kit requests.
pub fn on_device(measurement: &impl Measurement) -> Result<(), EngineError> {
    match name().as_str() {
        "emulated" => measurement.on(CudaBackend::emulated()?),
        "vulkan" => {
            let adapter = if is_dry() { AdapterChoice::Index(0) } else { AdapterChoice::default() };
            measurement.on(WgpuBackend::open(&WgpuOptions { adapter, ..WgpuOptions::default() })?)
        }
        _ => measurement.on(CudaBackend::open(&CudaOptions::default())?),
    }
}

/// Appends a line of JSON to the results file, or prints it if there is no file.
#[expect(clippy::print_stdout, reason = "what a person asked for should be seen")]
pub fn tell(found: &Value) {
    let Some(path) = env::var_os("NESTLING_KIT_OUT") else {
        println!("{found}");
        return;
    };
    let mut file = OpenOptions::new().create(true).append(true).open(path).unwrap();
    file.write_all(format!("{found}\n").as_bytes()).unwrap();
}

/// Returns a buffer with arbitrary values.
pub fn buffer<B: Backend>(
    device: &mut B,
    (rows, cols): (usize, usize),
) -> Result<B::Buffer, EngineError> {
    let values: Vec<f32> =
        (0..rows * cols).map(|i| ((i * 7919) % 1009) as f32 / 500.0 - 1.0).collect();
    let mut buffer = device.buffer(rows, cols)?;
    let mut encoder = device.encoder();
    encoder.write(&values, &mut buffer)?;
    encoder.flush()?;
    drop(encoder);
    Ok(buffer)
}
