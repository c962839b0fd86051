//! Custom serde representations of options.

use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Levels as their number of bits.
pub(crate) mod level {
    use super::*;
    use nestling_formats::Level;

    pub(crate) fn serialize<S: Serializer>(
        level: &Option<Level>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        level.map(|level| level.bits()).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Level>, D::Error> {
        Option::<u8>::deserialize(deserializer)?.map(of_bits).transpose()
    }

    pub(super) fn of_bits<E: serde::de::Error>(bits: u8) -> Result<Level, E> {
        Level::from_bits(bits)
            .ok_or_else(|| E::custom(format_args!("levels are 2, 3, 4, 6 and 8, not {bits}")))
    }
}

/// Dual routing options: mean level, lowest level and mode.
pub(crate) mod dual {
    use super::*;
    use nestling_levels::dual::{DualOptions, LevelMode};

    #[derive(Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct WireOptions {
        #[serde(default)]
        mean_level: Option<f32>,
        lowest: u8,
        mode: Mode,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Mode {
        Strict,
        Elastic,
    }

    pub(crate) fn serialize<S: Serializer>(
        dual: &Option<DualOptions>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let wire = dual.map(|DualOptions { mean_level, lowest, mode }| {
            let mode = match mode {
                LevelMode::Strict => Mode::Strict,
                LevelMode::Elastic => Mode::Elastic,
            };
            WireOptions { mean_level, lowest: lowest.bits(), mode }
        });
        wire.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<DualOptions>, D::Error> {
        // Default: the dual routing setting of the opened model.
        let Some(wire) = Option::<WireOptions>::deserialize(deserializer)? else { return Ok(None) };
        let mode = match wire.mode {
            Mode::Strict => LevelMode::Strict,
            Mode::Elastic => LevelMode::Elastic,
        };
        let lowest = level::of_bits(wire.lowest)?;
        Ok(Some(DualOptions { mean_level: wire.mean_level, lowest, mode }))
    }
}

/// Fails for fields that hold code, such as constraints and recorders.
pub(crate) fn no_code<T, S: Serializer>(_: &T, _: S) -> Result<S::Ok, S::Error> {
    Err(S::Error::custom("options that hold code, as a constraint is, cannot be written"))
}
