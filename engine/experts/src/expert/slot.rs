//! One expert's planes, and the expert that a device makes of them.

use std::sync::Arc;

use nestling_formats::store::GroupId;
use nestling_formats::{ExpertId, MatrixKind, Plane};
use nestling_import::{FeedForward as FeedForwardConfig, ModelConfig};

use super::device_slots::DeviceSlots;
use super::source::{ExpertSource, Matrices, Scan};
use crate::reads::ArrivedPlane;
use nestling_core::backend::ExpertBiases;
use nestling_core::backend::{
    Backend, BindWeights, FeedForward, Linear, PlanePart, SlotMemory, SlotPlace,
};
use nestling_core::error::EngineError;
use nestling_core::weights::{ActivationMode, MatrixWeights};

/// What experts are made with.
pub(super) struct Maker {
    pub source: Arc<dyn ExpertSource>,
    pub config: ModelConfig,
    pub activations: ActivationMode,
    /// Biases of each layer's experts.
    pub biases: Vec<Option<ExpertBiases>>, // [layers]
}

/// One expert's planes, and the expert made of them.
pub(super) struct Slot<B: Backend> {
    planes: [Option<Arc<ArrivedPlane>>; 5],
    /// The expert of its first planes, and how many they are. A device has these in its own memory,
    /// and they are not in `planes` any more.
    bound: Option<(Arc<FeedForward<B>>, usize)>,
    /// Where that is.
    place: Option<usize>,
    scan: Scan,
}

impl<B: Backend> Slot<B> {
    pub fn empty() -> Self {
        Self { planes: Default::default(), bound: None, place: None, scan: Scan::Check }
    }

    /// Puts a plane in its place.
    pub fn put(&mut self, plane: usize, bytes: ArrivedPlane) {
        self.planes[plane] = Some(Arc::new(bytes));
    }

    /// Lets go of a plane; gives the place in memory of a device that nothing is in any more.
    pub fn drop_plane(&mut self, plane: usize) -> Option<usize> {
        self.planes[plane] = None;
        if self.place.is_none() || plane == 0 {
            self.bound = None;
            return self.place.take();
        }
        if let Some((_, held)) = &mut self.bound {
            *held = plane.min(*held);
        }
        None
    }

    /// The place in memory of a device.
    pub fn place(&self) -> Option<usize> {
        self.place
    }

    /// The expert is in a place in memory of a device, made of so many planes.
    pub fn moved_in(&mut self, place: usize, weights: FeedForward<B>, planes: usize) {
        self.scan = Scan::Known;
        self.place = Some(place);
        self.bound = Some((Arc::new(weights), planes));
    }

    /// Whether a plane has arrived that could be put into a device's slot.
    pub fn has_arrived(&self) -> bool {
        let held = self.bound.as_ref().map_or(0, |(_, held)| *held);
        self.planes.get(held).is_some_and(Option::is_some)
    }

    /// The expert as it is, and how many planes it was made of.
    pub fn bound(&self) -> Option<(&Arc<FeedForward<B>>, usize)> {
        self.bound.as_ref().map(|(weights, held)| (weights, *held))
    }

    /// The expert, made of as many planes as are there, `planes` at least.
    ///
    /// # Errors
    /// Planes that do not make an expert.
    pub fn bind(
        &mut self,
        id: ExpertId,
        planes: usize,
        maker: &Maker,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<Arc<FeedForward<B>>, EngineError> {
        if let Some((weights, held)) = &self.bound
            && *held >= planes
        {
            return Ok(Arc::clone(weights));
        }
        let arrived = self.prefix();
        let matrices = maker.source.bind_expert(id, &arrived, self.scan)?;
        self.scan = Scan::Known;
        let weights = Upload { maker, id, encoder, slot: None }.expert(matrices)?;
        let weights = Arc::new(weights);
        self.bound = Some((Arc::clone(&weights), arrived.len()));
        Ok(weights)
    }

    /// The expert in a slot of a device, with all planes that have arrived, which the host forgets.
    ///
    /// # Errors
    /// Planes that do not make an expert; no slot; a failed device.
    pub fn put_in_place(
        &mut self,
        id: ExpertId,
        maker: &Maker,
        device: &mut DeviceSlots<B>,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<Arc<FeedForward<B>>, EngineError> {
        if self.bound.is_none() {
            let first: Vec<_> = self.planes[0].iter().cloned().collect();
            let matrices = maker.source.bind_expert(id, &first, self.scan)?;
            self.scan = Scan::Known;
            let place = self.place.map_or_else(|| device.take(), Ok)?;
            self.place = Some(place);
            let mut upload = Upload { maker, id, encoder, slot: Some((device, place)) };
            self.bound = Some((Arc::new(upload.expert(matrices)?), 1));
            self.planes[0] = None;
        }
        let missing = || EngineError::mismatch(GroupId::Expert(id).to_string(), "unused", "in use");
        let (weights, held) = self.bound.as_mut().ok_or_else(missing)?;
        while let Some(Some(arrived)) = self.planes.get(*held) {
            let expert = Arc::get_mut(weights).ok_or_else(missing)?;
            let parts = maker.source.plane_parts(id, Plane::ALL[*held])?;
            for PlanePart { matrix, plane, range } in parts {
                let part = || format!("{plane:?} of {}", GroupId::Expert(id));
                let short = || EngineError::mismatch(part(), "all of its bytes", "fewer");
                let bytes = (**arrived).as_ref().get(range).ok_or_else(short)?;
                let linear = match matrix {
                    MatrixKind::Gate => &mut expert.gate,
                    MatrixKind::Up => &mut expert.up,
                    _ => &mut expert.down,
                };
                device.slots.add_plane(encoder, &mut linear.matrix, plane, bytes)?;
            }
            self.planes[*held] = None;
            *held += 1;
        }
        Ok(Arc::clone(weights))
    }

    /// The planes that are there, from the first on.
    fn prefix(&self) -> Vec<Arc<ArrivedPlane>> {
        self.planes.iter().map_while(Clone::clone).collect()
    }
}

/// Hidden and intermediate size of a layer's experts.
fn sizes_of(config: &ModelConfig, layer: u32) -> (usize, usize) {
    let feed_forward = config.layers.get(layer as usize).map(|layer| layer.feed_forward);
    let intermediate = match feed_forward {
        Some(FeedForwardConfig::Moe { moe_intermediate_size, .. }) => moe_intermediate_size,
        _ => 0,
    };
    (config.hidden_size, intermediate)
}

/// Gives an expert's matrices to a device.
pub(super) struct Upload<'a, 'b, B: Backend> {
    pub maker: &'a Maker,
    pub id: ExpertId,
    pub encoder: &'a mut B::Encoder<'b>,
    /// Its slot there, if it has slots.
    pub slot: Option<(&'a mut DeviceSlots<B>, usize)>,
}

impl<B: Backend> Upload<'_, '_, B> {
    pub fn expert(&mut self, mut matrices: Matrices) -> Result<FeedForward<B>, EngineError> {
        let (maker, id) = (self.maker, self.id);
        let (hidden, intermediate) = sizes_of(&maker.config, id.layer);
        let biases = maker.biases.get(id.layer as usize).and_then(Option::as_ref);
        let [gate, up, down] = match biases.map(|biases| biases.of(id.expert)) {
            Some(biases) => biases.map(Some),
            None => [None; 3],
        };
        let mut next = |(kind, place), bias, (rows, cols)| {
            self.linear(matrices.take(kind, rows, cols)?, place, bias)
        };
        Ok(FeedForward {
            activation: maker.config.activation,
            gate: next((MatrixKind::Gate, 0), gate, (intermediate, hidden))?,
            up: next((MatrixKind::Up, 1), up, (intermediate, hidden))?,
            down: next((MatrixKind::Down, 2), down, (hidden, intermediate))?,
        })
    }

    fn linear(
        &mut self,
        weights: MatrixWeights,
        matrix: usize,
        bias: Option<&[f32]>,
    ) -> Result<Linear<B>, EngineError> {
        let bias = bias.map(|bias| self.encoder.bind_floats(bias)).transpose()?;
        let activations = self.maker.activations;
        let matrix = match &mut self.slot {
            Some((device, slot)) => {
                let place = SlotPlace { slot: *slot, layer: self.id.layer as usize, matrix };
                device.slots.place_matrix(self.encoder, place, &weights, activations)?
            }
            None => {
                // Rows that ask for more than is there are computed only where planes may be left
                // out.
                let weights = match weights {
                    MatrixWeights::Nested(matrix) => MatrixWeights::Nested(matrix.at_most_held()),
                    float @ MatrixWeights::Float(_) => float,
                };
                self.encoder.bind_matrix(&weights, activations)?
            }
        };
        Ok(Linear { matrix, bias })
    }
}
