//! How operations are recorded: the parameters of their shaders, and their dispatches.

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

use crate::backend::WgpuBackend;
use crate::recorder::Binding;
use crate::storage::floats;

pub(crate) use attention::parts_bytes_max;
pub(crate) use elementwise::ARGMAX_PART_COLS;

/// Bytes of gates and ups that are computed together, at most.
pub(crate) const GATE_UP_BYTES_MAX: u64 = 64 << 20;

impl Device for WgpuBackend {
    const GATE_UP_BYTES_MAX: u64 = GATE_UP_BYTES_MAX;
    const ARGMAX_PART_COLS: usize = ARGMAX_PART_COLS;

    fn rates(&self) -> &WorkRates {
        &self.recorder.rates
    }

    fn begin_step(&mut self, _rows: usize) {}

    fn begin_operation(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    fn scratch_memory(&mut self) -> &mut Scratch<Self> {
        &mut self.scratch
    }

    fn bind_floats(&mut self, values: &[f32]) -> Result<GpuFloats<Self>, EngineError> {
        floats(&self.gpu, &self.recorder.late_slabs, values)
    }

    fn table(&mut self, words: &[u32]) -> Result<Binding, EngineError> {
        Ok(self.recorder.table(words)?)
    }

    fn record(&mut self, operation: Operation<'_, Self>) -> Result<(), EngineError> {
        match operation {
            Operation::Scalar(scalar) => elementwise::scalar(self, &scalar),
            Operation::Gate(gate) => elementwise::gate(self, &gate),
            Operation::AddGated(add) => elementwise::add_gated(self, &add),
            Operation::GatherRows(gather) => elementwise::gather_rows(self, &gather),
            Operation::ExpertsSum(sum) => elementwise::experts_sum(self, &sum),
            Operation::Argmax(argmax) => elementwise::argmax(self, &argmax),
            Operation::ArgmaxMerge(merge) => elementwise::argmax_merge(self, &merge),
            Operation::RmsNorm(norm) => norms::rms_norm(self, &norm),
            Operation::NormParts(parts) => norms::norm_parts(self, &parts),
            Operation::Rope(rope) => attention::rope(self, &rope),
            Operation::StoreKeys(store) => attention::store(self, &store),
            Operation::Attend(attend) => attention::attend(self, &attend),
            Operation::Route(route) => route::route(self, &route),
            Operation::Embed(embed) => embed::embed(self, &embed),
            Operation::Quantize(quantize) => quantize::quantize(self, &quantize),
            Operation::Gated(gated) => experts::gated(self, &gated),
            Operation::Products(all) => products::products(self, &all),
            Operation::HeadsRest(rest) => products::heads_rest(self, &rest),
            Operation::DeltaNet(runs) => delta_net::delta_net(self, runs),
            Operation::RoutedExperts(experts) => routed::experts(self, &experts),
        }
    }

    fn record_gated(
        &mut self,
        _products: &GatedProducts<'_, Self>,
    ) -> Result<Option<Input<Binding>>, EngineError> {
        Ok(None)
    }

    fn write(&mut self, bytes: &[u8], to: &Binding, offset: u64) -> Result<(), EngineError> {
        Ok(self.recorder.write(bytes, &to.buffer, to.offset + offset)?)
    }

    fn restore(&mut self, bytes: &[u8], to: &Binding) -> Result<(), EngineError> {
        self.recorder.submit()?;
        self.gpu.write(&to.buffer, to.offset, bytes);
        Ok(self.recorder.submit()?)
    }

    fn copy(&mut self, from: &Binding, to: &Binding, bytes: u64) -> Result<(), EngineError> {
        let recorder = &mut self.recorder;
        if from.buffer == to.buffer {
            // A copy within one buffer goes by way of another.
            let between = self.gpu.buffer("a copy", bytes)?;
            recorder.copy(&from.buffer, from.offset, &between, 0, bytes);
            recorder.copy(&between, 0, &to.buffer, to.offset, bytes);
        } else {
            recorder.copy(&from.buffer, from.offset, &to.buffer, to.offset, bytes);
        }
        Ok(())
    }

    fn submit(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.submit()?)
    }

    fn read(
        &mut self,
        parts: &[(Binding, u64)],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), EngineError> {
        let parts = parts.iter().map(|(binding, bytes)| (&binding.buffer, binding.offset, *bytes));
        Ok(self.recorder.read(&parts.collect::<Vec<_>>(), take)?)
    }

    fn finish(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.submit()?)
    }

    fn discard(&mut self) {
        self.recorder.discard();
    }

    fn resume(&mut self) -> Result<(), EngineError> {
        Ok(self.recorder.resume()?)
    }

    fn miss_flag(&self) -> Binding {
        Binding::from(&self.recorder.halt)
    }

    fn notes(&mut self) -> &mut Notes<Self> {
        &mut self.notes
    }
}
