//! Division of a step's rows into runs between recurrent states.

use std::ops::Range;

use super::StepRows;
use crate::error::EngineError;
use crate::recurrent::StateId;

/// Rows of one sequence up to a state that the step writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Range of the rows.
    pub rows: Range<usize>,
    /// First row of the sequence in this step.
    pub first: usize,
    /// Number of earlier runs of the sequence in this step.
    pub depth: usize,
    /// State before the sequence's first row.
    pub from: Option<StateId>,
    /// State written after the last row.
    pub to: StateId,
}

impl Run {
    /// Returns whether the run updates its state in place.
    pub fn is_in_place(&self) -> bool {
        self.depth == 0 && self.from == Some(self.to)
    }
}

/// Computes the runs of a step; the runs of a sequence are consecutive.
///
/// # Errors
/// Returns an error if the rows of a sequence are not contiguous or the states do not match them.
pub fn runs(rows: &StepRows, out: &mut Vec<Run>) -> Result<(), EngineError> {
    out.clear();
    let mut start = 0;
    for chunk in rows.sequences.chunk_by(|a, b| a == b) {
        let (first, end) = (start, start + chunk.len());
        let sequence = chunk[0] as usize;
        let named = format!("recurrent states of sequence {sequence}");
        let wrong = |expected: &str, found: String| {
            Err(EngineError::mismatch(named.clone(), expected, found))
        };
        if out.iter().any(|run| rows.sequences[run.first] == chunk[0]) {
            return wrong("rows that lie together", format!("others at row {first}"));
        }
        let Some(track) = rows.states.get(sequence) else {
            return wrong("states", "none".into());
        };
        let position = rows.positions[first] as usize;
        if track.from.is_some() != (position > 0) {
            return wrong("a state before all rows but a first", format!("{:?}", track.from));
        }
        for (depth, to) in track.to.iter().enumerate() {
            let ends = to.length.checked_sub(position).map(|rows| first + rows);
            let Some(ends) = ends.filter(|ends| (start + 1..=end).contains(ends)) else {
                return wrong("states at ascending rows", format!("one after {}", to.length));
            };
            out.push(Run { rows: start..ends, first, depth, from: track.from, to: to.state });
            start = ends;
        }
        if start != end {
            return wrong("a state after the last row", format!("{} rows without", end - start));
        }
    }
    check_states(out)
}

/// Splits runs of more than `rows_max` rows. Each part continues from the state written by the previous part.
pub fn cut_runs(runs: &mut Vec<Run>, rows_max: usize) {
    let rows_max = rows_max.max(1);
    if runs.iter().all(|run| run.rows.len() <= rows_max) {
        return;
    }
    let mut depth = 0;
    let mut cut = Vec::new();
    for run in runs.drain(..) {
        depth = if run.depth == 0 { 0 } else { depth };
        for start in run.rows.clone().step_by(rows_max) {
            let rows = start..run.rows.end.min(start + rows_max);
            cut.push(Run { rows, depth, ..run.clone() });
            depth += 1;
        }
    }
    *runs = cut;
}

/// # Errors
/// Returns an error if a state is written twice, or read by one run and written by another.
fn check_states(runs: &[Run]) -> Result<(), EngineError> {
    for (index, run) in runs.iter().enumerate() {
        let others = || runs.iter().enumerate().filter(move |(other, _)| *other != index);
        let clash = others().any(|(_, other)| other.to == run.to || other.from == Some(run.to));
        if clash || (run.depth > 0 && run.from == Some(run.to)) {
            let expected = "a state that no other rows of the step use";
            return Err(EngineError::mismatch("recurrent state to write", expected, run.to.0));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(rows: Range<usize>, depth: usize, from: Option<u32>, to: u32) -> Run {
        let first = if rows.start < 10 { 0 } else { 10 };
        Run { rows, first, depth, from: from.map(StateId), to: StateId(to) }
    }

    #[test]
    fn parts_of_runs_come_one_after_another() {
        let whole = vec![
            run(0..2, 0, None, 5),
            run(2..10, 1, None, 6),
            run(10..13, 0, Some(1), 1),
            run(13..14, 1, Some(1), 2),
        ];
        let mut cut = whole.clone();
        cut_runs(&mut cut, 8);
        assert_eq!(cut, whole);
        cut_runs(&mut cut, 3);
        let expected = [
            run(0..2, 0, None, 5),
            run(2..5, 1, None, 6),
            run(5..8, 2, None, 6),
            run(8..10, 3, None, 6),
            run(10..13, 0, Some(1), 1),
            run(13..14, 1, Some(1), 2),
        ];
        assert_eq!(cut, expected);
        let mut single = whole;
        cut_runs(&mut single, 0);
        assert_eq!(single.len(), 14);
        let depths: Vec<usize> = single.iter().map(|run| run.depth).collect();
        assert_eq!(depths, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3]);
    }
}
