//! Load of ranks under a routing trace, with the engine's placement of experts.

use nestling_core::group::RankShare;
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
    /// slots). In a step, the least loaded rank computes such an expert. The engine does not implement it.
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
        let mut replicated: Vec<usize> = (0..frequencies.len()).collect();
        replicated.sort_by(|a, b| frequencies[*b].total_cmp(&frequencies[*a]).then(a.cmp(b)));
        replicated.truncate(match rule {
            PlacementRule::Replicated { experts } => experts,
            PlacementRule::InTurn | PlacementRule::ByFrequency => 0,
        });
        // The others are placed as if these were not used.
        replicated.iter().for_each(|expert| frequencies[*expert] = 0.0);
        let mut holders = holders_of(rule, layer, &frequencies, ranks);
        replicated.iter().for_each(|expert| holders[*expert] = None);
        let mut load = LayerLoad::new(ranks, frequencies.len());
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
    fn new(ranks: usize, experts: usize) -> Self {
        let (rows, uses) = (vec![0; ranks], vec![0; experts]);
        Self { ranks, steps: 0, busiest: 0, busiest_rows: 0, distinct: 0, rows, uses }
    }

    /// Adds a step. `holders` has no rank for an expert that all ranks hold.
    fn step<'a>(&mut self, ids: impl Iterator<Item = &'a u32>, holders: &[Option<usize>]) {
        self.uses.fill(0);
        ids.for_each(|id| self.uses[*id as usize] += 1);
        let used = || self.uses.iter().zip(holders).filter(|(rows, _)| **rows > 0);
        let mut loads = vec![(0u64, 0u64); self.ranks];
        for (rows, rank) in used().filter_map(|(rows, rank)| Some((rows, (*rank)?))) {
            loads[rank].0 += 1;
            loads[rank].1 += rows;
        }
        // Steps begin at different ranks, so that no rank is the first among equals in all of them.
        let first = self.steps as usize % self.ranks;
        for (rows, _) in used().filter(|(_, rank)| rank.is_none()) {
            let turn = (first..self.ranks).chain(0..first);
            // Default: a group has a rank.
            let least = turn.min_by_key(|rank| loads[*rank]).unwrap_or(0);
            loads[least].0 += 1;
            loads[least].1 += rows;
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
