//! Speed of a model over ranks.

use nestling_core::group::{ExpertDivision, RankShare};
use nestling_core::rank_bytes::{DenseDivision, sliced_bytes_elsewhere};
use nestling_experts::residency::Placement;
use nestling_formats::Level;
use nestling_formats::store::{GroupId, Index};
use nestling_import::{FeedForward, ModelConfig};

use super::busiest::busiest_rank_experts;
use super::fabric::{Fabric, Operation};
use super::traffic::{PlannedExchange, RankDivision, Traffic};
use crate::plan::{
    COMPUTE_SHARE, Demand, ExpertDemand, LAYER_S, LayerDemand, LevelMix, MachineSpeed,
    NOT_OVERLAPPED, TOKEN_S, forecast,
};

/// Time of each further row of a product, as a share of the time to read its weights for the first row.
pub const FURTHER_ROW_SHARE: f64 = 0.2;

/// A model over ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedModel {
    /// Division of the experts.
    pub division: ExpertDivision,
    /// Demand of each rank.
    pub demands: Vec<Demand>, // [ranks]
    /// Exchanges of a step.
    pub traffic: Traffic,
}

/// Rows of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepShape {
    /// Number of rows.
    pub rows: usize,
    /// Number of sequences. Each has one row whose logits are requested.
    pub sequences: usize,
}

impl StepShape {
    /// Returns a step of decoding: one row of each sequence.
    pub fn decode(sequences: usize) -> Self {
        Self { rows: sequences, sequences }
    }

    /// Returns a step with the prompt of one sequence.
    pub fn prompt(rows: usize) -> Self {
        Self { rows, sequences: 1 }
    }
}

/// Experts that ranks compute in a layer, averaged over layers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpertLoad {
    /// Distinct experts of the busiest rank.
    pub busiest: f64,
    /// Distinct experts of a rank.
    pub mean: f64,
    /// Expert rows of the busiest rank.
    pub busiest_rows: f64,
}

impl ExpertLoad {
    /// Returns the load of the busiest rank over the mean; 1 without experts.
    pub fn ratio(&self) -> f64 {
        if self.mean > 0.0 { self.busiest / self.mean } else { 1.0 }
    }
}

/// Limit of the speed of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bottleneck {
    /// Reading weights and KV cache from memory.
    Memory,
    /// Arithmetic, and work that does not depend on bytes.
    Compute,
    /// Reading experts from disk.
    Disk,
    /// Latency of the exchanges.
    Latency,
    /// Bytes of the exchanges.
    Bandwidth,
}

impl Bottleneck {
    /// Returns the name for users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory bandwidth",
            Self::Compute => "compute",
            Self::Disk => "disk",
            Self::Latency => "exchange latency",
            Self::Bandwidth => "exchange bandwidth",
        }
    }
}

/// Predicted duration of a step in seconds, by part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepForecast {
    /// Reading weights and KV cache from memory, on the busiest rank.
    pub memory_s: f64,
    /// Further rows, and work that does not depend on bytes.
    pub compute_s: f64,
    /// Reading experts from disk, on the busiest rank.
    pub disk_s: f64,
    /// Latency of the exchanges.
    pub latency_s: f64,
    /// Transfer of their bytes.
    pub transfer_s: f64,
    /// The whole step. Reads from disk overlap with computation, exchanges do not.
    pub step_s: f64,
    /// Rows per second.
    pub rows_per_s: f64,
    /// Load of the ranks.
    pub load: ExpertLoad,
}

impl StepForecast {
    /// Returns the longest part.
    pub fn bottleneck(&self) -> Bottleneck {
        let parts = [
            (Bottleneck::Memory, self.memory_s),
            (Bottleneck::Compute, self.compute_s),
            (Bottleneck::Disk, self.disk_s),
            (Bottleneck::Latency, self.latency_s),
            (Bottleneck::Bandwidth, self.transfer_s),
        ];
        let longest = parts.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        longest.map_or(Bottleneck::Memory, |(part, _)| part)
    }
}

impl RankedModel {
    /// Divides a store's model, whose demand on one rank is `whole`, over ranks.
    pub fn of_index(
        index: &Index,
        config: &ModelConfig,
        whole: &Demand,
        ranks: usize,
        division: impl Into<RankDivision>,
    ) -> Self {
        let division = division.into();
        let demand_of = |share: RankShare| {
            let placement =
                Placement::of_index(index, config, share).divided(division.experts, config);
            let dense = DenseDivision { config, kv: division.kv, share };
            // Like `Demand::of_store`: the embedding counts if it is the head.
            let has_head = index.group(&GroupId::Head).is_some();
            let groups = index.groups().iter();
            let groups = groups.filter(|group| !has_head || group.id != GroupId::Embedding);
            let elsewhere: u64 =
                groups.map(|group| dense.group_bytes_elsewhere(index, group, whole.level)).sum();
            let mixtures = (0u32..).zip(&config.layers);
            let mixtures =
                mixtures.filter(|(_, layer)| matches!(layer.feed_forward, FeedForward::Moe { .. }));
            let layers = mixtures.zip(&whole.layers).map(|((layer, _), demand)| {
                let experts = (0u32..).zip(&demand.experts);
                let held = experts.filter(|(expert, _)| placement.holds(layer, *expert));
                let experts = held.map(|(expert, demand)| match placement.is_sliced(layer) {
                    true => slice_of(
                        index,
                        GroupId::expert_of(layer, expert),
                        whole.level,
                        demand,
                        share,
                    ),
                    false => *demand,
                });
                let experts = experts.collect();
                LayerDemand { chosen: demand.chosen, experts }
            });
            Demand {
                dense_token_bytes: whole.dense_token_bytes.saturating_sub(elsewhere),
                layers: layers.collect(),
                ..whole.clone()
            }
        };
        let demands = RankShare { rank: 0, ranks }.all().map(demand_of).collect();
        let traffic = Traffic::of_index(index, config, ranks, division);
        Self { division: division.experts, demands, traffic }
    }

    /// Returns the share of expert uses of the busiest rank over the mean, in the long run: by the measured or assumed
    /// rates, averaged over layers.
    pub fn long_run_ratio(&self) -> f64 {
        // Default: without ranks, there are no layers.
        let layers = self.demands.first().map_or(0, |demand| demand.layers.len());
        let of_layer = |layer: usize| {
            let rates = self.demands.iter().map(|demand| sum_of_rates(&demand.layers[layer]));
            let (sum, most) =
                rates.fold((0.0, 0.0f64), |(sum, most), rate| (sum + rate, most.max(rate)));
            if sum > 0.0 { most * self.demands.len() as f64 / sum } else { 1.0 }
        };
        if layers == 0 { 1.0 } else { (0..layers).map(of_layer).sum::<f64>() / layers as f64 }
    }

    /// Predicts a step's duration. Each rank has the speed of `machine` and keeps `expert_bytes` of its experts in
    /// memory.
    pub fn forecast(
        &self,
        step: StepShape,
        mix: LevelMix,
        machine: &MachineSpeed,
        fabric: &Fabric,
        expert_bytes: u64,
    ) -> StepForecast {
        let loads = self.loads(step.rows);
        let disk_s = self.demands.iter().map(|demand| {
            let stepped = of_step(demand, step.rows);
            forecast(&stepped, mix, machine, expert_bytes).read_s
        });
        let disk_s = disk_s.fold(0.0, f64::max);
        self.with_loads(step, &loads, disk_s, machine, fabric)
    }

    /// Predicts a step's duration, given the load of each layer and the time to read experts from disk on a rank of mean
    /// load.
    pub fn with_loads(
        &self,
        step: StepShape,
        loads: &[ExpertLoad],
        disk_s: f64,
        machine: &MachineSpeed,
        fabric: &Fabric,
    ) -> StepForecast {
        let Some(first) = self.demands.first() else { return StepForecast::default() };
        let dense = self.demands.iter().map(|demand| demand.dense_token_bytes).max();
        // Default: there is a rank, so there is a maximum.
        let dense = dense.unwrap_or(0) as f64;
        let context = first.context_bytes as f64 * step.sequences as f64;
        let (mut read, mut further) = (dense + context, dense * (step.rows - 1) as f64);
        for (layer, load) in loads.iter().enumerate() {
            let bytes = self.mean_expert_bytes(layer);
            read += bytes * load.busiest;
            further += bytes * (load.busiest_rows - load.busiest).max(0.0);
        }
        let speed = (machine.memory_bytes_per_s * COMPUTE_SHARE).max(1.0);
        let load = mean_of(loads);
        let (memory_s, disk_s) = (read / speed, disk_s * load.ratio());
        let fixed_s = TOKEN_S + LAYER_S * first.num_layers as f64;
        let compute_s = fixed_s + FURTHER_ROW_SHARE * further / speed;
        let (latency_s, transfer_s) = self.exchange_s(step, load.ratio(), fabric);
        let computed_s = memory_s + compute_s;
        let step_s = computed_s.max(disk_s)
            + NOT_OVERLAPPED * computed_s.min(disk_s)
            + latency_s
            + transfer_s;
        let rows_per_s = step.rows as f64 / step_s;
        StepForecast {
            memory_s,
            compute_s,
            disk_s,
            latency_s,
            transfer_s,
            step_s,
            rows_per_s,
            load,
        }
    }

    /// Returns the expected load of each layer in a step of `rows` rows.
    pub fn loads(&self, rows: usize) -> Vec<ExpertLoad> {
        // A slice of every expert is on each rank, so that all ranks compute the same experts.
        let ranks = match self.division {
            ExpertDivision::Whole => &self.demands[..],
            ExpertDivision::Sliced => &self.demands[..self.demands.len().min(1)],
        };
        // Default: without ranks, there are no layers.
        let layers = ranks.first().map_or(0, |demand| demand.layers.len());
        let of_layer = |layer: usize| {
            let held = ranks.iter().map(|demand| &demand.layers[layer]);
            let used: Vec<Vec<f64>> = held
                .clone()
                .map(|layer| layer.experts.iter().map(|e| use_in(e.rate, rows)).collect())
                .collect();
            let chosen = ranks[0].layers[layer].chosen;
            let total = (rows == 1).then_some(chosen);
            let sum = used.iter().flatten().sum::<f64>();
            let rows_of = held.map(|layer| rows as f64 * sum_of_rates(layer));
            let busiest = busiest_rank_experts(&used, total);
            ExpertLoad {
                busiest,
                mean: total.map_or(sum, |total| total as f64) / ranks.len() as f64,
                busiest_rows: rows_of.fold(busiest, f64::max),
            }
        };
        (0..layers).map(of_layer).collect()
    }

    /// Returns the bytes of an expert of a layer on a rank, averaged over all.
    fn mean_expert_bytes(&self, layer: usize) -> f64 {
        let experts = self.demands.iter().flat_map(|demand| &demand.layers[layer].experts);
        let (count, bytes) = experts.fold((0u64, 0u64), |(count, bytes), expert| {
            (count + 1, bytes + expert.plane_bytes.iter().sum::<u64>())
        });
        bytes as f64 / count.max(1) as f64
    }

    /// Returns the latency and the transfer time of a step's exchanges.
    fn exchange_s(&self, step: StepShape, load_ratio: f64, fabric: &Fabric) -> (f64, f64) {
        let ranks = self.traffic.ranks;
        let of_rows = |rows: usize, exchanges: &mut dyn Iterator<Item = &PlannedExchange>| {
            let (mut latency_s, mut transfer_s) = (0.0, 0.0);
            for exchange in exchanges {
                // A rank sends as much as it receives, and the busiest one more.
                let ratio = if exchange.by_load { load_ratio } else { 1.0 };
                let bytes = rows as f64 * exchange.received_bytes * ratio;
                let time = fabric.time(exchange.operation, bytes, ranks);
                latency_s += time.latency_s;
                transfer_s += time.transfer_s;
            }
            (latency_s, transfer_s)
        };
        let Traffic { embedding, layers, head, .. } = &self.traffic;
        let layers = of_rows(step.rows, &mut embedding.iter().chain(layers.iter().flatten()));
        let head = of_rows(step.sequences, &mut head.iter());
        // The order of rank 0 and the report are short.
        let around = 2.0 * fabric.time(Operation::AllGather, 0.0, ranks).latency_s;
        (layers.0 + head.0 + around, layers.1 + head.1)
    }
}

/// Returns the demand of a rank's rows of an expert.
fn slice_of(
    index: &Index,
    id: GroupId,
    level: Level,
    whole: &ExpertDemand,
    share: RankShare,
) -> ExpertDemand {
    // Default: an expert that the store lacks has no bytes; opening refuses such a store.
    let elsewhere = index.group(&id).map_or(0, |group| {
        // Default: a level without a section in the store uses no planes.
        sliced_bytes_elsewhere(group, index.planes_at(group, level).unwrap_or(0), share)
    });
    let sum = whole.plane_bytes.iter().sum::<u64>().max(1);
    let held = sum.saturating_sub(elsewhere) as f64 / sum as f64;
    let plane_bytes = whole.plane_bytes.map(|bytes| (bytes as f64 * held) as u64);
    ExpertDemand { plane_bytes, rate: whole.rate }
}

/// Returns the mean of the loads of layers.
fn mean_of(loads: &[ExpertLoad]) -> ExpertLoad {
    let count = loads.len().max(1) as f64;
    let mean = |of: fn(&ExpertLoad) -> f64| loads.iter().map(of).sum::<f64>() / count;
    ExpertLoad {
        busiest: mean(|load| load.busiest),
        mean: mean(|load| load.mean),
        busiest_rows: mean(|load| load.busiest_rows),
    }
}

fn sum_of_rates(layer: &LayerDemand) -> f64 {
    layer.experts.iter().map(|expert| expert.rate).sum()
}

/// Returns the probability that a step of `rows` rows uses an expert.
fn use_in(rate: f64, rows: usize) -> f64 {
    1.0 - libm::pow(1.0 - rate.clamp(0.0, 1.0), rows as f64)
}

/// Returns the demand of a step: rates are those of steps in place of rows.
fn of_step(demand: &Demand, rows: usize) -> Demand {
    let mut demand = demand.clone();
    for expert in demand.layers.iter_mut().flat_map(|layer| &mut layer.experts) {
        expert.rate = use_in(expert.rate, rows);
    }
    demand
}
