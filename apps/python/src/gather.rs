//! Collection of a generation's token data in arrays.

use nestling::{Event, TokenEvent};

use crate::arrays::Array;
use crate::error::Failure;

#[derive(Debug, Default)]
pub(crate) struct TokenRows {
    /// Vocabulary size if the log-probabilities of the whole vocabulary are collected; 0 if they are not.
    width: usize,
    tokens: Vec<u32>,
    log_probs: Vec<f32>,
    best: Vec<u32>,
    all: Vec<f32>,    // [tokens, width]
    hidden: Vec<f32>, // [rows, hidden_size]
}

impl TokenRows {
    pub(crate) fn new(width: usize) -> Self {
        Self { width, ..Self::default() }
    }

    pub(crate) fn take(&mut self, event: Event) -> Result<(), Failure> {
        match event {
            Event::PromptToken(token) | Event::Token(token) => self.token(&token),
            Event::Hidden(row) => {
                room(&mut self.hidden, row.values.len())?;
                self.hidden.extend_from_slice(&row.values);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn token(&mut self, event: &TokenEvent) -> Result<(), Failure> {
        room(&mut self.tokens, 1)?;
        room(&mut self.log_probs, 1)?;
        room(&mut self.best, 1)?;
        self.tokens.push(event.token);
        // Default: NaN for the first token of a prompt, which has no log-probability.
        self.log_probs.push(event.log_prob.unwrap_or(f32::NAN));
        self.best.push(event.top.first().map_or(u32::MAX, |(token, _)| *token));
        if self.width == 0 {
            return Ok(());
        }
        room(&mut self.all, self.width)?;
        let start = self.all.len();
        let unknown = if event.top.is_empty() { f32::NAN } else { f32::NEG_INFINITY };
        self.all.resize(start + self.width, unknown);
        for (token, log_prob) in &event.top {
            let place = self.all.get_mut(start + *token as usize);
            *place
                .ok_or_else(|| Failure::caller(format!("a token of {} or more", self.width)))? =
                *log_prob;
        }
        Ok(())
    }

    /// Returns tokens, their log-probabilities, the most likely token per position, the log-probabilities of
    /// the vocabulary per position, and hidden rows.
    pub(crate) fn arrays(self) -> Vec<Array> {
        vec![
            self.tokens.into(),
            self.log_probs.into(),
            self.best.into(),
            self.all.into(),
            self.hidden.into(),
        ]
    }
}

fn room<T>(list: &mut Vec<T>, more: usize) -> Result<(), Failure> {
    let reserved = list.try_reserve(more);
    reserved.map_err(|error| Failure::no_room(format!("log-probabilities: {error}")))
}
