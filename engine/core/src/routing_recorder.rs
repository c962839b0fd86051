//! Writes down which experts a model's rows are sent to, for simulations and plans.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::backend::{ExpertUse, Routing};
use crate::routing_trace::{LayerRouting, RoutingTrace, TraceShape, TraceStep};
use crate::sync::whole;

/// Records the routing of a model's steps while it is asked to. Costs a look at a flag per layer
/// where it is not.
#[derive(Debug)]
pub struct RoutingRecorder {
    on: AtomicBool,
    recording: Mutex<Recording>,
}

/// What is recorded of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Experts, weights and levels.
    Routing,
    /// What the router saw, too.
    HiddenToo,
}

#[derive(Debug)]
struct Recording {
    shape: TraceShape,
    steps: Vec<TraceStep>,
    keep: Keep,
    /// What the router saw: of every step, every layer's rows.
    hidden: Vec<Vec<f32>>, // [steps * layers][T, hidden_size]
    steps_max: usize,
}

impl RoutingRecorder {
    /// A recorder of a model with so many experts in each layer.
    pub fn new(experts: impl Iterator<Item = usize>) -> Self {
        let experts = experts.map(|count| u32::try_from(count).unwrap_or(u32::MAX)).collect();
        let shape = TraceShape { experts, experts_per_token: 1 };
        let recording = Mutex::new(Recording {
            shape,
            steps: Vec::new(),
            keep: Keep::Routing,
            hidden: Vec::new(),
            steps_max: 0,
        });
        Self { on: AtomicBool::new(false), recording }
    }

    /// Records from the next step on, `steps_max` steps at the most; a recording under way is lost.
    pub fn start(&self, steps_max: usize) {
        self.start_keeping(steps_max, Keep::Routing);
    }

    /// [`RoutingRecorder::start`], keeping what `keep` says.
    pub fn start_keeping(&self, steps_max: usize, keep: Keep) {
        let mut recording = self.lock();
        recording.steps.clear();
        recording.hidden.clear();
        recording.keep = keep;
        recording.steps_max = steps_max;
        self.on.store(true, Ordering::Release);
    }

    /// Ends the recording: all steps since its start.
    pub fn stop(&self) -> RoutingTrace {
        self.stop_keeping().0
    }

    /// The recording, and what the router saw, if that was to be kept.
    pub fn stop_keeping(&self) -> (RoutingTrace, Vec<Vec<f32>>) {
        let mut recording = self.lock();
        self.on.store(false, Ordering::Release);
        let steps = std::mem::take(&mut recording.steps);
        let hidden = std::mem::take(&mut recording.hidden);
        (RoutingTrace { shape: recording.shape.clone(), steps }, hidden)
    }

    /// Whether it wants to know the routing of this step.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Whether it wants to know what the router saw.
    pub fn keeps_hidden(&self) -> bool {
        self.on.load(Ordering::Acquire) && self.lock().keep == Keep::HiddenToo
    }

    /// A step begins.
    pub fn begin_step(&self) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let mut recording = self.lock();
        if recording.steps.len() == recording.steps_max {
            self.on.store(false, Ordering::Release);
            return;
        }
        let layers = vec![LayerRouting::default(); recording.shape.experts.len()];
        if recording.keep == Keep::HiddenToo {
            let hidden = recording.hidden.len() + layers.len();
            recording.hidden.resize(hidden, Vec::new());
        }
        recording.steps.push(TraceStep { layers });
    }

    /// Adds a layer's routing to the step, with the levels of its uses and what the router saw.
    pub fn layer(
        &self,
        layer: usize,
        routing: &Routing,
        hidden: &[f32],
        experts: &[(u32, ExpertUse)],
    ) {
        if !self.on.load(Ordering::Acquire) {
            return;
        }
        let mut recording = self.lock();
        let chosen = routing.num_experts_per_tok;
        recording.shape.experts_per_token = u32::try_from(chosen).unwrap_or(u32::MAX);
        if recording.keep == Keep::HiddenToo {
            let first = recording.hidden.len().saturating_sub(recording.shape.experts.len());
            if let Some(of_layer) = recording.hidden.get_mut(first + layer) {
                of_layer.extend_from_slice(hidden);
            }
        }
        let step = recording.steps.last_mut();
        // Default: a recording that was ended during the step has nowhere to keep it.
        let Some(of_layer) = step.and_then(|step| step.layers.get_mut(layer)) else { return };
        of_layer.ids = routing.expert_ids.clone();
        of_layer.weights = routing.expert_weights.clone();
        of_layer.levels = vec![0; routing.expert_ids.len()];
        for (_, used) in experts {
            let at = used.row as usize * chosen + used.rank as usize;
            if let Some(level) = of_layer.levels.get_mut(at) {
                *level = used.level.bits();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Recording> {
        whole(self.recording.lock())
    }
}
