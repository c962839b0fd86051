//! How long recorded work takes, by the clock of the device.

use std::time::Duration;

use nestling_core::EngineError;
use nestling_core::backend::Checked;
use nestling_gpu::GpuEncoder;

use crate::backend::CudaBackend;
use crate::driver::commands::Commands;
use crate::driver::{Event, Graph};
use crate::error::CudaError;

/// How work that is timed is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedAs {
    /// Kernel by kernel: short ones wait for the host.
    Commands,
    /// As one graph, as steps of decoding are.
    Graph,
}

/// Work that was recorded once ([`CudaBackend::timer`]) and can be run and timed any number of times.
pub struct CudaTimer<'a> {
    backend: &'a mut CudaBackend,
    work: Work,
    launches: usize,
    start: Event,
    end: Event,
}

enum Work {
    Commands(Commands),
    Graph(Graph),
}

impl CudaBackend {
    /// Records work that is not run before it is timed ([`CudaTimer::time`]); all that was recorded before
    /// is waited for. `record` reads nothing, and its tables fit the arena together.
    ///
    /// # Errors
    /// What `record` answers; work that waits for the device; a device that is lost or whose memory is full.
    pub fn timer(
        &mut self,
        timed_as: TimedAs,
        record: impl FnOnce(&mut Checked<GpuEncoder<'_, CudaBackend>>) -> Result<(), EngineError>,
    ) -> Result<CudaTimer<'_>, EngineError> {
        let (start, end) = (self.driver.timed_event()?, self.driver.timed_event()?);
        self.recorder.hold()?;
        let work = Work::Commands(Commands::default());
        // It lets go of what is held, whatever fails from here on.
        let mut timer = CudaTimer { backend: self, work, launches: 0, start, end };
        let mut encoder = Checked::new(GpuEncoder::new(timer.backend));
        record(&mut encoder)?;
        let (commands, stream) = encoder.inner().device.recorder.take_held()?;
        timer.launches = commands.launches();
        timer.work = match timed_as {
            TimedAs::Commands => Work::Commands(commands),
            TimedAs::Graph => Work::Graph(stream.capture(&commands)?),
        };
        drop(encoder);
        Ok(timer)
    }
}

impl CudaTimer<'_> {
    /// Kernels of one run.
    pub fn launches(&self) -> usize {
        self.launches
    }

    /// Runs the work so many times, one run after another with nothing between, and gives the time of all
    /// runs together: from the moment when the device begins the first to the moment when it has done the
    /// last. The first runs of a device that was idle are slower: time some before those that count.
    ///
    /// # Errors
    /// A device that is lost; what the driver refuses.
    pub fn time(&mut self, runs: u32) -> Result<Duration, EngineError> {
        Ok(self.time_runs(runs)?)
    }

    fn time_runs(&mut self, runs: u32) -> Result<Duration, CudaError> {
        let stream = self.backend.recorder.stream();
        stream.record(&self.start)?;
        for _ in 0..runs {
            match &self.work {
                Work::Commands(commands) => stream.run(commands)?,
                Work::Graph(graph) => stream.launch(graph)?,
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
