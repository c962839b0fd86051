//! Lists of the KV pages visible to the rows of a step.

use nestling_core::EngineError;
use nestling_core::batch::StepRows;
use nestling_core::kv_cache::{PAGE_POSITIONS, PageId};

fn page_missing() -> EngineError {
    EngineError::mismatch("page of a row", "a page", "none")
}

/// Returns the page of a row's position, and the index of the position in the page.
///
/// # Errors
/// Returns an error if the row has no page.
pub fn place_of(rows: &StepRows, row: usize) -> Result<(PageId, usize), EngineError> {
    rows.place(row).ok_or_else(page_missing)
}

/// The pages visible to the rows of a step, grouped by sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PageLists {
    /// Index in `pages` of each row's first page.
    pub first: Vec<usize>, // [rows]
    /// Pages of all sequences.
    pub pages: Vec<PageId>,
    /// Maximum number of pages visible to a row.
    pub longest: usize,
}

impl PageLists {
    /// Builds the lists of a step.
    ///
    /// # Errors
    /// Returns an error if a row has no page.
    pub fn of(rows: &StepRows) -> Result<Self, EngineError> {
        let mut lists = Self { first: vec![0; rows.len()], ..Self::default() };
        // For each sequence: the index of its first page, and the number of pages listed.
        let mut known: Vec<Option<(usize, usize)>> = vec![None; rows.pages.len()];
        // The last row of a sequence usually sees the most pages, so iterating backwards lists them once.
        for row in (0..rows.len()).rev() {
            place_of(rows, row)?;
            let (position, sequence) = (rows.positions[row] as usize, rows.sequences[row] as usize);
            let visible = position / PAGE_POSITIONS + 1;
            lists.first[row] = match known.get(sequence).copied().flatten() {
                Some((first, pages)) if pages >= visible => first,
                _ => {
                    let pages = rows.pages.get(sequence).and_then(|pages| pages.get(..visible));
                    let first = lists.pages.len();
                    lists.pages.extend_from_slice(pages.ok_or_else(page_missing)?);
                    known[sequence] = Some((first, visible));
                    first
                }
            };
            lists.longest = lists.longest.max(visible);
        }
        Ok(lists)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(positions: &[u32], sequences: &[u32], pages: &[&[u32]]) -> StepRows {
        StepRows {
            tokens: vec![0; positions.len()],
            positions: positions.to_vec(),
            sequences: sequences.to_vec(),
            pages: pages.iter().map(|pages| pages.iter().copied().map(PageId).collect()).collect(),
            ..StepRows::default()
        }
    }

    #[test]
    fn rows_of_a_sequence_share_the_pages_of_its_last() {
        let rows = step(&[3, 62, 63, 64], &[1, 0, 0, 0], &[&[7, 8, 9], &[4]]);
        let lists = PageLists::of(&rows).unwrap();
        assert_eq!(lists.pages, [7, 8, 4].map(PageId));
        assert_eq!(lists.first, [2, 0, 0, 0]);
        assert_eq!(lists.longest, 2);
    }

    #[test]
    fn rows_without_a_page_are_errors() {
        assert!(PageLists::of(&step(&[64], &[0], &[&[7]])).is_err());
        assert!(PageLists::of(&step(&[0], &[1], &[&[7]])).is_err());
    }
}
