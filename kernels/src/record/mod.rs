//! How operations are recorded: the parameters of their kernels, and their launches.

mod attention;
mod delta_net;
mod elementwise;
mod embed;
mod experts;
mod norms;
mod products;
mod quantize;
mod route;
mod routed;

use nestling_core::EngineError;
use nestling_gpu::{Device, GatedProducts, GpuFloats, Input, Notes, Operation, Scratch, WorkRates};

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::params;
use crate::storage::floats;

/// Bytes of gates and ups that are computed together, at most.
pub(crate) const GATE_UP_BYTES_MAX: usize = 256 << 20;

impl Device for CudaBackend {
    const GATE_UP_BYTES_MAX: u64 = GATE_UP_BYTES_MAX as u64;
    const ARGMAX_PART_COLS: usize = params::ARGMAX_PART_COLS as usize;

    fn rates(&self) -> &WorkRates {
        &self.recorder.rates
    }

    fn begin_step(&mut self, rows: usize) {
        self.recorder.begin(rows);
    }

    fn begin_operation(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.begin_operation()?)
    }

    fn scratch_memory(&mut self) -> &mut Scratch<Self> {
        &mut self.scratch
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<GpuFloats<Self>, EngineError> {
        floats(&mut self.recorder, values)
    }

    fn table(&mut self, words: &[u32]) -> Result<Address, EngineError> {
        Ok(self.recorder.table(words)?)
    }

    fn record(&mut self, operation: Operation<'_, Self>) -> Result<(), EngineError> {
        let recorder = &mut self.recorder;
        match operation {
            Operation::Scalar(of) => elementwise::scalar(recorder, &of),
            Operation::Gate(of) => elementwise::gate(recorder, &of),
            Operation::AddGated(of) => elementwise::add_gated(recorder, &of),
            Operation::GatherRows(of) => elementwise::gather_rows(recorder, &of),
            Operation::ExpertsSum(of) => elementwise::experts_sum(recorder, &of),
            Operation::Argmax(of) => elementwise::argmax(recorder, &of),
            Operation::ArgmaxMerge(of) => elementwise::argmax_merge(recorder, &of),
            Operation::RmsNorm(of) => norms::rms_norm(recorder, &of),
            Operation::NormParts(of) => norms::norm_parts(recorder, &of),
            Operation::Rope(of) => attention::rope(recorder, &of),
            Operation::StoreKeys(of) => attention::store(recorder, &of),
            Operation::Attend(of) => attention::attend(self, &of),
            Operation::Route(of) => route::route(recorder, &of),
            Operation::Embed(of) => embed::embed(recorder, &of),
            Operation::Quantize(of) => quantize::quantize(recorder, &of),
            Operation::Gated(of) => experts::gated(recorder, &of),
            Operation::Products(of) => products::products(recorder, &of),
            Operation::HeadsRest(of) => products::heads_rest(recorder, &of),
            Operation::DeltaNet(of) => delta_net::delta_net(self, of),
            Operation::RoutedExperts(of) => routed::experts(self, &of),
        }
    }

    fn record_gated(
        &mut self,
        products: &GatedProducts<'_, Self>,
    ) -> Result<Option<Input<Address>>, EngineError> {
        experts::gated_products(self, products)
    }

    fn write(&mut self, bytes: &[u8], to: &Address, offset: u64) -> Result<(), EngineError> {
        Ok(self.recorder.write(bytes, to + offset)?)
    }

    fn restore(&mut self, bytes: &[u8], to: &Address) -> Result<(), EngineError> {
        self.recorder.write(bytes, *to)?;
        Ok(self.recorder.submit()?)
    }

    fn copy(&mut self, from: &Address, to: &Address, bytes: u64) -> Result<(), EngineError> {
        Ok(self.recorder.copy(*from, *to, bytes)?)
    }

    fn submit(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.submit()?)
    }

    fn read(
        &mut self,
        parts: &[(Address, u64)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), EngineError> {
        let parts = parts.iter().map(|(address, bytes)| (*address, *bytes as usize));
        Ok(self.recorder.read(&parts.collect::<Vec<_>>(), take)?)
    }

    fn finish(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.finish()?)
    }

    fn discard(&mut self) {
        self.recorder.discard();
    }

    fn resume(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.resume()?)
    }

    fn miss_flag(&self) -> Address {
        self.recorder.halt()
    }

    fn notes(&mut self) -> &mut Notes<Self> {
        &mut self.notes
    }
}
