//! One step's work: rows of tokens from any number of sequences.

mod runs;

use nestling_formats::Level;

use crate::error::EngineError;
use crate::kv_cache::{PAGE_POSITIONS, PageId};
use crate::recurrent::{StateId, StateTrack};

pub use crate::level_policy::LevelPolicy;
pub use runs::{Run, cut_runs, runs};

/// One token to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Token id.
    pub token: u32,
    /// Position in its sequence.
    pub position: u32,
    /// Index into [`Batch::sequences`].
    pub sequence: u32,
    /// Whether what follows this token is wanted: its logits, or what else [`Batch::output`] names.
    pub wants_logits: bool,
    /// Levels to compute with.
    pub levels: LevelPolicy,
}

/// What a step gives of the rows that want logits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepOutputKind {
    /// Their logits.
    #[default]
    Logits,
    /// Of each the token with the highest logit among so many first ones, at least one, of equal logits the
    /// lowest: a device need not give all of them.
    Argmax(usize),
    /// Their hidden rows after the last norm, and no logits.
    Hidden,
    /// Their hidden rows after the last norm, and their logits.
    HiddenAndLogits,
}

impl StepOutputKind {
    /// Whether hidden rows are given.
    pub fn has_hidden(self) -> bool {
        matches!(self, Self::Hidden | Self::HiddenAndLogits)
    }
}

/// One sequence that rows belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceRef {
    /// Its pages, to the last position of its rows at least.
    pub pages: Vec<PageId>,
    /// The recurrent states that the step reads and writes; only looked at by models that have
    /// recurrent layers.
    pub states: StateTrack,
}

impl SequenceRef {
    /// A sequence of a model without recurrent layers.
    pub fn of_pages(pages: Vec<PageId>) -> Self {
        Self { pages, states: StateTrack::default() }
    }
}

/// The rows of one step. Prefill, decode and any mix of sessions have this one shape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Rows; those of one sequence have consecutive, ascending positions. All positions before
    /// them were computed in earlier steps.
    pub rows: Vec<Row>, // [T]
    /// Sequences that the rows name.
    pub sequences: Vec<SequenceRef>,
    /// What is wanted of the rows that want logits.
    pub output: StepOutputKind,
}

impl Batch {
    /// Some rows, of which logits are wanted, if anything.
    pub fn new(rows: Vec<Row>, sequences: Vec<SequenceRef>) -> Self {
        Self { rows, sequences, output: StepOutputKind::Logits }
    }

    /// For a runner of whoever makes the batch: sequence `i` has the recurrent state `i`, which its
    /// rows change in place.
    pub fn own_states(&mut self) {
        for (index, sequence) in (0u32..).zip(&mut self.sequences) {
            let mut positions = self.rows.iter().filter(|row| row.sequence == index);
            let first = positions.next().map(|row| row.position as usize);
            let Some(first) = first else { continue };
            let last = positions.next_back().map_or(first, |row| row.position as usize);
            sequence.states = StateTrack::in_place(StateId(index), first, last + 1);
        }
    }

    /// Indices of the rows that want logits, ascending.
    pub fn logit_rows(&self) -> Vec<u32> {
        (0..).zip(&self.rows).filter(|(_, row)| row.wants_logits).map(|(index, _)| index).collect()
    }

    /// Checks what the graph relies on.
    ///
    /// # Errors
    /// Names the first row that breaks a rule of [`Batch::rows`], has a token outside the
    /// vocabulary or lies beyond the context or its sequence's pages.
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
            // Nearly always the row before; only a sequence's first row looks at all before it.
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

/// The rows of a step that are still computed, column by column: what encoders read.
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
    /// Pages of each sequence, of the batch's sequences at least.
    pub pages: Vec<Vec<PageId>>,
    /// Recurrent states of each sequence of the batch.
    pub states: Vec<StateTrack>,
}

impl StepRows {
    /// All rows of a batch.
    pub fn of_batch(batch: &Batch) -> Self {
        let mut rows = Self::default();
        rows.fill(batch);
        rows
    }

    /// All rows of a batch, in place of those before; allocates only where there are more.
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

    /// Keeps the rows of those indices, which ascend.
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

    /// Rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Page and index within it of a row's own position.
    pub fn place(&self, row: usize) -> Option<(PageId, usize)> {
        let position = *self.positions.get(row)? as usize;
        let pages = self.pages.get(*self.sequences.get(row)? as usize)?;
        Some((*pages.get(position / PAGE_POSITIONS)?, position % PAGE_POSITIONS))
    }
}
