//! What both GPU backends are to the engine in the same way.

/// The items of [`Backend`](nestling_core::backend::Backend) that a [`Device`](crate::Device) has from this
/// crate, for the body of its `impl`: the types of what lies in device memory, and what is done with pages,
/// states, resident experts and slots. A trait cannot give them: the engine's crate owns `Backend`, and a device its
/// own type.
#[macro_export]
macro_rules! backend_items {
    () => {
        type Buffer = $crate::GpuBuffer<Self>;
        type Routing = $crate::GpuRouting<Self>;
        type Floats = $crate::GpuFloats<Self>;
        type KvPool = $crate::GpuPages<Self>;
        type StatePool = $crate::GpuStates<Self>;
        type ExpertTable = $crate::GpuExpertTable<Self>;
        type ExpertSlots = $crate::GpuSlots<Self>;
        type Encoder<'a> = nestling_core::backend::Checked<$crate::GpuEncoder<'a, Self>>;

        fn limits(&self) -> nestling_core::backend::BackendLimits {
            $crate::LIMITS
        }

        fn matrix_bytes(matrix: &Self::Matrix, level: nestling_formats::Level) -> u64 {
            $crate::DeviceMatrix::levels(matrix).read_bytes(level)
        }

        fn matrix_prefix_bytes(matrix: &Self::Matrix, level: nestling_formats::Level) -> u64 {
            $crate::DeviceMatrix::levels(matrix).prefix_bytes(level)
        }

        fn expert_table(
            &mut self,
            experts: &[std::sync::Arc<nestling_core::backend::FeedForward<Self>>],
        ) -> Result<Option<Self::ExpertTable>, nestling_core::EngineError> {
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
            nestling_core::backend::Checked::new($crate::GpuEncoder::new(self))
        }

        fn take_counters(&mut self) -> nestling_core::backend::BackendCounters {
            std::mem::take(&mut self.recorder.counts)
        }
    };
}
