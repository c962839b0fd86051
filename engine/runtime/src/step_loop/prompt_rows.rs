//! Requested outputs of prompt rows, besides the next token.

use crate::event::HiddenRow;
use crate::options::HiddenRows;
use nestling_text::{SampleError, TokenLogprobs, logprobs_of};

/// Maximum host memory for the logits of scored prompt rows in one step, in bytes.
const LOGITS_BYTES_MAX: usize = 64 << 20;

/// Returns the maximum number of prompt rows with logits per step, at least 1.
pub(super) fn logit_rows_max(vocab_size: usize) -> usize {
    (LOGITS_BYTES_MAX / size_of::<f32>() / vocab_size.max(1)).max(1)
}

/// Requested outputs of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RowWants {
    /// Log-probability of the prompt token after the row.
    pub score: bool,
    /// Hidden row.
    pub hidden: bool,
    /// Choice of the next token.
    pub choice: bool,
}

impl RowWants {
    pub fn wants_logits(self) -> bool {
        self.score || self.choice
    }

    pub fn is_any(self) -> bool {
        self.wants_logits() || self.hidden
    }
}

/// Requested outputs of a generation's prompt rows, with the progress of their delivery.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PromptRows {
    /// Number of best tokens to report with each log-probability. `None` requests no log-probabilities.
    pub logprobs: Option<usize>,
    pub hidden: Option<HiddenRows>,
    /// Number of prompt tokens.
    pub length: usize,
    /// Number of leading rows whose outputs are not requested, or were delivered before a preemption.
    pub done: usize,
}

impl PromptRows {
    /// Returns the first position up to `last` whose row must be computed, or `last + 1` if none is needed.
    pub fn first_needed(&self, last: usize, chooses: bool) -> usize {
        match self.first() {
            Some(first) if self.done < self.length => first.max(self.done).min(last),
            _ if chooses => last,
            _ => last + 1,
        }
    }

    /// Returns the first position with requested outputs.
    fn first(&self) -> Option<usize> {
        match (self.logprobs, self.hidden) {
            (Some(_), _) | (_, Some(HiddenRows::All)) => Some(0),
            (None, Some(HiddenRows::Last)) => Some(self.length.saturating_sub(1)),
            (None, None) => None,
        }
    }

    /// Returns true if outputs of many rows may be requested in one step.
    pub fn wants_many(&self) -> bool {
        self.first() == Some(0) && self.done < self.length
    }

    pub(super) fn wants(&self, position: usize) -> RowWants {
        if position < self.done || position >= self.length {
            return RowWants::default();
        }
        let is_last = position + 1 == self.length;
        let hidden = match self.hidden {
            Some(HiddenRows::All) => true,
            Some(HiddenRows::Last) => is_last,
            None => false,
        };
        RowWants { score: self.logprobs.is_some() && !is_last, hidden, choice: false }
    }
}

/// A prompt row whose next token is scored.
#[derive(Debug)]
pub(super) struct Score<'a> {
    pub token: u32,
    /// Logits of the row, which predict that token.
    pub logits: &'a [f32], // [vocab_size]
    /// Number of best tokens to report.
    pub top: usize,
    /// Number of valid token ids.
    pub vocab_size: usize,
    /// Result, once it is computed.
    pub found: Option<Result<TokenLogprobs, SampleError>>,
}

impl Score<'_> {
    pub fn compute(&mut self) {
        let known = self.vocab_size.min(self.logits.len());
        self.found = Some(logprobs_of(&self.logits[..known], self.token, self.top));
    }
}

/// Outputs of a step for the rows of one generation.
#[derive(Debug, Default)]
pub(super) struct FoundRows<'a> {
    pub scores: Vec<Score<'a>>,
    pub hidden: Vec<HiddenRow>,
}

#[cfg(test)]
mod tests {
    use super::{PromptRows, RowWants, logit_rows_max};
    use crate::options::HiddenRows;

    #[test]
    fn rows_are_asked_once() {
        let mut rows = PromptRows { logprobs: Some(0), hidden: None, length: 4, done: 0 };
        let score = RowWants { score: true, ..RowWants::default() };
        assert_eq!(
            [0, 1, 2, 3, 4].map(|at| rows.wants(at) == score),
            [true, true, true, false, false]
        );
        rows.done = 2;
        assert_eq!([1, 2].map(|at| rows.wants(at).is_any()), [false, true]);
        rows = PromptRows { logprobs: None, hidden: Some(HiddenRows::Last), ..rows };
        assert_eq!((rows.first(), rows.wants_many()), (Some(3), false));
        assert_eq!([2, 3].map(|at| rows.wants(at).hidden), [false, true]);
    }

    #[test]
    fn rows_that_are_needed_are_computed_again() {
        let all = PromptRows { logprobs: Some(0), hidden: None, length: 4, done: 0 };
        assert_eq!([true, false].map(|chooses| all.first_needed(3, chooses)), [0, 0]);
        let part = PromptRows { done: 2, ..all };
        assert_eq!(part.first_needed(5, true), 2);
        let given = PromptRows { done: 4, ..all };
        assert_eq!([true, false].map(|chooses| given.first_needed(5, chooses)), [5, 6]);
        let last = PromptRows { logprobs: None, hidden: Some(HiddenRows::Last), ..all };
        assert_eq!(last.first_needed(3, false), 3);
    }

    #[test]
    fn logits_of_prompts_are_bounded() {
        assert_eq!(logit_rows_max(151_936), 110);
        assert_eq!((logit_rows_max(usize::MAX), logit_rows_max(1 << 24)), (1, 1));
    }
}
