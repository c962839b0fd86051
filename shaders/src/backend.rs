//! The wgpu backend: a device with its compiled shaders.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nestling_core::EngineError;
use nestling_gpu::{EncoderState, WorkRates, WorkReservation, measure_rates};

use crate::adapters::{self, AdapterChoice, AdapterKind, Uploads};
use crate::device::Gpu;
use crate::error::WgpuError;
use crate::pipeline_cache::PipelineCache;
use crate::pipelines::{Pipelines, ShaderVariant};
use crate::recorder::Recorder;

/// Options for opening a device.
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// Adapter to use.
    pub adapter: AdapterChoice,
    /// Device memory budget in bytes. `None` means that only the driver limits allocations.
    pub device_budget: Option<u64>,
    /// Folder of the on-disk cache of compiled shaders.
    pub pipeline_cache: Option<PathBuf>,
    /// Instructions that shaders may use.
    pub instructions: Instructions,
    /// Method of writing streamed experts' planes to slots, or `None` to select it by adapter. Results are
    /// bit-identical.
    pub uploads: Option<Uploads>,
    /// Limits requested from the adapter.
    pub limits: DeviceLimits,
}

/// Limits requested from the adapter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceLimits {
    /// All limits that the adapter supports.
    #[default]
    Adapter,
    /// The default limits of WebGPU, which every adapter supports. Used to test that they suffice.
    Least,
}

/// Instructions that shaders may use. Results are bit-identical, except that a device may flush subnormal
/// half floats in KV pages to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Instructions {
    /// All instructions that the adapter supports.
    #[default]
    Detected,
    /// Instructions that every adapter supports, for comparison and to work around faulty drivers.
    Plain,
}

/// Method of computing four-byte dot products.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int8Dot {
    /// One native instruction.
    Packed,
    /// Separate multiplications.
    Plain,
}

/// A device with compiled shaders. Several backends can share both through [`WgpuBackend::again`]; each
/// records its own steps.
pub struct WgpuBackend {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) pipelines: Arc<Pipelines>,
    pub(crate) recorder: Recorder,
    pub(crate) state: EncoderState<Self>,
    pub(crate) dot: Int8Dot,
    variant: ShaderVariant,
    memory_bytes: Option<u64>,
    /// Memory set aside for the last prepared model.
    pub(crate) reservation: Option<WorkReservation>,
}

impl WgpuBackend {
    /// Opens a device, compiles all shaders, and measures the device's speed to bound the duration of
    /// dispatches. Software renderers are not measured, because no watchdog interrupts them.
    ///
    /// # Errors
    /// Fails with [`AdapterError`](crate::AdapterError), or if the driver refuses a shader.
    pub fn open(options: &WgpuOptions) -> Result<Self, WgpuError> {
        let (adapter, description) = adapters::choose(&options.adapter)?;
        let uploads = options.uploads.unwrap_or(description.features.uploads);
        let limits = match options.limits {
            DeviceLimits::Adapter => adapter.limits(),
            DeviceLimits::Least => wgpu::Limits::default(),
        };
        let gpu = Arc::new(Gpu::open(&adapter, limits, uploads, options.device_budget)?);
        let folder = options.pipeline_cache.as_deref();
        let cache =
            folder.and_then(|folder| PipelineCache::open(&gpu, &adapter.get_info(), folder));
        let raw = cache.as_ref().map(|cache| &cache.raw);
        let features = &description.features;
        let variant = match options.instructions {
            Instructions::Detected => ShaderVariant::of(features),
            Instructions::Plain => ShaderVariant::PLAIN,
        };
        let pipelines = Arc::new(Pipelines::compile(&gpu, raw, variant)?);
        if let Some(cache) = cache {
            cache.keep();
        }
        let dot = match options.instructions {
            Instructions::Detected if features.int8_dot => Int8Dot::Packed,
            _ => Int8Dot::Plain,
        };
        let memory_bytes = options.device_budget.or(description.memory_bytes);
        let rates = WorkRates::UNWATCHED;
        let mut opened = Self::on(gpu, pipelines, dot, variant, memory_bytes, rates)?;
        if description.kind != AdapterKind::Software {
            opened.recorder.meter.rates =
                opened.measured_work_rates().unwrap_or(WorkRates::UNKNOWN);
        }
        Ok(opened)
    }

    fn on(
        gpu: Arc<Gpu>,
        pipelines: Arc<Pipelines>,
        dot: Int8Dot,
        variant: ShaderVariant,
        memory_bytes: Option<u64>,
        rates: WorkRates,
    ) -> Result<Self, WgpuError> {
        let recorder = Recorder::new(Arc::clone(&gpu), rates)?;
        Ok(Self {
            gpu,
            pipelines,
            recorder,
            state: EncoderState::default(),
            dot,
            variant,
            memory_bytes,
            reservation: None,
        })
    }

    /// Returns the memory budget in bytes, or else the size of device memory if known.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// Returns the bytes of device memory reserved by all backends on the device.
    pub fn taken_bytes(&self) -> u64 {
        self.gpu.budget.taken_bytes()
    }

    /// Iterates over all shaders: the name, and whether any backend that shares the shaders has recorded it.
    pub fn shaders(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        self.pipelines.all().map(|shader| (shader.name, shader.recorded.load(Ordering::Relaxed)))
    }

    /// Returns whether four-byte dot products use one instruction.
    pub fn multiplies_packed(&self) -> bool {
        self.dot == Int8Dot::Packed
    }

    /// Destroys the device and all its memory. Later operations fail with [`EngineError::DeviceLost`].
    ///
    /// [`EngineError::DeviceLost`]: nestling_core::EngineError::DeviceLost
    pub fn destroy(&self) {
        self.gpu.device.destroy();
    }

    /// Measures and returns the current speed of the device.
    ///
    /// # Errors
    /// Returns an error if the device is lost or out of memory.
    pub fn measured_work_rates(&self) -> Result<WorkRates, EngineError> {
        measure_rates(&mut self.with_rates(WorkRates::UNWATCHED)?)
    }

    /// Creates a backend on the same device that assumes `per_second` multiplications per second. Used to
    /// test work that is split into many dispatches.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn with_work_rate(&self, per_second: u64) -> Result<Self, WgpuError> {
        self.with_rates(WorkRates::uniform(per_second))
    }

    fn with_rates(&self, rates: WorkRates) -> Result<Self, WgpuError> {
        let (gpu, pipelines) = (Arc::clone(&self.gpu), Arc::clone(&self.pipelines));
        Self::on(gpu, pipelines, self.dot, self.variant, self.memory_bytes, rates)
    }

    /// Creates another backend on the same device.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory.
    pub fn again(&self) -> Result<Self, WgpuError> {
        self.with_rates(self.recorder.meter.rates)
    }

    /// Returns whether shaders add and compare in subgroups.
    pub fn sums_in_subgroups(&self) -> bool {
        self.variant.subgroups
    }
}
