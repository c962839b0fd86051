//! State of an open model shared by its handles and the step loop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nestling_formats::Level;
use nestling_import::ModelConfig;

use crate::constraint::ConstraintCache;
use crate::identity::ModelIdentity;
use crate::memory_plan::MemoryPlan;
use crate::options::Prefixes;
use crate::page_store::PageStore;
use crate::prefix::PrefixScope;
use crate::sequence::{Sequence, SequencePool};
use crate::slot::SessionSlot;
use crate::status::{ServiceStatus, StepStatus};
use nestling_core::batch::{Batch, LevelPolicy};
use nestling_core::budget::Reservation;
use nestling_core::error::EngineError;
use nestling_core::expert_map::ExpertMap;
use nestling_core::recurrent::STATES_PER_SEQUENCE;
use nestling_core::runner::{ModelRunner, RunnerLimits, StepStats};
use nestling_core::schedule::{ScheduleLimits, Scheduler};
use nestling_core::sync::{Mutex, MutexGuard, whole};
use nestling_experts::expert::{ExpertMemory, RoutingRecorder};
use nestling_levels::allocation::Allocation;
use nestling_levels::dual::{DualOptions, DualRouting, StepTimes};
use nestling_text::SamplingParams;
use nestling_text::{ChatTemplate, Tokenizer};

/// Maximum seconds per layer of a step. Cancellation takes effect between layers.
const LAYER_SECONDS_MAX: f64 = 0.1;

/// Components of a model; see [`crate::Model::from_parts`].
pub struct ModelParts {
    /// The model on its device.
    pub runner: Box<dyn ModelRunner>,
    /// Human-readable name of the device.
    pub device: String,
    /// Identity of the model and its arithmetic, stored in snapshots.
    pub identity: ModelIdentity,
    /// Tokenizer, if the model has one.
    pub tokenizer: Option<Tokenizer>,
    /// Chat template, if the model has one.
    pub chat_template: Option<ChatTemplate>,
    /// Default sampling parameters.
    pub sampling: SamplingParams,
    /// Token ids that end the output.
    pub end_tokens: Vec<u32>,
    /// Maximum number of tokens per session.
    pub context_length: usize,
    /// Bytes of weights held in memory.
    pub weight_bytes: u64,
    /// Levels of single matrices, if the model was opened with a weight budget.
    pub allocation: Option<Arc<Allocation>>,
    /// Dual routing, if the model was opened with it.
    pub dual: Option<DualRouting>,
    /// Sharing of computed prefixes among sessions.
    pub prefixes: Prefixes,
    /// Page store on disk for shared prefixes.
    pub page_store: Option<PageStore>,
    /// Reservations from the memory budget.
    pub reservations: Vec<Reservation>,
    /// Reservation for streamed experts, which can be resized while the model runs.
    pub experts: Option<Reservation>,
    /// Division of the memory budget, if the model was opened with a plan.
    pub plan: Option<MemoryPlan>,
}

pub(crate) struct ModelCore {
    runner: Mutex<Box<dyn ModelRunner>>,
    pub limits: RunnerLimits,
    pub config: ModelConfig,
    pub pool: SequencePool,
    pub device: String,
    pub identity: ModelIdentity,
    prefixes: Prefixes,
    pub page_store: Option<PageStore>,
    pub tokenizer: Option<Tokenizer>,
    pub chat_template: Option<ChatTemplate>,
    pub sampling: SamplingParams,
    pub end_tokens: Vec<u32>,
    /// Values that constraints cache with the model.
    pub constraint_cache: ConstraintCache,
    context_length: usize,
    weight_bytes: u64,
    pub allocation: Option<Arc<Allocation>>,
    pub dual: Option<DualRouting>,
    slots: Mutex<Vec<Weak<SessionSlot>>>,
    uses: AtomicU64,
    scheduler: Mutex<Scheduler>,
    /// Status last reported by the step loop.
    pub service: Mutex<ServiceStatus>,
    broken: AtomicBool,
    expert_memory: Option<Arc<ExpertMemory>>,
    experts: Mutex<Option<Reservation>>,
    pub routing_recorder: Option<Arc<RoutingRecorder>>,
    pub plan: Option<MemoryPlan>,
    /// Last field, so that the bytes are released after everything else is dropped.
    _reservations: Vec<Reservation>,
}

impl ModelCore {
    /// # Errors
    /// Fails with [`EngineError::Limit`] if the pools are too small for a single session.
    pub(crate) fn new(parts: ModelParts, gap_target: Duration) -> Result<Self, EngineError> {
        let limits = parts.runner.limits();
        let context_length = parts.context_length.min(limits.context_max);
        let wanted = nestling_core::kv_cache::pages_for(context_length) as u64;
        let pages = limits.pages as u64;
        if wanted > pages {
            let what = "pages of one session's keys and values";
            return Err(EngineError::Limit { what, limit: pages, found: wanted });
        }
        if (1..STATES_PER_SEQUENCE).contains(&limits.states) {
            let (limit, found) = (limits.states as u64, STATES_PER_SEQUENCE as u64);
            return Err(EngineError::Limit {
                what: "recurrent states of one session",
                limit,
                found,
            });
        }
        let layers = parts.runner.config().num_hidden_layers;
        Ok(Self {
            config: parts.runner.config().clone(),
            expert_memory: parts.runner.expert_memory(),
            routing_recorder: parts.runner.routing_recorder(),
            experts: Mutex::new(parts.experts),
            plan: parts.plan,
            runner: Mutex::new(parts.runner),
            limits,
            pool: SequencePool::new(limits.pages, limits.states),
            device: parts.device,
            identity: parts.identity,
            prefixes: parts.prefixes,
            page_store: parts.page_store,
            tokenizer: parts.tokenizer,
            chat_template: parts.chat_template,
            sampling: parts.sampling,
            end_tokens: parts.end_tokens,
            constraint_cache: ConstraintCache::default(),
            context_length,
            weight_bytes: parts.weight_bytes,
            allocation: parts.allocation,
            dual: parts.dual,
            slots: Mutex::new(Vec::new()),
            uses: AtomicU64::new(0),
            scheduler: Mutex::new(Scheduler::new(ScheduleLimits {
                rows_max: limits.rows_max.max(1),
                gap_seconds: gap_target.as_secs_f64(),
                step_seconds: LAYER_SECONDS_MAX * layers as f64,
                prompt_steps: limits.prompt_steps,
            })),
            service: Mutex::new(ServiceStatus {
                gap_in_force: gap_target.as_secs_f64(),
                ..ServiceStatus::default()
            }),
            broken: AtomicBool::new(false),
            _reservations: parts.reservations,
        })
    }

    /// Locks the runner for a whole step. Take this lock after all others, and no other lock while holding
    /// it.
    ///
    /// # Errors
    /// Fails with [`EngineError::ModelBroken`], also if an earlier holder panicked, which leaves the runner
    /// in an unknown state.
    pub(crate) fn lock_runner(&self) -> Result<MutexGuard<'_, Box<dyn ModelRunner>>, EngineError> {
        let runner = self.runner.lock();
        if runner.is_err() {
            self.mark_broken();
        }
        match runner {
            Ok(runner) if !self.is_broken() => Ok(runner),
            _ => Err(EngineError::ModelBroken),
        }
    }

    /// Sets the budget of streamed experts in bytes, once no step is running.
    ///
    /// # Errors
    /// Fails as [`crate::Model::set_expert_budget`] does.
    pub(crate) fn set_expert_budget(&self, bytes: u64) -> Result<(), EngineError> {
        // Default: resident experts have no budget.
        let Some(memory) = &self.expert_memory else { return Ok(()) };
        let mut reservation = whole(self.experts.lock());
        // Default: without a reservation there is nothing to resize.
        let Some(reservation) = reservation.as_mut() else { return Ok(()) };
        let before = reservation.bytes();
        if bytes > before {
            reservation.resize(bytes)?;
        }
        let mut runner = self.lock_runner()?;
        memory.set_budget(bytes);
        let changed = runner.change_expert_memory();
        // Released only once the bytes are free. Shrinking a reservation never fails.
        let _ = reservation.resize(if changed.is_ok() { bytes } else { before });
        changed
    }

    /// Evicts `bytes` of streamed experts: immediately, or at the next layer of a running step.
    pub(crate) fn shed_experts(&self, bytes: u64) {
        if let Some(memory) = &self.expert_memory {
            memory.shed(bytes);
            if let Ok(mut runner) = self.runner.try_lock() {
                // Shedding without a new budget cannot fail.
                let _ = runner.change_expert_memory();
            }
        }
    }

    /// Returns the budget of streamed experts in bytes.
    pub(crate) fn expert_reservation(&self) -> Option<u64> {
        let reservation = whole(self.experts.lock());
        reservation.as_ref().map(Reservation::bytes)
    }

    /// Returns the bytes of streamed experts in memory.
    pub(crate) fn expert_bytes(&self) -> Option<u64> {
        self.expert_memory.as_ref().map(|memory| memory.used_bytes())
    }

    /// Returns the planes of streamed experts, if their cache is in this process.
    pub(crate) fn expert_map(&self) -> Option<ExpertMap> {
        let map = self.expert_memory.as_ref()?.map();
        (!map.layers.is_empty()).then_some(map)
    }

    pub(crate) fn mark_broken(&self) {
        self.broken.store(true, Ordering::Release);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Acquire)
    }

    /// Locks the scheduler, which decides priority order and rows per step.
    ///
    /// The division of a prompt into chunks never changes a result, so it may depend on a clock. Hold the
    /// lock briefly and take no other lock while holding it.
    pub(crate) fn scheduler(&self) -> MutexGuard<'_, Scheduler> {
        whole(self.scheduler.lock())
    }

    pub(crate) fn note_step(&self, step: StepStatus, stats: &StepStats) {
        let mut scheduler = self.scheduler();
        scheduler.costs.measured(step.rows, step.seconds);
        let gap_in_force = scheduler.gap_in_force();
        drop(scheduler);
        let mut service = whole(self.service.lock());
        service.steps += 1;
        service.rows += step.rows as u64;
        service.ranks_replaced += stats.ranks_replaced;
        service.experts.add(&stats.expert_uses, &stats.streaming);
        (service.last_step, service.gap_in_force) = (step, gap_in_force);
    }

    /// Returns the maximum number of running generations. With recurrent layers each reads one state and
    /// writes another.
    pub(crate) fn running_max(&self) -> usize {
        if self.limits.states == 0 { usize::MAX } else { self.limits.states / 2 }
    }

    pub(crate) fn context_length(&self) -> usize {
        self.context_length
    }

    pub(crate) fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    pub(crate) fn kv_bytes(&self, pages: usize, states: usize) -> u64 {
        let (page_bytes, state_bytes) = (self.limits.page_bytes, self.limits.state_bytes);
        pages as u64 * page_bytes as u64 + states as u64 * state_bytes as u64
    }

    /// # Errors
    /// Fails with [`EngineError::TokenOutOfRange`] for the first token outside the vocabulary.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<(), EngineError> {
        let vocab_size = self.limits.vocab_size;
        match tokens.iter().find(|&&token| token as usize >= vocab_size) {
            Some(&token) => Err(EngineError::TokenOutOfRange { token, vocab_size }),
            None => Ok(()),
        }
    }

    /// # Errors
    /// Fails with [`EngineError::ContextFull`] if the history is longer than the context.
    pub(crate) fn check_length(&self, length: usize) -> Result<(), EngineError> {
        if length > self.context_length {
            let (limit, wanted) = (self.context_length as u64, length as u64);
            return Err(EngineError::ContextFull { limit, wanted });
        }
        Ok(())
    }

    /// Returns the level policy of a generation.
    ///
    /// # Errors
    /// Fails with [`EngineError::LevelMissing`] if the level is not loaded. Returns an error for dual routing
    /// if the model was opened without it, or if the mean level is below the lowest.
    pub(crate) fn levels(
        &self,
        asked: Option<Level>,
        dual: Option<DualOptions>,
    ) -> Result<LevelPolicy, EngineError> {
        // Default: levels are ignored for float weights.
        let Some(held) = self.limits.level_max else { return Ok(LevelPolicy::Fixed(Level::L8)) };
        let highest = asked.unwrap_or(held);
        if highest > held {
            let (asked, held) = (highest.bits(), held.bits());
            return Err(EngineError::LevelMissing { asked, held });
        }
        match (&self.dual, dual) {
            (None, None) => Ok(LevelPolicy::Fixed(highest)),
            (Some(routing), dual) => {
                let dual = dual.unwrap_or(routing.requested());
                routing.calibrate(dual, highest).map(LevelPolicy::Dual)
            }
            (None, Some(_)) => {
                let expected = "a model that was opened with it";
                Err(EngineError::mismatch("dual routing", expected, "one level for all"))
            }
        }
    }

    /// Returns the bytes of a token. Empty if they depend on context or the model has no tokenizer.
    pub(crate) fn token_bytes(&self, token: u32) -> Vec<u8> {
        let bytes = self.tokenizer.as_ref().and_then(|tokenizer| tokenizer.token_bytes(token));
        // Default: other tokens have no known bytes.
        bytes.map(<[u8]>::to_vec).unwrap_or_default()
    }

    /// Returns the scope within which a generation shares pages, if sharing is enabled.
    pub(crate) fn prefix_scope(
        &self,
        levels: LevelPolicy,
        salt: Option<String>,
    ) -> Option<PrefixScope> {
        match self.prefixes {
            Prefixes::Shared => {
                Some(PrefixScope { identity: self.identity.digest(), levels, salt })
            }
            Prefixes::Alone => None,
        }
    }

    /// Returns the level policy for the rows of the next step.
    pub(crate) fn levels_now(&self, levels: LevelPolicy) -> LevelPolicy {
        match (levels, &self.dual) {
            (LevelPolicy::Dual(policy), Some(dual)) => LevelPolicy::Dual(dual.of_next_step(policy)),
            (levels, _) => levels,
        }
    }

    /// Updates elastic dual routing after a step that took `seconds`.
    pub(crate) fn observe(&self, batch: &Batch, stats: &StepStats, seconds: f64) {
        let elastic = batch.rows.iter().any(|row| row.levels.leaves_out_late());
        // Default: steps without elastic rows are not observed.
        let Some(dual) = self.dual.as_ref().filter(|_| elastic) else { return };
        let (total_ns, stall_ns) = ((seconds * 1e9) as u64, stats.streaming.wait_ns);
        let compute_ns = total_ns.saturating_sub(stall_ns);
        let read_bytes = stats.streaming.read_total();
        dual.observe(StepTimes { stall_ns, compute_ns, read_bytes });
    }

    /// Creates the slot of a session and registers it for [`ModelCore::reclaim_idle`].
    pub(crate) fn add_slot(&self, sequence: Sequence) -> Arc<SessionSlot> {
        let slot = Arc::new(SessionSlot::new(sequence));
        self.touch(&slot);
        let mut slots = whole(self.slots.lock());
        slots.retain(|slot| slot.strong_count() > 0);
        slots.push(Arc::downgrade(&slot));
        slot
    }

    pub(crate) fn touch(&self, slot: &SessionSlot) {
        slot.touch(self.uses.fetch_add(1, Ordering::Relaxed));
    }

    /// Returns the pages of sessions at rest. A shared page counts once for each session.
    pub(crate) fn idle_pages(&self) -> usize {
        self.slots().iter().map(|slot| slot.resting_pages()).sum()
    }

    /// Returns the slots, cloned so that no slot or sequence is dropped under the lock.
    fn slots(&self) -> Vec<Arc<SessionSlot>> {
        let slots = whole(self.slots.lock());
        slots.iter().filter_map(Weak::upgrade).collect()
    }

    /// Releases the pages of the least recently used session at rest. Returns false if no such session has
    /// pages.
    ///
    /// Never blocks: locked sessions keep their pages.
    pub(crate) fn reclaim_idle(&self) -> bool {
        let slots = self.slots();
        let mut idle: Vec<_> = slots.iter().filter(|slot| slot.resting_pages() > 0).collect();
        idle.sort_by_key(|slot| slot.last_used());
        idle.into_iter().any(|slot| slot.release_pages())
    }
}

impl std::fmt::Debug for ModelCore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelCore").field("limits", &self.limits).finish_non_exhaustive()
    }
}
