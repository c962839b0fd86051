//! Threads and kernels, and how work is cut for them.

use std::sync::Arc;

use super::columns::{Cut, for_each_block};
use super::kernels::Kernels;
use super::rows::QuantizedRows;
use crate::threads::ThreadPool;
use nestling_formats::memory::OutOfMemory;

/// Products below this many multiplications stay on the calling thread: a fork and join costs as
/// much as about this many (PERF.md).
const FORK_MIN: usize = 1 << 16;

/// Parts for each thread, so that a thread that was interrupted does not keep the others waiting.
const PARTS_PER_THREAD: usize = 4;

/// The same for long prompts: every part reads the activations of all rows again, and wider parts use
/// them more often (PERF.md).
const LARGE_PARTS_PER_THREAD: usize = 2;

/// Multiplications from which work is that of a long prompt.
const LARGE: usize = 1 << 26;

/// Multiplications that one element costs in norms and the like.
pub(crate) const ROW_COST: usize = 4;

/// Threads and kernels: what products need of the CPU.
#[derive(Clone, Debug)]
pub(super) struct Team {
    pub pool: Arc<ThreadPool>,
    pub kernels: &'static Kernels,
}

impl Team {
    /// How many parts to cut work into that has so many units and multiplications.
    pub fn parts(&self, units: usize, multiplications: usize) -> usize {
        match self.pool.threads() {
            1 => 1,
            _ if multiplications < FORK_MIN => 1,
            threads if multiplications >= LARGE => units.clamp(1, threads * LARGE_PARTS_PER_THREAD),
            threads => units.clamp(1, threads * PARTS_PER_THREAD),
        }
    }

    /// How many of `cols` columns a part of whole units takes.
    pub fn cols_per_part(&self, cols: usize, unit: usize, multiplications: usize) -> usize {
        let units = cols.div_ceil(unit);
        units.div_ceil(self.parts(units, multiplications)).max(1) * unit
    }

    /// Whether work of so many multiplications is worth a fork and join.
    pub fn forks(&self, multiplications: usize) -> bool {
        self.pool.threads() > 1 && multiplications >= FORK_MIN
    }

    /// Calls `job` for every item, on all threads if the work is worth it.
    pub fn for_each_mut<T: Send>(
        &self,
        items: &mut [T],
        multiplications: usize,
        job: &(dyn Fn(usize, &mut T) + Sync),
    ) {
        if self.forks(multiplications) {
            return self.pool.for_each_mut(items, job);
        }
        items.iter_mut().enumerate().for_each(|(index, item)| job(index, item));
    }

    /// Calls `job` for every row of `values`, `[rows, cols]`: `cost` is that of one row, in
    /// multiplications.
    pub fn for_each_row<T: Send>(
        &self,
        values: &mut [T],
        cols: usize,
        cost: usize,
        job: impl Fn(usize, &mut [T]) + Sync,
    ) {
        // Default: a buffer without columns has no rows.
        let rows = values.len().checked_div(cols).unwrap_or(0);
        let chunk = rows.div_ceil(self.parts(rows, rows * cost)).max(1);
        for_each_block(
            &self.pool,
            self.forks(rows * cost),
            values,
            cols,
            Cut::Every(chunk),
            Cut::Every(cols),
            &|_, block| {
                for row in 0..block.rows().len() {
                    job(block.rows().start + row, block.row(row));
                }
            },
        );
    }

    /// Quantizes rows of activations, `[rows, cols]`.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn quantize(
        &self,
        x: &[f32],
        cols: usize,
        out: &mut QuantizedRows,
    ) -> Result<(), OutOfMemory> {
        // Default: a buffer without columns has no rows.
        let rows = x.len().checked_div(cols).unwrap_or(0);
        out.try_reserve(rows, cols)?;
        out.resize(rows, cols);
        let groups = out.groups();
        self.for_each_row(out.cells_mut(), groups, ROW_COST * cols, |row, cells| {
            self.kernels.quantize(&x[row * cols..][..cols], cells);
        });
        Ok(())
    }
}
