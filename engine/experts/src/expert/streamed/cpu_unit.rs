//! CPU computation beside a device: the experts assigned to the CPU, and their execution.

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

/// Number of bytes read to measure memory bandwidth, before the CPU has computed any expert.
const MEASURED_BYTES: usize = 64 << 20;

/// Settings of CPU computation beside a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostOptions {
    /// Rule for choosing the experts that the CPU computes.
    pub experts: HostExperts,
    /// Number of CPU threads.
    pub threads: usize,
}

impl Default for HostOptions {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self { experts: HostExperts::default(), threads }
    }
}

pub(super) struct CpuUnit {
    rule: HostRule,
    cpu: Cpu,
    work: Vec<CpuExpert>,
    /// Inputs and outputs of the experts, `[T, D]` and `[T * K, D]`.
    inputs: CpuBuffer,
    outputs: CpuBuffer,
    /// Routing of the step. Only its sizes are read.
    routing: Routing,
    /// Rows of `outputs` that were computed.
    rows: Vec<u32>,
    /// The inputs, then the values of the computed rows, concatenated.
    values: Vec<f32>,
    pinned: Vec<PinnedExpert<'static, Cpu>>,
}

pub(super) struct CpuExpert {
    pub id: ExpertId,
    pub planes: usize,
    /// Bytes of the planes in use.
    pub bytes: u64,
    pub weights: Arc<FeedForward<Cpu>>,
    /// Range of its rows in the request's uses.
    pub uses: Range<usize>,
}

pub(super) struct CpuRows<'a> {
    /// Rows of the step's outputs.
    pub rows: &'a [u32],
    /// Values of the rows, concatenated.
    pub values: &'a [f32],
    pub seconds: f64,
}

impl CpuUnit {
    /// Creates a CPU unit beside a device that keeps planes in host memory.
    ///
    /// # Errors
    /// Never in practice: buffers of the CPU always fit.
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

    pub fn begin_layer(&mut self) {
        self.work.clear();
        self.rule.begin_layer();
    }

    /// Assigns an expert to the CPU if that is faster and its planes form an expert. Returns whether it was
    /// assigned.
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
                // The error is returned when the expert is bound on the device.
                tracing::debug!(%error, "an expert is not computed by the CPU");
                self.rule.leave(candidate, before);
                false
            }
        }
    }

    /// Builds an expert from planes in host memory.
    ///
    /// # Errors
    /// Returns an error if the planes do not form an expert.
    pub fn bind(
        &mut self,
        id: ExpertId,
        planes: &[Arc<ArrivedPlane>],
        builder: &ExpertBuilder,
    ) -> Result<FeedForward<Cpu>, EngineError> {
        // The planes came from a device, so the reader's validation does not cover this memory.
        let matrices = builder.source().bind_expert(id, planes, Scan::Check)?;
        builder.bind(id, matrices, &mut self.cpu.encoder())
    }

    /// Returns the assigned experts that are not computed yet.
    pub fn work(&self) -> &[CpuExpert] {
        &self.work
    }

    pub fn forget_work(&mut self) {
        self.work.clear();
    }

    pub fn take_work(&mut self) -> Vec<CpuExpert> {
        std::mem::take(&mut self.work)
    }

    /// Returns the memory of taken work for reuse.
    pub fn recycle(&mut self, mut work: Vec<CpuExpert>) {
        work.clear();
        self.work = work;
    }

    /// Returns the buffer for the inputs, to be filled before [`CpuUnit::compute`].
    pub fn inputs(&mut self) -> &mut Vec<f32> {
        &mut self.values
    }

    /// Computes the assigned experts from the inputs.
    ///
    /// # Errors
    /// Returns an error if the inputs have another shape.
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

    /// Gathers the computed rows of `outputs`, concatenated, into `values`.
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

    /// Updates the speed estimate: computing `bytes` with `rows` rows per expert took `seconds`.
    pub fn observe(&mut self, bytes: u64, rows: usize, seconds: f64) {
        self.rule.observe(bytes, rows, seconds);
    }
}
