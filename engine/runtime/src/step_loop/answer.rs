//! Sampling and text output of one generation: from logits to events.

use super::guard::Guard;
use crate::constraint::ConstraintError;
use crate::event::{Event, FinishReason, TokenEvent};
use nestling_core::error::EngineError;
use nestling_formats::InternalError;
use nestling_text::{DetokenizeStream, OutputEvent, OutputParser, StopMatcher};
use nestling_text::{Sampled, Sampler, TokenLogprobs};

/// Converts tokens to text, stop strings, reasoning and tool calls.
#[derive(Debug)]
pub(crate) struct AnswerText {
    pub decoder: DetokenizeStream,
    pub stops: StopMatcher,
    pub parser: OutputParser,
    /// Set once markers have no meaning, so that all further text belongs to the answer.
    pub is_raw: bool,
}

impl AnswerText {
    fn read(&mut self, text: &str) -> Vec<OutputEvent> {
        match self.is_raw {
            true if text.is_empty() => Vec::new(),
            true => vec![OutputEvent::Text(text.to_owned())],
            false => self.parser.push(text),
        }
    }

    /// Switches to raw text and returns the output held back. A partially matched stop string is not a match.
    fn begin_raw(&mut self) -> Vec<OutputEvent> {
        let held = self.stops.finish();
        let mut events = self.read(&held);
        events.extend(self.parser.finish());
        self.is_raw = true;
        events
    }
}

/// Output state of one generation, with its end conditions.
#[derive(Debug)]
pub(crate) struct Answer {
    pub sampler: Sampler,
    /// Constraint on the output.
    pub guard: Option<Box<Guard>>,
    /// `None` for a model without a tokenizer.
    pub text: Option<AnswerText>,
    pub end_tokens: Vec<u32>,
    pub token_events: bool,
    pub tokens_max: usize,
    /// Number of tokens chosen so far.
    pub tokens: usize,
    pub called_tools: bool,
    /// Set once a stop string or marker was found. Text held back is then discarded.
    pub stopped: bool,
    /// Index of the stop string found, if any.
    pub stop: Option<usize>,
}

/// Output of a step for the last row of a generation.
#[derive(Debug)]
pub(crate) enum RowOutput<'a> {
    /// Logits. Penalties are applied in place.
    Logits(&'a mut [f32]), // [vocab_size]
    /// Token with the highest logit.
    Best(u32),
}

/// Chosen tokens with their events, and the finish reason if the last token ended the output.
#[derive(Debug, Default)]
pub(super) struct Choice {
    /// The sampled token, and the tokens that a constraint forces after it.
    pub tokens: Vec<u32>,
    pub events: Vec<Event>,
    pub finish: Option<FinishReason>,
}

#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Log-probabilities and hidden rows of the prompt.
    pub events: Vec<Event>,
    /// Choice of the next token, if the generation chooses one in this step.
    pub choice: Option<Choice>,
}

impl Answer {
    /// Returns the number of tokens that may still be generated.
    pub(super) fn tokens_left(&self) -> usize {
        self.tokens_max.saturating_sub(self.tokens)
    }

    /// Returns the vocabulary size for greedy decoding. Returns `None` if the generation needs the logits.
    pub(super) fn takes_best(&self) -> Option<usize> {
        self.sampler.takes_best().filter(|_| self.guard.is_none())
    }

    /// Chooses the token for `position` from a step's output, and adds the tokens that a constraint forces
    /// after it.
    ///
    /// At most `room` tokens are chosen.
    ///
    /// # Errors
    /// Returns an error if logits are not finite, or if the constraint fails.
    pub(super) fn choose(
        &mut self,
        found: RowOutput<'_>,
        position: usize,
        room: usize,
    ) -> Result<Choice, EngineError> {
        let mask = match &mut self.guard {
            Some(guard) => guard.mask().map_err(EngineError::constraint)?,
            None => None,
        };
        let sampled = match found {
            RowOutput::Logits(logits) => self
                .sampler
                .sample_masked(logits, position as u64, mask)
                .map_err(EngineError::sample)?,
            RowOutput::Best(_) if self.guard.is_some() => {
                return Err(InternalError::new("a constrained row has logits").into());
            }
            RowOutput::Best(token) => Sampled { token, logprobs: None, mu: None },
        };
        self.sampler.adapt(&sampled);
        let mut choice = Choice::default();
        self.take(sampled.token, sampled.logprobs, &mut choice)?;
        while choice.finish.is_none() && choice.tokens.len() < room {
            let forced = self.guard.as_ref().and_then(|guard| guard.next_forced());
            let Some(token) = forced else { break };
            self.take(token, None, &mut choice)?;
        }
        if let Some(guard) = self.guard.as_mut().filter(|_| choice.finish.is_none()) {
            guard.prepare(self.tokens);
        }
        Ok(choice)
    }

    fn take(
        &mut self,
        token: u32,
        logprobs: Option<TokenLogprobs>,
        choice: &mut Choice,
    ) -> Result<(), EngineError> {
        self.sampler.accept(token);
        self.tokens += 1;
        choice.tokens.push(token);
        if self.token_events {
            let (log_prob, top) = match logprobs {
                Some(logprobs) => (Some(logprobs.chosen), logprobs.top),
                None => (None, Vec::new()),
            };
            let event = TokenEvent { token, log_prob, top, ..TokenEvent::default() };
            choice.events.push(Event::Token(event));
        }
        let ended = self.end_tokens.contains(&token);
        let stopped = !ended && self.write(token, &mut choice.events)?;
        choice.finish = match (ended || stopped, self.tokens >= self.tokens_max) {
            (true, _) => Some(FinishReason::Stop),
            (false, true) => Some(FinishReason::Length),
            (false, false) => None,
        };
        Ok(())
    }

    /// Adds a token's text. Returns true if it completed a stop string, an end marker or the constraint.
    fn write(&mut self, token: u32, events: &mut Vec<Event>) -> Result<bool, EngineError> {
        let piece = match &mut self.text {
            Some(text) => text.decoder.push(token).map_err(EngineError::text)?,
            // Without a tokenizer there is no text.
            None => String::new(),
        };
        let observed = match &mut self.guard {
            Some(guard) => guard.observe(token, &piece).map_err(EngineError::constraint)?,
            None => super::guard::TokenEffect::default(),
        };
        // Default: without a tokenizer there is no text.
        let Some(text) = &mut self.text else { return Ok(observed.done) };
        let shown = text.stops.push(&piece);
        self.stop = shown.stopped;
        self.stopped = self.stop.is_some();
        let mut parsed = text.read(&shown.text);
        if observed.begins_text && !self.stopped {
            parsed.extend(text.begin_raw());
        }
        if text.parser.has_ended() && !text.is_raw {
            self.stopped = true;
            let may_end = self.guard.as_mut().map_or(Ok(true), |guard| guard.may_end());
            if !may_end.map_err(EngineError::constraint)? {
                return Err(EngineError::constraint(ConstraintError::Unfinished));
            }
        }
        self.report(parsed, events);
        Ok(self.stopped || observed.done)
    }

    /// Returns the output held back until the end.
    pub(super) fn flush(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        // Default: without a tokenizer there is no text.
        let Some(text) = &mut self.text else { return events };
        let mut parsed = Vec::new();
        if !self.stopped {
            // Default: incomplete UTF-8 at the very end is dropped.
            let rest = text.decoder.finish().unwrap_or_default();
            let shown = text.stops.push(&rest);
            parsed.extend(text.read(&shown.text));
            if shown.stopped.is_none() {
                let held = text.stops.finish();
                parsed.extend(text.read(&held));
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
            OutputEvent::ToolCallStart { index, id, name } => {
                self.called_tools = true;
                Event::ToolCallStart { index, id, name }
            }
            OutputEvent::ToolCallArguments { index, delta } => {
                Event::ToolCallArguments { index, delta }
            }
            OutputEvent::ToolCall(call) => Event::ToolCall(call),
        }));
    }
}
