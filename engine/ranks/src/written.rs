//! Pages and recurrent states that a replacement of a lost rank needs.

use nestling_core::batch::Batch;
use nestling_core::kv_cache::{PAGE_POSITIONS, PageId};
use nestling_core::recurrent::StateId;

/// Pages and states that were written since the model was opened.
#[derive(Debug, Default)]
pub struct WrittenMemory {
    pages: Vec<bool>,  // [pages]
    states: Vec<bool>, // [states]
}

fn mark(marks: &mut Vec<bool>, index: u32) {
    let index = index as usize;
    if marks.len() <= index {
        marks.resize(index + 1, false);
    }
    marks[index] = true;
}

fn marked(marks: &[bool]) -> impl Iterator<Item = u32> + use<> {
    let marked: Vec<u32> =
        (0..).zip(marks).filter(|(_, marked)| **marked).map(|(index, _)| index).collect();
    marked.into_iter()
}

impl WrittenMemory {
    pub fn mark_page(&mut self, page: PageId) {
        mark(&mut self.pages, page.0);
    }

    pub fn mark_state(&mut self, state: StateId) {
        mark(&mut self.states, state.0);
    }

    /// Marks what a successful step wrote.
    pub fn mark_step(&mut self, batch: &Batch, has_states: bool) {
        for row in &batch.rows {
            let sequence = batch.sequences.get(row.sequence as usize);
            let page = row.position as usize / PAGE_POSITIONS;
            if let Some(page) = sequence.and_then(|sequence| sequence.pages.get(page)) {
                self.mark_page(*page);
            }
        }
        if has_states {
            let written = batch.sequences.iter().flat_map(|sequence| &sequence.states.to);
            written.for_each(|write| self.mark_state(write.state));
        }
    }

    pub fn pages(&self) -> impl Iterator<Item = PageId> + use<> {
        marked(&self.pages).map(PageId)
    }

    pub fn states(&self) -> impl Iterator<Item = StateId> + use<> {
        marked(&self.states).map(StateId)
    }
}
