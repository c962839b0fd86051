//! Recording of a model's expert routing, for simulations and plans.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::backend::{ExpertUse, Routing};
use crate::routing_trace::{LayerRouting, RoutingTrace, TraceShape, TraceStep};
use crate::sync::whole;

/// Recorder of the routing of a model's steps. When off, it costs one check of a flag per layer.
#[derive(Debug)]
pub struct RoutingRecorder {
    on: AtomicBool,
    recording: Mutex<Recording>,
}

/// Contents of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedContent {
    /// Experts, weights and levels.
    Routing,
    /// Experts, weights, levels and router inputs.
    HiddenToo,
}

#[derive(Debug)]
struct Recording {
    shape: TraceShape,
    steps: Vec<TraceStep>,
    keep: RecordedContent,
    /// Router inputs of all layers of all steps.
    hidden: Vec<Vec<f32>>, // [steps * layers][T, hidden_size]
    steps_max: usize,
}

impl RoutingRecorder {
    /// Creates a recorder of a model with the given number of experts per layer.
    pub fn new(experts: impl Iterator<Item = usize>) -> Self {
        let experts = experts.map(|count| u32::try_from(count).unwrap_or(u32::MAX)).collect();
        let shape = TraceShape { experts, experts_per_token: 1 };
        let recording = Mutex::new(Recording {
            shape,
            steps: Vec::new(),
            keep: RecordedContent::Routing,
            hidden: Vec::new(),
            steps_max: 0,
        });
        Self { on: AtomicBool::new(false), recording }
    }

    /// Starts recording at the next step, up to `steps_max` steps; discards a recording in progress.
    pub fn start(&self, steps_max: usize) {
        self.start_keeping(steps_max, RecordedContent::Routing);
    }

    /// Starts recording as [`RoutingRecorder::start`] does, with the contents selected by `keep`.
    pub fn start_keeping(&self, steps_max: usize, keep: RecordedContent) {
        let mut recording = self.lock();
        recording.steps.clear();
        recording.hidden.clear();
        recording.keep = keep;
        recording.steps_max = steps_max;
        self.on.store(true, Ordering::Release);
    }

    /// Stops the recording and returns all its steps.
    pub fn stop(&self) -> RoutingTrace {
        self.stop_keeping().0
    }

    /// Stops the recording and returns its steps, and the router inputs if they were recorded.
    pub fn stop_keeping(&self) -> (RoutingTrace, Vec<Vec<f32>>) {
        let mut recording = self.lock();
        self.on.store(false, Ordering::Release);
        let steps = std::mem::take(&mut recording.steps);
        let hidden = std::mem::take(&mut recording.hidden);
        (RoutingTrace { shape: recording.shape.clone(), steps }, hidden)
    }

    /// Returns true if this step's routing is recorded.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Acquire)
    }

    /// Returns true if router inputs are recorded.
    pub fn keeps_hidden(&self) -> bool {
        self.on.load(Ordering::Acquire) && self.lock().keep == RecordedContent::HiddenToo
    }

    /// Starts a step.
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
        if recording.keep == RecordedContent::HiddenToo {
            let hidden = recording.hidden.len() + layers.len();
            recording.hidden.resize(hidden, Vec::new());
        }
        recording.steps.push(TraceStep { layers });
    }

    /// Adds a layer's routing to the step, with the levels of its uses and the router inputs.
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
        if recording.keep == RecordedContent::HiddenToo {
            let first = recording.hidden.len().saturating_sub(recording.shape.experts.len());
            if let Some(of_layer) = recording.hidden.get_mut(first + layer) {
                of_layer.extend_from_slice(hidden);
            }
        }
        let step = recording.steps.last_mut();
        // Default: ignored if the recording was stopped during the step.
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
