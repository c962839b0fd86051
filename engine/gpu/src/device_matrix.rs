//! Weight matrices, as the shared encoder sees them.

use nestling_core::EngineError;
use nestling_formats::Level;

use crate::held_levels::HeldLevels;
use crate::product_form::ProductForm;

/// A weight matrix in memory of a device.
pub trait DeviceMatrix {
    /// What a product must know of it.
    fn form(&self) -> &ProductForm;

    /// What the levels of a model mean for it.
    fn levels(&self) -> &HeldLevels;

    /// # Errors
    /// [`EngineError::LevelMissing`] for a level whose planes are not held.
    fn check(&self, level: Level) -> Result<(), EngineError> {
        self.levels().prefix(level).map(drop)
    }
}
