//! Host memory beside a device: holds planes evicted from the device, and computes some experts on the CPU in
//! parallel with the device. The CPU's results are copied to the device and summed there in the usual order.
//!
//! The CPU is only used for int8 products of nested matrices, which sum exactly and give the same bits on
//! both sides.

use std::sync::Arc;

use nestling_formats::{ExpertId, InternalError};

use super::builder::ExpertBuilder;
use super::cpu_unit::{CpuExpert, CpuRows, CpuUnit, HostOptions};
use super::device_tier::DeviceTier;
use super::fetcher::ExtentTable;
use super::host_rule::{HostCandidate, HostExperts};
use super::pinned_planes::PinnedPlanes;
use super::request::{ExpertState, LayerRequest};
use crate::reads::ArrivedPlane;
use crate::residency::{PlaneId, Residency};
use nestling_core::backend::{Backend, Encoder, ExpertUse, FeedForward, HostLink, HostPlane};
use nestling_core::error::EngineError;
use nestling_core::stream_stats::StreamStats;
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;

/// Host memory of a device; empty without a device.
pub(super) struct HostTier<B: Backend> {
    builder: Arc<ExpertBuilder>,
    options: HostOptions,
    planes: PinnedPlanes<B>,
    /// CPU that computes experts whose planes are in host memory.
    cpu: Option<CpuUnit>,
}

impl<B: Backend> HostTier<B> {
    pub fn new(builder: Arc<ExpertBuilder>, options: HostOptions) -> Self {
        Self { builder, options, planes: PinnedPlanes::new(), cpu: None }
    }

    /// Returns whether the CPU may compute experts with identical bits.
    pub fn may_compute(&self) -> bool {
        self.options.experts != HostExperts::Never
            && self.builder.activations() == ActivationMode::Int8
    }

    /// Enables CPU computation beside a device with this link to host memory.
    ///
    /// # Errors
    /// Never in practice: buffers of the CPU always fit.
    pub fn enable_cpu(&mut self, link: HostLink) -> Result<(), EngineError> {
        let hidden_size = self.builder.config().hidden_size;
        self.cpu = Some(CpuUnit::new(self.options, link, hidden_size)?);
        Ok(())
    }

    /// Notes a plane evicted from the device. `weights` locates it until its slot is overwritten.
    pub fn note_evicted(&mut self, id: PlaneId, weights: Arc<FeedForward<B>>) {
        self.planes.note_evicted(id, weights);
    }

    /// Copies evicted planes from the device where there is space. Must run before their slots are
    /// overwritten.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn demote_evicted(
        &mut self,
        residency: &Residency,
        extents: &ExtentTable,
        device: &mut DeviceTier<B>,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        self.planes.demote(residency, extents, device, encoder)
    }

    /// Removes and returns a plane, if it is here.
    pub fn take(&mut self, id: PlaneId) -> Option<HostPlane> {
        self.planes.take(id)
    }

    pub fn prefix(&self, id: ExpertId, planes: usize) -> Vec<Arc<ArrivedPlane>> {
        self.planes.prefix(id, planes)
    }

    /// Releases planes, oldest first, until `bytes` are freed. Returns the bytes freed.
    pub fn shed(&mut self, bytes: u64) -> u64 {
        self.planes.shed(bytes)
    }

    /// Keeps an expert's planes until it has moved to the device.
    pub fn set_moving(&mut self, id: ExpertId) {
        self.planes.set_moving(id);
    }

    pub fn set_moved(&mut self, id: ExpertId) {
        self.planes.set_moved(id);
    }

    /// Assigns experts of a request to the CPU where that is faster. Candidates are experts whose requested
    /// planes are all in host memory.
    ///
    /// # Errors
    /// [`InternalError`].
    pub fn choose_cpu_work(
        &mut self,
        request: &mut LayerRequest,
        extents: &ExtentTable,
    ) -> Result<(), InternalError> {
        let Self { builder, planes, cpu, .. } = self;
        let Some(cpu) = cpu else { return Ok(()) };
        cpu.begin_layer();
        let row_bytes = 4 * builder.config().hidden_size as u64;
        let mut from = 0;
        while let Some(at) = request.find(ExpertState::Waiting, from) {
            from = at + 1;
            let one = request.at(at)?;
            let (count, uses) = (one.planes(), one.uses());
            let id = ExpertId { layer: request.layer(), expert: one.expert() };
            if count == 0 || planes.count(id) < count {
                continue;
            }
            let (bytes, rows) = (extents.prefix_bytes(id, count), uses.len());
            let is_taken = cpu.takes(HostCandidate { bytes, rows, row_bytes }, |cpu| {
                let weights = bind(id, count, builder, planes, cpu)?;
                Ok(CpuExpert { id, planes: count, bytes, weights, uses })
            });
            if is_taken {
                request.leave_to_cpu(at)?;
            }
        }
        Ok(())
    }

    pub fn has_work(&self) -> bool {
        self.cpu.as_ref().is_some_and(|cpu| !cpu.work().is_empty())
    }

    /// Copies the inputs of the CPU's experts to the host.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub async fn read_inputs(
        &mut self,
        inputs: &B::Buffer, // [T, hidden_size]
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        match self.cpu.as_mut().filter(|cpu| !cpu.work().is_empty()) {
            Some(cpu) => encoder.read_into(inputs, cpu.inputs()).await,
            None => Ok(()),
        }
    }

    /// Computes the CPU's experts while the device computes its own, and writes the results to their rows of
    /// `out`. `each` is called for each expert.
    ///
    /// # Errors
    /// Returns an error if the device fails.
    pub fn compute(
        &mut self,
        uses: &[ExpertUse],
        per_token: usize,
        out: &mut B::Buffer, // [T * K, hidden_size]
        encoder: &mut B::Encoder<'_>,
        stats: &mut StreamStats,
        each: &mut dyn FnMut(&FeedForward<Cpu>, &[ExpertUse]),
    ) -> Result<(), EngineError> {
        let Some(cpu) = self.cpu.as_mut().filter(|cpu| !cpu.work().is_empty()) else {
            return Ok(());
        };
        encoder.flush()?;
        let CpuRows { rows, values, seconds } = cpu.compute(uses, per_token)?;
        encoder.write_rows(values, rows, out)?;
        let (mut bytes, mut rows) = (0, 0);
        for CpuExpert { bytes: own, weights, uses: range, .. } in cpu.work() {
            let uses = &uses[range.clone()];
            each(weights, uses);
            stats.host_experts += 1;
            stats.host_uses += uses.len() as u64;
            stats.served_bits += uses.iter().map(|used| u64::from(used.level.bits())).sum::<u64>();
            (bytes, rows) = (bytes + own, rows + uses.len());
        }
        stats.host_bytes += bytes;
        stats.host_ns += (seconds * 1e9) as u64;
        cpu.observe(bytes, rows.div_ceil(cpu.work().len()), seconds);
        Ok(())
    }

    pub fn take_work(&mut self) -> Vec<CpuExpert> {
        self.cpu.as_mut().map_or_else(Vec::new, CpuUnit::take_work)
    }

    /// Returns the memory of taken work for reuse.
    pub fn recycle(&mut self, work: Vec<CpuExpert>) {
        if let Some(cpu) = &mut self.cpu {
            cpu.recycle(work);
        }
    }

    pub fn end(&mut self) {
        if let Some(cpu) = &mut self.cpu {
            cpu.forget_work();
            self.planes.clear_busy();
        }
    }
}

/// Builds an expert from its planes in host memory, at least `planes`. The planes stay while the expert is
/// busy.
fn bind<B: Backend>(
    id: ExpertId,
    planes: usize,
    builder: &ExpertBuilder,
    pinned: &mut PinnedPlanes<B>,
    cpu: &mut CpuUnit,
) -> Result<Arc<FeedForward<Cpu>>, EngineError> {
    let held = pinned.count(id);
    pinned.set_busy(id, held);
    if let Some(weights) = pinned.bound(id, planes) {
        return Ok(weights);
    }
    let weights = Arc::new(cpu.bind(id, &pinned.prefix(id, held), builder)?);
    pinned.bind(id, &weights, held);
    Ok(weights)
}
