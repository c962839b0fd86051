//! Serde representation of durations, as seconds.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Serialization of an optional duration.
pub mod seconds {
    use super::{Deserialize, Deserializer, Duration, Error, Serialize, Serializer};

    /// Serializes the duration as seconds, or as null.
    ///
    /// # Errors
    /// The errors of `serializer`.
    pub fn serialize<S: Serializer>(
        time: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(|time| time.as_secs_f64()).serialize(serializer)
    }

    /// Deserializes seconds or null.
    ///
    /// # Errors
    /// The errors of `deserializer`; an error if the number is not a valid duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let seconds = Option::<f64>::deserialize(deserializer)?;
        seconds.map(Duration::try_from_secs_f64).transpose().map_err(D::Error::custom)
    }
}

/// Serialization of a duration.
pub mod all_seconds {
    use super::{Deserialize, Deserializer, Duration, Error, Serialize, Serializer};

    /// Serializes the duration as seconds.
    ///
    /// # Errors
    /// The errors of `serializer`.
    pub fn serialize<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        time.as_secs_f64().serialize(serializer)
    }

    /// Deserializes seconds.
    ///
    /// # Errors
    /// The errors of `deserializer`; an error if the number is not a valid duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)
    }
}
