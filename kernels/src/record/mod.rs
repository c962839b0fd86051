//! Recording of operations: kernel parameters and launches.

mod attention;
mod delta_net;
mod elementwise;
mod embed;
mod experts;
mod mamba2;
mod norms;
mod products;
mod quantize;
mod route;
mod routed;
mod short_conv;
mod state_runs;

use nestling_core::EngineError;
use nestling_gpu::{
    Device, EncoderState, FindExperts, FoundExperts, GatedProducts, Input, Operation,
};

use crate::backend::CudaBackend;
use crate::driver::Address;
use crate::found_blocks::FoundBlocks;
use crate::matrix::CudaWeights;
use crate::params;
use crate::recorder::Recorder;

/// Maximum size of gates and ups that are computed together, in bytes.
pub(crate) const GATE_UP_BYTES_MAX: u64 = 256 << 20;

impl Device for CudaBackend {
    type Recorder = Recorder;
    type Weights = CudaWeights;

    const GATE_UP_BYTES_MAX: u64 = GATE_UP_BYTES_MAX;
    const ARGMAX_PART_COLS: usize = params::ARGMAX_PART_COLS as usize;

    fn recorder(&mut self) -> &mut Recorder {
        &mut self.recorder
    }

    fn state(&mut self) -> &mut EncoderState<Self> {
        &mut self.state
    }

    fn find_experts(
        &mut self,
        find: &FindExperts<'_, Self>,
    ) -> Result<FoundExperts<FoundBlocks>, EngineError> {
        routed::find(self, find)
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
            Operation::ShortConv(of) => short_conv::short_conv(self, of),
            Operation::Mamba2(of) => mamba2::mamba2(self, of),
            Operation::FoundProducts(of) => routed::multiply(recorder, &of),
        }
    }

    fn record_gated(
        &mut self,
        products: &GatedProducts<'_, Self>,
    ) -> Result<Option<Input<Address>>, EngineError> {
        experts::gated_products(self, products)
    }
}
