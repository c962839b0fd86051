//! Levels that a row is computed with: one for every expert, or by thresholds of dual routing.

use nestling_formats::Level;

/// What each plane of an expert is worth to a token, to be compared with a threshold; infinite for a
/// plane that is always used, negative for one that never is. The first plane is used whatever it is
/// worth, and one above a plane that is not used is not.
pub type PlaneScores = [f32; 5];

/// Which levels a row is computed with. A function of settings alone, never of what is resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LevelPolicy {
    /// Every expert at this level.
    Fixed(Level),
    /// Every expert at the level that it is worth to the token; `dual` of `nestling-experts` computes it.
    Dual(DualPolicy),
}

impl LevelPolicy {
    /// The level of the model that dense matrices, embedding and head are computed at. What
    /// prefix that means is in the store: its sections hold dense matrices further than experts.
    pub fn dense(self) -> Level {
        self.level_max()
    }

    /// The highest level that may be asked for.
    pub fn level_max(self) -> Level {
        match self {
            Self::Fixed(level) => level,
            Self::Dual(policy) => policy.highest,
        }
    }

    /// Whether planes that are late are left out, P2 never.
    pub fn leaves_out_late(self) -> bool {
        matches!(self, Self::Dual(DualPolicy { mode: LevelMode::Elastic, .. }))
    }
}

/// What a plane must take away of a token's squared error, per byte, to be used; in the units of the
/// store's error drops. Never negative and never NaN, so that it has an order and an identity.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Threshold(u32); // bits of an f32; those of numbers that are not negative ascend with them

impl Threshold {
    /// Every plane is used.
    pub const ZERO: Self = Self(0);

    /// Of a number; what is negative or no number is [`Self::ZERO`].
    pub fn new(value: f32) -> Self {
        if value > 0.0 { Self(value.to_bits()) } else { Self::ZERO }
    }

    /// The number.
    pub fn value(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// The bits of the number, for what is stored.
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Of the bits of a number; none for bits that no threshold has.
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

/// Whether timing may change what is computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LevelMode {
    /// Never: every plane that was decided on is waited for.
    #[default]
    Strict,
    /// A plane that is late is left out, P2 never; the threshold may follow the disk.
    Elastic,
}

/// Levels by dual routing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DualPolicy {
    /// What a plane must be worth.
    pub threshold: Threshold,
    /// No expert is used below this level.
    pub lowest: Level,
    /// No expert is used above this level, and everything that is no expert is used at it.
    pub highest: Level,
    /// Whether timing may change what is computed.
    pub mode: LevelMode,
}

impl DualPolicy {
    /// Strict, from level 2 up.
    pub fn up_to(highest: Level, threshold: Threshold) -> Self {
        Self { threshold, lowest: Level::L2.min(highest), highest, mode: LevelMode::Strict }
    }

    /// The highest level whose planes are all worth the threshold, within the policy's bounds.
    pub fn level(&self, worth: &PlaneScores) -> Level {
        let mut reached = Level::L2;
        for level in Level::ALL.into_iter().skip(1).take_while(|level| *level <= self.highest) {
            // False for what is no number.
            let is_worth = worth[level.index()] >= self.threshold.value();
            if !is_worth {
                break;
            }
            reached = level;
        }
        reached.max(self.lowest).min(self.highest)
    }
}
