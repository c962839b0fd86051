//! Feed-forward parts: dense ones, and a layer's experts.

use nestling_engine::EngineError;
use nestling_engine::backend::{FeedForward, PinnedExpert};
use nestling_formats::Level;

use super::{Tools, not_there};
use crate::backend::WgpuBackend;
use crate::memory::{WgpuBuffer, WgpuRouting};

pub(super) fn ffn(
    _tools: &mut Tools<'_>,
    (_weights, _levels): (&FeedForward<WgpuBackend>, &[Level]),
    _x: &WgpuBuffer,
    _out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    Err(not_there("ffn"))
}

pub(super) fn ffn_add(
    _tools: &mut Tools<'_>,
    (_weights, _levels): (&FeedForward<WgpuBackend>, &[Level]),
    _x: &WgpuBuffer,
    _out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    Err(not_there("ffn_add"))
}

pub(super) fn experts(
    _tools: &mut Tools<'_>,
    (_experts, _routing): (&[PinnedExpert<'_, WgpuBackend>], &WgpuRouting),
    _x: &WgpuBuffer,
    _out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    Err(not_there("experts"))
}
