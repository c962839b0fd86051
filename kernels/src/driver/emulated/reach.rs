//! Determines the bytes that a kernel accesses, from its parameters and the tables that they refer to.
//! Allocations private to one stream count as written entirely. Weights are tracked exactly, because they are
//! uploaded while others are in use.

use bytemuck::{Pod, pod_read_unaligned};
use nestling_core::kv_cache::PAGE_POSITIONS;
use nestling_formats::Plane;
use nestling_formats::nested::{Layout, PlaneForm, SCALED_CODEC_BYTES, ScaledCodec, merged_bytes};

use super::Address;
use super::history::Access;
use super::memory::Memory;
use crate::kernel::Kernel;
use crate::params::{
    AttendParams, Block, DeltaNetParams, EmbedParams, ExpertBlocksParams, ExpertEntry,
    GatedProductParams, GatherRowsParams, KvStoreParams, Launch, Mamba2Params, Matrix,
    NormPartParams, Pair, ProductParams, RmsNormParams, RopeParams, RouteParams, RowPlace,
    ShortConvParams, StateRun,
};

/// Number of levels, and the prefix of a missing level.
const LEVELS: u32 = 5;
const NO_PREFIX: u32 = 15;

/// First matrix form with codes, and first form with scaled integers.
const FORM_TILE16: u32 = 3;
const FORM_SCALED_TILE16: u32 = 5;

/// Returns the accesses of a kernel.
///
/// # Errors
/// Returns an error if a parameter or table refers to invalid memory.
pub(super) fn of_kernel(
    memory: &Memory,
    launch: &Launch,
    params: &[u8],
    miss_flag: Address,
) -> Result<Vec<Access>, String> {
    let mut reach = AccessRecord { memory, accesses: Vec::new() };
    if miss_flag != 0 {
        reach.reads(miss_flag, 4)?;
        if memory.read::<u32>(miss_flag)? != 0 {
            return Ok(reach.accesses);
        }
    }
    reach.add_words(params)?;
    reach.tables(launch, params)?;
    Ok(reach.accesses)
}

/// Returns the accesses of a copy.
pub(super) fn of_copy(from: Address, to: Address, bytes: u64) -> [Access; 2] {
    [Access { start: from, bytes, writes: false }, Access { start: to, bytes, writes: true }]
}

struct AccessRecord<'a> {
    memory: &'a Memory,
    accesses: Vec<Access>,
}

/// Reads parameters as a struct.
///
/// # Errors
/// Returns an error if the struct is larger than the parameters.
fn params_of<T: Pod>(params: &[u8]) -> Result<T, String> {
    let bytes = params.get(..size_of::<T>()).ok_or("its parameters are those of another")?;
    Ok(pod_read_unaligned(bytes))
}

impl AccessRecord<'_> {
    fn reads(&mut self, start: Address, bytes: u64) -> Result<(), String> {
        if start == 0 || bytes == 0 {
            return Ok(());
        }
        self.memory.pointer(start, bytes)?;
        self.accesses.push(Access { start, bytes, writes: false });
        Ok(())
    }

    /// Adds a read of `count` words of four bytes.
    fn reads_words(&mut self, start: Address, count: u32) -> Result<(), String> {
        self.reads(start, 4 * u64::from(count))
    }

    /// Adds a read of a table and returns its entries.
    fn table<T: Pod>(&mut self, start: Address, count: u64) -> Result<Vec<T>, String> {
        let bytes = size_of::<T>() as u64;
        self.reads(start, bytes * count)?;
        (0..count).map(|index| self.memory.read(start + bytes * index)).collect()
    }

    /// Adds an access to an allocation: all of one that is private to a stream, or a prefix of shared
    /// weights.
    fn uses(&mut self, address: Address) -> Result<(), String> {
        let Some(found) = self.memory.find(address) else {
            self.memory.pointer(address, 1)?;
            return Ok(());
        };
        if matches!(found.what, "weights" | "experts") {
            return self.reads(address, 4.min(found.bytes - (address - found.start)));
        }
        let access = Access { start: found.start, bytes: found.bytes, writes: true };
        if !self.accesses.contains(&access) {
            self.accesses.push(access);
        }
        Ok(())
    }

    /// Adds accesses to all addresses among the parameters.
    fn add_words(&mut self, params: &[u8]) -> Result<(), String> {
        params.chunks_exact(8).map(pod_read_unaligned::<u64>).try_for_each(|word| {
            let is_address =
                self.memory.find(word).is_some() || self.memory.find_released(word).is_some();
            if is_address { self.uses(word) } else { Ok(()) }
        })
    }

    fn tables(&mut self, launch: &Launch, params: &[u8]) -> Result<(), String> {
        use Kernel as K;
        match launch.kernel {
            K::MatmulNested
            | K::MatvecFloat
            | K::MatvecNested
            | K::MatvecNestedRows
            | K::MatvecRowMajor
            | K::MatvecScaled => self.products(&params_of(params)?, launch.grid[1]),
            K::MatvecGatedQuantize => {
                let gated: GatedProductParams = params_of(params)?;
                self.products(&gated.products, 2 * launch.grid[1])
            }
            K::ExpertBlocks => self.expert_blocks(&params_of(params)?),
            K::Embed => self.embed(&params_of(params)?),
            K::RmsNorm | K::RmsNormQuantize => {
                let norm: RmsNormParams = params_of(params)?;
                self.reads_words(norm.weight, norm.cols)
            }
            K::NormPart => {
                let norm: NormPartParams = params_of(params)?;
                self.reads_words(norm.weight, norm.length)
            }
            K::Rope => {
                let rope: RopeParams = params_of(params)?;
                self.reads_words(rope.query_weight, rope.query_norm)?;
                self.reads_words(rope.key_weight, rope.key_norm)
            }
            K::KvStoreF16 | K::KvStoreF32 | K::KvStoreInt8 => {
                let store: KvStoreParams = params_of(params)?;
                self.pages(store.places, store.pages, store.rows, 1)
            }
            K::AttendF16
            | K::AttendF32
            | K::AttendInt8
            | K::AttendSplitF16
            | K::AttendSplitF32
            | K::AttendSplitInt8 => {
                let attend: AttendParams = params_of(params)?;
                self.reads_words(attend.sinks, attend.sizes.heads)?;
                self.pages(attend.places, attend.pages, attend.rows, attend.sizes.window)
            }
            K::Route => self.route(&params_of(params)?),
            K::GatherRows => {
                let gather: GatherRowsParams = params_of(params)?;
                self.reads_words(gather.indices, gather.rows)
            }
            K::ShortConv => self.short_conv(&params_of(params)?),
            K::DeltaNetConv | K::DeltaNetGate | K::DeltaNetRule => {
                self.delta_net(&params_of(params)?)
            }
            K::Mamba2Conv | K::Mamba2Norm | K::Mamba2Scan => self.mamba2(&params_of(params)?),
            _ => Ok(()),
        }
    }

    fn products(&mut self, params: &ProductParams, count: u32) -> Result<(), String> {
        for block in self.table::<Block>(params.blocks, count.into())? {
            if block.pairs == 0 || block.end_row <= block.first_row {
                continue;
            }
            let pairs = params.pairs + size_of::<Pair>() as u64 * u64::from(block.first_pair);
            self.reads(pairs, size_of::<Pair>() as u64 * u64::from(block.pairs))?;
            self.reads_words(block.bias, block.end_row - block.first_row)?;
            self.matrix(block.matrix, block.level)?;
        }
        Ok(())
    }

    /// Adds reads of a matrix at a level.
    fn matrix(&mut self, address: Address, level: u32) -> Result<(), String> {
        self.reads(address, size_of::<Matrix>() as u64)?;
        let matrix: Matrix = self.memory.read(address)?;
        let (rows, cols) = (matrix.rows as usize, matrix.cols as usize);
        if matrix.form < FORM_TILE16 {
            let element = if matrix.form == 0 { 4 } else { 2 };
            return self.reads(matrix.row_scales, element * (rows * cols) as u64);
        }
        let prefix = if level < LEVELS { matrix.prefixes >> (4 * level) & 15 } else { NO_PREFIX };
        if prefix == NO_PREFIX {
            return Ok(());
        }
        let is_tiled = matches!(matrix.form, FORM_TILE16 | FORM_SCALED_TILE16);
        let form = self.plane_form(&matrix)?;
        let layout = if is_tiled { Layout::Tile16 } else { Layout::RowMajor };
        let overflow = || "a matrix is larger than memory".to_owned();
        let bytes = |plane| {
            let bytes = form.plane_bytes(layout, rows, cols, plane).ok_or_else(overflow)?;
            Ok::<_, String>(bytes as u64)
        };
        let is_merged = matrix.is_merged != 0;
        let middle = merged_bytes(layout, rows, cols).ok_or_else(overflow)? as u64;
        let planes = [
            (matrix.row_scales, bytes(Plane::P2)?),
            (matrix.p3, if is_merged { middle } else { bytes(Plane::P3)? }),
            (matrix.p4, if is_merged { 0 } else { bytes(Plane::P4)? }),
            (matrix.p6, bytes(Plane::P6)?),
            (matrix.p8, bytes(Plane::P8)?),
        ];
        planes.iter().take(prefix as usize + 1).try_for_each(|one| self.reads(one.0, one.1))
    }

    /// Returns the form of a matrix's planes, from its codec.
    fn plane_form(&mut self, matrix: &Matrix) -> Result<PlaneForm, String> {
        if matrix.form < FORM_SCALED_TILE16 {
            self.reads(matrix.codec, 4)?;
            return Ok(PlaneForm::Nested);
        }
        const WORDS: usize = SCALED_CODEC_BYTES / 4;
        self.reads(matrix.codec, SCALED_CODEC_BYTES as u64)?;
        let words: [u32; WORDS] = self.memory.read(matrix.codec)?;
        let codec = ScaledCodec::from_bytes(bytemuck::bytes_of(&words));
        Ok(PlaneForm::Scaled(codec.map_err(|error| error.to_string())?.form))
    }

    fn expert_blocks(&mut self, params: &ExpertBlocksParams) -> Result<(), String> {
        self.reads(params.entries, size_of::<ExpertEntry>() as u64 * u64::from(params.experts))?;
        self.reads(params.least, 16 * u64::from(params.experts))?;
        self.reads_words(params.levels, params.uses / params.per_token.max(1))
    }

    fn embed(&mut self, params: &EmbedParams) -> Result<(), String> {
        self.reads_words(params.tokens, params.rows)?;
        let levels = self.table::<u32>(params.levels, params.rows.into())?;
        levels.into_iter().try_for_each(|level| self.matrix(params.table, level))
    }

    /// Adds accesses to the pages that rows see, including their own.
    fn pages(
        &mut self,
        places: Address,
        pages: Address,
        rows: u32,
        window: u32,
    ) -> Result<(), String> {
        let size = PAGE_POSITIONS as u64;
        for RowPlace { position, first_page } in self.table(places, rows.into())? {
            let end = u64::from(position) + 1;
            let first = end.saturating_sub(window.into()) / size;
            let at = pages + 8 * (u64::from(first_page) + first);
            let listed = self.table::<Address>(at, end.div_ceil(size) - first)?;
            listed.into_iter().try_for_each(|page| self.uses(page))?;
        }
        Ok(())
    }

    fn route(&mut self, params: &RouteParams) -> Result<(), String> {
        let biases = [params.logit_bias, params.selection_bias, params.expert_scale];
        biases.into_iter().try_for_each(|bias| self.reads_words(bias, params.sizes.experts))
    }

    fn short_conv(&mut self, params: &ShortConvParams) -> Result<(), String> {
        self.state_runs(params.runs, params.runs_count)?;
        self.reads_words(params.conv, params.taps * params.channels)?;
        self.reads_words(params.bias, params.channels)
    }

    fn state_runs(&mut self, runs: Address, count: u32) -> Result<(), String> {
        for run in self.table::<StateRun>(runs, count.into())? {
            for state in [run.from, run.to].into_iter().filter(|state| *state != 0) {
                self.uses(state)?;
            }
        }
        Ok(())
    }

    fn mamba2(&mut self, params: &Mamba2Params) -> Result<(), String> {
        self.state_runs(params.runs, params.runs_count)?;
        self.reads_words(params.conv, params.taps * params.channels)?;
        self.reads_words(params.bias, params.channels)?;
        for vector in [params.rate, params.time_bias, params.skip] {
            self.reads_words(vector, params.heads)?;
        }
        self.reads_words(params.norm, params.heads * params.head_dim)
    }

    fn delta_net(&mut self, params: &DeltaNetParams) -> Result<(), String> {
        self.state_runs(params.runs, params.runs_count)?;
        self.reads_words(params.conv, params.taps * params.channels)?;
        self.reads_words(params.rate, params.value_heads)?;
        self.reads_words(params.time_bias, params.value_heads)?;
        self.reads_words(params.norm, params.value_dim)
    }
}
