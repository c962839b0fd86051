//! Levels of keys and values as bytes: in snapshots and in the keys of shared pages.

use nestling_core::batch::LevelPolicy;
use nestling_experts::dual::{DualPolicy, LevelMode, Threshold};
use nestling_formats::Level;

/// How levels were chosen: one for all, by dual routing in strict mode, in elastic mode.
const FIXED: u8 = 0;
const STRICT: u8 = 1;
const ELASTIC: u8 = 2;

/// Highest and lowest level, how they were chosen, 0; and the threshold.
pub(crate) fn encode_levels(levels: LevelPolicy) -> ([u8; 4], u32) {
    match levels {
        LevelPolicy::Fixed(level) => ([level.bits(), level.bits(), FIXED, 0], 0),
        LevelPolicy::Dual(DualPolicy { threshold, lowest, highest, mode }) => {
            let kind = match mode {
                LevelMode::Strict => STRICT,
                LevelMode::Elastic => ELASTIC,
            };
            ([highest.bits(), lowest.bits(), kind, 0], threshold.bits())
        }
    }
}

/// What [`encode_levels`] made; none for other bytes.
pub(crate) fn decode_levels(
    [highest, lowest, kind, _]: [u8; 4],
    threshold: u32,
) -> Option<LevelPolicy> {
    let (highest, lowest) = (Level::from_bits(highest)?, Level::from_bits(lowest)?);
    let mode = match kind {
        FIXED => return Some(LevelPolicy::Fixed(highest)),
        STRICT => LevelMode::Strict,
        ELASTIC => LevelMode::Elastic,
        _ => return None,
    };
    let threshold = Threshold::from_bits(threshold)?;
    Some(LevelPolicy::Dual(DualPolicy { threshold, lowest, highest, mode }))
}
