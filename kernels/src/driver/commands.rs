//! What a stream is to do, written down before it is done, so that what comes again can be
//! recognized and started as one.

use bytemuck::Pod;

use super::Address;

/// Commands in order, with the parameters of kernels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Commands {
    list: Vec<Command>,
    params: Vec<u128>,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Launch(Launch),
    Copy { from: Address, to: Address, bytes: u64 },
    Clear { address: Address, bytes: u64 },
}

/// A kernel and how many threads run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub kernel: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes that the threads of a block share, beside what the kernel itself names.
    pub shared_bytes: u32,
    /// Where the parameters begin, in units of 16 bytes, and their bytes.
    params: (usize, usize),
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

    /// The parameters of a kernel of these commands.
    pub fn params(&self, launch: &Launch) -> &[u8] {
        let (start, bytes) = launch.params;
        let all: &[u8] = bytemuck::cast_slice(&self.params);
        all.get(16 * start..16 * start + bytes).unwrap_or_default()
    }

    /// A kernel that reads `params`; places in it are those of memory that lives until the commands are done.
    pub fn launch(
        &mut self,
        kernel: &'static str,
        (grid, block, shared_bytes): ([u32; 3], [u32; 3], u32),
        params: &impl Pod,
    ) {
        let bytes = bytemuck::bytes_of(params);
        let start = self.params.len();
        self.params.resize(start + bytes.len().div_ceil(16), 0);
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut self.params[start..]);
        room[..bytes.len()].copy_from_slice(bytes);
        let params = (start, bytes.len());
        self.list.push(Command::Launch(Launch { kernel, grid, block, shared_bytes, params }));
    }

    pub fn copy(&mut self, from: Address, to: Address, bytes: u64) {
        if bytes > 0 {
            self.list.push(Command::Copy { from, to, bytes });
        }
    }

    /// Bytes that become zero.
    pub fn zero(&mut self, address: Address, bytes: u64) {
        if bytes > 0 {
            self.list.push(Command::Clear { address, bytes });
        }
    }

    /// Kernels among them.
    pub fn launches(&self) -> usize {
        self.list.iter().filter(|command| matches!(command, Command::Launch(_))).count()
    }
}

#[cfg(test)]
mod tests {
    use super::{Command, Commands};

    #[test]
    fn commands_are_equal_where_kernels_and_parameters_are() {
        let recorded = |value: u32| {
            let mut commands = Commands::default();
            commands.launch("one", ([1; 3], [32, 1, 1], 0), &[1u8; 3]);
            commands.launch("two", ([1; 3], [32, 1, 1], 0), &value);
            commands.copy(256, 512, 4);
            commands.copy(256, 512, 0);
            commands
        };
        let commands = recorded(7);
        assert_eq!(commands, recorded(7));
        assert_ne!(commands, recorded(8));
        assert_eq!((commands.len(), commands.launches()), (3, 2));
        let params = commands.list().iter().filter_map(|command| match command {
            Command::Launch(launch) => Some(commands.params(launch).to_vec()),
            _ => None,
        });
        assert_eq!(params.collect::<Vec<_>>(), [vec![1; 3], vec![7, 0, 0, 0]]);
    }
}
