//! Recording of operations: shader parameters and dispatches.

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

use crate::backend::WgpuBackend;
use crate::found_blocks::FoundBlocks;
use crate::matrix::WgpuWeights;
use crate::recorder::{Binding, Recorder};

pub(crate) use attention::parts_bytes_max;
pub(crate) use elementwise::ARGMAX_PART_COLS;

/// Maximum size of gates and ups that are computed together, in bytes.
pub(crate) const GATE_UP_BYTES_MAX: u64 = 64 << 20;

impl Device for WgpuBackend {
    type Recorder = Recorder;
    type Weights = WgpuWeights;

    const GATE_UP_BYTES_MAX: u64 = GATE_UP_BYTES_MAX;
    const ARGMAX_PART_COLS: usize = ARGMAX_PART_COLS;

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
            Operation::ShortConv(runs) => short_conv::short_conv(self, runs),
            Operation::Mamba2(runs) => mamba2::mamba2(self, runs),
            Operation::FoundProducts(found) => routed::multiply(self, &found),
        }
    }

    fn record_gated(
        &mut self,
        _products: &GatedProducts<'_, Self>,
    ) -> Result<Option<Input<Binding>>, EngineError> {
        Ok(None)
    }
}
