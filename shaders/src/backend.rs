//! A device as the engine's backend.

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

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// Which adapter.
    pub adapter: AdapterChoice,
    /// Bytes of device memory that may be used; none for what the driver gives.
    pub device_budget: Option<u64>,
    /// Folder where compiled shaders are kept from one start to the next.
    pub pipeline_cache: Option<PathBuf>,
    /// Which instructions shaders use.
    pub instructions: Instructions,
    /// How planes of streamed experts get into their slots; none for what suits the adapter. Results are
    /// the same bits.
    pub uploads: Option<Uploads>,
    /// How much of what the adapter allows is asked for.
    pub limits: DeviceLimits,
}

/// How much of what an adapter allows is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceLimits {
    /// All of it.
    #[default]
    Adapter,
    /// No more than every adapter allows that has WebGPU: to find out whether that is enough.
    Least,
}

/// Which instructions shaders use. Results are the same bits, but where a device takes subnormal half
/// floats in pages for 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Instructions {
    /// What the adapter has.
    #[default]
    Detected,
    /// What every adapter has: to compare, and against drivers that err.
    Plain,
}

/// How products of four bytes at once are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Int8Dot {
    /// As one instruction.
    Packed,
    /// One by one.
    Plain,
}

/// A device with its compiled shaders. Several may share both ([`WgpuBackend::again`]), each with
/// steps of its own.
pub struct WgpuBackend {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) pipelines: Arc<Pipelines>,
    pub(crate) recorder: Recorder,
    pub(crate) state: EncoderState<Self>,
    pub(crate) dot: Int8Dot,
    variant: ShaderVariant,
    memory_bytes: Option<u64>,
    /// Memory that is kept free for the model that was prepared for last.
    pub(crate) reservation: Option<WorkReservation>,
}

impl WgpuBackend {
    /// Opens a device, compiles every shader, and measures how fast it computes, so that no dispatch takes too
    /// long; on software, which nothing watches, that is not done.
    ///
    /// # Errors
    /// [`AdapterError`](crate::AdapterError); shaders that the driver refuses.
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

    /// Bytes of device memory that may be used: the budget that was given, or what the device has,
    /// where that is known.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.memory_bytes
    }

    /// Bytes of device memory that are taken, of all backends on the device together.
    pub fn taken_bytes(&self) -> u64 {
        self.gpu.budget.taken_bytes()
    }

    /// Names of all shaders, each with whether it was recorded by now, by all backends that share this one's.
    pub fn shaders(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        self.pipelines.all().map(|shader| (shader.name, shader.recorded.load(Ordering::Relaxed)))
    }

    /// Whether products of four bytes at once are one instruction.
    pub fn multiplies_packed(&self) -> bool {
        self.dot == Int8Dot::Packed
    }

    /// Gives the device up, with all that it holds: whatever still uses it fails with
    /// [`EngineError::DeviceLost`].
    ///
    /// [`EngineError::DeviceLost`]: nestling_core::EngineError::DeviceLost
    pub fn destroy(&self) {
        self.gpu.device.destroy();
    }

    /// How fast the device computes now.
    ///
    /// # Errors
    /// A device that is lost or whose memory is full.
    pub fn measured_work_rates(&self) -> Result<WorkRates, EngineError> {
        measure_rates(&mut self.with_rates(WorkRates::UNWATCHED)?)
    }

    /// Another backend on the same device, which is taken to do so many multiplications a second: for tests
    /// of work that is cut into many dispatches.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub fn with_work_rate(&self, per_second: u64) -> Result<Self, WgpuError> {
        self.with_rates(WorkRates::uniform(per_second))
    }

    fn with_rates(&self, rates: WorkRates) -> Result<Self, WgpuError> {
        let (gpu, pipelines) = (Arc::clone(&self.gpu), Arc::clone(&self.pipelines));
        Self::on(gpu, pipelines, self.dot, self.variant, self.memory_bytes, rates)
    }

    /// Another backend on the same device.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub fn again(&self) -> Result<Self, WgpuError> {
        self.with_rates(self.recorder.meter.rates)
    }

    /// Whether its shaders add and compare in subgroups.
    pub fn sums_in_subgroups(&self) -> bool {
        self.variant.subgroups
    }
}
