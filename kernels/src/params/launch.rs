//! How every kernel is started: blocks, and threads of each.

use super::{ExpertProductParams, ProductParams, QuantizeParams, RmsNormParams};
use crate::kernel::Kernel;

/// A kernel with the shape of its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What is started.
    pub kernel: Kernel,
    /// Blocks, in three dimensions.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Bytes of shared memory beside what the kernel declares itself.
    pub shared_bytes: u32,
}

/// Most tiles of 16 rows that a block of `matvec_nested` and `matvec_experts` computes.
pub const MATVEC_TILES_MAX: u32 = 8;

/// Most pairs of a block of `matvec_nested_rows`.
pub const MATVEC_PAIRS_MAX: u32 = 8;

/// Blocks along the first dimension of a grid, at most.
const BLOCKS_MAX: u64 = i32::MAX as u64;

impl Launch {
    fn new(kernel: Kernel, blocks: [u64; 2], threads: u32) -> Self {
        // More than a grid holds is refused when it is started.
        let word = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let grid = [word(blocks[0].min(BLOCKS_MAX + 1)), word(blocks[1]), 1];
        Self { kernel, grid, block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// Whether there is anything to do: a grid without blocks is an error on a device.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

impl RmsNormParams {
    /// A block for each row.
    pub fn launch(&self) -> Launch {
        Launch::new(Kernel::RmsNorm, [self.rows.into(), 1], 256)
    }
}

impl QuantizeParams {
    /// A warp for each group.
    pub fn launch(&self) -> Launch {
        let groups = u64::from(self.cols.div_ceil(32)) * u64::from(self.rows);
        let groups = groups * u64::from(self.parts);
        Launch::new(Kernel::Quantize, [groups.div_ceil(8), 1], 256)
    }
}

impl ProductParams {
    /// [`Kernel::MatvecNested`] and the like, for so many blocks of at most so many tiles.
    pub fn launch(&self, kernel: Kernel, blocks: u32, tiles: u32) -> Launch {
        let across = tiles.div_ceil(self.tiles_per_block.max(1));
        Launch::new(kernel, [across.into(), blocks.into()], 128)
    }
}

impl ExpertProductParams {
    /// For matrices of at most so many tiles.
    pub fn launch(&self, tiles: u32) -> Launch {
        let matrices = if self.first_matrix == 0 { 2 } else { 1 };
        let across = tiles.div_ceil(self.tiles_per_block.max(1));
        let blocks = u64::from(self.uses) * matrices;
        Launch::new(Kernel::MatvecExperts, [across.into(), blocks], 128)
    }
}
