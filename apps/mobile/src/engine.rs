//! Engines that several models share.

use std::sync::Arc;

use nestling::system::{MemoryState, SystemFiles};

use crate::error::NestlingError;
use crate::options::count;

/// Options of an engine.
#[derive(Clone, Debug, Default, uniffi::Record)]
pub struct EngineOptions {
    /// Memory budget in bytes. Without it, the budget is the system's free memory less a margin. The largest
    /// number means no limit.
    #[uniffi(default)]
    pub memory_budget: Option<u64>,
    /// Number of threads, at most 1024. Without it or with 0, there is one per core.
    #[uniffi(default)]
    pub threads: Option<u32>,
}

/// Threads and a memory budget for several models. The models opened in an engine keep it running.
#[derive(Debug, uniffi::Object)]
pub struct Engine {
    pub(crate) engine: nestling::Engine,
}

#[uniffi::export]
impl Engine {
    /// Starts an engine.
    ///
    /// # Errors
    /// Fails if threads cannot be started.
    #[uniffi::constructor]
    pub fn new(options: EngineOptions) -> Result<Arc<Self>, NestlingError> {
        let free =
            || MemoryState::read(&SystemFiles::default()).map(|state| state.default_budget());
        let engine = nestling::Engine::new(nestling::EngineOptions {
            threads: options.threads.map(count),
            memory_budget: options.memory_budget.or_else(free),
            ..nestling::EngineOptions::default()
        })?;
        Ok(Arc::new(Self { engine }))
    }

    /// Returns the budget in bytes, or nothing without a limit.
    #[must_use]
    pub fn memory_budget(&self) -> Option<u64> {
        self.engine.budget().total_bytes()
    }

    /// Returns the bytes of the budget that models use.
    #[must_use]
    pub fn memory_used(&self) -> u64 {
        self.engine.budget().used_bytes()
    }
}
