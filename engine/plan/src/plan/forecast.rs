//! Forecast of resident planes and decoding speed.

use nestling_formats::{Level, Plane};

use super::demand::Demand;
use super::{COMPUTE_SHARE, LAYER_S, MISSING_OVER_BEST, MachineSpeed, NOT_OVERLAPPED, TOKEN_S};

/// Share of (token, expert) pairs at each level, in the order of [`Level::ALL`]. The shares sum to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LevelMix(pub [f64; Level::ALL.len()]);

impl LevelMix {
    /// Creates a mix with all uses at one level.
    pub fn fixed(level: Level) -> Self {
        let mut shares = [0.0; Level::ALL.len()];
        shares[level.index()] = 1.0;
        Self(shares)
    }

    /// Creates a mix of the two levels around a mean, up to `top`.
    ///
    /// ```
    /// use nestling_formats::Level;
    /// use nestling_plan::plan::LevelMix;
    ///
    /// let mix = LevelMix::of_mean(3.5, Level::L8); // half at level 3, half at level 4
    /// assert_eq!(mix.mean(), 3.5);
    /// ```
    pub fn of_mean(mean: f64, top: Level) -> Self {
        let held: Vec<Level> = Level::ALL.into_iter().filter(|level| *level <= top).collect();
        let bits = |level: Level| f64::from(level.bits());
        for pair in held.windows(2) {
            if mean <= bits(pair[1]) {
                let upper = (mean - bits(pair[0])) / (bits(pair[1]) - bits(pair[0]));
                let mut shares = [0.0; Level::ALL.len()];
                shares[pair[0].index()] = 1.0 - upper.clamp(0.0, 1.0);
                shares[pair[1].index()] = upper.clamp(0.0, 1.0);
                return Self(shares);
            }
        }
        Self::fixed(top)
    }

    /// Returns the mean level.
    pub fn mean(&self) -> f64 {
        Level::ALL.iter().zip(self.0).map(|(level, share)| f64::from(level.bits()) * share).sum()
    }

    fn needs(&self, plane: Plane) -> f64 {
        self.0[plane.index()..].iter().sum()
    }
}

/// Predicted performance of a model on a machine, for an expert budget.
#[derive(Clone, Debug, PartialEq)]
pub struct Forecast {
    /// Bytes of experts in memory.
    pub resident_expert_bytes: u64,
    /// Bytes of experts that remain on disk.
    pub disk_expert_bytes: u64,
    /// Share of a token's expert bytes that are resident when needed.
    pub hit_rate: f64,
    /// Bytes of weights and KV cache that a token reads from memory.
    pub token_bytes: f64,
    /// Bytes that a token reads from disk with the best fixed choice of resident planes.
    pub best_missing_bytes: f64,
    /// Bytes that a token reads from disk.
    pub missing_bytes: f64,
    /// Compute time of a token in seconds.
    pub compute_s: f64,
    /// Read time of a token in seconds.
    pub read_s: f64,
    /// Tokens per second.
    pub tokens_per_s: f64,
}

impl Forecast {
    /// Returns whether all experts are in memory.
    pub fn is_whole(&self) -> bool {
        self.disk_expert_bytes == 0
    }
}

struct ForecastPlane {
    bytes: u64,
    /// Uses per token that need the plane.
    rate: f64,
}

/// Predicts the performance of a model whose experts are used at the levels of `mix`, with `expert_bytes` of
/// memory for experts.
pub fn forecast(
    demand: &Demand,
    mix: LevelMix,
    machine: &MachineSpeed,
    expert_bytes: u64,
) -> Forecast {
    let (resident, missing) = split(pieces(demand, mix), expert_bytes);
    // Adding 0.0 avoids -0.0, the sum of an empty iterator.
    let sum = |values: &mut dyn Iterator<Item = f64>| values.sum::<f64>() + 0.0;
    let wanted =
        |pieces: &[ForecastPlane]| sum(&mut pieces.iter().map(|p| p.rate * p.bytes as f64));
    let bytes = |pieces: &[ForecastPlane]| pieces.iter().map(|piece| piece.bytes).sum::<u64>();
    let best_missing_bytes = wanted(&missing);
    let experts = wanted(&resident) + best_missing_bytes;
    let missing_bytes = (best_missing_bytes * MISSING_OVER_BEST).min(experts);
    let dense = demand.dense_token_bytes.saturating_add(demand.context_bytes);
    let token_bytes = dense as f64 + experts;
    let fixed_s = TOKEN_S + LAYER_S * demand.num_layers as f64;
    let compute_s = token_bytes / (machine.memory_bytes_per_s * COMPUTE_SHARE).max(1.0) + fixed_s;
    let read = |piece: &ForecastPlane| {
        piece.rate * piece.bytes as f64 / machine.disk_at(piece.bytes).max(1.0)
    };
    let best_read_s = sum(&mut missing.iter().map(read));
    let worse = if best_missing_bytes > 0.0 { missing_bytes / best_missing_bytes } else { 1.0 };
    let read_s = best_read_s * worse;
    let step_s = compute_s.max(read_s) + NOT_OVERLAPPED * compute_s.min(read_s);
    Forecast {
        resident_expert_bytes: bytes(&resident),
        disk_expert_bytes: demand.expert_bytes() - bytes(&resident),
        hit_rate: if experts > 0.0 { 1.0 - missing_bytes / experts } else { 1.0 },
        token_bytes,
        best_missing_bytes,
        missing_bytes,
        compute_s,
        read_s,
        tokens_per_s: if step_s > 0.0 { 1.0 / step_s } else { 0.0 },
    }
}

/// Returns all planes in use, by descending rate. Planes of an expert keep their order.
fn pieces(demand: &Demand, mix: LevelMix) -> Vec<ForecastPlane> {
    let mut pieces = Vec::new();
    for expert in demand.layers.iter().flat_map(|layer| &layer.experts) {
        for (plane, bytes) in Plane::ALL.into_iter().zip(expert.plane_bytes) {
            let rate = expert.rate * mix.needs(plane);
            if bytes > 0 && mix.needs(plane) > 0.0 {
                pieces.push(ForecastPlane { bytes, rate });
            }
        }
    }
    pieces.sort_by(|a, b| b.rate.total_cmp(&a.rate));
    pieces
}

/// Splits planes into the most used ones that fit, and the others.
fn split(pieces: Vec<ForecastPlane>, mut room: u64) -> (Vec<ForecastPlane>, Vec<ForecastPlane>) {
    pieces.into_iter().partition(|piece| {
        let fits = piece.bytes <= room;
        if fits {
            room -= piece.bytes;
        }
        fits
    })
}

/// Returns the highest mean level that reaches a speed with this expert budget, or `None` if level 2 does
/// not.
pub fn mean_level_for(
    demand: &Demand,
    machine: &MachineSpeed,
    expert_bytes: u64,
    tokens_per_s: f64,
) -> Option<f64> {
    let reaches = |mean: f64| {
        let mix = LevelMix::of_mean(mean, demand.level);
        forecast(demand, mix, machine, expert_bytes).tokens_per_s >= tokens_per_s
    };
    let (low, high) = (f64::from(Level::L2.bits()), f64::from(demand.level.bits()));
    // Searches in steps of 0.1 bit from the top, because speed need not rise monotonically on the way down.
    let steps = ((high - low) * 10.0).round() as u32;
    (0..=steps).map(|step| high - f64::from(step) / 10.0).find(|mean| reaches(*mean))
}

/// Returns the minimum expert budget in bytes that reaches a speed, or `None` if full residency does not.
pub fn bytes_for(
    demand: &Demand,
    mix: LevelMix,
    machine: &MachineSpeed,
    tokens_per_s: f64,
) -> Option<u64> {
    let reaches = |bytes: u64| forecast(demand, mix, machine, bytes).tokens_per_s >= tokens_per_s;
    let (mut low, mut high) = (0, demand.expert_bytes());
    if !reaches(high) {
        return None;
    }
    while low < high {
        let middle = low.midpoint(high);
        if reaches(middle) { high = middle } else { low = middle + 1 }
    }
    Some(high)
}
