//! Byte encoding of level policies, used in snapshots and in the keys of shared pages.

use nestling_core::batch::LevelPolicy;
use nestling_formats::Level;
use nestling_levels::dual::{DualPolicy, LevelMode, Threshold};

/// Encodings of the policy kind: a fixed level, dual routing in strict mode, dual routing in elastic mode.
const FIXED: u8 = 0;
const STRICT: u8 = 1;
const ELASTIC: u8 = 2;

/// Returns the bytes `[highest, lowest, kind, 0]` and the bits of the threshold.
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

/// Decodes the output of [`encode_levels`]. Returns `None` if the bytes are invalid.
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
