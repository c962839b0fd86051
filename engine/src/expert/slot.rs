//! One expert's planes, and the expert that a device makes of them.

use std::sync::Arc;

use nestling_formats::{ExpertId, FeedForward as FeedForwardConfig, MatrixKind, ModelConfig};

use super::bias::ExpertBiases;
use super::source::{ExpertSource, Matrices, Scan};
use crate::backend::{Backend, Encoder, FeedForward, Linear};
use crate::error::EngineError;
use crate::reads::ArrivedPlane;
use crate::weights::{ActivationMode, MatrixWeights};

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
    /// The expert of its first planes, and how many they are.
    bound: Option<(Arc<FeedForward<B>>, usize)>,
    scan: Scan,
}

impl<B: Backend> Slot<B> {
    pub fn empty() -> Self {
        Self { planes: Default::default(), bound: None, scan: Scan::Check }
    }

    /// Puts a plane in its place.
    pub fn put(&mut self, plane: usize, bytes: ArrivedPlane) {
        self.planes[plane] = Some(Arc::new(bytes));
    }

    /// Lets go of a plane.
    pub fn drop_plane(&mut self, plane: usize) {
        self.planes[plane] = None;
        self.bound = None;
    }

    /// The expert, made of as many planes as are there, `planes` at least.
    ///
    /// # Errors
    /// Planes that do not make an expert.
    pub fn bind(
        &mut self,
        (id, planes): (ExpertId, usize),
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
        let weights = Arc::new(upload::<B>(matrices, id, maker, encoder)?);
        self.bound = Some((Arc::clone(&weights), arrived.len()));
        Ok(weights)
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

fn upload<B: Backend>(
    mut matrices: Matrices,
    id: ExpertId,
    maker: &Maker,
    encoder: &mut B::Encoder<'_>,
) -> Result<FeedForward<B>, EngineError> {
    let (hidden, intermediate) = sizes_of(&maker.config, id.layer);
    let biases = maker.biases.get(id.layer as usize).and_then(Option::as_ref);
    let [gate, up, down] = match biases.map(|biases| biases.of(id.expert)) {
        Some(biases) => biases.map(Some),
        None => [None; 3],
    };
    let mut upload = |kind, bias: Option<&[f32]>, rows, cols| -> Result<Linear<B>, EngineError> {
        // Rows that ask for more than is there are computed only where planes may be left out.
        let weights = match matrices.take(kind, (rows, cols))? {
            MatrixWeights::Nested(matrix) => MatrixWeights::Nested(matrix.at_most_held()),
            float @ MatrixWeights::Float(_) => float,
        };
        let bias = bias.map(|bias| encoder.bind_floats(bias)).transpose()?;
        Ok(Linear { matrix: encoder.bind_matrix(&weights, maker.activations)?, bias })
    };
    Ok(FeedForward {
        activation: maker.config.activation,
        gate: upload(MatrixKind::Gate, gate, intermediate, hidden)?,
        up: upload(MatrixKind::Up, up, intermediate, hidden)?,
        down: upload(MatrixKind::Down, down, hidden, intermediate)?,
    })
}
