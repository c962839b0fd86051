//! Placement of experts on the ranks of a model.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use nestling_formats::ExpertId;
use nestling_formats::store::{GroupId, Index};
use nestling_import::{FeedForward, LayerConfig, ModelConfig};

use crate::backend::ExpertUse;
use crate::error::EngineError;
use crate::group::{ExpertDivision, RankShare};
use crate::rank_bytes::can_slice;
use crate::replicas::{Replicas, StepLoads, UseCounts, most_frequent};

/// Rank of each expert, or all ranks for sliced and replicated experts. It never changes a result.
#[derive(Clone, Debug)]
pub struct Placement {
    share: RankShare,
    /// Ranks by measured frequency, `[layers][experts]`; empty if frequencies are not known.
    ranks: Arc<[Vec<usize>]>,
    /// Frequencies that calibration measured, `[layers][experts]`; empty if they are not known.
    frequencies: Arc<[Vec<f32>]>,
    /// True for layers whose experts are sliced, `[layers]`; empty if none are.
    sliced: Arc<[bool]>,
    /// Maximum replicas of a layer.
    replicas_max: usize,
    /// Number of experts of each layer that may have replicas, `[layers]`; empty if none may.
    replicable: Arc<[usize]>,
    replicas: Replicas,
    /// Uses of the experts of all ranks, if this rank counts them.
    uses: Option<Arc<UseCounts>>,
}

impl Placement {
    /// Places experts in turn. The layers begin at different ranks, so that the first experts of all layers do not meet
    /// in one.
    pub fn in_turn(share: RankShare) -> Self {
        Self {
            share,
            ranks: Arc::new([]),
            frequencies: Arc::new([]),
            sliced: Arc::new([]),
            replicas_max: 0,
            replicable: Arc::new([]),
            replicas: Replicas::default(),
            uses: None,
        }
    }

    /// Places a store's experts by the frequencies that calibration has measured: the most frequent first, each on the
    /// rank with the lowest load that has room. Each rank gets the same number of a layer's experts, give or take one.
    /// Layers without frequencies are placed in turn.
    pub fn of_index(index: &Index, config: &ModelConfig, share: RankShare) -> Self {
        if !share.is_divided() {
            return Self::in_turn(share);
        }
        let of_layer = |(layer, feed_forward)| match feed_forward {
            FeedForward::Moe { num_experts, .. } => {
                let frequency = |expert| index.group(&GroupId::expert_of(layer, expert))?.frequency;
                let experts = 0..num_experts as u32;
                let frequencies: Option<Vec<f32>> = experts.map(frequency).collect();
                // Default: a layer without frequencies is placed in turn.
                frequencies.unwrap_or_default()
            }
            FeedForward::Absent | FeedForward::Dense { .. } => Vec::new(),
        };
        let layers = (0u32..).zip(config.layers.iter().map(|layer| layer.feed_forward));
        Self::by_frequency(&layers.map(of_layer).collect::<Vec<_>>(), share)
    }

    /// Places experts as [`Self::of_index`] does, by frequencies `[layers][experts]`. Layers without any are placed in
    /// turn.
    pub fn by_frequency(frequencies: &[Vec<f32>], share: RankShare) -> Self {
        let layers = (0u32..).zip(frequencies);
        let ranks = layers.map(|(layer, of)| placed(of, share.ranks, layer)).collect();
        Self { ranks, frequencies: frequencies.into(), ..Self::in_turn(share) }
    }

    /// Slices the experts of all layers in which they have a tile of rows for each rank, if the division asks for it.
    #[must_use]
    pub fn divided(self, division: ExpertDivision, config: &ModelConfig) -> Self {
        let is_sliced = |layer: &LayerConfig| match layer.feed_forward {
            FeedForward::Moe { moe_intermediate_size, .. } => {
                can_slice(moe_intermediate_size, config.hidden_size, self.share)
            }
            FeedForward::Absent | FeedForward::Dense { .. } => false,
        };
        match division {
            ExpertDivision::Whole => self,
            ExpertDivision::Sliced => {
                let sliced = config.layers.iter().map(is_sliced).collect();
                Self { sliced, ..self }
            }
        }
    }

    /// Replicates the `count` most frequent experts of each layer on every rank, and places the others as if these were not
    /// used. Sliced layers have no replicas, and layers without frequencies none until they are moved there.
    #[must_use]
    pub fn replicated(self, count: usize, config: &ModelConfig) -> Self {
        if count == 0 || !self.share.is_divided() {
            return self;
        }
        let mut frequencies = self.frequencies.to_vec();
        let mut replicas = Vec::with_capacity(frequencies.len());
        for (layer, of_layer) in (0..).zip(&mut frequencies) {
            let most = if self.is_sliced(layer) { 0 } else { count };
            let most = most_frequent(of_layer, most);
            most.iter().for_each(|expert| of_layer[*expert as usize] = 0.0);
            replicas.push(most);
        }
        let layers = (0u32..).zip(&frequencies);
        let ranks = layers.map(|(layer, of)| placed(of, self.share.ranks, layer)).collect();
        let counted = |(layer, of): (u32, &LayerConfig)| match of.feed_forward {
            FeedForward::Moe { num_experts, .. } if !self.is_sliced(layer) => num_experts,
            _ => 0,
        };
        let replicable: Arc<[usize]> = (0..).zip(&config.layers).map(counted).collect();
        let counts = || Arc::new(UseCounts::new(replicable.iter().copied()));
        let uses = (self.share.rank == 0).then(counts);
        let replicas = Replicas::new(replicas);
        Self { ranks, replicas_max: count, replicable, replicas, uses, ..self }
    }

    /// Returns the experts of a set that this rank does not hold, by layer.
    ///
    /// # Errors
    /// Fails if the set has more experts of a layer than [`Self::replicas_max`], or experts that have no replicas.
    pub fn missing(&self, replicas: &Replicas) -> Result<Vec<(u32, Vec<u32>)>, EngineError> {
        let mut missing = Vec::new();
        for (layer, experts) in (0..).zip(replicas.layers()) {
            let (limit, found) = (self.replicas_max as u64, experts.len() as u64);
            if found > limit {
                return Err(EngineError::Limit { what: "replicas of a layer", limit, found });
            }
            // Default: a layer that does not exist has no experts.
            let count = self.replicable.get(layer as usize).copied().unwrap_or(0);
            if let Some(expert) = experts.iter().find(|expert| **expert as usize >= count) {
                let what = format!("replicas of layer {layer}");
                return Err(EngineError::mismatch(what, format!("experts below {count}"), expert));
            }
            let new = experts.iter().copied().filter(|expert| !self.holds(layer, *expert));
            missing.push((layer, new.collect::<Vec<u32>>()));
        }
        missing.retain(|(_, experts)| !experts.is_empty());
        Ok(missing)
    }

    /// Returns the maximum bytes of this rank's replicas, whichever experts these are: they move while the model runs.
    /// `experts` are all experts with their bytes.
    pub fn replica_bytes(&self, experts: impl Iterator<Item = (ExpertId, u64)>) -> u64 {
        let mut layers: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (id, bytes) in experts.filter(|(id, _)| !self.owns(id.layer, id.expert)) {
            layers.entry(id.layer).or_default().push(bytes);
        }
        let largest = layers.into_values().flat_map(|mut bytes| {
            bytes.sort_unstable_by(|a, b| b.cmp(a));
            bytes.truncate(self.replicas_max);
            bytes
        });
        largest.fold(0, u64::saturating_add)
    }

    /// Exchanges the replicas for others.
    pub fn set_replicas(&mut self, replicas: Replicas) {
        self.replicas = replicas;
    }

    /// Returns the replicas.
    pub fn replicas(&self) -> &Replicas {
        &self.replicas
    }

    /// Returns the maximum replicas of a layer; 0 if none are ever moved to a rank.
    pub fn replicas_max(&self) -> usize {
        self.replicas_max
    }

    /// Returns the counters of uses, if this rank counts those of all ranks.
    pub fn uses(&self) -> Option<&UseCounts> {
        self.uses.as_deref()
    }

    /// Returns whether every rank holds some rows of each of a layer's experts.
    pub fn is_sliced(&self, layer: u32) -> bool {
        // Default: a layer without experts is not sliced.
        self.sliced.get(layer as usize).copied().unwrap_or(false)
    }

    /// Returns whether this rank counts the uses of a layer's experts that it computes, so that one rank counts each.
    pub fn counts(&self, layer: u32) -> bool {
        !self.is_sliced(layer) || self.share.rank == 0
    }

    /// Returns the rank that holds an expert, if it is whole.
    pub fn rank_of(&self, layer: u32, expert: u32) -> usize {
        let placed = self.ranks.get(layer as usize).and_then(|layer| layer.get(expert as usize));
        // Default: an expert of unknown frequency is placed in turn.
        placed.copied().unwrap_or((layer as usize + expert as usize) % self.share.ranks.max(1))
    }

    /// Returns whether an expert belongs to this rank, or rows of it. Replicas belong to another rank or to this one.
    pub fn owns(&self, layer: u32, expert: u32) -> bool {
        self.is_sliced(layer) || self.rank_of(layer, expert) == self.share.rank
    }

    /// Returns whether this rank holds an expert, a replica or some rows of it.
    pub fn holds(&self, layer: u32, expert: u32) -> bool {
        self.owns(layer, expert) || self.replicas.contains(layer, expert)
    }

    /// Keeps the uses of a layer that this rank computes, of those of all ranks. `uses` are sorted by expert, and all ranks
    /// call this with the same ones, so that each use is kept by one rank, or by all if the layer is sliced.
    pub fn keep_uses(&self, layer: u32, uses: &mut Vec<(u32, ExpertUse)>) {
        if let Some(counts) = &self.uses {
            uses.iter().for_each(|(expert, _)| counts.add(layer, *expert, 1));
        }
        if self.is_sliced(layer) {
            return;
        }
        let parts = self.own_parts(layer, uses);
        let (mut last, mut next) = (None, 0);
        uses.retain(|(expert, _)| {
            if last != Some(*expert) {
                (last, next) = (Some(*expert), 0);
            }
            let at = next;
            next += 1;
            match parts.iter().find(|(replica, _)| replica == expert) {
                Some((_, part)) => part.contains(&at),
                None => self.rank_of(layer, *expert) == self.share.rank,
            }
        });
    }

    /// Returns the replicated experts among the uses, each with this rank's part of its uses.
    fn own_parts(&self, layer: u32, uses: &[(u32, ExpertUse)]) -> Vec<(u32, Range<usize>)> {
        let RankShare { rank, ranks } = self.share;
        let mut replicated = Vec::new();
        if self.replicas.of_layer(layer).is_empty() {
            return replicated;
        }
        // Steps begin at different ranks, so that no rank is the first among equals in all of them.
        let turn = uses.iter().fold(layer as usize, |turn, (expert, _)| turn + *expert as usize);
        let mut loads = StepLoads::new(ranks, turn);
        let mut counted = Vec::new();
        for same in uses.chunk_by(|(a, _), (b, _)| a == b) {
            let (expert, rows) = (same[0].0, same.len());
            match self.replicas.contains(layer, expert) {
                true => counted.push((expert, rows)),
                false => loads.add(self.rank_of(layer, expert), rows),
            }
        }
        // The largest first, since small ones fill gaps.
        counted.sort_unstable_by_key(|(expert, rows)| (Reverse(*rows), *expert));
        for (expert, rows) in counted {
            let parts = loads.divide(rows);
            let first = parts.iter().take(rank).sum::<usize>();
            replicated.push((expert, first..first + parts[rank]));
        }
        replicated
    }
}

/// Replicas of a rank that can be exchanged for others between steps.
///
/// All ranks prepare the same set. If all succeed, all use it from the next step on; otherwise none does.
pub trait MovableReplicas {
    /// Returns the placement in force.
    fn placement(&self) -> &Placement;

    /// Loads the experts of a set that this rank does not hold. The set in force stays.
    ///
    /// # Errors
    /// Fails as [`Placement::missing`] does, or if an expert cannot be loaded.
    fn prepare(&mut self, replicas: &Replicas) -> Result<(), EngineError>;

    /// Makes the prepared set the one in force and releases the experts that left it, or drops the prepared set.
    fn finish(&mut self, is_agreed: bool);
}

/// Returns the rank of each of a layer's experts.
fn placed(frequencies: &[f32], ranks: usize, layer: u32) -> Vec<usize> {
    let mut order: Vec<usize> = (0..frequencies.len()).collect();
    order.sort_by(|a, b| frequencies[*b].total_cmp(&frequencies[*a]).then(a.cmp(b)));
    let room = frequencies.len().div_ceil(ranks);
    let mut loads = vec![(0.0f64, 0usize); ranks];
    let mut placed = vec![0; frequencies.len()];
    for expert in order {
        let open = (0..ranks).map(|turn| (layer as usize + turn) % ranks);
        let open = open.filter(|rank| loads[*rank].1 < room);
        let least = open.min_by(|a, b| loads[*a].0.total_cmp(&loads[*b].0));
        // Default: there is room for all experts.
        let rank = least.unwrap_or(0);
        loads[rank].0 += f64::from(frequencies[expert]);
        loads[rank].1 += 1;
        placed[expert] = rank;
    }
    placed
}

#[cfg(test)]
mod tests {
    use nestling_formats::Level;

    use super::*;

    /// Returns the load of each rank.
    fn loads(frequencies: &[f32], ranks: usize, rank_of: impl Fn(usize) -> usize) -> Vec<f32> {
        let mut loads = vec![0.0; ranks];
        frequencies.iter().enumerate().for_each(|(expert, used)| loads[rank_of(expert)] += used);
        loads
    }

    #[test]
    fn frequent_experts_are_spread_and_ranks_hold_the_same_number() {
        // Frequent experts lie next to each other, as in no model.
        let frequencies: Vec<f32> =
            (0..30).map(|expert| 1.0 / (1.0 + (expert / 4) as f32)).collect();
        for ranks in [2, 3, 4, 8] {
            let placed = placed(&frequencies, ranks, 5);
            let counts = loads(&[1.0; 30], ranks, |expert| placed[expert]);
            let most = counts.iter().copied().fold(0.0, f32::max);
            assert!(most <= 30usize.div_ceil(ranks) as f32, "{counts:?}");
            let spread = |loads: Vec<f32>| {
                let (sum, most) =
                    (loads.iter().sum::<f32>(), loads.iter().copied().fold(0.0, f32::max));
                most * ranks as f32 / sum
            };
            let by_frequency = spread(loads(&frequencies, ranks, |expert| placed[expert]));
            let in_turn = spread(loads(&frequencies, ranks, |expert| (5 + expert) % ranks));
            // The least loaded rank is at most at the mean before it gets an expert.
            let bound = 1.0 + ranks as f32 / frequencies.iter().sum::<f32>();
            assert!(by_frequency <= in_turn.min(bound), "{by_frequency}, {in_turn}, {bound}");
        }
    }

    #[test]
    fn every_expert_has_one_rank() {
        for ranks in 1..9 {
            let placements: Vec<Placement> =
                RankShare { rank: 0, ranks }.all().map(Placement::in_turn).collect();
            for expert in 0..64 {
                let holders = placements.iter().filter(|rank| rank.holds(3, expert)).count();
                assert_eq!(holders, 1, "expert {expert} of {ranks} ranks");
            }
        }
    }

    fn uses_of(experts: &[(u32, u32)]) -> Vec<(u32, ExpertUse)> {
        let of = |(expert, rows): &(u32, u32)| {
            let (expert, level) = (*expert, Level::L4);
            (0..*rows).map(move |row| (expert, ExpertUse { row, rank: 0, level }))
        };
        experts.iter().flat_map(of).collect()
    }

    #[test]
    fn every_use_of_a_replica_has_one_rank() {
        let uses = uses_of(&[(0, 70), (1, 1), (2, 17), (5, 3), (7, 40)]);
        let mut divided = 0;
        for ranks in 2..6 {
            let (mut kept, mut with_zero) = (Vec::new(), 0);
            for share in (RankShare { rank: 0, ranks }).all() {
                let mut placement = Placement::in_turn(share);
                placement.set_replicas(Replicas::new(vec![vec![], vec![0, 2, 5]]));
                let mut own = uses.clone();
                placement.keep_uses(1, &mut own);
                assert!(own.iter().all(|(expert, _)| placement.holds(1, *expert)));
                with_zero += usize::from(own.iter().any(|(expert, _)| *expert == 0));
                kept.extend(own);
            }
            kept.sort_by_key(|(expert, used)| (*expert, used.row));
            assert_eq!(kept, uses, "{ranks} ranks");
            divided += usize::from(with_zero > 1);
        }
        assert!(divided > 0, "the rows of expert 0 are always on one rank");
    }
}
