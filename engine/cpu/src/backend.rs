//! Backend implementation for the CPU.

use nestling_formats::Level;
use nestling_formats::memory::try_to_vec;

use super::conv_rows::CONV_TAPS_MAX;
use super::device::Cpu;
use super::encoder::CpuEncoder;
use super::matrix::{CpuBuffer, CpuMatrix};
use super::pages::CpuPool;
use super::states::CpuStates;
use nestling_core::backend::{
    Backend, BackendLimits, CheckedEncoder, NoSlots, NoTable, RankEncoder, Routing,
};
use nestling_core::error::EngineError;
use nestling_core::group::RankShare;
use nestling_core::kv_cache::{KvShape, PageId};
use nestling_core::recurrent::{StateId, StateShape};
use nestling_core::weights::{ActivationMode, MatrixWeights};

impl Backend for Cpu {
    type Buffer = CpuBuffer;
    type Routing = Routing;
    type Floats = Vec<f32>;
    type Matrix = CpuMatrix;
    type KvPool = CpuPool;
    type StatePool = CpuStates;
    type ExpertTable = NoTable;
    type ExpertSlots = NoSlots;
    type Encoder<'a> = RankEncoder<CheckedEncoder<CpuEncoder<'a>>>;

    const PAGE_KIND: u8 = 0;
    const WEIGHTS_IN_PLACE: bool = true;

    fn name(&self) -> String {
        format!("CPU, {}, {} threads", self.team.kernels.name(), self.team.pool.threads())
    }

    fn limits(&self) -> BackendLimits {
        BackendLimits {
            num_experts_max: usize::MAX,
            num_experts_per_tok_max: usize::MAX,
            head_dim_max: usize::MAX,
            rows_max: usize::MAX,
            conv_taps_max: CONV_TAPS_MAX,
        }
    }

    fn share(&self) -> RankShare {
        // Default: a backend without other ranks holds everything.
        self.ranks.as_ref().map_or_else(RankShare::default, |ranks| ranks.share())
    }

    fn buffer(&mut self, rows_max: usize, cols: usize) -> Result<CpuBuffer, EngineError> {
        // Memory is allocated when rows first arrive.
        let _ = rows_max;
        Ok(CpuBuffer::empty(cols))
    }

    fn routing(&mut self, _rows: usize, per_token: usize) -> Result<Routing, EngineError> {
        Ok(Routing { num_experts_per_tok: per_token, ..Routing::default() })
    }

    fn upload_floats(&mut self, values: &[f32]) -> Result<Vec<f32>, EngineError> {
        Ok(try_to_vec("a vector of weights", values)?)
    }

    fn upload_matrix(
        &mut self,
        weights: &MatrixWeights,
        activations: ActivationMode,
    ) -> Result<CpuMatrix, EngineError> {
        let tables = match weights {
            MatrixWeights::Nested(matrix) => Some(self.tables(matrix.codec())?),
            MatrixWeights::Float(_) => None,
        };
        Ok(CpuMatrix { weights: weights.clone(), activations, tables })
    }

    fn matrix_bytes(matrix: &CpuMatrix, level: Level) -> u64 {
        matrix.weights.read_bytes(level)
    }

    fn matrix_prefix_bytes(matrix: &CpuMatrix, level: Level) -> u64 {
        matrix.weights.prefix_bytes(level)
    }

    fn kv_pool(&mut self, shape: &KvShape) -> Result<CpuPool, EngineError> {
        Ok(CpuPool::new(*shape))
    }

    fn copy_page(
        &mut self,
        pool: &mut CpuPool,
        source: PageId,
        destination: PageId,
    ) -> Result<(), EngineError> {
        pool.copy(source, destination)
    }

    fn read_page(
        &mut self,
        pool: &CpuPool,
        page: PageId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        pool.read(page, out)
    }

    fn write_page(
        &mut self,
        pool: &mut CpuPool,
        page: PageId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        pool.write(page, bytes)
    }

    fn state_pool(&mut self, shape: &StateShape) -> Result<CpuStates, EngineError> {
        Ok(CpuStates::new(*shape))
    }

    fn read_state(
        &mut self,
        pool: &CpuStates,
        state: StateId,
        out: &mut Vec<u8>,
    ) -> Result<(), EngineError> {
        pool.read(state, out)
    }

    fn write_state(
        &mut self,
        pool: &mut CpuStates,
        state: StateId,
        bytes: &[u8],
    ) -> Result<(), EngineError> {
        pool.write(state, bytes)
    }

    fn encoder(&mut self) -> Self::Encoder<'_> {
        let ranks = self.ranks.clone();
        RankEncoder::new(CheckedEncoder::new(CpuEncoder { cpu: self }), ranks)
    }
}
