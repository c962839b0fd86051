//! The part of the `Backend` implementation that both GPU backends share.

/// Expands to the shared items of a [`Device`](crate::Device)'s `impl` of
/// [`Backend`](nestling_core::backend::Backend): associated types, allocation, uploads, pages, states,
/// resident experts and slots. A blanket implementation is not possible, because `Backend` belongs to the
/// engine's crate and the device type to the backend's.
#[macro_export]
macro_rules! backend_items {
    () => {
        type Matrix = $crate::GpuMatrix<<Self as $crate::Device>::Weights>;
        type Buffer = $crate::GpuBuffer<Self>;
        type Routing = $crate::GpuRouting<Self>;
        type Floats = $crate::GpuFloats<Self>;
        type KvPool = $crate::GpuPages<Self>;
        type StatePool = $crate::GpuStates<Self>;
        type ExpertTable = $crate::GpuExpertTable<Self>;
        type ExpertSlots = $crate::GpuSlots<Self>;
        type Encoder<'a> = $crate::StepEncoder<'a, Self>;

        fn limits(&self) -> nestling_core::backend::BackendLimits {
            $crate::LIMITS
        }

        fn share(&self) -> nestling_core::group::RankShare {
            // Default: a backend in no group holds everything.
            self.state.ranks.as_ref().map(|link| link.share()).unwrap_or_default()
        }

        fn buffer(
            &mut self,
            rows_max: usize,
            cols: usize,
        ) -> Result<Self::Buffer, nestling_core::EngineError> {
            $crate::Device::state(self).requested.buffer(rows_max, cols);
            $crate::GpuBuffer::new(self, rows_max, cols)
        }

        fn routing(
            &mut self,
            rows_max: usize,
            per_token: usize,
        ) -> Result<Self::Routing, nestling_core::EngineError> {
            $crate::Device::state(self).requested.routing(rows_max, per_token);
            $crate::GpuRouting::new(self, rows_max, per_token)
        }

        fn kv_pool(
            &mut self,
            shape: &nestling_core::kv_cache::KvShape,
        ) -> Result<Self::KvPool, nestling_core::EngineError> {
            $crate::Device::state(self).requested.pages(*shape);
            $crate::GpuPages::new(self, *shape)
        }

        fn state_pool(
            &mut self,
            shape: &nestling_core::recurrent::StateShape,
        ) -> Result<Self::StatePool, nestling_core::EngineError> {
            $crate::Device::state(self).requested.states(*shape);
            Ok($crate::GpuStates::new(*shape))
        }

        fn upload_floats(
            &mut self,
            values: &[f32],
        ) -> Result<Self::Floats, nestling_core::EngineError> {
            $crate::GpuFloats::upload(self, $crate::Purpose::Weights, values)
        }

        fn upload_matrix(
            &mut self,
            weights: &nestling_core::weights::MatrixWeights,
            activations: nestling_core::weights::ActivationMode,
        ) -> Result<Self::Matrix, nestling_core::EngineError> {
            $crate::GpuMatrix::upload($crate::Device::recorder(self), weights, activations)
        }

        fn matrix_bytes(matrix: &Self::Matrix, level: nestling_formats::Level) -> u64 {
            matrix.levels().read_bytes(level)
        }

        fn matrix_prefix_bytes(matrix: &Self::Matrix, level: nestling_formats::Level) -> u64 {
            matrix.levels().prefix_bytes(level)
        }

        fn expert_table(
            &mut self,
            experts: &[std::sync::Arc<nestling_core::backend::FeedForward<Self>>],
        ) -> Result<Option<Self::ExpertTable>, nestling_core::EngineError> {
            // Ranks exchange the rows of experts that the host has chosen from the routing.
            if $crate::Device::state(self).ranks.is_some() {
                return Ok(None);
            }
            $crate::GpuExpertTable::resident(self, experts)
        }

        fn expert_slots(
            &mut self,
            layers: &[Option<nestling_core::backend::ExpertShape>],
            bytes: u64,
        ) -> Result<Option<Self::ExpertSlots>, nestling_core::EngineError> {
            $crate::GpuSlots::new(self, layers, bytes)
        }

        fn copy_page(
            &mut self,
            pool: &mut Self::KvPool,
            source: nestling_core::kv_cache::PageId,
            destination: nestling_core::kv_cache::PageId,
        ) -> Result<(), nestling_core::EngineError> {
            pool.copy(self, source, destination)
        }

        fn read_page(
            &mut self,
            pool: &Self::KvPool,
            page: nestling_core::kv_cache::PageId,
            out: &mut Vec<u8>,
        ) -> Result<(), nestling_core::EngineError> {
            pool.read(self, page, out)
        }

        fn write_page(
            &mut self,
            pool: &mut Self::KvPool,
            page: nestling_core::kv_cache::PageId,
            bytes: &[u8],
        ) -> Result<(), nestling_core::EngineError> {
            pool.write(self, page, bytes)
        }

        fn read_state(
            &mut self,
            pool: &Self::StatePool,
            state: nestling_core::recurrent::StateId,
            out: &mut Vec<u8>,
        ) -> Result<(), nestling_core::EngineError> {
            pool.read(self, state, out)
        }

        fn write_state(
            &mut self,
            pool: &mut Self::StatePool,
            state: nestling_core::recurrent::StateId,
            bytes: &[u8],
        ) -> Result<(), nestling_core::EngineError> {
            pool.write(self, state, bytes)
        }

        fn encoder(&mut self) -> Self::Encoder<'_> {
            let ranks = $crate::Device::state(self).ranks.clone();
            let encoder = $crate::GpuEncoder::new(self);
            let encoder = nestling_core::backend::CheckedEncoder::new(encoder);
            nestling_core::backend::RankEncoder::new(encoder, ranks)
        }

        fn take_counters(&mut self) -> nestling_core::backend::BackendCounters {
            let recorder = $crate::Device::recorder(self);
            std::mem::take(&mut $crate::CommandRecorder::meter(recorder).counts)
        }
    };
}
