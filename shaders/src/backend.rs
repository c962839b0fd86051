//! A device as the engine's backend.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nestling_core::EngineError;
use nestling_core::backend::{Backend, ModelNeeds};
use nestling_core::kv_cache::KvShape;
use nestling_core::recurrent::StateShape;
use nestling_core::weights::{ActivationMode, MatrixWeights};
use nestling_gpu::{
    GpuBuffer, GpuFloats, GpuPages, GpuRouting, GpuStates, Notes, Scratch, WorkRates,
    WorkReservation, measure_rates,
};

use crate::adapters::{self, AdapterChoice, AdapterKind, Uploads};
use crate::device::Gpu;
use crate::error::WgpuError;
use crate::matrix::WgpuMatrix;
use crate::needs::{Asked, Kept};
use crate::pipeline_cache::PipelineCache;
use crate::pipelines::{Form, Pipelines};
use crate::recorder::Recorder;
use crate::storage::{self, SharedGpu};

/// How a device is opened.
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// Which adapter.
    pub adapter: AdapterChoice,
    /// Bytes of device memory that may be used; none for what the driver gives.
    pub vram_budget: Option<u64>,
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
    pub(crate) gpu: SharedGpu,
    pub(crate) pipelines: Arc<Pipelines>,
    pub(crate) recorder: Recorder,
    pub(crate) scratch: Scratch<Self>,
    pub(crate) dot: Int8Dot,
    form: Form,
    memory_bytes: Option<u64>,
    /// What was asked for since a model was prepared for last, and memory that is kept for it.
    asked: Asked,
    kept: Option<WorkReservation>,
    /// Experts that shaders found in the step under way.
    pub(crate) notes: Notes<Self>,
}

impl WgpuBackend {
    /// Opens a device, compiles every shader, and measures how fast it computes, so that no dispatch takes too
    /// long; on software, which nothing watches, that is not done.
    ///
    /// # Errors
    /// [`WgpuError::Adapter`]; [`WgpuError::NoDevice`]; shaders that the driver refuses.
    pub fn open(options: &WgpuOptions) -> Result<Self, WgpuError> {
        let (adapter, description) = adapters::choose(&options.adapter)?;
        let uploads = options.uploads.unwrap_or(description.features.uploads);
        let limits = match options.limits {
            DeviceLimits::Adapter => adapter.limits(),
            DeviceLimits::Least => wgpu::Limits::default(),
        };
        let gpu = Arc::new(Gpu::open(&adapter, limits, uploads, options.vram_budget)?);
        let folder = options.pipeline_cache.as_deref();
        let cache =
            folder.and_then(|folder| PipelineCache::open(&gpu, &adapter.get_info(), folder));
        let raw = cache.as_ref().map(|cache| &cache.raw);
        let features = &description.features;
        let form = match options.instructions {
            Instructions::Detected => Form::of(features),
            Instructions::Plain => Form::PLAIN,
        };
        let pipelines = Arc::new(Pipelines::compile(&gpu, raw, form)?);
        if let Some(cache) = cache {
            cache.keep();
        }
        let dot = match options.instructions {
            Instructions::Detected if features.int8_dot => Int8Dot::Packed,
            _ => Int8Dot::Plain,
        };
        let memory_bytes = options.vram_budget.or(description.memory_bytes);
        let rates = WorkRates::UNWATCHED;
        let mut opened = Self::on(gpu, pipelines, dot, form, memory_bytes, rates)?;
        if description.kind != AdapterKind::Software {
            opened.recorder.rates = opened.measured_work_rates().unwrap_or(WorkRates::UNKNOWN);
        }
        Ok(opened)
    }

    fn on(
        gpu: SharedGpu,
        pipelines: Arc<Pipelines>,
        dot: Int8Dot,
        form: Form,
        memory_bytes: Option<u64>,
        rates: WorkRates,
    ) -> Result<Self, WgpuError> {
        let recorder = Recorder::new(Arc::clone(&gpu), rates)?;
        let (scratch, notes) = (Scratch::default(), Notes::default());
        Ok(Self {
            gpu,
            pipelines,
            recorder,
            scratch,
            dot,
            form,
            memory_bytes,
            asked: Asked::default(),
            kept: None,
            notes,
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
        Self::on(gpu, pipelines, self.dot, self.form, self.memory_bytes, rates)
    }

    /// Another backend on the same device.
    ///
    /// # Errors
    /// A device whose memory is full.
    pub fn again(&self) -> Result<Self, WgpuError> {
        self.with_rates(self.recorder.rates)
    }

    /// Whether its shaders add and compare in subgroups.
    pub fn sums_in_subgroups(&self) -> bool {
        self.form.subgroups
    }
}

impl Backend for WgpuBackend {
    nestling_gpu::backend_items!();

    type Matrix = WgpuMatrix;

    const PAGE_KIND: u8 = 2;

    fn name(&self) -> String {
        self.gpu.name.clone()
    }

    fn buffer(&mut self, rows_max: usize, cols: usize) -> Result<GpuBuffer<Self>, EngineError> {
        self.asked.buffer(rows_max, cols);
        GpuBuffer::new(self, rows_max, cols)
    }

    fn routing(
        &mut self,
        rows_max: usize,
        per_token: usize,
    ) -> Result<GpuRouting<Self>, EngineError> {
        self.asked.routing(rows_max, per_token);
        GpuRouting::new(self, rows_max, per_token)
    }

    fn prepare(&mut self, needs: &ModelNeeds<'_>) -> Result<(), EngineError> {
        // Nothing is kept for a model that went before.
        self.kept = None;
        let Kept { reservation, weight_bytes, bias_bytes } =
            self.asked.reserve(&self.gpu.budget, needs)?;
        self.kept = Some(reservation);
        self.recorder.slabs.expect(weight_bytes);
        self.recorder.late_slabs.expect(bias_bytes);
        Ok(())
    }

    fn upload_floats(&mut self, values: &[f32]) -> Result<GpuFloats<Self>, EngineError> {
        storage::floats(&self.gpu, &self.recorder.slabs, values)
    }

    fn upload_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<WgpuMatrix, EngineError> {
        WgpuMatrix::new(&self.gpu, &self.recorder.slabs, weights, activations)
    }

    fn kv_pool(&mut self, shape: &KvShape) -> Result<GpuPages<Self>, EngineError> {
        self.asked.pages(shape);
        storage::pages(&self.gpu, *shape)
    }

    fn state_pool(&mut self, shape: &StateShape) -> Result<GpuStates<Self>, EngineError> {
        self.asked.states(shape);
        Ok(GpuStates::new(*shape))
    }
}
