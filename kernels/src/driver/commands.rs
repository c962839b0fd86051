//! Recorded commands of a stream. A repeated sequence is recognized and launched as a graph.

use bytemuck::Pod;

use super::Address;
use crate::params::Launch;

/// Commands in order, with the parameters of kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Commands {
    list: Vec<Command>,
    params: Vec<u128>,
}

/// A copy or a kernel launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// A kernel launch with the address of the miss flag, or 0 if the kernel ignores the flag.
    Launch(Launch, Params, Address),
    Copy {
        from: Address,
        to: Address,
        bytes: u64,
    },
}

/// Location of a kernel's parameters: start in units of 16 bytes, and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Params {
    start: usize,
    bytes: usize,
}

impl Commands {
    pub fn clear(&mut self) {
        self.list.clear();
        self.params.clear();
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn list(&self) -> &[Command] {
        &self.list
    }

    /// Returns the parameters of a kernel, aligned to 16 bytes.
    pub fn params(&self, params: Params) -> &[u8] {
        let start = 16 * params.start;
        let all: &[u8] = bytemuck::cast_slice(&self.params);
        &all[start..start + params.bytes]
    }

    /// Appends a kernel launch. Addresses in `params` must refer to memory that outlives the commands.
    pub fn launch(&mut self, launch: Launch, params: &impl Pod, miss_flag: Address) {
        let bytes = bytemuck::bytes_of(params);
        let start = self.params.len();
        self.params.resize(start + bytes.len().div_ceil(16), 0);
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut self.params[start..]);
        room[..bytes.len()].copy_from_slice(bytes);
        self.list.push(Command::Launch(launch, Params { start, bytes: bytes.len() }, miss_flag));
    }

    pub fn copy(&mut self, from: Address, to: Address, bytes: u64) {
        if bytes > 0 {
            self.list.push(Command::Copy { from, to, bytes });
        }
    }

    /// Returns the number of kernel launches.
    pub fn launches(&self) -> usize {
        self.list.iter().filter(|command| matches!(command, Command::Launch(..))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, Commands};
    use crate::kernel::Kernel;
    use crate::params::Launch;

    #[test]
    fn commands_are_equal_where_kernels_and_parameters_are() {
        let (grid, block) = ([1; 3], [32, 1, 1]);
        let launch = Launch { kernel: Kernel::ALL[0], grid, block, shared_bytes: 0 };
        let recorded = |value: u32| {
            let mut commands = Commands::default();
            commands.launch(launch, &[1u8; 3], 0);
            commands.launch(launch, &value, 0);
            commands.copy(256, 512, 4);
            commands.copy(256, 512, 0);
            commands
        };
        let commands = recorded(7);
        assert_eq!(commands, recorded(7));
        assert_ne!(commands, recorded(8));
        assert_eq!((commands.len(), commands.launches()), (3, 2));
        let params = commands.list().iter().filter_map(|command| match *command {
            Command::Launch(_, params, _) => Some(commands.params(params)),
            _ => None,
        });
        assert_eq!(params.collect::<Vec<_>>(), [[1, 1, 1].as_slice(), &[7, 0, 0, 0]]);
    }
}
