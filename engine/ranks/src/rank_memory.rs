//! Memory of one rank, as rank 0 accounts for it.

use nestling_core::budget::{Purpose, Reservation};
use nestling_runtime::ModelParts;
use serde::{Deserialize, Serialize};

/// Memory of one rank in bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RankMemory {
    /// Weights and experts that [`ModelParts::weight_bytes`] counts.
    pub held: u64,
    /// Reservation for streamed experts.
    pub reserved: u64,
    /// All other reservations.
    pub fixed: u64,
    pub weights: u64,
    pub experts: u64,
    pub all_experts: u64,
    pub kv: u64,
    pub scratch: u64,
    pub program: u64,
}

impl RankMemory {
    pub fn of(parts: &ModelParts) -> Self {
        // Default: resident experts have no budget of their own.
        let reserved = parts.experts.as_ref().map_or(0, Reservation::bytes);
        let fixed = parts.reservations.iter().map(Reservation::bytes).sum();
        let own = Self { held: parts.weight_bytes, reserved, fixed, ..Self::default() };
        // Default: a model opened from a source has a plan.
        let Some(plan) = &parts.plan else { return own };
        Self {
            weights: plan.weight_bytes,
            experts: plan.expert_bytes,
            all_experts: plan.expert_bytes_total,
            kv: plan.kv_bytes,
            scratch: plan.scratch_bytes,
            program: plan.program_bytes,
            ..own
        }
    }

    /// Returns the bytes that the rank itself reserves: all but those for streamed experts, which rank 0 reserves.
    pub fn own(self) -> [(Purpose, u64); 4] {
        [
            (Purpose::Weights, self.weights),
            (Purpose::KeyValue, self.kv),
            (Purpose::Scratch, self.scratch),
            (Purpose::Program, self.program),
        ]
    }
}
