//! Times in what serde reads and writes: as seconds.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A time that may be absent.
pub mod seconds {
    use super::{Deserialize, Deserializer, Duration, Error, Serialize, Serializer};

    /// Writes it as seconds, or as null.
    ///
    /// # Errors
    /// Those of `serializer`.
    pub fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    /// Reads seconds, or null.
    ///
    /// # Errors
    /// Those of `deserializer`; a number that no time has.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds.map(Duration::try_from_secs_f64).transpose().map_err(D::Error::custom)
    }
}

/// A time that is always there.
pub mod all_seconds {
    use super::{Deserialize, Deserializer, Duration, Error, Serialize, Serializer};

    /// Writes it as seconds.
    ///
    /// # Errors
    /// Those of `serializer`.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        time.as_secs_f64().serialize(serializer)
    }

    /// Reads seconds.
    ///
    /// # Errors
    /// Those of `deserializer`; a number that no time has.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)
    }
}
