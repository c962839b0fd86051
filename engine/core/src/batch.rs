//! The batch of one step: rows of tokens from any number of sequences.

mod runs;

use nestling_formats::Level;
use serde::{Deserialize, Serialize};

use crate::error::EngineError;
use crate::kv_cache::{PAGE_POSITIONS, PageId};
use crate::recurrent::{StateId, StateTrack};

pub use crate::level_policy::LevelPolicy;
pub use runs::{Run, cut_runs, runs};

/// One token to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Token id.
    pub token: u32,
    /// Position in the sequence.
    pub position: u32,
    /// Index into [`Batch::sequences`].
    pub sequence: u32,
    /// True if logits are requested for this row, or the other outputs selected by [`Batch::output`].
    pub wants_logits: bool,
    /// Policy for the levels to compute with.
    pub levels: LevelPolicy,
}

/// Output of a step for the rows whose logits were requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOutputKind {
    /// Logits.
    #[default]
    Logits,
    /// Token with the highest logit among the first `n` tokens (at least one), the lowest if equal. A device
    /// need not copy all logits to the host.
    Argmax(usize),
    /// Hidden rows after the last norm, without logits.
    Hidden,
    /// Hidden rows after the last norm, and logits.
    HiddenAndLogits,
}

impl StepOutputKind {
    /// Returns whether the output includes hidden rows.
    pub fn has_hidden(self) -> bool {
        matches!(self, Self::Hidden | Self::HiddenAndLogits)
    }
}

/// A sequence referenced by rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SequenceRef {
    /// Pages of the sequence, at least up to the last position of its rows.
    pub pages: Vec<PageId>,
    /// Recurrent states that the step reads and writes; used only by models with recurrent layers.
    pub states: StateTrack,
}

impl SequenceRef {
    /// Creates a sequence of a model without recurrent layers.
    pub fn of_pages(pages: Vec<PageId>) -> Self {
        Self { pages, states: StateTrack::default() }
    }
}

/// The rows of one step. Prefill, decode and any mix of sessions have this form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// Rows. The rows of a sequence have consecutive, ascending positions; all earlier positions were
    /// computed in earlier steps.
    pub rows: Vec<Row>, // [T]
    /// Sequences referenced by the rows.
    pub sequences: Vec<SequenceRef>,
    /// Outputs for the rows whose logits were requested.
    pub output: StepOutputKind,
}

impl Batch {
    /// Creates a batch with logits as output.
    pub fn new(rows: Vec<Row>, sequences: Vec<SequenceRef>) -> Self {
        Self { rows, sequences, output: StepOutputKind::Logits }
    }

    /// Assigns recurrent state `i` to sequence `i`, updated in place. For callers that own the runner and its
    /// states.
    pub fn own_states(&mut self) {
        for (index, sequence) in (0u32..).zip(&mut self.sequences) {
            let mut positions = self.rows.iter().filter(|row| row.sequence == index);
            let first = positions.next().map(|row| row.position as usize);
            let Some(first) = first else { continue };
            let last = positions.next_back().map_or(first, |row| row.position as usize);
            sequence.states = StateTrack::in_place(StateId(index), first, last + 1);
        }
    }

    /// Returns the indices of the rows with requested logits, ascending.
    pub fn logit_rows(&self) -> Vec<u32> {
        (0..).zip(&self.rows).filter(|(_, row)| row.wants_logits).map(|(index, _)| index).collect()
    }

    /// Checks the rules that the graph relies on.
    ///
    /// # Errors
    /// An error for the first row that breaks a rule of [`Batch::rows`], has a token outside the vocabulary,
    /// or is beyond the context or its sequence's pages.
    pub fn check(&self, vocab_size: usize, context_max: usize) -> Result<(), EngineError> {
        for (index, row) in self.rows.iter().enumerate() {
            let token = row.token;
            if token as usize >= vocab_size {
                return Err(EngineError::TokenOutOfRange { token, vocab_size });
            }
            let sequence = row.sequence as usize;
            let Some(table) = self.sequences.get(sequence) else {
                let sequences = format!("a sequence below {}", self.sequences.len());
                return Err(EngineError::mismatch(format!("row {index}"), sequences, sequence));
            };
            let position = row.position as usize;
            if position >= context_max {
                let (limit, wanted) = (context_max as u64, position as u64 + 1);
                return Err(EngineError::ContextFull { limit, wanted });
            }
            // The search usually ends at the previous row; only the first row of a sequence scans all rows
            // before it.
            let before =
                self.rows[..index].iter().rev().find(|other| other.sequence == row.sequence);
            if let Some(before) = before.map(|before| before.position)
                && before.checked_add(1) != Some(row.position)
            {
                let expected = format!("position {}", u64::from(before) + 1);
                return Err(EngineError::mismatch(format!("row {index}"), expected, position));
            }
            if position / PAGE_POSITIONS >= table.pages.len() {
                let expected = format!("a page for position {position}");
                let found = format!("{} pages", table.pages.len());
                return Err(EngineError::mismatch(format!("row {index}"), expected, found));
            }
        }
        Ok(())
    }
}

/// The remaining rows of a step in columns, as encoders read them.
#[derive(Clone, Debug, Default)]
pub struct StepRows {
    /// Token ids.
    pub tokens: Vec<u32>, // [T]
    /// Positions.
    pub positions: Vec<u32>, // [T]
    /// Index of each row's sequence in `pages`.
    pub sequences: Vec<u32>, // [T]
    /// Level policy of each row.
    pub policies: Vec<LevelPolicy>, // [T]
    /// Level of each row in dense matrices.
    pub dense_levels: Vec<Level>, // [T]
    /// Pages of each sequence; at least one entry per sequence of the batch.
    pub pages: Vec<Vec<PageId>>,
    /// Recurrent states of each sequence of the batch.
    pub states: Vec<StateTrack>,
}

impl StepRows {
    /// Creates the rows of a batch.
    pub fn of_batch(batch: &Batch) -> Self {
        let mut rows = Self::default();
        rows.fill(batch);
        rows
    }

    /// Replaces the contents with the rows of a batch; allocates only if there are more.
    pub fn fill(&mut self, batch: &Batch) {
        fn replace<T>(column: &mut Vec<T>, values: impl Iterator<Item = T>) {
            column.clear();
            column.extend(values);
        }
        let rows = &batch.rows;
        replace(&mut self.tokens, rows.iter().map(|row| row.token));
        replace(&mut self.positions, rows.iter().map(|row| row.position));
        replace(&mut self.sequences, rows.iter().map(|row| row.sequence));
        replace(&mut self.policies, rows.iter().map(|row| row.levels));
        replace(&mut self.dense_levels, rows.iter().map(|row| row.levels.dense()));
        let count = self.pages.len().max(batch.sequences.len());
        self.pages.resize_with(count, Vec::new);
        self.pages.iter_mut().for_each(Vec::clear);
        for (pages, sequence) in self.pages.iter_mut().zip(&batch.sequences) {
            pages.extend_from_slice(&sequence.pages);
        }
        self.states.resize_with(batch.sequences.len(), StateTrack::default);
        for (states, sequence) in self.states.iter_mut().zip(&batch.sequences) {
            states.from = sequence.states.from;
            states.to.clone_from(&sequence.states.to);
        }
    }

    /// Keeps only the rows with the given ascending indices.
    pub fn keep(&mut self, indices: &[u32]) {
        fn pick<T: Copy>(column: &mut Vec<T>, indices: &[u32]) {
            for (to, from) in indices.iter().enumerate() {
                column[to] = column[*from as usize];
            }
            column.truncate(indices.len());
        }
        pick(&mut self.tokens, indices);
        pick(&mut self.positions, indices);
        pick(&mut self.sequences, indices);
        pick(&mut self.policies, indices);
        pick(&mut self.dense_levels, indices);
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the page of a row's position, and the index within the page.
    pub fn place(&self, row: usize) -> Option<(PageId, usize)> {
        let position = *self.positions.get(row)? as usize;
        let pages = self.pages.get(*self.sequences.get(row)? as usize)?;
        Some((*pages.get(position / PAGE_POSITIONS)?, position % PAGE_POSITIONS))
    }
}
