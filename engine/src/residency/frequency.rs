//! The default policy: expected reuse, from a long and a short memory of what was used.
//!
//! Where tokens are independent the best estimate of an expert's rate is its share of all uses so
//! far; in a real text the uses of the last tokens say more. The two are mixed. Counts are kept for
//! every expert, resident or not, and begin with what calibration found.

use std::sync::Arc;

use nestling_formats::{ExpertId, Plane};

use super::PLANES;
use super::policy::EvictionPolicy;
use super::table::{ExpertTable, PlaneId};

/// Memories of different length.
const MEMORIES: usize = 2;

/// Counts are scaled down when the growth that stands for their decay reaches this.
const GROWTH_MAX: f64 = 1e12;

/// Half-lives that one step can last: enough to forget everything.
const HALF_LIVES_MAX: f64 = 60.0;

/// What a plane is kept for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Worth {
    /// Bytes that need not be read again: right where every plane that is asked for is waited for.
    #[default]
    Bytes,
    /// Error that need not be suffered: right where late planes are not waited for.
    Error,
}

/// How [`DecayedFrequency`] estimates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FrequencyOptions {
    /// Tokens after which a use counts half: in the long and in the short memory.
    pub half_lives: [f64; MEMORIES],
    /// Share of the short memory in the estimate.
    pub short_share: f64,
    /// Tokens that calibration's frequencies count as.
    pub prior_tokens: f64,
    /// Uses per token that a prediction for the same step counts as, at the least.
    pub predicted_rate: f64,
    /// What a plane is kept for.
    pub worth: Worth,
}

impl Default for FrequencyOptions {
    fn default() -> Self {
        Self {
            half_lives: [2048.0, 16.0],
            short_share: 0.25,
            prior_tokens: 64.0,
            predicted_rate: 0.5,
            worth: Worth::Bytes,
        }
    }
}

/// Uses of the experts of one layer.
#[derive(Debug)]
struct LayerClock {
    /// Uses of all experts in this step.
    uses: f64,
    /// What a use counts now, in each memory: more with every token instead of old ones less.
    growth: [f64; MEMORIES],
    /// Tokens so far, counted in the same way.
    tokens: [f64; MEMORIES],
}

/// Least frequently used leaves first, old uses counting less.
#[derive(Debug)]
pub struct DecayedFrequency {
    table: Arc<ExpertTable>,
    options: FrequencyOptions,
    layers: Vec<LayerClock>,
    /// Uses of every plane of every expert, in each memory.
    counts: Vec<[[f64; PLANES]; MEMORIES]>,
    /// What a use of each plane is worth per byte, never rising from one plane to the next.
    values: Vec<[f64; PLANES]>,
}

impl DecayedFrequency {
    /// Begins with the frequencies of the store, or with all experts alike where it has none.
    pub fn new(table: Arc<ExpertTable>, options: FrequencyOptions) -> Self {
        let prior = options.prior_tokens.max(1e-3);
        let clock = || LayerClock { uses: 0.0, growth: [1.0; MEMORIES], tokens: [prior; MEMORIES] };
        let layers = table.layers().iter().map(|_| clock()).collect();
        let mut counts = Vec::with_capacity(table.len());
        let mut values = Vec::with_capacity(table.len());
        for layer in table.layers() {
            let measured: f64 = layer.iter().map(|entry| f64::from(entry.frequency)).sum();
            let alike = table.experts_per_token() as f64 / layer.len().max(1) as f64;
            for entry in layer {
                let frequency = if measured > 0.0 { f64::from(entry.frequency) } else { alike };
                counts.push([[frequency * prior; PLANES]; MEMORIES]);
                values.push(match options.worth {
                    Worth::Bytes => [1.0; PLANES],
                    Worth::Error => error_values(entry.error_drops, entry.plane_bytes)
                        .map(|value| value * f64::from(entry.weight_square)),
                });
            }
        }
        Self { table, options, layers, counts, values }
    }

    /// Expected uses per token.
    fn rate(&self, number: usize, id: PlaneId) -> f64 {
        let Some(clock) = self.layers.get(id.layer as usize) else { return 0.0 };
        let Some(counts) = self.counts.get(number) else { return 0.0 };
        let rate = |memory: usize| counts[memory][id.plane.index()] / clock.tokens[memory];
        let share = self.options.short_share;
        (1.0 - share) * rate(0) + share * rate(1)
    }

    fn value(&self, number: usize, plane: Plane) -> f64 {
        self.values.get(number).map_or(0.0, |values| values[plane.index()])
    }
}

/// Error per byte that each plane takes away; a plane counts no more than those below it, without
/// which it is nothing.
fn error_values(drops: [f32; PLANES], bytes: [u64; PLANES]) -> [f64; PLANES] {
    let mut least = f64::INFINITY;
    let mut values = [0.0; PLANES];
    for ((value, drop), bytes) in values.iter_mut().zip(drops).zip(bytes) {
        least = least.min(f64::from(drop) / bytes.max(1) as f64);
        *value = least;
    }
    values
}

impl EvictionPolicy for DecayedFrequency {
    fn begin_step(&mut self) {
        let experts = self.table.experts_per_token() as f64;
        let mut start = 0;
        for (clock, layer) in self.layers.iter_mut().zip(self.table.layers()) {
            let counts = self.counts.get_mut(start..start + layer.len()).unwrap_or_default();
            start += layer.len();
            let tokens = std::mem::take(&mut clock.uses) / experts;
            if tokens == 0.0 {
                continue;
            }
            for memory in 0..MEMORIES {
                clock.tokens[memory] += clock.growth[memory] * tokens;
                let half_lives = (tokens / self.options.half_lives[memory]).min(HALF_LIVES_MAX);
                clock.growth[memory] *= libm::exp2(half_lives);
                let growth = clock.growth[memory];
                if growth > GROWTH_MAX {
                    counts.iter_mut().flat_map(|of| &mut of[memory]).for_each(|n| *n /= growth);
                    clock.tokens[memory] /= growth;
                    clock.growth[memory] = 1.0;
                }
            }
        }
    }

    fn used(&mut self, expert: ExpertId, planes: usize, rows: u32) {
        let Some(number) = self.table.number(expert.layer, expert.expert) else { return };
        let Some(clock) = self.layers.get_mut(expert.layer as usize) else { return };
        let Some(counts) = self.counts.get_mut(number) else { return };
        clock.uses += f64::from(rows);
        for (counts, growth) in counts.iter_mut().zip(clock.growth) {
            counts.iter_mut().take(planes).for_each(|count| *count += growth * f64::from(rows));
        }
    }

    fn worth(&self, plane: PlaneId) -> f64 {
        let Some(number) = self.table.number(plane.layer, plane.expert) else { return 0.0 };
        self.rate(number, plane) * self.value(number, plane.plane)
    }

    fn expected_worth(&self, plane: PlaneId) -> f64 {
        let Some(number) = self.table.number(plane.layer, plane.expert) else { return 0.0 };
        let rate = self.rate(number, plane).max(self.options.predicted_rate);
        rate * self.value(number, plane.plane)
    }
}
