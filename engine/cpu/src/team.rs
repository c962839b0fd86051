//! Threads and kernels, and the division of work among threads.

use std::sync::Arc;

use super::columns::{Cut, for_each_block};
use super::kernels::Kernels;
use super::rows::QuantizedRows;
use crate::threads::ThreadPool;
use nestling_formats::memory::OutOfMemory;

/// Minimum number of multiplications for parallel execution. A fork and join costs about as much as this many
/// multiplications (docs/perf/026).
const FORK_MIN: usize = 1 << 16;

/// Parts per thread, so that an interrupted thread does not delay the others.
const PARTS_PER_THREAD: usize = 4;

/// Parts per thread for long prompts. Each part reads the activations of all rows again, and wider parts
/// reuse them more (docs/perf/026).
const LARGE_PARTS_PER_THREAD: usize = 2;

/// Number of multiplications from which work counts as a long prompt.
const LARGE: usize = 1 << 26;

/// Cost of one element in norms and similar operations, in multiplications.
pub(crate) const ROW_COST: usize = 4;

#[derive(Clone, Debug)]
pub(super) struct Team {
    pub pool: Arc<ThreadPool>,
    pub kernels: &'static Kernels,
}

impl Team {
    /// Returns the number of parts for work of `units` units and `multiplications` multiplications.
    pub fn parts(&self, units: usize, multiplications: usize) -> usize {
        match self.pool.threads() {
            1 => 1,
            _ if multiplications < FORK_MIN => 1,
            threads if multiplications >= LARGE => units.clamp(1, threads * LARGE_PARTS_PER_THREAD),
            threads => units.clamp(1, threads * PARTS_PER_THREAD),
        }
    }

    /// Returns the number of columns per part, a multiple of `unit`.
    pub fn cols_per_part(&self, cols: usize, unit: usize, multiplications: usize) -> usize {
        let units = cols.div_ceil(unit);
        units.div_ceil(self.parts(units, multiplications)).max(1) * unit
    }

    /// Returns whether work of `multiplications` multiplications justifies a fork and join.
    pub fn forks(&self, multiplications: usize) -> bool {
        self.pool.threads() > 1 && multiplications >= FORK_MIN
    }

    /// Calls `job` for each item, on all threads if the work justifies it.
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

    /// Calls `job` for each row of `values`, `[rows, cols]`. `cost` is the cost of one row in
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
    /// Fails with [`OutOfMemory`].
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
