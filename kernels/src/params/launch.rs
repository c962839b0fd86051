//! Grid and block sizes of every kernel.

use std::ops::Range;

use super::{
    AddGatedParams, ArgmaxMergeParams, ArgmaxParams, AttendParams, DeltaNetParams, EmbedParams,
    ExpertBlocksParams, ExpertsSumParams, GateParams, GatedParams, GatedProductParams,
    GatherRowsParams, HeadsRestParams, KvStoreParams, Mamba2Params, NormPartParams, ProductParams,
    QuantizeParams, RmsNormParams, RopeParams, RouteParams, RowPlace, ScalarParams,
    ShortConvParams,
};
use crate::error::CudaError;
use crate::kernel::Kernel;

/// A kernel launch with its grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Kernel to launch.
    pub kernel: Kernel,
    /// Number of blocks in three dimensions.
    pub grid: [u32; 3],
    /// Threads of a block in three dimensions.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared_bytes: u32,
}

/// Maximum number of 16-row tiles that a block of `matvec_nested` computes.
pub const MATVEC_TILES_MAX: u32 = 8;

/// Maximum number of pairs of a block of `matvec_nested_rows`.
pub const MATVEC_PAIRS_MAX: u32 = 8;

/// Maximum number of pairs of a block of `matmul_nested`.
pub const MATMUL_PAIRS_MAX: u32 = 64;

/// Number of 16-row tiles that a block of `matvec_gated_quantize` computes: one group.
pub const GATED_TILES: u32 = 2;

/// Columns that a block of `argmax` compares: 16 for each thread.
pub const ARGMAX_PART_COLS: u32 = 4096;

/// Maximum number of uses that `expert_blocks` compares with each other.
pub const EXPERT_USES_MAX: usize = 1024;

/// Maximum number of rows of a recurrent state that fits in shared memory.
const KEPT_KEYS_MAX: u32 = 340;

/// Maximum number of blocks in the second and third dimension of a grid.
pub const GRID_ROWS_MAX: u32 = 65_535;

/// Maximum number of blocks in the first dimension of a grid.
const BLOCKS_MAX: u64 = i32::MAX as u64;

impl Launch {
    fn new(kernel: Kernel, blocks: [u64; 2], threads: u32) -> Self {
        // Grids that are too large are refused by `check` before the launch.
        let word = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        let grid = [word(blocks[0].min(BLOCKS_MAX + 1)), word(blocks[1]), 1];
        Self { kernel, grid, block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// Checks the size of the grid.
    ///
    /// # Errors
    /// Fails with [`CudaError::Limit`] if the grid has too many blocks.
    pub fn check(&self) -> Result<(), CudaError> {
        let limits = [BLOCKS_MAX, GRID_ROWS_MAX.into(), GRID_ROWS_MAX.into()];
        match self.grid.into_iter().map(u64::from).zip(limits).find(|(blocks, most)| blocks > most)
        {
            Some((found, limit)) => {
                Err(CudaError::Limit { what: "blocks of a grid", limit, found })
            }
            None => Ok(()),
        }
    }

    /// Returns whether the grid has no blocks, which a device refuses to launch.
    pub fn is_empty(&self) -> bool {
        self.grid.contains(&0)
    }
}

impl RmsNormParams {
    /// Returns a launch with one block for each row.
    pub fn launch(&self) -> Launch {
        let kernel = if self.values == 0 { Kernel::RmsNorm } else { Kernel::RmsNormQuantize };
        Launch::new(kernel, [self.rows.into(), 1], 256)
    }
}

impl QuantizeParams {
    /// Returns a launch with one warp for each group.
    pub fn launch(&self) -> Launch {
        let groups = u64::from(self.cols.div_ceil(32)) * u64::from(self.rows);
        let groups = groups * u64::from(self.parts);
        Launch::new(Kernel::Quantize, [groups.div_ceil(8), 1], 256)
    }
}

impl ProductParams {
    /// Returns a launch of a product with `blocks` blocks of at most `tiles` 16-row tiles.
    pub fn launch(&self, kernel: Kernel, blocks: u32, tiles: u32) -> Launch {
        let across = match kernel {
            // Four rows for each thread block.
            Kernel::MatvecFloat | Kernel::MatvecRowMajor | Kernel::MatvecScaled => {
                4 * u64::from(tiles)
            }
            // One tile for each of four warps.
            Kernel::MatmulNested => tiles.div_ceil(4).into(),
            _ => tiles.div_ceil(self.tiles_per_block.max(1)).into(),
        };
        Launch::new(kernel, [across, blocks.into()], 128)
    }
}

impl GatedProductParams {
    /// Returns a launch for `gates` gates of at most `tiles` tiles.
    pub fn launch(&self, gates: u32, tiles: u32) -> Launch {
        let groups = tiles.div_ceil(GATED_TILES);
        Launch::new(Kernel::MatvecGatedQuantize, [groups.into(), gates.into()], 256)
    }
}

impl ExpertBlocksParams {
    /// Returns a launch with a single block, which compares uses with each other.
    pub fn launch(&self) -> Launch {
        Launch::new(Kernel::ExpertBlocks, [1, 1], 256)
    }
}

impl NormPartParams {
    /// Returns a launch with one warp for each part.
    pub fn launch(&self) -> Launch {
        Launch::new(Kernel::NormPart, [u64::from(self.count).div_ceil(8), 1], 256)
    }
}

impl GatedParams {
    /// Returns a launch of [`Kernel::Gated`] or [`Kernel::GatedQuantize`] with one warp for each group.
    pub fn launch(&self, kernel: Kernel) -> Launch {
        let groups = u64::from(self.rows) * u64::from(self.cols.div_ceil(32));
        Launch::new(kernel, [groups.div_ceil(8), 1], 256)
    }
}

/// Returns a launch with one thread for each element.
fn elements(kernel: Kernel, count: u64) -> Launch {
    Launch::new(kernel, [count.div_ceil(256), 1], 256)
}

impl AddGatedParams {
    /// Returns a launch with one thread for each element.
    pub fn launch(&self) -> Launch {
        elements(Kernel::AddGated, u64::from(self.rows) * u64::from(self.cols))
    }
}

impl GateParams {
    /// Returns a launch with one thread for each element.
    pub fn launch(&self) -> Launch {
        elements(Kernel::Gate, self.count)
    }
}

impl ScalarParams {
    /// Returns a launch of [`Kernel::Clear`], [`Kernel::Scale`] or [`Kernel::Softcap`] with one thread for
    /// each element.
    pub fn launch(&self, kernel: Kernel) -> Launch {
        elements(kernel, self.count)
    }
}

impl GatherRowsParams {
    /// Returns a launch with one thread for each element.
    pub fn launch(&self) -> Launch {
        elements(Kernel::GatherRows, u64::from(self.rows) * u64::from(self.cols))
    }
}

impl HeadsRestParams {
    /// Returns a launch with one thread for each element.
    pub fn launch(&self) -> Launch {
        elements(Kernel::HeadsRest, u64::from(self.places) * u64::from(self.rest))
    }
}

impl ExpertsSumParams {
    /// Returns a launch with one thread for each element.
    pub fn launch(&self) -> Launch {
        elements(Kernel::ExpertsSum, u64::from(self.rows) * u64::from(self.cols))
    }
}

impl EmbedParams {
    /// Returns a launch with one thread for each element.
    pub fn launch(&self) -> Launch {
        let across = self.cols.div_ceil(256);
        Launch::new(Kernel::Embed, [across.into(), self.rows.into()], 256)
    }
}

impl ArgmaxParams {
    /// Returns a launch with one block for each part of each row.
    pub fn launch(&self) -> Launch {
        Launch::new(Kernel::Argmax, [self.parts.into(), self.rows.into()], 256)
    }
}

impl ArgmaxMergeParams {
    /// Returns a launch with one block for each row.
    pub fn launch(&self) -> Launch {
        Launch::new(Kernel::ArgmaxMerge, [self.rows.into(), 1], 256)
    }
}

impl RopeParams {
    /// Returns a launch with one warp for each head.
    pub fn launch(&self) -> Launch {
        let heads =
            u64::from(self.rows) * (u64::from(self.sizes.queries) + u64::from(self.sizes.keys));
        Launch::new(Kernel::Rope, [heads.div_ceil(4), 1], 128)
    }
}

impl KvStoreParams {
    /// Returns a launch of a KV store kernel, such as [`Kernel::KvStoreF32`], with one warp for each head.
    pub fn launch(&self, kernel: Kernel) -> Launch {
        let heads = u64::from(self.rows) * u64::from(self.sizes.heads);
        Launch::new(kernel, [heads.div_ceil(4), 1], 128)
    }
}

/// Positions of a split.
pub const SPLIT_POSITIONS: u32 = 256;

/// Maximum shared memory of an attention block in bytes, available on every device.
const ATTEND_BYTES_MAX: u32 = 40 << 10;

impl AttendParams {
    /// Returns the parameters restricted to some rows. The number of splits is unchanged.
    #[must_use]
    pub fn of_rows(&self, rows: &Range<usize>) -> Self {
        let (first, cols) = (rows.start as u64, u64::from(self.sizes.heads * self.sizes.value_dim));
        Self {
            queries: self.queries + 4 * first * u64::from(self.sizes.stride),
            places: self.places + first * size_of::<RowPlace>() as u64,
            out: self.out + 4 * first * cols,
            rows: rows.len() as u32,
            ..*self
        }
    }

    /// Returns the number of floats of [`AttendParams::parts`].
    pub fn part_floats(&self) -> usize {
        let heads = self.rows as usize * self.sizes.heads as usize;
        heads * self.splits as usize * (self.sizes.value_dim as usize + 2)
    }

    /// Returns the maximum number of query heads of a block, for [`AttendParams::block_heads`].
    pub fn block_heads_max(&self) -> u32 {
        let each = 4 * (self.sizes.head_dim + 2 * self.sizes.value_dim).max(1);
        self.sizes.sharing.min(8).min(ATTEND_BYTES_MAX / each).max(1)
    }

    /// Returns a launch of an attention kernel, such as [`Kernel::AttendF32`]. A block computes some heads of
    /// a row, or of one split of a row.
    pub fn launch(&self, kernel: Kernel) -> Launch {
        let each = self.block_heads.max(1);
        let parts =
            self.sizes.sharing.div_ceil(each) * (self.sizes.heads / self.sizes.sharing.max(1));
        let is_split = matches!(
            kernel,
            Kernel::AttendSplitF32 | Kernel::AttendSplitF16 | Kernel::AttendSplitInt8
        );
        let splits = if is_split { self.splits } else { 1 };
        let blocks = u64::from(self.rows) * u64::from(parts);
        let floats = self.block_heads * (self.sizes.head_dim + 2 * self.sizes.value_dim);
        let launch = Launch::new(kernel, [blocks, splits.into()], 128);
        Launch { shared_bytes: 4 * floats, ..launch }
    }

    /// Returns the launch that merges the splits.
    pub fn merge(&self) -> Launch {
        let heads = u64::from(self.rows) * u64::from(self.sizes.heads);
        Launch::new(Kernel::AttendMerge, [heads, 1], 128)
    }
}

impl RouteParams {
    /// Returns a launch with one block for each row.
    pub fn launch(&self) -> Launch {
        Launch::new(Kernel::Route, [self.sizes.rows.into(), 1], 128)
    }
}

impl DeltaNetParams {
    /// Returns the three launches, to be run in this order. A run that continues another requires a later
    /// launch.
    pub fn launches(&self) -> [Launch; 3] {
        let (runs, columns) = (u64::from(self.runs_count), u64::from(self.value_dim.div_ceil(32)));
        let conv =
            Launch::new(Kernel::DeltaNetConv, [self.channels.div_ceil(128).into(), runs], 128);
        let mut rule = Launch::new(Kernel::DeltaNetRule, [columns, self.value_heads.into()], 32);
        rule.grid[2] = self.runs_count;
        let is_kept = self.key_dim <= KEPT_KEYS_MAX;
        rule.shared_bytes = 4 * (if is_kept { 34 } else { 2 }) * self.key_dim;
        let heads = u64::from(self.rows) * u64::from(self.value_heads);
        [conv, rule, Launch::new(Kernel::DeltaNetGate, [heads.div_ceil(4), 1], 128)]
    }
}

impl Mamba2Params {
    /// Returns the three launches, to be run in this order. A run that continues another requires a later
    /// launch of the first two.
    pub fn launches(&self) -> [Launch; 3] {
        let (runs, columns) = (u64::from(self.runs_count), u64::from(self.head_dim.div_ceil(32)));
        let conv = Launch::new(Kernel::Mamba2Conv, [self.channels.div_ceil(128).into(), runs], 128);
        let mut scan = Launch::new(Kernel::Mamba2Scan, [columns, self.heads.into()], 32);
        scan.grid[2] = self.runs_count;
        let is_kept = self.state_size <= KEPT_KEYS_MAX;
        scan.shared_bytes = 4 * (if is_kept { 34 } else { 2 }) * self.state_size;
        let groups = u64::from(self.rows) * u64::from(self.groups);
        [conv, scan, Launch::new(Kernel::Mamba2Norm, [groups.div_ceil(4), 1], 128)]
    }
}

impl ShortConvParams {
    /// Returns a launch with one thread for each channel of each run.
    pub fn launch(&self) -> Launch {
        let blocks = self.channels.div_ceil(128).into();
        Launch::new(Kernel::ShortConv, [blocks, u64::from(self.runs_count)], 128)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_that_no_device_starts_are_errors() {
        let most = u64::from(GRID_ROWS_MAX);
        for (blocks, found) in [
            ([BLOCKS_MAX, most], None),
            ([BLOCKS_MAX + 1, 1], Some(BLOCKS_MAX + 1)),
            ([u64::MAX, 1], Some(BLOCKS_MAX + 1)),
            ([1, most + 1], Some(most + 1)),
            ([1, u64::MAX], Some(u32::MAX.into())),
        ] {
            let checked = Launch::new(Kernel::Clear, blocks, 32).check();
            let refused = match checked {
                Err(CudaError::Limit { found, .. }) => Some(found),
                _ => None,
            };
            assert_eq!(refused, found, "{blocks:?}");
        }
        let mut deep = Launch::new(Kernel::Clear, [1, 1], 32);
        deep.grid[2] = GRID_ROWS_MAX + 1;
        assert!(deep.check().is_err());
    }
}
