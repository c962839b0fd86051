//! Streamed experts that the processor computes where their planes lie, in memory of the host, while a
//! device does the others. What they give goes to the device and is summed there with the rest, in the same
//! order.
//!
//! Only int8 products of nested matrices: those sum exactly and give the same bits on either side.

use std::sync::Arc;

use nestling_formats::ExpertId;

use super::device_slots::DeviceSlots;
use super::host_rule::{HostCandidate, HostExperts};
use super::host_unit::{HostOptions, HostUnit, HostWork};
use super::slot::{Maker, Upload};
use super::source::Scan;
use super::streamed::StreamedExperts;
use crate::reads::ArrivedPlane;
use nestling_core::backend::{Backend, Encoder, ExpertUse, FeedForward, SlotMemory};
use nestling_core::error::EngineError;
use nestling_core::weights::ActivationMode;
use nestling_cpu::Cpu;

impl<B: Backend> DeviceSlots<B> {
    /// Lets the processor compute experts whose planes lie in memory of the host, where that gives the
    /// same bits and planes lie there.
    ///
    /// # Errors
    /// A failed device.
    pub fn share_with_host(
        &mut self,
        backend: &mut B,
        options: HostOptions,
        maker: &Maker,
    ) -> Result<(), EngineError> {
        if options.experts == HostExperts::Never || maker.activations != ActivationMode::Int8 {
            return Ok(());
        }
        let Some(link) = self.slots.host_link(backend)? else { return Ok(()) };
        let hidden_size = maker.config.hidden_size;
        self.host = Some(HostUnit::new(options, link, hidden_size)?);
        Ok(())
    }

    /// The expert made of planes that lie in memory of the host, `planes` at least.
    fn bind_on_host(
        &mut self,
        id: ExpertId,
        planes: usize,
        maker: &Maker,
    ) -> Result<Arc<FeedForward<Cpu>>, EngineError> {
        let held = self.tier.held(id);
        self.tier.set_busy(id, held);
        if let Some(weights) = self.tier.bound(id, planes) {
            return Ok(weights);
        }
        let missing = || EngineError::mismatch("processor beside a device", "one", "none");
        let host = self.host.as_mut().ok_or_else(missing)?;
        let planes = self.tier.prefix(id, held).into_iter();
        let planes: Vec<_> = planes.map(|plane| Arc::new(ArrivedPlane::held(plane))).collect();
        // They come from a device, whose memory is not the reader's that checked them.
        let matrices = maker.source.bind_expert(id, &planes, Scan::Check)?;
        let encoder = &mut host.cpu.encoder();
        let weights = Upload { maker, id, encoder, slot: None }.expert(matrices)?;
        let weights = Arc::new(weights);
        self.tier.bind(id, &weights, held);
        Ok(weights)
    }
}

impl<B: Backend> StreamedExperts<B> {
    /// Gives experts of a layer to the processor: of those that lie in memory of the host, all planes
    /// that their rows want, the ones that it is faster for.
    pub(super) fn leave_to_host(&mut self, layer: u32) {
        let Self { device, wanted, extents, maker, .. } = self;
        // Default: without a device, there is none that could leave experts to the processor.
        let Some(device) = device.as_mut() else { return };
        // Default: a device that shares nothing with the processor leaves it nothing.
        let Some(host) = &mut device.host else { return };
        host.work.clear();
        host.rule.begin_layer();
        for one in wanted.iter_mut() {
            let id = ExpertId { layer, expert: one.expert };
            // Default: as above.
            let Some(host) = &mut device.host else { return };
            if one.planes == 0 || device.tier.held(id) < one.planes {
                continue;
            }
            let (bytes, rows) = (extents.prefix_bytes(id, one.planes), one.uses.len());
            let row_bytes = 4 * maker.config.hidden_size as u64;
            let (candidate, before) =
                (HostCandidate { bytes, rows, row_bytes }, host.rule.queues());
            if !host.rule.takes(candidate) {
                continue;
            }
            let bound = device.bind_on_host(id, one.planes, maker);
            // Default: as above.
            let Some(host) = &mut device.host else { return };
            let Ok(weights) = bound else {
                // What is wrong with it is said where it is brought to the device.
                host.rule.leave(candidate, before);
                continue;
            };
            let (planes, uses) = (one.planes, one.uses.clone());
            host.work.push(HostWork { id, planes, bytes, weights, uses });
            one.give_to_host();
        }
    }

    /// Whether the processor was given experts that it has not computed.
    pub fn has_host_work(&self) -> bool {
        let host = self.device.as_ref().and_then(|device| device.host.as_ref());
        host.is_some_and(|host| !host.work.is_empty())
    }

    /// Brings what the processor computes its experts from to the host.
    ///
    /// # Errors
    /// A failed device.
    pub async fn read_host_inputs(
        &mut self,
        inputs: &B::Buffer, // [T, hidden_size]
        encoder: &mut B::Encoder<'_>,
    ) -> Result<(), EngineError> {
        let host = self.device.as_mut().and_then(|device| device.host.as_mut());
        match host.filter(|host| !host.work.is_empty()) {
            Some(host) => encoder.read_into(inputs, &mut host.values).await,
            None => Ok(()),
        }
    }

    /// Computes the experts that the processor was given, while the device does what it was given, and puts
    /// what they give into their rows of `out`. `each` hears of every expert.
    ///
    /// # Errors
    /// A failed device.
    pub fn compute_on_host(
        &mut self,
        uses: &[ExpertUse],
        per_token: usize,
        out: &mut B::Buffer, // [T * K, hidden_size]
        encoder: &mut B::Encoder<'_>,
        each: &mut dyn FnMut(&FeedForward<Cpu>, &[ExpertUse]),
    ) -> Result<(), EngineError> {
        let Self { device, stats, .. } = self;
        let Some(DeviceSlots { host: Some(host), .. }) = device else { return Ok(()) };
        if host.work.is_empty() {
            return Ok(());
        }
        encoder.flush()?;
        let seconds = host.compute(uses, per_token)?;
        host.gather(uses, per_token);
        encoder.write_rows(&host.values, &host.rows, out)?;
        let experts = host.work.len();
        let (mut bytes, mut rows) = (0, 0);
        for HostWork { bytes: own, weights, uses: range, .. } in &host.work {
            let uses = &uses[range.clone()];
            each(weights, uses);
            stats.host_experts += 1;
            stats.host_uses += uses.len() as u64;
            stats.served_bits += uses.iter().map(|used| u64::from(used.level.bits())).sum::<u64>();
            (bytes, rows) = (bytes + own, rows + uses.len());
        }
        stats.host_bytes += bytes;
        stats.host_ns += (seconds * 1e9) as u64;
        host.rule.observe(bytes, rows.div_ceil(experts), seconds);
        let mut computed = std::mem::take(&mut host.work);
        // What left before is in slots that experts other than these may have.
        let mut promoted = self.move_out(encoder);
        for one in computed.drain(..) {
            promoted = promoted.and_then(|()| self.promote(one.id, one.planes, encoder));
        }
        if let Some(DeviceSlots { host: Some(host), .. }) = &mut self.device {
            host.work = computed;
        }
        self.end_on_host();
        promoted
    }

    /// The processor forgets what it was given.
    pub(super) fn end_on_host(&mut self) {
        if let Some(DeviceSlots { host: Some(host), tier, .. }) = &mut self.device {
            host.work.clear();
            tier.clear_busy();
        }
    }
}
