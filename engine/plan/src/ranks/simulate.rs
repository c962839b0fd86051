//! Load of ranks under a routing trace, with the engine's placement of experts.

use nestling_core::group::RankShare;
use nestling_core::replicas::{StepLoads, most_frequent};
use nestling_core::routing_trace::RoutingTrace;
use nestling_experts::residency::Placement;

use super::forecast::ExpertLoad;

/// Rule by which experts are placed on ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PlacementRule {
    /// In turn, as for stores without measured frequencies.
    InTurn,
    /// By frequency, as for calibrated stores.
    ByFrequency,
    /// By frequency, with the most frequent experts of each layer on every rank (Hecate's rule for what fits its
    /// slots). In a step, the ranks divide the rows of such an expert by [`StepLoads`].
    Replicated {
        /// Number of experts of each layer that all ranks hold.
        experts: usize,
    },
}

/// Simulated load of ranks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimulatedLoad {
    /// Load of each layer with experts, averaged over steps.
    pub layers: Vec<ExpertLoad>,
    /// Expert rows of the busiest rank over the mean, summed over all steps and averaged over layers.
    pub long_run_ratio: f64,
}

/// Simulates the load of `ranks` ranks with `sessions` sessions in a batch.
///
/// The first half of a trace's steps measures the frequencies for placement. The other half is divided into sessions of
/// equal length, of which a step of the batch has the steps at the same position.
pub fn simulate_ranks(
    trace: &RoutingTrace,
    ranks: usize,
    sessions: usize,
    rule: PlacementRule,
) -> SimulatedLoad {
    let (measured, simulated) = trace.steps.split_at(trace.steps.len() / 2);
    let length = simulated.len() / sessions.max(1);
    let mixtures = trace.shape.experts.iter().enumerate().filter(|(_, experts)| **experts > 0);
    let mut result = SimulatedLoad::default();
    for (layer, experts) in mixtures {
        let mut frequencies = vec![0.0f32; *experts as usize];
        for step in measured {
            step.layers[layer].ids.iter().for_each(|id| frequencies[*id as usize] += 1.0);
        }
        let replicated = match rule {
            PlacementRule::Replicated { experts } => most_frequent(&frequencies, experts),
            PlacementRule::InTurn | PlacementRule::ByFrequency => Vec::new(),
        };
        // The others are placed as if these were not used.
        replicated.iter().for_each(|expert| frequencies[*expert as usize] = 0.0);
        let mut holders = holders_of(rule, layer, &frequencies, ranks);
        replicated.iter().for_each(|expert| holders[*expert as usize] = None);
        let mut load = LayerLoad::new(ranks, layer, frequencies.len());
        for position in 0..length {
            let rows = (0..sessions).map(|session| session * length + position);
            load.step(rows.flat_map(|row| &simulated[row].layers[layer].ids), &holders);
        }
        result.layers.push(load.mean());
        result.long_run_ratio += load.long_run_ratio();
    }
    result.long_run_ratio /= result.layers.len().max(1) as f64;
    result
}

/// Returns the rank of each expert of a layer.
fn holders_of(
    rule: PlacementRule,
    layer: usize,
    frequencies: &[f32],
    ranks: usize,
) -> Vec<Option<usize>> {
    let share = RankShare { rank: 0, ranks };
    let placement = match rule {
        PlacementRule::InTurn => Placement::in_turn(share),
        PlacementRule::ByFrequency | PlacementRule::Replicated { .. } => {
            let mut layers = vec![Vec::new(); layer];
            layers.push(frequencies.to_vec());
            Placement::by_frequency(&layers, share)
        }
    };
    let experts = 0..frequencies.len() as u32;
    experts.map(|expert| Some(placement.rank_of(layer as u32, expert))).collect()
}

/// Load of one layer.
struct LayerLoad {
    ranks: usize,
    layer: usize,
    steps: u64,
    busiest: u64,
    busiest_rows: u64,
    distinct: u64,
    /// Expert rows of all steps.
    rows: Vec<u64>, // [ranks]
    /// Rows of each expert in the present step.
    uses: Vec<u64>, // [experts]
}

impl LayerLoad {
    fn new(ranks: usize, layer: usize, experts: usize) -> Self {
        let (rows, uses) = (vec![0; ranks], vec![0; experts]);
        Self { ranks, layer, steps: 0, busiest: 0, busiest_rows: 0, distinct: 0, rows, uses }
    }

    /// Adds a step. `holders` has no rank for an expert that all ranks hold.
    fn step<'a>(&mut self, ids: impl Iterator<Item = &'a u32>, holders: &[Option<usize>]) {
        self.uses.fill(0);
        ids.for_each(|id| self.uses[*id as usize] += 1);
        let used = || self.uses.iter().zip(holders).filter(|(rows, _)| **rows > 0);
        let mut loads = vec![(0u64, 0u64); self.ranks];
        let uses = (0..).zip(&self.uses).map(|(expert, rows): (usize, _)| expert * *rows as usize);
        let mut step = StepLoads::new(self.ranks, self.layer + uses.sum::<usize>());
        for (rows, rank) in used().filter_map(|(rows, rank)| Some((rows, (*rank)?))) {
            step.add(rank, *rows as usize);
            loads[rank].0 += 1;
            loads[rank].1 += rows;
        }
        let mut replicated: Vec<u64> =
            used().filter(|(_, rank)| rank.is_none()).map(|(rows, _)| *rows).collect();
        replicated.sort_unstable_by(|a, b| b.cmp(a));
        for rows in replicated {
            let parts = step.divide(rows as usize);
            for (load, rows) in loads.iter_mut().zip(parts).filter(|(_, rows)| *rows > 0) {
                load.0 += 1;
                load.1 += rows as u64;
            }
        }
        self.steps += 1;
        self.distinct += loads.iter().map(|load| load.0).sum::<u64>();
        let most = |of: fn(&(u64, u64)) -> u64| loads.iter().map(of).fold(0, u64::max);
        self.busiest += most(|load| load.0);
        self.busiest_rows += most(|load| load.1);
        self.rows.iter_mut().zip(loads).for_each(|(sum, load)| *sum += load.1);
    }

    fn mean(&self) -> ExpertLoad {
        let steps = self.steps.max(1) as f64;
        ExpertLoad {
            busiest: self.busiest as f64 / steps,
            mean: self.distinct as f64 / steps / self.ranks as f64,
            busiest_rows: self.busiest_rows as f64 / steps,
        }
    }

    fn long_run_ratio(&self) -> f64 {
        let (sum, most) = (self.rows.iter().sum::<u64>(), self.rows.iter().max());
        // Default: without rows, all ranks have the same load.
        most.map_or(1.0, |most| *most as f64 * self.ranks as f64 / sum.max(1) as f64)
    }
}
