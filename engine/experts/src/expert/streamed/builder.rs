//! Construction of device experts from planes.

use std::sync::Arc;

use nestling_formats::{ExpertId, MatrixKind};
use nestling_import::{FeedForward as FeedForwardConfig, ModelConfig};

use crate::expert::bias::expert_biases;
use crate::expert::source::ExpertSource;
use crate::expert::store::{Matrices, StoreSource};
use nestling_core::backend::{
    Backend, BindWeights, ExpertBiases, FeedForward, Linear, SlotMemory, SlotPlace,
};
use nestling_core::error::EngineError;
use nestling_core::weights::{ActivationMode, MatrixWeights};

pub(super) struct ExpertBuilder {
    source: Arc<StoreSource>,
    activations: ActivationMode,
    biases: Vec<Option<ExpertBiases>>, // [layers]
}

impl ExpertBuilder {
    /// Creates a builder for the planes of a store.
    ///
    /// # Errors
    /// Returns an error if biases cannot be read or do not have the configured size.
    pub fn new(source: Arc<StoreSource>, activations: ActivationMode) -> Result<Self, EngineError> {
        let layers = 0..source.config().layers.len() as u32;
        let biases = layers.map(|layer| expert_biases(&*source, layer));
        let biases = biases.collect::<Result<_, _>>()?;
        Ok(Self { source, activations, biases })
    }

    pub fn source(&self) -> &StoreSource {
        &self.source
    }

    pub fn config(&self) -> &ModelConfig {
        self.source.config()
    }

    pub fn activations(&self) -> ActivationMode {
        self.activations
    }

    pub fn biases(&self) -> &[Option<ExpertBiases>] {
        &self.biases
    }

    /// Builds an expert from matrices, in memory that the device chooses.
    ///
    /// # Errors
    /// Returns an error if a matrix is missing or has another size, or the device fails.
    pub fn bind<B: Backend>(
        &self,
        id: ExpertId,
        matrices: Matrices,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<FeedForward<B>, EngineError> {
        let activations = self.activations;
        self.build::<B>(id, matrices, encoder, |weights, _, encoder| {
            // Rows may request a level above the planes available only if late planes may be left out.
            let weights = match weights {
                MatrixWeights::Nested(matrix) => MatrixWeights::Nested(matrix.at_most_held()),
                float @ MatrixWeights::Float(_) => float,
            };
            encoder.bind_matrix(&weights, activations)
        })
    }

    /// Builds an expert from matrices, in a slot of device memory.
    ///
    /// # Errors
    /// Same errors as [`ExpertBuilder::bind`].
    pub fn place<B: Backend>(
        &self,
        id: ExpertId,
        matrices: Matrices,
        slot: usize,
        slots: &mut B::ExpertSlots,
        encoder: &mut B::Encoder<'_>,
    ) -> Result<FeedForward<B>, EngineError> {
        let (activations, layer) = (self.activations, id.layer as usize);
        self.build::<B>(id, matrices, encoder, |weights, matrix, encoder| {
            let place = SlotPlace { slot, layer, matrix };
            slots.place_matrix(encoder, place, &weights, activations)
        })
    }

    fn build<B: Backend>(
        &self,
        id: ExpertId,
        mut matrices: Matrices,
        encoder: &mut B::Encoder<'_>,
        mut bind: impl FnMut(
            MatrixWeights,
            usize,
            &mut B::Encoder<'_>,
        ) -> Result<B::Matrix, EngineError>,
    ) -> Result<FeedForward<B>, EngineError> {
        let config = self.source.config();
        let (hidden, intermediate) = sizes_of(config, id.layer);
        let biases = self.biases.get(id.layer as usize).and_then(Option::as_ref);
        let [gate, up, down] = match biases.map(|biases| biases.of(id.expert)) {
            Some(biases) => biases.map(Some),
            None => [None; 3],
        };
        let mut next = |kind, number, bias: Option<&[f32]>, rows, cols| {
            let weights = matrices.take(kind, rows, cols)?;
            let bias = bias.map(|bias| encoder.bind_floats(bias)).transpose()?;
            Ok::<_, EngineError>(Linear::new(bind(weights, number, encoder)?, bias))
        };
        Ok(FeedForward {
            activation: config.activation,
            gate: match config.activation.has_gate() {
                true => Some(next(MatrixKind::Gate, 0, gate, intermediate, hidden)?),
                false => None,
            },
            up: next(MatrixKind::Up, 1, up, intermediate, hidden)?,
            down: next(MatrixKind::Down, 2, down, hidden, intermediate)?,
        })
    }
}

fn sizes_of(config: &ModelConfig, layer: u32) -> (usize, usize) {
    let feed_forward = config.layers.get(layer as usize).map(|layer| layer.feed_forward);
    let intermediate = match feed_forward {
        Some(FeedForwardConfig::Moe { moe_intermediate_size, .. }) => moe_intermediate_size,
        _ => 0,
    };
    (config.hidden_size, intermediate)
}
