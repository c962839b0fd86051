//! Pairs of input and output rows, grouped by the matrix and level that multiply them.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use nestling_formats::Level;

use super::expect;
use nestling_core::EngineError;
use nestling_core::backend::ExpertUse;

/// An input row and its output row, in the layout that kernels read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct RowPair {
    /// Row of the input.
    pub x_row: u32,
    /// Row of the output.
    pub out_row: u32,
}

/// Range of pairs for each level that occurs.
pub type LevelRanges = Vec<(Level, Range<usize>)>;

/// Pairs each row with itself, grouped by level.
///
/// # Errors
/// Returns an error if the numbers of rows and levels differ.
pub fn pairs_by_level(
    rows: usize,
    levels: &[Level],
) -> Result<(Vec<RowPair>, LevelRanges), EngineError> {
    expect("rows of levels", rows, levels.len())?;
    let (mut pairs, mut ranges) = (Vec::with_capacity(rows), Vec::new());
    for level in Level::ALL {
        let start = pairs.len();
        let rows = (0u32..).zip(levels).filter(|(_, other)| **other == level);
        pairs.extend(rows.map(|(row, _)| RowPair { x_row: row, out_row: row }));
        if pairs.len() > start {
            ranges.push((level, start..pairs.len()));
        }
    }
    Ok((pairs, ranges))
}

/// Appends the pairs of one expert, grouped by level. Output rows are indices in `[rows, per_token]`.
///
/// # Errors
/// Returns an error if a row or rank is out of range.
pub fn push_uses(
    pairs: &mut Vec<RowPair>,
    uses: &[ExpertUse],
    rows: usize,
    per_token: usize,
) -> Result<LevelRanges, EngineError> {
    let mut ranges = Vec::new();
    for level in Level::ALL {
        let start = pairs.len();
        for used in uses.iter().filter(|used| used.level == level) {
            expect("row of an expert", 0, usize::from(used.row as usize >= rows))?;
            expect("rank of an expert", 0, usize::from(used.rank as usize >= per_token))?;
            let out_row = used.row * per_token as u32 + used.rank;
            pairs.push(RowPair { x_row: used.row, out_row });
        }
        if pairs.len() > start {
            ranges.push((level, start..pairs.len()));
        }
    }
    Ok(ranges)
}

/// Splits pairs in two stages: from input rows to consecutive intermediate rows, and from those to output
/// rows.
pub fn by_way_of(pairs: &[RowPair]) -> (Vec<RowPair>, Vec<RowPair>) {
    let numbered = (0u32..).zip(pairs).map(|(between, pair)| {
        let there = RowPair { x_row: pair.x_row, out_row: between };
        (there, RowPair { x_row: between, out_row: pair.out_row })
    });
    numbered.unzip()
}

/// Appends the pairs of one head and returns their range. The input has `heads` rows for each row.
pub fn push_head(
    pairs: &mut Vec<RowPair>,
    rows: &[RowPair],
    head: usize,
    heads: usize,
) -> Range<usize> {
    let start = pairs.len();
    pairs.extend(rows.iter().map(|pair| RowPair {
        x_row: pair.x_row * heads as u32 + head as u32,
        out_row: pair.out_row,
    }));
    start..pairs.len()
}

/// Returns the part of a range that is inside a window, relative to the window's start.
pub fn within(range: &Range<usize>, window: &Range<usize>) -> Range<usize> {
    let (start, end) = (range.start.max(window.start), range.end.min(window.end));
    start.saturating_sub(window.start)..end.saturating_sub(window.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair((x_row, out_row): (u32, u32)) -> RowPair {
        RowPair { x_row, out_row }
    }

    #[test]
    fn rows_are_grouped_by_level() {
        let levels = [Level::L4, Level::L2, Level::L4];
        let (pairs, ranges) = pairs_by_level(3, &levels).unwrap();
        assert_eq!(pairs, [(1, 1), (0, 0), (2, 2)].map(pair));
        assert_eq!(ranges, [(Level::L2, 0..1), (Level::L4, 1..3)]);
        assert!(pairs_by_level(2, &levels).is_err());
    }

    #[test]
    fn uses_go_to_the_ranks_of_their_rows() {
        let used = |row, rank, level| ExpertUse { row, rank, level };
        let mut pairs = vec![RowPair::default()];
        let uses = [used(0, 1, Level::L3), used(2, 0, Level::L2)];
        let ranges = push_uses(&mut pairs, &uses, 3, 2).unwrap();
        assert_eq!(pairs[1..], [(2, 4), (0, 1)].map(pair));
        assert_eq!(ranges, [(Level::L2, 1..2), (Level::L3, 2..3)]);
        assert!(push_uses(&mut pairs, &[used(3, 0, Level::L2)], 3, 2).is_err());
        assert!(push_uses(&mut pairs, &[used(0, 2, Level::L2)], 3, 2).is_err());
    }

    #[test]
    fn heads_are_rows_of_the_input() {
        let mut pairs = Vec::new();
        let rows = [(0, 0), (2, 2)].map(pair);
        assert_eq!(push_head(&mut pairs, &rows, 1, 4), 0..2);
        assert_eq!(pairs, [(1, 0), (9, 2)].map(pair));
    }

    #[test]
    fn what_goes_by_way_of_others_arrives() {
        let (there, on) = by_way_of(&[(5, 7), (1, 2)].map(pair));
        assert_eq!(there, [(5, 0), (1, 1)].map(pair));
        assert_eq!(on, [(0, 7), (1, 2)].map(pair));
    }

    #[test]
    fn ranges_are_cut_to_a_window() {
        let cut = |range| within(&range, &(10..20));
        assert_eq!([5..12, 12..15, 18..30].map(cut), [0..2, 2..5, 8..10]);
        assert!(cut(0..5).is_empty() && cut(20..30).is_empty());
    }
}
