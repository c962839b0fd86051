//! Answers that deserialize to Rust types.

use std::marker::PhantomData;
use std::sync::Arc;

use nestling_runtime::ConstraintSource;
use schemars::{JsonSchema, generate::SchemaSettings};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::GuideError;
use crate::guide::Guide;

/// Returns the JSON schema of a type, draft 2020-12.
pub fn schema_for<T: JsonSchema>() -> Value {
    SchemaSettings::draft2020_12().into_generator().into_root_schema_for::<T>().to_value()
}

/// A guide for answers that are values of a type.
///
/// ```
/// use nestling_guide::TypedGuide;
///
/// #[derive(schemars::JsonSchema, serde::Deserialize)]
/// struct Weather {
///     city: String,
///     rain: bool,
/// }
///
/// let guide = TypedGuide::<Weather>::new()?;
/// // Pass `guide.constraint()` to a generation, then parse its text.
/// let weather = guide.parse(r#"{"city": "Bergen", "rain": true}"#)?;
/// assert!(weather.rain && weather.city == "Bergen");
/// # Ok::<(), nestling_guide::GuideError>(())
/// ```
#[derive(Debug)]
pub struct TypedGuide<T> {
    guide: Guide,
    of_type: PhantomData<fn() -> T>,
}

impl<T> Clone for TypedGuide<T> {
    fn clone(&self) -> Self {
        Self { guide: self.guide.clone(), of_type: PhantomData }
    }
}

impl<T: JsonSchema + DeserializeOwned> TypedGuide<T> {
    /// Creates a guide for `T`.
    ///
    /// # Errors
    /// Fails if the schema of the type cannot be enforced.
    pub fn new() -> Result<Self, GuideError> {
        Ok(Self { guide: Guide::json_schema(&schema_for::<T>())?, of_type: PhantomData })
    }

    /// Returns the constraint for [`nestling_runtime::GenerateOptions::constraint`].
    pub fn constraint(&self) -> Arc<dyn ConstraintSource> {
        Arc::new(self.guide.clone())
    }

    /// Parses a complete answer.
    ///
    /// # Errors
    /// Fails with [`GuideError::Invalid`] if the answer was cut off, or if the type has constraints that are
    /// not in its schema.
    pub fn parse(&self, answer: &str) -> Result<T, GuideError> {
        serde_json::from_str(answer).map_err(|error| GuideError::Invalid {
            what: "the answer".into(),
            expected: "a value of the type",
            found: error.to_string(),
        })
    }
}
