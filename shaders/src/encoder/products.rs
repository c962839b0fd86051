//! Products with matrices, and rows of them.

use nestling_engine::EngineError;
use nestling_engine::backend::{HeadMatrices, Linear};
use nestling_engine::batch::StepRows;
use nestling_formats::Level;

use super::{Tools, not_there};
use crate::backend::WgpuBackend;
use crate::matrix::WgpuMatrix;
use crate::memory::WgpuBuffer;

pub(super) fn embed(
    _tools: &mut Tools<'_>,
    _table: &WgpuMatrix,
    _rows: &StepRows,
    _out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    Err(not_there("embed"))
}

pub(super) fn matmul(
    _tools: &mut Tools<'_>,
    (_weights, _levels): (&[Linear<WgpuBackend>], &[Level]),
    _x: &WgpuBuffer,
    _out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    Err(not_there("matmul"))
}

pub(super) fn matmul_add(
    _tools: &mut Tools<'_>,
    (_weights, _levels): (&Linear<WgpuBackend>, &[Level]),
    _x: &WgpuBuffer,
    _out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    Err(not_there("matmul_add"))
}

pub(super) fn matmul_heads(
    _tools: &mut Tools<'_>,
    (_weights, _levels): (&HeadMatrices<WgpuBackend>, &[Level]),
    _x: &WgpuBuffer,
    _out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    Err(not_there("matmul_heads"))
}

/// `out = W x` with float activations, whatever the mode of the matrix, at its highest level: the
/// logits of a router.
pub(super) fn multiply_float(
    _tools: &mut Tools<'_>,
    _weights: &WgpuMatrix,
    _x: &WgpuBuffer,
    _out: &mut WgpuBuffer,
) -> Result<(), EngineError> {
    Err(not_there("route"))
}
