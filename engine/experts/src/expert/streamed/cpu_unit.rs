//! The CPU beside a device: what it is given of a layer, and how it computes that.

use std::ops::Range;
use std::sync::Arc;

use nestling_formats::ExpertId;

use super::builder::ExpertBuilder;
use super::host_rule::{HostCandidate, HostExperts, HostRule, HostSpeeds};
use crate::expert::store::Scan;
use crate::reads::ArrivedPlane;
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

/// Bytes that the speed of memory is measured with where the CPU has not computed yet.
const MEASURED_BYTES: usize = 64 << 20;

/// How the CPU takes part beside a device.
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

/// The CPU, and what it is given of the layer under way.
pub(super) struct CpuUnit {
    rule: HostRule,
    cpu: Cpu,
    work: Vec<CpuExpert>,
    /// What the experts are computed from and what they give, `[T, D]` and `[T * K, D]`.
    inputs: CpuBuffer,
    outputs: CpuBuffer,
    /// Only its sizes are looked at.
    routing: Routing,
    /// Rows of `outputs` that were computed.
    rows: Vec<u32>,
    /// The inputs, then the values of the computed rows one after another.
    values: Vec<f32>,
    pinned: Vec<PinnedExpert<'static, Cpu>>,
}

/// An expert that the CPU computes.
pub(super) struct CpuExpert {
    pub id: ExpertId,
    /// Planes that it is computed with.
    pub planes: usize,
    /// Their bytes.
    pub bytes: u64,
    pub weights: Arc<FeedForward<Cpu>>,
    /// Its rows in the request's uses.
    pub uses: Range<usize>,
}

/// What the CPU has computed.
pub(super) struct CpuRows<'a> {
    /// Rows of the step's outputs.
    pub rows: &'a [u32],
    /// Their values, one row after another.
    pub values: &'a [f32],
    pub seconds: f64,
}

impl CpuUnit {
    /// A CPU beside a device that keeps planes in host memory.
    ///
    /// # Errors
    /// None that happens: the CPU has room for any buffer.
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

    /// A layer's experts follow.
    pub fn begin_layer(&mut self) {
        self.work.clear();
        self.rule.begin_layer();
    }

    /// Takes an expert that the CPU is faster for, if its planes make one; whether it did.
    pub fn takes(
        &mut self,
        candidate: HostCandidate,
        expert: impl FnOnce(&mut Self) -> Result<CpuExpert, EngineError>,
    ) -> bool {
        let before = self.rule.queues();
        if !self.rule.takes(candidate) {
            return false;
        }
        match expert(self) {
            Ok(expert) => {
                self.work.push(expert);
                true
            }
            Err(error) => {
                // What is wrong with it is said where it is brought to the device.
                tracing::debug!(%error, "an expert is not computed by the CPU");
                self.rule.leave(candidate, before);
                false
            }
        }
    }

    /// The expert made of planes that lie in host memory.
    ///
    /// # Errors
    /// Planes that do not make an expert.
    pub fn bind(
        &mut self,
        id: ExpertId,
        planes: &[Arc<ArrivedPlane>],
        builder: &ExpertBuilder,
    ) -> Result<FeedForward<Cpu>, EngineError> {
        // They come from a device, whose memory is not the reader's that checked them.
        let matrices = builder.source().bind_expert(id, planes, Scan::Check)?;
        builder.bind(id, matrices, &mut self.cpu.encoder())
    }

    /// What it was given and has not computed.
    pub fn work(&self) -> &[CpuExpert] {
        &self.work
    }

    /// It computes nothing of what it was given.
    pub fn forget_work(&mut self) {
        self.work.clear();
    }

    /// Takes out what it was given.
    pub fn take_work(&mut self) -> Vec<CpuExpert> {
        std::mem::take(&mut self.work)
    }

    /// Uses the memory of what was taken out again.
    pub fn recycle(&mut self, mut work: Vec<CpuExpert>) {
        work.clear();
        self.work = work;
    }

    /// Where the inputs are to be put before anything is computed.
    pub fn inputs(&mut self) -> &mut Vec<f32> {
        &mut self.values
    }

    /// Computes what it was given, from its inputs.
    ///
    /// # Errors
    /// Inputs of another shape.
    pub fn compute(
        &mut self,
        uses: &[ExpertUse],
        per_token: usize,
    ) -> Result<CpuRows<'_>, EngineError> {
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
        computed?;
        self.gather(uses, per_token);
        Ok(CpuRows { rows: &self.rows, values: &self.values, seconds })
    }

    /// Puts the computed rows of `outputs` one after another.
    fn gather(&mut self, uses: &[ExpertUse], per_token: usize) {
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

    /// What it was given took so many seconds, with `rows` rows for each expert.
    pub fn observe(&mut self, bytes: u64, rows: usize, seconds: f64) {
        self.rule.observe(bytes, rows, seconds);
    }
}
