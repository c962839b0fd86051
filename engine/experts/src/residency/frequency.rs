//! Default eviction policy: expected reuse, estimated from long and short memories of uses.
//!
//! An expert's share of all uses is the best estimate of its rate if tokens are independent. In a text,
//! recent tokens are more informative. Both are recorded and combined with the weights that would have
//! predicted recent steps best. Counts are kept for all experts, resident or not, and start from the
//! calibration's frequencies.

use std::sync::Arc;

use nestling_formats::memory::{OutOfMemory, try_with_capacity};
use nestling_formats::{ExpertId, Plane};

use super::PLANES;
use super::blend::{Blend, MEMORIES};
use super::policy::{EvictionPolicy, RetentionGoal};
use super::table::{BOOKS, ExpertTable, PlaneId};

/// Growth at which counts are scaled down. Growing increments replace the decay of old counts.
const GROWTH_MAX: f64 = 1e12;

/// Maximum number of half-lives per step, enough to forget everything.
const HALF_LIVES_MAX: f64 = 60.0;

/// Tokens of observation that the initial weights of [`FrequencyOptions`] count as.
const SHARES_TOKENS: f64 = 16.0;

/// Settings of [`DecayedFrequency`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrequencyOptions {
    /// Half-life of a use in each memory, in tokens.
    pub half_lives: [f64; MEMORIES],
    /// Initial weights of the memories in the estimate.
    pub shares: [f64; MEMORIES],
    /// Maximum number of tokens that calibration's frequencies count as.
    pub prior_tokens: f64,
    /// Minimum uses per token assumed for an expert predicted for the same step.
    pub predicted_rate: f64,
    /// Goal of retention.
    pub goal: RetentionGoal,
}

impl Default for FrequencyOptions {
    fn default() -> Self {
        Self {
            half_lives: [4096.0, 48.0, 8.0, 1.5],
            shares: [1.0, 0.0, 0.0, 0.0],
            prior_tokens: 32.0,
            predicted_rate: 0.5,
            goal: RetentionGoal::Bytes,
        }
    }
}

/// Clock of one layer.
#[derive(Debug)]
struct LayerClock {
    /// Index of the layer's first expert.
    start: usize,
    /// Increment of a use in each memory. It grows with each token instead of decaying old counts.
    growth: [f64; MEMORIES],
    /// Tokens so far, in the same units.
    tokens: [f64; MEMORIES],
}

#[derive(Clone, Debug)]
struct ExpertCounts {
    /// Uses of each plane, in each memory.
    by_memory: [[f64; PLANES]; MEMORIES],
    /// Uses since the layer's clock last advanced.
    recent: f64,
    /// Error reduction of each plane per byte and use, never increasing from one plane to the next.
    error_values: [f64; PLANES],
}

/// Least frequently used eviction with decay of old uses.
#[derive(Debug)]
pub struct DecayedFrequency {
    table: Arc<ExpertTable>,
    options: FrequencyOptions,
    layers: Vec<LayerClock>,
    experts: Vec<ExpertCounts>,
    blend: Blend,
    /// Layer whose uses are being reported.
    current: Option<u32>,
}

impl DecayedFrequency {
    /// Creates the policy with the store's frequencies, or equal ones if it has none.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(table: Arc<ExpertTable>, options: FrequencyOptions) -> Result<Self, OutOfMemory> {
        // A memory saturates at about 1.44 half-lives of tokens.
        let saturated = options.half_lives.map(|tokens| tokens / std::f64::consts::LN_2);
        let prior = saturated.map(|tokens| options.prior_tokens.max(1e-3).min(tokens));
        let mut layers = try_with_capacity(BOOKS, table.layers().len())?;
        let mut experts = try_with_capacity(BOOKS, table.len())?;
        let mut squares = 0.0;
        for layer in table.layers() {
            layers.push(LayerClock {
                start: experts.len(),
                growth: [1.0; MEMORIES],
                tokens: prior,
            });
            let measured: f64 = layer.iter().map(|entry| f64::from(entry.frequency)).sum();
            let alike = table.experts_per_token() as f64 / layer.len().max(1) as f64;
            for entry in layer {
                let frequency = if measured > 0.0 { f64::from(entry.frequency) } else { alike };
                squares += frequency * frequency;
                let by_memory = prior.map(|tokens| [frequency * tokens; PLANES]);
                let error_values = error_values(entry.error_drops, entry.plane_bytes)
                    .map(|value| value * f64::from(entry.weight_square));
                experts.push(ExpertCounts { by_memory, recent: 0.0, error_values });
            }
        }
        let blend = Blend::new(options.shares, squares * SHARES_TOKENS);
        Ok(Self { table, options, layers, experts, blend, current: None })
    }

    /// Returns the expected uses per token.
    fn rate(&self, number: usize, id: PlaneId) -> f64 {
        let Some(clock) = self.layers.get(id.layer as usize) else { return 0.0 };
        let Some(counts) = self.experts.get(number) else { return 0.0 };
        let plane = id.plane.index();
        let mut rates = [0.0; MEMORIES];
        for (memory, rate) in rates.iter_mut().enumerate() {
            *rate = counts.by_memory[memory][plane] / clock.tokens[memory];
        }
        self.blend.of(rates)
    }

    /// Returns the value of a use of a plane per byte.
    fn value(&self, number: usize, plane: Plane) -> f64 {
        match self.options.goal {
            RetentionGoal::Bytes => 1.0,
            RetentionGoal::Error => {
                let counts = self.experts.get(number);
                counts.map_or(0.0, |counts| counts.error_values[plane.index()])
            }
        }
    }

    /// Ends a layer's uses of the step: compares them with the predictions of the memories and advances the
    /// layer's clock.
    fn advance(&mut self, layer: u32) {
        let clock = &mut self.layers[layer as usize];
        let count = self.table.layers()[layer as usize].len();
        let experts = &mut self.experts[clock.start..clock.start + count];
        let uses: f64 = experts.iter().map(|expert| expert.recent).sum();
        let tokens = uses / self.table.experts_per_token() as f64;
        if tokens == 0.0 {
            return;
        }
        for expert in &mut *experts {
            let recent = std::mem::take(&mut expert.recent);
            let mut rates = [0.0; MEMORIES];
            for (memory, rate) in rates.iter_mut().enumerate() {
                let before = expert.by_memory[memory][0] - recent * clock.growth[memory];
                *rate = before / clock.tokens[memory];
            }
            self.blend.observe(rates, recent / tokens);
        }
        for memory in 0..MEMORIES {
            clock.tokens[memory] += clock.growth[memory] * tokens;
            let half_lives = (tokens / self.options.half_lives[memory]).min(HALF_LIVES_MAX);
            clock.growth[memory] *= libm::exp2(half_lives);
            let growth = clock.growth[memory];
            if growth > GROWTH_MAX {
                let counts = experts.iter_mut().flat_map(|of| &mut of.by_memory[memory]);
                counts.for_each(|count| *count /= growth);
                clock.tokens[memory] /= growth;
                clock.growth[memory] = 1.0;
            }
        }
    }

    fn end_layer(&mut self) {
        if let Some(layer) = self.current.take() {
            self.advance(layer);
        }
    }
}

/// Weight of a base plane relative to refinements, if late refinements are left out.
const BASE: f64 = 1e6;

/// Returns the error reduction of each plane per byte, with base planes ranked above all others. A plane
/// counts no more than those below it, because it is useless without them.
fn error_values(drops: [f32; PLANES], bytes: [u64; PLANES]) -> [f64; PLANES] {
    let mut least = f64::INFINITY;
    let mut values = [0.0; PLANES];
    for ((value, drop), bytes) in values.iter_mut().zip(drops).zip(bytes) {
        least = least.min(f64::from(drop) / bytes.max(1) as f64);
        *value = least;
    }
    values[0] *= BASE;
    values
}

impl EvictionPolicy for DecayedFrequency {
    fn begin_step(&mut self) {
        self.end_layer();
        self.blend.solve();
        self.blend.fade(1.0);
    }

    fn used(&mut self, expert: ExpertId, planes: usize, rows: u32) {
        // Default: experts outside the table are not cached.
        let Some(number) = self.table.number(expert.layer, expert.expert) else { return };
        if self.current != Some(expert.layer) {
            self.end_layer();
            self.current = Some(expert.layer);
        }
        let (clock, counts) = (&self.layers[expert.layer as usize], &mut self.experts[number]);
        counts.recent += f64::from(rows);
        for (counts, growth) in counts.by_memory.iter_mut().zip(clock.growth) {
            counts.iter_mut().take(planes).for_each(|count| *count += growth * f64::from(rows));
        }
    }

    fn set_goal(&mut self, goal: RetentionGoal) {
        self.options.goal = goal;
    }

    fn retention_score(&self, plane: PlaneId) -> f64 {
        let Some(number) = self.table.number(plane.layer, plane.expert) else { return 0.0 };
        self.rate(number, plane) * self.value(number, plane.plane)
    }

    fn expected_score(&self, plane: PlaneId) -> f64 {
        let Some(number) = self.table.number(plane.layer, plane.expert) else { return 0.0 };
        let rate = self.rate(number, plane).max(self.options.predicted_rate);
        rate * self.value(number, plane.plane)
    }
}
