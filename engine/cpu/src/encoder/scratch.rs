//! Memory that operations reuse.

use std::ops::Range;
use std::sync::Mutex;

use nestling_formats::Level;
use nestling_formats::memory::{OutOfMemory, try_reserve};

use super::head_shape::HeadShape;
use super::products::RowMap;
use crate::aligned::{STEP, try_resize};
use crate::attention::AttentionRows;
use crate::pages::TakenPage;
use nestling_core::batch::Run;
use nestling_core::kv_cache::PageId;

/// Memory that attention reuses.
#[derive(Debug, Default)]
pub(crate) struct AttentionScratch {
    /// Accumulators, one for each thread.
    pub rows: Vec<Mutex<AttentionRows>>,
    /// First rows of the blocks of queries.
    pub borders: Vec<usize>,
    /// Destination of each row: page, position in the page, row.
    pub places: Vec<(PageId, usize, usize)>,
    /// Pages taken out for writing, each with its range of `places`.
    pub taken: Vec<(TakenPage, Range<usize>)>,
}

/// Memory that recurrent mixers reuse.
#[derive(Debug, Default)]
pub(crate) struct RecurrentScratch {
    pub runs: Vec<Run>,
    /// Rows of each run.
    pub run_of: Vec<Range<usize>>, // [T]
    /// Queries, keys and values (C, B and x of Mamba-2) after the convolution and the norms.
    pub mixed: Vec<f32>, // [T, channels]
    /// Decay, and beta or time step.
    pub factors: Vec<[f32; 2]>, // [T, value heads]
    /// Outputs of heads: consecutive runs, each `[value heads, rows, value_head_dim]`.
    pub gathered: Vec<f32>,
    /// States being written.
    pub taken: Vec<Vec<f32>>, // [runs]
    pub parts: Vec<HeadRun<'static>>,
    /// Zero row for the convolution before the first token.
    pub zeros: Vec<f32>, // [channels]
    /// Window of a state that is being written.
    pub windows: Vec<f32>, // [window, channels]
}

impl RecurrentScratch {
    /// Reserves memory for the rows of [`Self::runs`].
    ///
    /// # Errors
    /// Fails with [`OutOfMemory`].
    pub fn prepare(&mut self, shape: &HeadShape) -> Result<(), OutOfMemory> {
        self.run_of.clear();
        let rows = self.runs.iter().map(|run| run.rows.len()).sum();
        try_reserve(&mut self.run_of, STEP, rows)?;
        let run_of = self.runs.iter().flat_map(|run| run.rows.clone().map(|_| run.rows.clone()));
        self.run_of.extend(run_of);
        try_resize(&mut self.zeros, shape.channels, 0.0)?;
        try_resize(&mut self.mixed, rows * shape.channels, 0.0)?;
        try_resize(&mut self.factors, rows * shape.heads, [0.0; 2])?;
        try_resize(&mut self.gathered, rows * shape.width(), 0.0)?;
        try_resize(&mut self.windows, shape.window * shape.channels, 0.0)
    }
}

/// One head of one run.
#[derive(Debug)]
pub(crate) struct HeadRun<'a> {
    pub first_row: usize,
    pub head: usize,
    pub from: Option<&'a [f32]>,
    pub state: &'a mut [f32], // [key_head_dim, value_head_dim]
    pub out: &'a mut [f32],   // [rows, value_head_dim]
}

/// Weights with the rows that use them at one level.
#[derive(Clone, Copy)]
pub(crate) struct LeveledRows<'a, W> {
    pub weights: &'a W,
    pub level: Level,
    pub rows: RowMap<'a>,
}
