//! An opened store under measurement: timed steps on random tokens.

use super::{Opening, Test};
use crate::args::{LoadModeArg, RunningArgs};
use crate::mapped;
use crate::memory::memory_budget;
use crate::model_devices::ModelDevices;
use crate::opened::kv_dtype;
use nestling::engine::batch::{Batch, LevelPolicy, Row, SequenceRef};
use nestling::engine::cpu::Cpu;
use nestling::engine::cpu::kernels::Kernels;
use nestling::engine::dual::{DualOptions, DualRouting, LevelMode, StepTimes};
use nestling::engine::expert::{
    ExpertSource, HostExperts, HostOptions, Prefetch, StoreSource, StreamOptions, StreamStats,
};
use nestling::engine::group::{Group, GroupCounters, RankShare};
use nestling::engine::kv_cache::{PAGE_POSITIONS, PageId, pages_for};
use nestling::engine::model::{Runner, RunnerOptions};
use nestling::engine::reads::ReadOptions;
use nestling::engine::record::Recorder;
use nestling::engine::runner::ModelRunner;
use nestling::engine::sample_tokens::sample_tokens;
use nestling::engine::text::Tokenizer;
use nestling::engine::threads::ThreadPool;
use nestling::engine::{Backend, BackendCounters, RoutingRecorder};
use nestling::engine::{MemoryPlan, ModelOptions, PlannedResidence};
use nestling::formats::Level;
use nestling::formats::store::Store;
use nestling::import::ModelConfig;
use nestling::ranks::{OpenRunner, RankOptions, lead_on_threads};
use nestling::{CancelToken, EngineError, KvDtype, OpenDevice, RankDevices, WithBackend};
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Options that a store is opened with for all tests of one [`Opening`].
#[derive(Clone, Debug)]
pub struct ArmOptions {
    opening: Opening,
    /// Maximum number of rows in a step.
    pub rows_max: usize,
    sessions: usize,
    positions: usize,
    kv_dtype: KvDtype,
    memory_budget: Option<u64>,
    reads: ReadOptions,
    recorder: Option<Arc<Recorder>>,
    host_experts: HostExperts,
    kernels: &'static Kernels,
}

impl ArmOptions {
    pub fn new(opening: Opening, tests: &[Test], run: &RunningArgs, device: &ModelDevices) -> Self {
        let most = |of: fn(&Test) -> usize| tests.iter().map(of).max().unwrap_or(1);
        let sessions = most(|test| test.sessions);
        let host = memory_budget(run.memory);
        device.keep_in_host(host);
        Self {
            opening,
            rows_max: (run.ubatch_size as usize).max(sessions),
            sessions,
            positions: most(|test| test.depth + test.prompt + test.generated),
            kv_dtype: kv_dtype(run.kv_type),
            memory_budget: device.memory_budget(host),
            reads: ReadOptions::default(),
            recorder: None,
            host_experts: run.host.host_experts.into(),
            kernels: Kernels::detect(),
        }
    }
}

impl ArmOptions {
    /// Sets the options of streamed reads and the recorder of the model's events.
    pub fn with(self, reads: ReadOptions, recorder: Option<Arc<Recorder>>) -> Self {
        Self { reads, recorder, ..self }
    }

    /// Sets the kernels of the CPU.
    pub fn on(self, kernels: &'static Kernels) -> Self {
        Self { kernels, ..self }
    }

    /// Returns true if the experts do not fit into memory and are streamed.
    pub fn is_streamed(&self, store: &Store) -> bool {
        let share = RankShare { rank: 0, ranks: self.opening.ranks };
        let plan = self.memory_plan(store, share).ok().flatten();
        plan.is_some_and(|plan| plan.residence == PlannedResidence::Streamed)
    }

    /// Returns the threads of each rank.
    fn threads(&self) -> usize {
        (self.opening.threads / self.opening.ranks).max(1)
    }

    /// Returns a rank's memory placement within its share of the budget, or `None` for a mapped store, whose memory
    /// the operating system manages.
    fn memory_plan(
        &self,
        store: &Store,
        share: RankShare,
    ) -> Result<Option<MemoryPlan>, EngineError> {
        if self.opening.load_mode == LoadModeArg::Mmap {
            return Ok(None);
        }
        let config = ModelConfig::from_json("config.json", &store.config_json()?)?;
        let options = ModelOptions {
            level: Some(self.opening.level),
            kv_dtype: self.kv_dtype,
            context_length: Some(self.positions),
            kv_tokens: Some(pages_for(self.positions) * self.sessions * PAGE_POSITIONS),
            rows_max: self.rows_max,
            expert_division: self.opening.expert_division,
            kv_division: self.opening.kv_division,
            expert_replicas: self.opening.expert_replicas,
            ..ModelOptions::default()
        };
        let budget = self.memory_budget.map(|bytes| bytes / share.ranks as u64);
        MemoryPlan::of_rank(store, &config, &options, None, budget, share).map(Some)
    }
}

/// Cost of a measurement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredCost {
    pub time: Duration,
    /// Number of tokens computed, summed over all sessions.
    pub tokens: u64,
    /// Bytes of weights read by the steps.
    pub weight_bytes: u64,
    /// Statistics of streamed experts.
    pub streaming: StreamStats,
    /// Counters of the device's work.
    pub device: BackendCounters,
    /// Counters of rank 0's messages; 0 for one rank.
    pub messages: GroupCounters,
}

impl AddAssign for MeasuredCost {
    fn add_assign(&mut self, other: Self) {
        self.time += other.time;
        self.tokens += other.tokens;
        self.weight_bytes += other.weight_bytes;
        self.streaming.add(&other.streaming);
        self.device += other.device;
        self.messages.exchanges += other.messages.exchanges;
        self.messages.messages += other.messages.messages;
        self.messages.sent_bytes += other.messages.sent_bytes;
        self.messages.received_bytes += other.messages.received_bytes;
    }
}

/// An opened store with KV capacity for every test.
pub struct Arm {
    runner: Box<dyn ModelRunner>,
    /// Rank 0 of several.
    group: Option<Arc<dyn Group>>,
    level: Level,
    dual: Option<DualRouting>,
    /// True if experts are streamed.
    pub is_streamed: bool,
    /// Names of the compute devices; `None` for the CPU.
    pub device: Option<String>,
    pages_per_session: usize,
    tokens: RandomTokens,
}

impl Arm {
    pub fn open(
        store: &Arc<Store>,
        options: &ArmOptions,
        devices: &ModelDevices,
        cancel: &CancelToken,
    ) -> Result<Self, EngineError> {
        let Opening { level, load_mode, ranks, .. } = options.opening;
        let held = Arc::clone(store);
        let source: Arc<dyn ExpertSource> = match load_mode {
            LoadModeArg::Owned => Arc::new(StoreSource::owned(held, Some(level))?),
            LoadModeArg::Mmap => Arc::new(StoreSource::mapped(mapped::map(held)?, Some(level))?),
        };
        let loading = Loading {
            source,
            store: Arc::clone(store),
            options: options.clone(),
            share: RankShare { rank: 0, ranks },
            cancel: cancel.clone(),
        };
        let pool = Arc::new(ThreadPool::new(options.threads()));
        let loaded = match devices {
            ModelDevices::Ranks(devices) => loading.over_ranks(devices.again()?, ranks)?,
            one => one.first().give(|| Cpu::with(Arc::clone(&pool), options.kernels), loading)?,
        };
        let OpenRunner { runner, extra: Loaded { dual, is_streamed, name, group } } = loaded;
        Ok(Self {
            tokens: RandomTokens::new(runner.limits().vocab_size),
            runner,
            group,
            level,
            dual,
            is_streamed,
            device: (!devices.is_cpu()).then_some(name),
            pages_per_session: pages_for(options.positions),
        })
    }

    /// Returns the recorder of routing traces.
    pub fn routing(&self) -> Option<Arc<RoutingRecorder>> {
        self.runner.routing_recorder()
    }

    /// Returns the counters of rank 0's messages.
    fn messages(&self) -> GroupCounters {
        // Default: one rank sends no messages.
        self.group.as_ref().map_or_else(GroupCounters::default, |group| group.counters())
    }

    /// Computes one token at an empty context, as at the start of a chat.
    pub fn first_token(&mut self, cancel: &CancelToken) -> Result<MeasuredCost, EngineError> {
        self.step(1, 0..1, true, cancel)
    }

    /// Prefills `count` tokens of each session, in steps as large as possible.
    pub fn prompt(
        &mut self,
        sessions: usize,
        start: usize,
        count: usize,
        cancel: &CancelToken,
    ) -> Result<MeasuredCost, EngineError> {
        let rows = (self.runner.limits().rows_max / sessions.max(1)).max(1);
        let (mut spent, mut done) = (MeasuredCost::default(), 0);
        while done < count {
            let now = rows.min(count - done);
            let last = done + now == count;
            spent += self.step(sessions, start + done..start + done + now, last, cancel)?;
            done += now;
        }
        Ok(spent)
    }

    /// Decodes `count` tokens of each session.
    pub fn generate(
        &mut self,
        sessions: usize,
        start: usize,
        count: usize,
        cancel: &CancelToken,
    ) -> Result<MeasuredCost, EngineError> {
        let mut spent = MeasuredCost::default();
        for position in start..start + count {
            spent += self.step(sessions, position..position + 1, true, cancel)?;
        }
        Ok(spent)
    }

    /// Runs one step over the same positions of each session. Computes the logits of the last position if
    /// `last` is set.
    fn step(
        &mut self,
        sessions: usize,
        positions: std::ops::Range<usize>,
        last: bool,
        cancel: &CancelToken,
    ) -> Result<MeasuredCost, EngineError> {
        let mut batch = Batch::default();
        let levels = match &self.dual {
            Some(dual) => LevelPolicy::Dual(dual.of_next_step(dual.policy())),
            None => LevelPolicy::Fixed(self.level),
        };
        for session in 0..sessions {
            for position in positions.clone() {
                batch.rows.push(Row {
                    token: self.tokens.next(),
                    position: position as u32,
                    sequence: session as u32,
                    wants_logits: last && position + 1 == positions.end,
                    levels,
                });
            }
            let first = session * self.pages_per_session;
            let pages = first..first + self.pages_per_session;
            let pages = pages.map(|page| PageId(page as u32)).collect();
            batch.sequences.push(SequenceRef::of_pages(pages));
        }
        batch.own_states();
        let before = self.messages();
        let started = Instant::now();
        let output = self.runner.step_blocking(&batch, cancel)?;
        let time = started.elapsed();
        let after = self.messages();
        if let Some(dual) = &self.dual {
            let streaming = &output.stats.streaming;
            let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
            dual.observe(StepTimes {
                stall_ns: streaming.wait_ns,
                compute_ns: nanoseconds.saturating_sub(streaming.wait_ns),
                read_bytes: streaming.read_total(),
            });
        }
        match output.failures.into_iter().next() {
            Some(failure) => Err(failure.error),
            None => Ok(MeasuredCost {
                time,
                tokens: batch.rows.len() as u64,
                weight_bytes: output.stats.weight_bytes,
                streaming: output.stats.streaming,
                device: output.stats.device,
                messages: GroupCounters {
                    exchanges: after.exchanges - before.exchanges,
                    messages: after.messages - before.messages,
                    sent_bytes: after.sent_bytes - before.sent_bytes,
                    received_bytes: after.received_bytes - before.received_bytes,
                },
            }),
        }
    }
}

/// Random token ids that are the same in every run of the program (SplitMix64).
struct RandomTokens {
    state: u64,
    vocab_size: u64,
}

impl RandomTokens {
    fn new(vocab_size: usize) -> Self {
        Self { state: 1, vocab_size: vocab_size.max(1) as u64 }
    }

    fn next(&mut self) -> u32 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % self.vocab_size) as u32
    }
}

/// Inputs for loading a rank of a model on some backend.
#[derive(Clone)]
struct Loading {
    source: Arc<dyn ExpertSource>,
    store: Arc<Store>,
    options: ArmOptions,
    share: RankShare,
    cancel: CancelToken,
}

/// Results of loading besides the runner.
struct Loaded {
    dual: Option<DualRouting>,
    is_streamed: bool,
    name: String,
    group: Option<Arc<dyn Group>>,
}

impl Loading {
    fn runner_options(&self) -> Result<RunnerOptions, EngineError> {
        let (options, threads) = (&self.options, self.options.threads());
        let plan = options.memory_plan(&self.store, self.share)?;
        let streaming = plan.filter(|plan| plan.residence == PlannedResidence::Streamed);
        let streaming = streaming.map(|plan| StreamOptions {
            budget_bytes: plan.expert_bytes,
            reads: options.reads.clone(),
            prefetch: Prefetch::default(),
            host: HostOptions { experts: options.host_experts, threads },
        });
        Ok(RunnerOptions {
            rows_max: plan.map_or(options.rows_max, |plan| plan.rows_max),
            kv_pages: Some(pages_for(options.positions) * options.sessions),
            states: Some(options.sessions),
            kv_dtype: options.kv_dtype,
            context_max: Some(options.positions),
            load_threads: threads,
            // Events of one rank are recorded.
            recorder: options.recorder.clone().filter(|_| self.share.rank == 0),
            streaming,
            expert_division: options.opening.expert_division,
            kv_division: options.opening.kv_division,
            expert_replicas: options.opening.expert_replicas,
            ..RunnerOptions::default()
        })
    }

    /// Loads a model over ranks that are threads.
    fn over_ranks(
        self,
        devices: RankDevices,
        ranks: usize,
    ) -> Result<OpenRunner<Loaded>, EngineError> {
        let (threads, kernels) = (self.options.threads(), self.options.kernels);
        let names: Vec<String> = devices.all().iter().map(OpenDevice::name).collect();
        let devices = Mutex::new(devices);
        lead_on_threads(RankOptions::new(ranks), move |group| {
            let own = devices.lock().unwrap_or_else(PoisonError::into_inner);
            let device = own.of_rank(group.share().rank)?;
            drop(own);
            let pool = Arc::new(ThreadPool::new(threads));
            let cpu = || Cpu::with(Arc::clone(&pool), kernels);
            let loading = Self { share: group.share(), ..self.clone() };
            let mut opened = device.give_rank(group, cpu, loading)?;
            opened.extra.group = Some(Arc::clone(group));
            opened.extra.name = names.join(" + ");
            Ok(opened)
        })
    }
}

impl WithBackend for Loading {
    type Output = Result<OpenRunner<Loaded>, EngineError>;

    fn with<B: Backend>(self, mut backend: impl FnMut() -> Result<B, EngineError>) -> Self::Output {
        let backend = backend()?;
        let (name, options) = (backend.name(), self.runner_options()?);
        let is_streamed = options.streaming.is_some();
        let Self { source, store, cancel, .. } = self;
        let mut runner = Runner::load(backend, source, &options, &cancel, &mut |_, _| {})?;
        let Opening { level, mean_level, mode, .. } = self.options.opening;
        let mixed_levels = mean_level.is_some() || mode == LevelMode::Elastic;
        let dual = match mixed_levels {
            true => {
                let asked = DualOptions { mean_level, mode, ..DualOptions::default() };
                let tokenizer = store.asset("tokenizer.json")?;
                Some(mixed(&mut runner, asked, level, tokenizer, &cancel)?)
            }
            false => None,
        };
        let extra = Loaded { dual, is_streamed, name, group: None };
        Ok(OpenRunner { runner: Box::new(runner), extra })
    }
}

/// Sets up dual routing up to `level`.
fn mixed<B: Backend>(
    runner: &mut Runner<B>,
    asked: DualOptions,
    level: Level,
    tokenizer: Option<Vec<u8>>,
    cancel: &CancelToken,
) -> Result<DualRouting, EngineError> {
    let tokenizer = tokenizer.map(|bytes| Tokenizer::from_bytes("tokenizer.json", &bytes));
    let tokens = sample_tokens(
        tokenizer.transpose().map_err(EngineError::text)?.as_ref(),
        runner.limits().vocab_size,
    )?;
    let router = runner.level_router();
    DualRouting::open(runner, &*router, asked, level, &tokens, cancel)
}
