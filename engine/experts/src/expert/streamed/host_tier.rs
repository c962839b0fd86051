//! Streamed experts in host memory, beside a device: the planes that left it, and the experts that the CPU
//! computes of them while the device does the others. What the CPU gives goes to the device and is summed
//! there with the rest, in the same order.
//!
//! Only int8 products of nested matrices: those sum exactly and give the same bits on either side.

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

/// The host memory of a device; empty where there is no device.
pub(super) struct HostTier<B: Backend> {
    builder: Arc<ExpertBuilder>,
    options: HostOptions,
    planes: PinnedPlanes<B>,
    /// Who computes experts of which planes lie here.
    cpu: Option<CpuUnit>,
}

impl<B: Backend> HostTier<B> {
    /// No plane has left a device yet.
    pub fn new(builder: Arc<ExpertBuilder>, options: HostOptions) -> Self {
        Self { builder, options, planes: PinnedPlanes::new(), cpu: None }
    }

    /// Whether the CPU may compute experts and would give the same bits.
    pub fn may_compute(&self) -> bool {
        self.options.experts != HostExperts::Never
            && self.builder.activations() == ActivationMode::Int8
    }

    /// The CPU computes experts beside a device whose memory is that fast to fill.
    ///
    /// # Errors
    /// None that happens: the CPU has room for any buffer.
    pub fn enable_cpu(&mut self, link: HostLink) -> Result<(), EngineError> {
        let hidden_size = self.builder.config().hidden_size;
        self.cpu = Some(CpuUnit::new(self.options, link, hidden_size)?);
        Ok(())
    }

    /// A plane has left the device; `weights` says where it lies until something comes to its slot.
    pub fn note_evicted(&mut self, id: PlaneId, weights: Arc<FeedForward<B>>) {
        self.planes.note_evicted(id, weights);
    }

    /// Copies planes that left the device, where there is room: before anything comes to their slots.
    ///
    /// # Errors
    /// A failed device.
    pub fn demote_evicted(
        &mut self,
        residency: &Residency,
        extents: &ExtentTable,
        device: &mut DeviceTier<B>,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        self.planes.demote(residency, extents, device, encoder)
    }

    /// Takes a plane out, if it is here.
    pub fn take(&mut self, id: PlaneId) -> Option<HostPlane> {
        self.planes.take(id)
    }

    /// An expert's first planes.
    pub fn prefix(&self, id: ExpertId, planes: usize) -> Vec<Arc<ArrivedPlane>> {
        self.planes.prefix(id, planes)
    }

    /// Lets go of planes, the oldest first, until they were so many bytes; says how many they were.
    pub fn shed(&mut self, bytes: u64) -> u64 {
        self.planes.shed(bytes)
    }

    /// An expert's planes stay until it has moved to the device.
    pub fn set_moving(&mut self, id: ExpertId) {
        self.planes.set_moving(id);
    }

    /// An expert has moved to the device.
    pub fn set_moved(&mut self, id: ExpertId) {
        self.planes.set_moved(id);
    }

    /// Leaves experts of a request to the CPU: of those that lie here with all planes that their rows want,
    /// the ones that it is faster for.
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
            if count == 0 || planes.held(id) < count {
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

    /// Whether the CPU was given experts that it has not computed.
    pub fn has_work(&self) -> bool {
        self.cpu.as_ref().is_some_and(|cpu| !cpu.work().is_empty())
    }

    /// Brings what the CPU computes its experts from to the host.
    ///
    /// # Errors
    /// A failed device.
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

    /// Computes the experts that the CPU was given, while the device does what it was given, and puts what
    /// they give into their rows of `out`. `each` hears of every expert.
    ///
    /// # Errors
    /// A failed device.
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

    /// Takes out what the CPU was given.
    pub fn take_work(&mut self) -> Vec<CpuExpert> {
        self.cpu.as_mut().map_or_else(Vec::new, CpuUnit::take_work)
    }

    /// Uses the memory of what was taken out again.
    pub fn recycle(&mut self, work: Vec<CpuExpert>) {
        if let Some(cpu) = &mut self.cpu {
            cpu.recycle(work);
        }
    }

    /// The CPU forgets what it was given.
    pub fn end(&mut self) {
        if let Some(cpu) = &mut self.cpu {
            cpu.forget_work();
            self.planes.clear_busy();
        }
    }
}

/// The expert made of planes that lie in host memory, `planes` at least, which stay while it is busy.
fn bind<B: Backend>(
    id: ExpertId,
    planes: usize,
    builder: &ExpertBuilder,
    pinned: &mut PinnedPlanes<B>,
    cpu: &mut CpuUnit,
) -> Result<Arc<FeedForward<Cpu>>, EngineError> {
    let held = pinned.held(id);
    pinned.set_busy(id, held);
    if let Some(weights) = pinned.bound(id, planes) {
        return Ok(weights);
    }
    let weights = Arc::new(cpu.bind(id, &pinned.prefix(id, held), builder)?);
    pinned.bind(id, &weights, held);
    Ok(weights)
}
