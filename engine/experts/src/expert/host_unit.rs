//! The processor beside a device: what it is given of a layer, and how it computes that.

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::ExpertId;

use super::host_rule::{HostExperts, HostRule, HostSpeeds};
use nestling_core::backend::{
    Backend, Encoder, ExpertUse, FeedForward, HostLink, PinnedExpert, Routing,
};
use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use nestling_core::recycle::recycle;
use nestling_cpu::bandwidth::read_bandwidth;
use nestling_cpu::kernels::Kernels;
use nestling_cpu::threads::ThreadPool;
use nestling_cpu::{Cpu, CpuBuffer};

/// Bytes that the speed of memory is measured with where the processor has not computed yet.
const MEASURED_BYTES: usize = 64 << 20;

/// How the processor takes part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostOptions {
    /// Which experts it computes.
    pub experts: HostExperts,
    /// With so many threads.
    pub threads: usize,
}

impl Default for HostOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { experts: HostExperts::default(), threads }
    }
}

/// The processor, and what it is given of the layer under way.
pub(super) struct HostUnit {
    pub rule: HostRule,
    pub cpu: Cpu,
    pub work: Vec<HostWork>,
    /// What the experts are computed from and what they give, `[T, D]` and `[T * K, D]`.
    inputs: CpuBuffer,
    outputs: CpuBuffer,
    /// Only its sizes are looked at.
    routing: Routing,
    /// Rows of `outputs` that were computed, and their values one after another.
    pub rows: Vec<u32>,
    pub values: Vec<f32>,
    pinned: Vec<PinnedExpert<'static, Cpu>>,
}

/// An expert that the processor computes.
pub(super) struct HostWork {
    pub id: ExpertId,
    pub planes: usize,
    pub bytes: u64,
    pub weights: Arc<FeedForward<Cpu>>,
    /// Its rows in the request's uses.
    pub uses: Range<usize>,
}

impl HostUnit {
    /// A processor beside a device that keeps planes in memory of the host.
    ///
    /// # Errors
    /// None that happens: the processor has room for any buffer.
    pub fn new(
        options: HostOptions,
        link: HostLink,
        hidden_size: usize,
    ) -> Result<Self, EngineError> {
        let pool = Arc::new(ThreadPool::new(options.threads.max(1)));
        let host_bytes_per_s = match options.experts {
            HostExperts::WhenFaster => read_bandwidth(&pool, MEASURED_BYTES, 0.0),
            _ => 0.0,
        };
        let mut cpu = Cpu::with(pool, Kernels::detect());
        Ok(Self {
            rule: HostRule::new(options.experts, HostSpeeds { link, host_bytes_per_s }),
            work: Vec::new(),
            inputs: cpu.buffer(0, hidden_size)?,
            outputs: cpu.buffer(0, hidden_size)?,
            routing: Routing::default(),
            rows: Vec::new(),
            values: Vec::new(),
            pinned: Vec::new(),
            cpu,
        })
    }

    /// Computes what it was given, from `values`, in `outputs`; gives the seconds that it took.
    pub fn compute(&mut self, uses: &[ExpertUse], per_token: usize) -> Result<f64, EngineError> {
        let Self { cpu, work, inputs, outputs, routing, values, pinned: spare, .. } = self;
        let encoder = &mut cpu.encoder();
        encoder.write(values, inputs)?;
        routing.num_experts_per_tok = per_token;
        routing.expert_weights.resize(inputs.row_count() * per_token, 0.0);
        let mut pinned: Vec<PinnedExpert<'_, Cpu>> = recycle(std::mem::take(spare));
        pinned.extend(work.iter().map(|one| PinnedExpert {
            expert: one.id.expert,
            weights: Arc::clone(&one.weights),
            uses: &uses[one.uses.clone()],
        }));
        let started = Moment::now();
        let computed = encoder.experts(&pinned, routing, inputs, outputs);
        let seconds = Moment::now().seconds_since(started);
        *spare = recycle(pinned);
        computed.map(|()| seconds)
    }

    /// Puts the computed rows of `outputs` one after another.
    pub fn gather(&mut self, uses: &[ExpertUse], per_token: usize) {
        let Self { work, outputs, rows, values, .. } = self;
        rows.clear();
        for used in work.iter().flat_map(|one| &uses[one.uses.clone()]) {
            rows.push(used.row * per_token as u32 + used.rank);
        }
        rows.sort_unstable();
        values.clear();
        for row in rows {
            values.extend_from_slice(outputs.row(*row as usize));
        }
    }
}
