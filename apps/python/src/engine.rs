//! Engines that several models share.

use nestling::EngineOptions;
use nestling::system::{MemoryState, SystemFiles};
use pyo3::prelude::*;

use crate::call::{Owner, call};
use crate::error::Failure;

/// Threads and a memory budget for several models. The models opened in an engine keep it running.
#[pyclass(frozen, module = "nestling._core")]
pub(crate) struct Engine {
    owner: Owner,
    /// `None` only while the value is dropped.
    engine: Option<nestling::Engine>,
}

impl Engine {
    pub(crate) fn get(&self) -> Result<&nestling::Engine, Failure> {
        self.owner.check("engine")?;
        self.engine.as_ref().ok_or_else(|| Failure::closed("engine"))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let mut engine = self.engine.take();
        if !self.owner.is_this_process() {
            // The threads that a drop would join do not exist after fork().
            std::mem::forget(engine);
            return;
        }
        // `engine` is dropped below if the interpreter has ended.
        let _ = Python::try_attach(|py| py.detach(|| drop(engine.take())));
    }
}

#[pymethods]
impl Engine {
    /// Starts an engine. The default budget is the system's free memory less a margin. A budget of 2^64 - 1
    /// bytes means no limit.
    #[new]
    #[pyo3(signature = (memory_budget=None, threads=None))]
    fn new(py: Python<'_>, memory_budget: Option<u64>, threads: Option<usize>) -> PyResult<Self> {
        call(py, || {
            let free =
                || MemoryState::read(&SystemFiles::default()).map(|state| state.default_budget());
            let memory_budget = memory_budget.or_else(free);
            let options = EngineOptions { threads, memory_budget, ..EngineOptions::default() };
            let engine = Some(nestling::Engine::new(options)?);
            Ok(Self { owner: Owner::current(), engine })
        })
    }

    /// Returns the budget in bytes, or `None` without a limit.
    fn memory_budget(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        call(py, || Ok(self.get()?.budget().total_bytes()))
    }

    /// Returns the bytes of the budget that models use.
    fn memory_used(&self, py: Python<'_>) -> PyResult<u64> {
        call(py, || Ok(self.get()?.budget().used_bytes()))
    }
}
