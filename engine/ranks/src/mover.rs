//! Choice of the experts that all ranks hold, by their measured use.

use nestling_core::error::EngineError;
use nestling_core::placement::{MovableReplicas, Placement};
use nestling_core::replicas::{Replicas, UseCounts};
use nestling_core::runner::ModelRunner;

/// Number of steps between two choices.
const STEPS_BETWEEN: u64 = 64;

/// Factor of the counted uses at each choice.
const DECAY: f64 = 0.9;

/// Factor by which an expert must be used more often than the replica that it displaces.
const GAIN_MIN: f64 = 1.25;

/// Minimum difference of the uses of the two.
const USES_MIN: f64 = 16.0;

/// Maximum number of experts that a choice moves, since ranks load them between two steps.
const MOVES_MAX: usize = 32;

/// Counts of the uses of experts, and the time of the next choice.
#[derive(Debug, Default)]
pub struct ReplicaMover {
    steps: u64,
    /// Decayed uses of all ranks, `[layers][experts]`.
    uses: Vec<Vec<f64>>,
    is_stopped: bool,
}

impl ReplicaMover {
    /// Counts a step. Returns a better set of replicas if one is due.
    pub fn after_step(&mut self, placement: &Placement) -> Option<Replicas> {
        self.steps += 1;
        if self.is_stopped || !self.steps.is_multiple_of(STEPS_BETWEEN) {
            return None;
        }
        // Default: rank 0 counts the uses of experts that may have replicas.
        let counted = placement.uses().map(UseCounts::take).unwrap_or_default();
        self.uses.resize_with(counted.len(), Vec::new);
        for (sums, counted) in self.uses.iter_mut().zip(counted) {
            sums.resize(counted.len(), 0.0);
            for (sum, uses) in sums.iter_mut().zip(counted) {
                *sum = DECAY * *sum + uses as f64;
            }
        }
        better(&self.uses, placement.replicas(), placement.replicas_max())
    }

    /// Ends the moves, since one has failed.
    pub fn stop(&mut self) {
        self.is_stopped = true;
    }
}

/// An expert that becomes a replica, perhaps in place of another.
struct Move {
    gain: f64,
    layer: usize,
    enters: u32,
    leaves: Option<u32>,
}

/// Returns a set with more frequent experts than `current`, which has up to `count` of each layer. Returns `None` if none
/// is clearly better.
fn better(uses: &[Vec<f64>], current: &Replicas, count: usize) -> Option<Replicas> {
    let mut moves: Vec<Move> = (0..uses.len())
        .flat_map(|layer| moves_of(&uses[layer], current.of_layer(layer as u32), count, layer))
        .collect();
    moves.sort_by(|a, b| b.gain.total_cmp(&a.gain).then(a.layer.cmp(&b.layer)));
    moves.truncate(MOVES_MAX);
    if moves.is_empty() {
        return None;
    }
    let mut layers = current.layers().to_vec();
    layers.resize(layers.len().max(uses.len()), Vec::new());
    for Move { layer, enters, leaves, .. } in moves {
        layers[layer].retain(|expert| Some(*expert) != leaves);
        layers[layer].push(enters);
    }
    Some(Replicas::new(layers))
}

/// Returns the moves of a layer that pay off, the best one first.
fn moves_of(uses: &[f64], held: &[u32], count: usize, layer: usize) -> Vec<Move> {
    // Default: an unknown expert was not used.
    let used = |expert: u32| uses.get(expert as usize).copied().unwrap_or(0.0);
    let by_use = |a: &u32, b: &u32| used(*b).total_cmp(&used(*a)).then(a.cmp(b));
    let mut outside: Vec<u32> =
        (0..uses.len() as u32).filter(|expert| !held.contains(expert)).collect();
    outside.sort_by(by_use);
    let mut leaving = held.to_vec();
    leaving.sort_by(|a, b| by_use(b, a));
    let free = count.saturating_sub(held.len());
    let leaving = std::iter::repeat_n(None, free).chain(leaving.into_iter().map(Some));
    let pairs = outside.into_iter().zip(leaving);
    let moved = pairs.map(|(enters, leaves)| {
        // Default: an expert in a free place displaces none.
        let before = leaves.map_or(0.0, used);
        let pays = used(enters) >= (GAIN_MIN * before).max(before + USES_MIN);
        pays.then(|| Move { gain: used(enters) - before, layer, enters, leaves })
    });
    moved.map_while(|moved| moved).collect()
}

/// Prepares a set on this rank.
pub fn prepare(runner: &mut dyn ModelRunner, replicas: &Replicas) -> Result<(), EngineError> {
    movable(runner)?.prepare(replicas)
}

/// Makes a prepared set the one in force if all ranks have prepared it, and drops it otherwise.
pub fn finish(runner: &mut dyn ModelRunner, is_agreed: bool) {
    if let Some(own) = runner.replicas() {
        own.finish(is_agreed);
    }
}

/// Makes a set the one in force between steps, without an agreement. The replicas that leave are released before others
/// are loaded.
pub fn adopt(runner: &mut dyn ModelRunner, replicas: &Replicas) -> Result<(), EngineError> {
    let own = movable(runner)?;
    let kept = own.placement().replicas().shared_with(replicas);
    for set in [&kept, replicas] {
        own.prepare(set)?;
        own.finish(true);
    }
    Ok(())
}

fn movable(runner: &mut dyn ModelRunner) -> Result<&mut dyn MovableReplicas, EngineError> {
    let none = || EngineError::mismatch("replicas of experts", "a rank that holds some", "none");
    runner.replicas().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_experts_displace_rare_ones() {
        let uses = vec![vec![100.0, 10.0, 90.0, 50.0], vec![], vec![5.0, 5.0]];
        let current = Replicas::new(vec![vec![1, 3], vec![], vec![]]);
        let found = better(&uses, &current, 2).unwrap();
        // Rare uses of the last layer prove nothing.
        assert_eq!(found, Replicas::new(vec![vec![0, 2], vec![], vec![]]));
        assert_eq!(better(&uses, &found, 2), None);
        // Free places are filled.
        let none = Replicas::default();
        assert_eq!(better(&uses, &none, 2).unwrap().of_layer(0), [0, 2]);
    }

    #[test]
    fn similar_uses_move_nothing_and_one_choice_moves_few() {
        let current = Replicas::new(vec![vec![0]]);
        assert_eq!(better(&[vec![100.0, 120.0]], &current, 1), None);
        let many = vec![vec![1000.0; 128]; 4];
        let found = better(&many, &Replicas::default(), 100).unwrap();
        assert_eq!(found.layers().iter().map(Vec::len).sum::<usize>(), MOVES_MAX);
    }
}
