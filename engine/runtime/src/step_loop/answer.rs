//! From logits to events: one generation's sampling and text.

use crate::event::{Event, FinishReason, TokenEvent};
use crate::sampler::{Sampled, Sampler};
use nestling_core::error::EngineError;
use nestling_text::{DetokenizeStream, OutputEvent, OutputParser, StopMatcher};

/// Tokens to text, stop strings, reasoning and tool calls.
#[derive(Debug)]
pub(crate) struct AnswerText {
    pub decoder: DetokenizeStream,
    pub stops: StopMatcher,
    pub parser: OutputParser,
}

/// What a generation writes, and when it ends by itself.
#[derive(Debug)]
pub(crate) struct Answer {
    pub sampler: Sampler,
    /// None for a model without a tokenizer.
    pub text: Option<AnswerText>,
    pub end_tokens: Vec<u32>,
    pub token_events: bool,
    pub tokens_max: usize,
    /// Tokens chosen so far.
    pub tokens: usize,
    pub called_tools: bool,
    /// A stop string or marker was found: what is held back is not part of the answer.
    pub stopped: bool,
}

/// What a step found for a generation.
#[derive(Debug)]
pub(crate) enum RowOutput<'a> {
    /// Logits, which penalties change in place.
    Logits(&'a mut [f32]), // [vocab_size]
    /// The token that has the highest one.
    Best(u32),
}

/// A token, what it means, and whether it was the last.
#[derive(Debug)]
pub(super) struct Choice {
    pub token: u32,
    pub events: Vec<Event>,
    pub finish: Option<FinishReason>,
}

impl Answer {
    /// Tokens that it may still have.
    pub(super) fn tokens_left(&self) -> usize {
        self.tokens_max.saturating_sub(self.tokens)
    }

    /// Chooses the token for `position` from what a step found.
    ///
    /// # Errors
    /// Logits that are no numbers.
    pub(super) fn choose(
        &mut self,
        found: RowOutput<'_>,
        position: usize,
    ) -> Result<Choice, EngineError> {
        let sampled = match found {
            RowOutput::Logits(logits) => {
                self.sampler.sample(logits, position as u64).map_err(EngineError::sample)?
            }
            RowOutput::Best(token) => Sampled { token, logprobs: None },
        };
        let token = sampled.token;
        self.sampler.accept(token);
        self.tokens += 1;
        let mut events = Vec::new();
        if self.token_events {
            let (log_prob, top) = match sampled.logprobs {
                Some(logprobs) => (Some(logprobs.chosen), logprobs.top),
                None => (None, Vec::new()),
            };
            events.push(Event::Token(TokenEvent { token, log_prob, top }));
        }
        let ended = self.end_tokens.contains(&token);
        let stopped = !ended && self.write(token, &mut events)?;
        let finish = match (ended || stopped, self.tokens >= self.tokens_max) {
            (true, _) => Some(FinishReason::Stop),
            (false, true) => Some(FinishReason::Length),
            (false, false) => None,
        };
        Ok(Choice { token, events, finish })
    }

    /// Adds a token's text; true if it completed a stop string or a marker that ends the answer.
    fn write(&mut self, token: u32, events: &mut Vec<Event>) -> Result<bool, EngineError> {
        // Default: token ids alone were asked for.
        let Some(text) = &mut self.text else { return Ok(false) };
        let shown = text.stops.push(&text.decoder.push(token).map_err(EngineError::text)?);
        let parsed = text.parser.push(&shown.text);
        self.stopped = shown.stopped.is_some() || text.parser.has_ended();
        self.report(parsed, events);
        Ok(self.stopped)
    }

    /// What is held back when no more tokens come.
    pub(super) fn flush(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        // Default: token ids alone were asked for.
        let Some(text) = &mut self.text else { return events };
        let mut parsed = Vec::new();
        if !self.stopped {
            // Default: bytes that are no text at the very end are left out.
            let rest = text.decoder.finish().unwrap_or_default();
            let shown = text.stops.push(&rest);
            parsed.extend(text.parser.push(&shown.text));
            if shown.stopped.is_none() {
                parsed.extend(text.parser.push(&text.stops.finish()));
            }
        }
        parsed.extend(text.parser.finish());
        self.report(parsed, &mut events);
        events
    }

    fn report(&mut self, parsed: Vec<OutputEvent>, events: &mut Vec<Event>) {
        events.extend(parsed.into_iter().map(|event| match event {
            OutputEvent::Text(text) => Event::Text(text),
            OutputEvent::Reasoning(text) => Event::Reasoning(text),
            OutputEvent::ToolCall(call) => {
                self.called_tools = true;
                Event::ToolCall(call)
            }
        }));
    }
}
