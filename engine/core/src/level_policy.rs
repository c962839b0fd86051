//! Level policies of rows: a fixed level, or dual routing by thresholds.

use nestling_formats::Level;
use serde::{Deserialize, Serialize};

/// Plane scores of an expert for a token, compared with a threshold. Infinite for planes that are always
/// used, negative for planes that never are. The first plane is always used, and a plane only if the one
/// below it is.
pub type PlaneScores = [f32; 5];

/// Policy for the levels of a row. It depends on settings only, never on residency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LevelPolicy {
    /// A fixed level for all experts.
    Fixed(Level),
    /// A level per token and expert, chosen by plane scores; `nestling-levels` computes it.
    Dual(DualPolicy),
}

impl LevelPolicy {
    /// Returns the model level of dense matrices, embedding and head. The store defines the prefix for it:
    /// its sections contain higher planes of dense matrices than of experts.
    pub fn dense(self) -> Level {
        self.level_max()
    }

    /// Returns the highest level that may be requested.
    pub fn level_max(self) -> Level {
        match self {
            Self::Fixed(level) => level,
            Self::Dual(policy) => policy.highest,
        }
    }

    /// Returns true if late planes are left out; plane P2 is always waited for.
    pub fn leaves_out_late(self) -> bool {
        matches!(self, Self::Dual(DualPolicy { mode: LevelMode::Elastic, .. }))
    }
}

/// Threshold of plane scores: the minimum reduction of a token's squared error per byte, in units of the
/// store's error drops. Never negative or NaN, so it implements `Ord` and `Hash`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Threshold(u32); // bits of a non-negative f32, ordered like the number

impl Threshold {
    /// Threshold that all planes pass.
    pub const ZERO: Self = Self(0);

    /// Creates a threshold; negative numbers and NaN become [`Self::ZERO`].
    pub fn new(value: f32) -> Self {
        if value > 0.0 { Self(value.to_bits()) } else { Self::ZERO }
    }

    /// Returns the threshold as a number.
    pub fn value(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// Returns the bits of the number, for storage.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Restores a threshold from its bits, or returns `None` if they are not valid.
    pub fn from_bits(bits: u32) -> Option<Self> {
        let same = Self::new(f32::from_bits(bits));
        (same.0 == bits).then_some(same)
    }
}

impl std::fmt::Debug for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Threshold({:e})", self.value())
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:e}", self.value())
    }
}

/// Influence of timing on results.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LevelMode {
    /// Results do not depend on timing: all planes of the chosen levels are waited for.
    #[default]
    Strict,
    /// Late planes are left out, except P2, and the threshold may follow the disk.
    Elastic,
}

/// Parameters of dual routing.
///
/// ```
/// use nestling_core::{DualPolicy, Threshold};
/// use nestling_formats::Level;
///
/// let policy = DualPolicy::up_to(Level::L8, Threshold::new(0.5));
/// let scores = [f32::INFINITY, 0.9, 0.1, 0.0, 0.0]; // planes P2, P3, P4, P6, P8
/// assert_eq!(policy.level(&scores), Level::L3);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DualPolicy {
    /// Minimum plane score.
    pub threshold: Threshold,
    /// Minimum level of experts.
    pub lowest: Level,
    /// Maximum level of experts, and the level of everything else.
    pub highest: Level,
    /// Influence of timing on results.
    pub mode: LevelMode,
}

impl DualPolicy {
    /// Creates a strict policy from level 2 to `highest`.
    pub fn up_to(highest: Level, threshold: Threshold) -> Self {
        Self { threshold, lowest: Level::L2.min(highest), highest, mode: LevelMode::Strict }
    }

    /// Returns the highest level whose planes all reach the threshold, within the policy's bounds.
    pub fn level(&self, worth: &PlaneScores) -> Level {
        let mut reached = Level::L2;
        for level in Level::ALL.into_iter().skip(1).take_while(|level| *level <= self.highest) {
            // False for NaN.
            let is_worth = worth[level.index()] >= self.threshold.value();
            if !is_worth {
                break;
            }
            reached = level;
        }
        reached.max(self.lowest).min(self.highest)
    }
}
