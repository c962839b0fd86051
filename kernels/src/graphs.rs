//! CUDA graphs of repeated steps.

use crate::driver::commands::Commands;
use crate::driver::{Graph, Stream};
use crate::error::CudaError;

/// Maximum number of cached graphs. Decode steps have few distinct forms.
const GRAPHS_MAX: usize = 8;

/// Minimum number of kernels for which a graph pays off.
const LAUNCHES_MIN: usize = 4;

/// Cache of a backend's graphs, ordered from least to most recently used.
#[derive(Default)]
pub(crate) struct Graphs {
    kept: Vec<(Commands, Graph)>,
    /// Commands of the last step without a graph. If they repeat, they are captured.
    last: Commands,
}

impl Graphs {
    /// Runs commands. A sequence that repeats is run as a graph.
    ///
    /// # Errors
    /// Returns an error if the device is lost or the driver refuses a command.
    pub fn run(&mut self, stream: &Stream, commands: &Commands) -> Result<(), CudaError> {
        if let Some(index) = self.kept.iter().position(|(known, _)| known == commands) {
            let found = self.kept.remove(index);
            stream.launch(&found.1)?;
            self.kept.push(found);
            return Ok(());
        }
        if self.last != *commands || commands.launches() < LAUNCHES_MIN {
            self.last.clone_from(commands);
            return stream.run(commands);
        }
        let graph = stream.capture(commands)?;
        stream.launch(&graph)?;
        if self.kept.len() == GRAPHS_MAX {
            self.kept.remove(0);
        }
        self.kept.push((commands.clone(), graph));
        Ok(())
    }
}
