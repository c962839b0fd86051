//! Timing of recorded work by the device's clock.

use std::time::Duration;

use nestling_core::EngineError;
use nestling_core::backend::Backend;

use crate::CudaEncoder;
use crate::backend::CudaBackend;
use crate::driver::commands::Commands;
use crate::driver::{Event, Graph};
use crate::error::CudaError;

/// Method of launching timed work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedAs {
    /// One kernel at a time. Short kernels are limited by the host.
    Commands,
    /// One graph, as for decode steps.
    Graph,
}

/// Recorded work that can be run and timed repeatedly, created by [`CudaBackend::timer`].
pub struct CudaTimer<'a> {
    backend: &'a mut CudaBackend,
    work: TimedWork,
    launches: usize,
    start: Event,
    end: Event,
}

enum TimedWork {
    Commands(Commands),
    Graph(Graph),
}

impl CudaBackend {
    /// Records work for timing with [`CudaTimer::time`], without running it. Waits for all earlier work.
    /// `record` must not read results, and its tables must fit in the arena together.
    ///
    /// # Errors
    /// Returns the error of `record`. Fails if the work waits for the device, or if the device is lost or out
    /// of memory.
    pub fn timer(
        &mut self,
        timed_as: TimedAs,
        record: impl FnOnce(&mut CudaEncoder<'_>) -> Result<(), EngineError>,
    ) -> Result<CudaTimer<'_>, EngineError> {
        let (start, end) = (self.driver.timed_event()?, self.driver.timed_event()?);
        self.recorder.hold()?;
        let work = TimedWork::Commands(Commands::default());
        // On drop, the timer ends holding, even if a later call fails.
        let mut timer = CudaTimer { backend: self, work, launches: 0, start, end };
        let mut encoder = timer.backend.encoder();
        record(&mut encoder)?;
        let (commands, stream) = encoder.inner().inner().device.recorder.take_held()?;
        timer.launches = commands.launches();
        timer.work = match timed_as {
            TimedAs::Commands => TimedWork::Commands(commands),
            TimedAs::Graph => TimedWork::Graph(stream.capture(&commands)?),
        };
        drop(encoder);
        Ok(timer)
    }
}

impl CudaTimer<'_> {
    /// Returns the number of kernels of one run.
    pub fn launches(&self) -> usize {
        self.launches
    }

    /// Runs the work `runs` times back to back. Returns the total time from the start of the first run to the
    /// end of the last. A device that was idle is slower at first, so warm-up runs should come before.
    ///
    /// # Errors
    /// Returns an error if the device is lost or the driver refuses a command.
    pub fn time(&mut self, runs: u32) -> Result<Duration, EngineError> {
        Ok(self.time_runs(runs)?)
    }

    fn time_runs(&mut self, runs: u32) -> Result<Duration, CudaError> {
        let stream = self.backend.recorder.stream();
        stream.record(&self.start)?;
        for _ in 0..runs {
            match &self.work {
                TimedWork::Commands(commands) => stream.run(commands)?,
                TimedWork::Graph(graph) => stream.launch(graph)?,
            }
        }
        stream.record(&self.end)?;
        self.end.synchronize()?;
        self.end.elapsed_since(&self.start)
    }
}

impl Drop for CudaTimer<'_> {
    fn drop(&mut self) {
        self.backend.recorder.release();
    }
}
