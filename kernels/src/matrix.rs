//! Weight matrices in memory of the device.

use nestling_engine::EngineError;
use nestling_engine::weights::{ActivationMode, MatrixWeights};
use nestling_formats::Level;

use crate::memory::word;
use crate::recorder::Recorder;
use crate::slabs::Place;

/// Weights with the way to multiply them.
pub struct CudaMatrix {
    levels: [HeldLevel; 5],
    /// What its kernels read.
    _planes: Vec<Place>,
}

/// What a level of the model means for a matrix.
#[derive(Clone, Copy, Debug)]
struct HeldLevel {
    read_bytes: u64,
    prefix_bytes: u64,
}

impl CudaMatrix {
    /// Uploads a matrix, for whatever is recorded from now on.
    ///
    /// # Errors
    /// A device whose memory is full; weights in a form that no kernel reads.
    pub(crate) fn new(
        recorder: &mut Recorder,
        weights: &MatrixWeights,
        _activations: ActivationMode,
    ) -> Result<Self, EngineError> {
        // Kernels count in 32 bits.
        word("elements of a row", weights.cols())?;
        word("rows of a matrix", weights.rows())?;
        let planes = match weights {
            MatrixWeights::Float(matrix) => vec![recorder.upload(matrix.bytes())?],
            MatrixWeights::Nested(matrix) => {
                let planes = matrix.regions().planes();
                let all =
                    [Some(planes.p2), planes.p34.or(planes.p3), planes.p4, planes.p6, planes.p8];
                let uploaded = all.into_iter().flatten().map(|plane| recorder.upload(plane));
                uploaded.collect::<Result<_, _>>()?
            }
            _ => return Err(EngineError::mismatch("matrix", "floats or the nested code", "other")),
        };
        let levels = Level::ALL.map(|level| HeldLevel {
            read_bytes: weights.read_bytes(level),
            prefix_bytes: weights.prefix_bytes(level),
        });
        Ok(Self { levels, _planes: planes })
    }

    pub(crate) fn read_bytes(&self, level: Level) -> u64 {
        self.levels[level.index()].read_bytes
    }

    pub(crate) fn prefix_bytes(&self, level: Level) -> u64 {
        self.levels[level.index()].prefix_bytes
    }
}
