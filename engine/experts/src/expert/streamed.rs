//! Experts that are read when they are wanted: planes within a budget.
//!
//! What is there and what has to go is decided by [`Residency`], reads are done by [`Reads`]; here
//! both meet the steps: `request.rs` is what one layer wants, `reading.rs` what is read for it. Nothing
//! here changes a result, but where every row of a step is elastic: an expert is computed when all
//! the planes that its rows ask for have arrived, whatever the order.

use std::sync::Arc;

use nestling_formats::ExpertId;
use nestling_import::FeedForward as FeedForwardConfig;

use super::bias::expert_biases;
use super::device_slots::DeviceSlots;
use super::extents::ExtentTable;
use super::host_unit::HostOptions;
use super::jobs::Jobs;
use super::prefetch::{Prefetch, ReadAhead};
use super::slot::{Maker, Slot};
use super::source::ExpertSource;
use super::tag::plane_of;
use super::wanted::{LatePlanes, Wanted};
use crate::reads::{ReadDone, ReadOptions, Reads};
use crate::record::Recorder;
use crate::residency::{ExpertTable, PlaneId, PlaneState, Residency, ResidencyOptions};
use nestling_core::backend::{Backend, CopyFence};
use nestling_core::error::EngineError;
use nestling_core::expert_memory::ExpertMemory;
use nestling_core::stream_stats::StreamStats;
use nestling_core::weights::ActivationMode;

/// Part of a budget that unused buffers may take.
const SPARE_SHARE: u64 = 24;

/// How experts are streamed.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamOptions {
    /// Bytes that planes of experts may take.
    pub budget_bytes: u64,
    /// How planes are read.
    pub reads: ReadOptions,
    /// Whether planes are read before a layer asks for them.
    pub prefetch: Prefetch,
    /// Who computes planes that a device keeps in memory of the host.
    pub host: HostOptions,
}

/// The experts of a model, those within the budget in memory.
pub(super) struct StreamedExperts<B: Backend> {
    pub(super) maker: Maker,
    pub(super) reads: Reads,
    pub(super) residency: Residency,
    pub(super) extents: ExtentTable,
    pub(super) slots: Vec<Vec<Slot<B>>>, // [layers][experts], no experts in a dense layer
    /// Reads under way at once.
    pub(super) depth: usize,
    /// Most bytes of unused buffers.
    spare_max: u64,
    memory: Arc<ExpertMemory>,
    /// Those of the request under way, experts ascending.
    pub(super) wanted: Vec<Wanted>,
    /// Planes that have to go, before they do.
    pub(super) evicted: Vec<PlaneId>,
    pub(super) jobs: Jobs,
    pub(super) ahead: ReadAhead,
    pub(super) late: LatePlanes,
    pub(super) stats: StreamStats,
    recorder: Option<Arc<Recorder>>,
    /// Where planes lie, if not in memory of the host.
    pub(super) device: Option<DeviceSlots<B>>,
    /// What the processor computes of what a device keeps in memory of the host.
    pub(super) host: HostOptions,
}

impl<B: Backend> StreamedExperts<B> {
    /// No expert is resident yet.
    ///
    /// # Errors
    /// A source that is no store; a budget that has no room for one token's experts of one layer;
    /// a platform that gives no thread for reads.
    pub fn open(
        source: Arc<dyn ExpertSource>,
        activations: ActivationMode,
        options: &StreamOptions,
    ) -> Result<Self, EngineError> {
        let no_store = || EngineError::mismatch("source of streamed experts", "a store", "another");
        let store = Arc::clone(source.store().ok_or_else(no_store)?);
        let config = source.config().clone();
        let level = source.level_max().unwrap_or(store.level());
        let table = Arc::new(ExpertTable::of_index(store.index(), &config, level)?);
        let spare = spare_bytes(options.budget_bytes, &table, options.reads.pool_bytes);
        let residency = ResidencyOptions::new(&table, options.budget_bytes - spare);
        let residency = Residency::new(table, residency)?;
        let layers = (0u32..).zip(&config.layers);
        let biases = layers.map(|(layer, _)| expert_biases(&*source, layer));
        let biases = biases.collect::<Result<_, _>>()?;
        let reads = Reads::open(Arc::clone(&store), &options.reads)?;
        reads.set_pool_bytes(0);
        reads.set_memory_bytes(options.budget_bytes);
        let experts = config.layers.iter().map(|layer| match layer.feed_forward {
            FeedForwardConfig::Dense { .. } => 0,
            FeedForwardConfig::Moe { num_experts, .. } => num_experts,
        });
        let extents = ExtentTable::new(&*source, &store, experts);
        let experts = extents.experts_of_layers();
        let slots = experts.map(|count| (0..count).map(|_| Slot::empty()).collect()).collect();
        Ok(Self {
            maker: Maker { source, config, activations, biases },
            reads,
            residency,
            extents,
            slots,
            depth: options.reads.depth.max(1),
            spare_max: options.reads.pool_bytes,
            memory: Arc::new(ExpertMemory::new()),
            wanted: Vec::new(),
            evicted: Vec::new(),
            jobs: Jobs::default(),
            ahead: ReadAhead::new(options.prefetch),
            late: LatePlanes::WaitFor,
            stats: StreamStats::default(),
            recorder: None,
            device: None,
            host: options.host,
        })
    }

    /// Who hears of reads.
    pub fn set_recorder(&mut self, recorder: Option<Arc<Recorder>>) {
        self.recorder = recorder;
    }

    /// What its memory is changed by.
    pub fn memory(&self) -> &Arc<ExpertMemory> {
        &self.memory
    }

    /// How many experts each layer has.
    pub fn experts_of_layers(&self) -> impl Iterator<Item = usize> + '_ {
        self.extents.experts_of_layers()
    }

    /// How many experts a layer has.
    pub fn experts_of(&self, layer: usize) -> usize {
        self.extents.experts_of(layer as u32)
    }

    /// A step begins.
    pub fn begin_step(&mut self) {
        self.residency.begin_step();
    }

    /// What was done since this was asked last.
    pub fn take_stats(&mut self) -> StreamStats {
        std::mem::take(&mut self.stats)
    }

    /// Makes the memory what [`ExpertMemory`] asks for.
    ///
    /// # Errors
    /// A budget without room for one token's experts of one layer; the old one stays.
    pub fn change_memory(&mut self, encoder: &mut B::Encoder<'_>) -> Result<(), EngineError> {
        let mut result = Ok(());
        let (wanted, shed) = (self.memory.take_wanted(), self.memory.take_shed());
        if wanted.is_some() || shed > 0 {
            // What is on its way could not leave.
            self.end_promotions(CopyFence::ALL, encoder)?;
        }
        if let Some(wanted) = wanted {
            let spare = spare_bytes(wanted, self.residency.table(), self.spare_max);
            result = self.residency.set_budget(wanted - spare, &mut self.evicted);
            if result.is_ok() {
                self.reads.set_memory_bytes(wanted);
                result = self.resize_slots(wanted - spare, encoder);
            }
        }
        if shed > 0 {
            let of_host = self.device.as_mut().map_or(0, |device| device.tier.shed(shed));
            let shed = shed.saturating_sub(of_host);
            self.residency.shed(shed, &mut self.evicted);
        }
        self.drop_evicted();
        result
    }

    /// Lets go of planes that the bookkeeping has evicted.
    pub(super) fn drop_evicted(&mut self) {
        for id in self.evicted.drain(..) {
            let slots = self.slots.get_mut(id.layer as usize);
            if let Some(slot) = slots.and_then(|slots| slots.get_mut(id.expert as usize)) {
                if let (Some(device), Some((weights, held))) = (&mut self.device, slot.bound())
                    && id.plane.index() < held
                {
                    device.tier.leave(id, weights);
                }
                let place = slot.drop_plane(id.plane.index());
                if let Some(device) = &mut self.device {
                    place.into_iter().for_each(|place| device.give(place));
                    device.changed(ExpertId { layer: id.layer, expert: id.expert });
                }
            }
        }
        self.memory.set_used(self.held_bytes());
    }

    /// Bytes of planes that are held or on their way; of a device's slots that are taken.
    fn held_bytes(&self) -> u64 {
        match &self.device {
            None => self.residency.used_bytes(),
            Some(device) => device.taken_bytes(),
        }
    }

    /// Takes in a read that ended.
    pub(super) fn arrive(&mut self, done: ReadDone) -> Result<(), EngineError> {
        let id = plane_of(done.tag);
        let slots = self.slots.get_mut(id.layer as usize);
        let slot = slots.and_then(|slots| slots.get_mut(id.expert as usize));
        let reading = self.residency.state(id) == PlaneState::Reading;
        if let Some(recorder) = &self.recorder {
            let bytes = done.result.as_ref().map_or(0, |plane| plane.as_ref().len() as u64);
            recorder.add_read(id, bytes, done.class, done.timing, self.reads.opened());
        }
        match (done.result, slot) {
            (Ok(plane), Some(slot)) if reading => {
                self.stats.read_bytes[id.plane.index()] += plane.as_ref().len() as u64;
                slot.put(id.plane.index(), plane);
                self.residency.arrived(id);
                if let Some(device) = &mut self.device {
                    device.arrived(ExpertId { layer: id.layer, expert: id.expert });
                }
                Ok(())
            }
            (Err(error), _) => {
                if reading {
                    self.residency.failed(id);
                }
                Err(error)
            }
            _ => Ok(()),
        }
    }
}

/// Part of a budget that is left to unused buffers. Mixed levels exchange planes of one size for
/// those of another, whose memory would come in small pages, which a disk fills at half the speed.
fn spare_bytes(budget: u64, table: &ExpertTable, most: u64) -> u64 {
    most.min(budget / SPARE_SHARE).min(budget.saturating_sub(table.least_bytes()))
}
