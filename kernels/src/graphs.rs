//! Steps that come again, started as one.

use crate::driver::commands::Commands;
use crate::driver::{Graph, Stream};
use crate::error::CudaError;

/// Graphs that are kept: a decode step has few forms.
const GRAPHS_MAX: usize = 8;

/// Fewest kernels that are worth a graph.
const LAUNCHES_MIN: usize = 4;

/// The graphs of a backend, the one used last behind the others.
#[derive(Default)]
pub(crate) struct Graphs {
    kept: Vec<(Commands, Graph)>,
    /// The commands of the last step that had no graph: one that comes again gets one.
    last: Commands,
}

impl Graphs {
    /// Runs commands, as a graph where they came before.
    ///
    /// # Errors
    /// A device that is lost; what the driver refuses.
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
