//! Kinds of matrices and float tensors, by the codes that stores hold.

use crate::matrix::{FloatKind, MatrixKind};

/// Returns the matrix kind with a code.
pub(super) fn matrix_kind(code: u8) -> Option<MatrixKind> {
    MATRIX_KINDS.into_iter().find(|kind| *kind as u8 == code)
}

/// Returns the float kind with a code.
pub(super) fn float_kind(code: u8) -> Option<FloatKind> {
    FLOAT_KINDS.into_iter().find(|kind| *kind as u8 == code)
}

/// All matrix kinds.
pub(super) const MATRIX_KINDS: [MatrixKind; 23] = [
    MatrixKind::Embedding,
    MatrixKind::Head,
    MatrixKind::Query,
    MatrixKind::Key,
    MatrixKind::Value,
    MatrixKind::Output,
    MatrixKind::Gate,
    MatrixKind::Up,
    MatrixKind::Down,
    MatrixKind::QueryGate,
    MatrixKind::QueryDown,
    MatrixKind::QueryUp,
    MatrixKind::LatentDown,
    MatrixKind::KeyUp,
    MatrixKind::ValueUp,
    MatrixKind::DeltaIn,
    MatrixKind::DeltaGate,
    MatrixKind::DeltaBetaDecay,
    MatrixKind::DeltaOut,
    MatrixKind::ShortConvIn,
    MatrixKind::ShortConvOut,
    MatrixKind::Mamba2In,
    MatrixKind::Mamba2Out,
];

/// All float kinds.
pub(super) const FLOAT_KINDS: [FloatKind; 43] = [
    FloatKind::FinalNorm,
    FloatKind::AttentionNorm,
    FloatKind::FeedForwardNorm,
    FloatKind::QueryNorm,
    FloatKind::KeyNorm,
    FloatKind::Router,
    FloatKind::QueryBias,
    FloatKind::KeyBias,
    FloatKind::ValueBias,
    FloatKind::OutputBias,
    FloatKind::SharedGate,
    FloatKind::RouterBias,
    FloatKind::RouterLogitBias,
    FloatKind::Sinks,
    FloatKind::ExpertGateBias,
    FloatKind::ExpertUpBias,
    FloatKind::ExpertDownBias,
    FloatKind::QueryLatentNorm,
    FloatKind::LatentNorm,
    FloatKind::DeltaConv,
    FloatKind::DeltaDecay,
    FloatKind::DeltaTimeBias,
    FloatKind::DeltaNorm,
    FloatKind::RouterInputScale,
    FloatKind::ExpertScale,
    FloatKind::PostAttentionNorm,
    FloatKind::PostFeedForwardNorm,
    FloatKind::PostSharedNorm,
    FloatKind::PreExpertNorm,
    FloatKind::PostExpertNorm,
    FloatKind::LayerScalar,
    FloatKind::ShortConvTaps,
    FloatKind::ShortConvBias,
    FloatKind::ShortConvInBias,
    FloatKind::ShortConvOutBias,
    FloatKind::Mamba2Conv,
    FloatKind::Mamba2ConvBias,
    FloatKind::Mamba2InBias,
    FloatKind::Mamba2OutBias,
    FloatKind::Mamba2Decay,
    FloatKind::Mamba2TimeBias,
    FloatKind::Mamba2Skip,
    FloatKind::Mamba2Norm,
];
