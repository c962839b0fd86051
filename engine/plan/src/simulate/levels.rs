//! Dual routing applied to a trace. Assigns a level to each (row, expert) from its weight by the engine's
//! rule, so that one recording serves all mean levels.

use nestling_formats::Level;

use nestling_core::routing_trace::RoutingTrace;
use nestling_experts::residency::{ExpertTable, PLANES};

const BISECTIONS: usize = 40;

/// Returns the mean level of all (row, expert) pairs of a trace, in bits.
pub fn mean_level(trace: &RoutingTrace) -> f64 {
    let levels = trace.steps.iter().flat_map(|step| &step.layers).flat_map(|layer| &layer.levels);
    let (sum, count) = levels.fold((0u64, 0u64), |(s, n), bits| (s + u64::from(*bits), n + 1));
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}

/// Assigns levels to a trace so that their mean is at most `mean`, and returns the threshold used. A pair
/// gets planes until the next one's error reduction per byte is below the threshold. Error reduction is the
/// squared weight times the plane's error drop.
pub fn route_levels(trace: &mut RoutingTrace, table: &ExpertTable, mean: f64) -> f64 {
    let gains = Gains::of(table);
    let (mut low, mut high) = (-120.0, 120.0);
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        gains.assign(trace, libm::exp2(middle));
        if mean_level(trace) > mean { low = middle } else { high = middle }
    }
    gains.assign(trace, libm::exp2(high));
    libm::exp2(high)
}

/// Error drop per byte of each plane.
struct Gains {
    layers: Vec<Vec<[f64; PLANES]>>,
}

impl Gains {
    fn of(table: &ExpertTable) -> Self {
        let layers = table.layers().iter().map(|layer| {
            let experts = layer.iter().map(|entry| {
                let mut gains = [0.0; PLANES];
                let planes = entry.error_drops.iter().zip(entry.plane_bytes);
                for (gain, (drop, bytes)) in gains.iter_mut().zip(planes) {
                    *gain = if bytes == 0 { 0.0 } else { f64::from(*drop) / bytes as f64 };
                }
                gains
            });
            experts.collect()
        });
        Self { layers: layers.collect() }
    }

    fn assign(&self, trace: &mut RoutingTrace, threshold: f64) {
        for step in &mut trace.steps {
            for (routing, gains) in step.layers.iter_mut().zip(&self.layers) {
                let entries = routing.ids.iter().zip(&routing.weights).zip(&mut routing.levels);
                for ((expert, weight), level) in entries {
                    let Some(gains) = gains.get(*expert as usize) else { continue };
                    let square = f64::from(*weight).powi(2);
                    let worth = |gain: &&f64| square * **gain > threshold;
                    let planes = gains[1..].iter().take_while(worth).count();
                    *level = Level::ALL[planes].bits();
                }
            }
        }
    }
}
