//! State of one generation's constraint: its start, masks and forced tokens.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use nestling_text::{
    EncodeOptions, OutputEvent, OutputFormat, OutputParser, OutputPlace, SpecialText, Tokenizer,
};

use crate::constraint::{
    Constraint, ConstraintCache, ConstraintContext, ConstraintError, ConstraintSource, Starts,
    Writes,
};
use crate::mask_worker::{MaskResult, MaskWorker};
use nestling_text::TokenMask;

enum ConstraintSlot {
    Here(Box<dyn Constraint>),
    /// Sent to a worker thread, which computes its mask.
    Away(Receiver<MaskResult>),
    /// Dropped after a failure.
    Gone,
}

/// Progress of the output relative to the constraint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConstraintPhase {
    /// Before the start of the constraint.
    Waiting,
    /// Started, unless the next token opens the reasoning.
    Opening,
    Active,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct TokenEffect {
    /// Set if the answer's text starts. Later markers have no meaning.
    pub begins_text: bool,
    /// Set if the output is complete.
    pub done: bool,
}

pub(crate) struct GuardParts<'a> {
    pub source: &'a dyn ConstraintSource,
    pub tokenizer: Option<&'a Tokenizer>,
    pub format: &'a OutputFormat,
    pub vocab_size: usize,
    pub end_tokens: &'a [u32],
    /// True if logits are needed for each token, including forced ones.
    pub one_by_one: bool,
    /// Maximum number of tokens of the output.
    pub tokens_max: usize,
    pub workers: Arc<MaskWorker>,
    pub cache: &'a ConstraintCache,
}

pub(crate) struct Guard {
    held: ConstraintSlot,
    workers: Arc<MaskWorker>,
    mask: TokenMask,
    starts: Starts,
    writes: Writes,
    place: ConstraintPhase,
    /// Parser of the output, used to find the start of the constraint.
    watcher: OutputParser,
    tokenizer: Option<Tokenizer>,
    ends: Vec<u32>,
    /// End-of-sequence tokens that are not allowed before the constraint starts.
    early_ends: Vec<u32>,
    /// Token that opens the reasoning.
    opens: Option<u32>,
    /// Forced tokens not accepted yet.
    forced: VecDeque<u32>,
    one_by_one: bool,
    tokens_max: usize,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Guard {
    /// Creates the constraint of one output, and starts computing its first mask.
    ///
    /// # Errors
    /// Returns the error of the constraint.
    pub(crate) fn new(parts: GuardParts<'_>) -> Result<Self, ConstraintError> {
        let GuardParts { source, tokenizer, format, vocab_size, end_tokens, .. } = parts;
        let context = ConstraintContext { tokenizer, vocab_size, format, cache: parts.cache };
        let constraint = source.constraint(&context)?;
        let (starts, writes) = (constraint.starts(), constraint.writes());
        let id = |text: &str| tokenizer.and_then(|tokenizer| tokenizer.token_to_id(text));
        let (mut opens, mut closes, mut in_reasoning) = (None, None, false);
        if let OutputFormat::Tagged(tagged) = format {
            let reasoning = tagged.reasoning.as_ref();
            opens = reasoning.and_then(|pair| id(&pair.open));
            closes = reasoning.and_then(|pair| id(&pair.close));
            in_reasoning = tagged.starts_in_reasoning && reasoning.is_some();
        }
        let in_channels = matches!(format, OutputFormat::Channels { .. });
        let place = match starts {
            Starts::AtToolCall => ConstraintPhase::Waiting,
            _ if in_reasoning || in_channels && writes == Writes::Text => ConstraintPhase::Waiting,
            Starts::AfterReasoning if opens.is_some() => ConstraintPhase::Opening,
            _ => ConstraintPhase::Active,
        };
        let early_ends = end_tokens.iter().copied().filter(|token| Some(*token) != closes);
        let mut guard = Self {
            held: ConstraintSlot::Here(constraint),
            workers: parts.workers,
            mask: TokenMask::none(vocab_size),
            starts,
            writes,
            place,
            watcher: OutputParser::new(format.clone(), 0),
            tokenizer: tokenizer.cloned(),
            ends: end_tokens.to_vec(),
            early_ends: early_ends.collect(),
            opens,
            forced: VecDeque::new(),
            one_by_one: parts.one_by_one,
            tokens_max: parts.tokens_max,
        };
        if place != ConstraintPhase::Waiting {
            guard.here()?.start(None)?;
            // A forced token here would exclude the token that opens the reasoning.
            if place == ConstraintPhase::Active {
                guard.ask_forced()?;
            }
        }
        guard.prepare(0);
        Ok(guard)
    }

    /// Returns true if the output starts with the text of the answer.
    pub(crate) fn is_text(&self) -> bool {
        self.place == ConstraintPhase::Active && self.writes == Writes::Text
    }

    /// Starts computing the next mask, in parallel with the model, after `tokens` tokens of output.
    pub(super) fn prepare(&mut self, tokens: usize) {
        if self.place == ConstraintPhase::Waiting || !self.forced.is_empty() {
            return;
        }
        match std::mem::replace(&mut self.held, ConstraintSlot::Gone) {
            ConstraintSlot::Here(mut constraint) => {
                constraint.set_tokens_left(self.tokens_max.saturating_sub(tokens));
                let mask = std::mem::replace(&mut self.mask, TokenMask::none(0));
                self.held = ConstraintSlot::Away(self.workers.compute(constraint, mask));
            }
            held => self.held = held,
        }
    }

    /// Returns the mask of allowed tokens, waiting for it if necessary. Returns `None` if all tokens are
    /// allowed.
    ///
    /// # Errors
    /// Returns the error of the constraint, or [`ConstraintError::NothingAllowed`].
    pub(super) fn mask(&mut self) -> Result<Option<&TokenMask>, ConstraintError> {
        if let Some(token) = self.forced.front() {
            self.mask.forbid_all();
            self.mask.allow(*token);
        } else if self.place == ConstraintPhase::Waiting {
            if self.starts == Starts::AtToolCall {
                return Ok(None);
            }
            self.mask.allow_all();
            self.early_ends.iter().for_each(|token| self.mask.forbid(*token));
        } else {
            self.receive()?;
        }
        match self.mask.is_none() {
            true => Err(ConstraintError::NothingAllowed),
            false => Ok(Some(&self.mask)),
        }
    }

    fn receive(&mut self) -> Result<(), ConstraintError> {
        let ConstraintSlot::Away(masked) = std::mem::replace(&mut self.held, ConstraintSlot::Gone)
        else {
            return Err(ConstraintError::failed("no mask was requested"));
        };
        // The worker thread is gone if the channel is closed.
        let masked = masked.recv().map_err(|_| ConstraintError::Panicked)?;
        self.mask = masked.mask;
        let may_end = masked.may_end?;
        self.held = ConstraintSlot::Here(masked.constraint);
        for token in &self.ends {
            match may_end {
                true => self.mask.allow(*token),
                false => self.mask.forbid(*token),
            }
        }
        if let Some(token) = self.opens.filter(|_| self.place == ConstraintPhase::Opening) {
            self.mask.allow(token);
        }
        Ok(())
    }

    /// Processes a token of the output, except end-of-sequence tokens, with its text.
    ///
    /// # Errors
    /// Returns the error of the constraint, or [`ConstraintError::Unfinished`] if a marker ended the output
    /// before the constraint started.
    pub(super) fn observe(
        &mut self,
        token: u32,
        text: &str,
    ) -> Result<TokenEffect, ConstraintError> {
        match self.place {
            ConstraintPhase::Opening if self.opens == Some(token) => {
                self.place = ConstraintPhase::Waiting;
                self.watch(text)
            }
            ConstraintPhase::Waiting => self.watch(text),
            ConstraintPhase::Opening | ConstraintPhase::Active => {
                let begins_text =
                    self.place == ConstraintPhase::Opening && self.writes == Writes::Text;
                self.place = ConstraintPhase::Active;
                self.here()?.accept(token)?;
                if self.starts == Starts::AtToolCall {
                    self.watcher.push(text);
                    if !matches!(self.watcher.place(), OutputPlace::Call { .. }) {
                        self.place = ConstraintPhase::Waiting;
                        self.forced.clear();
                        return Ok(TokenEffect::default());
                    }
                }
                self.forced.pop_front();
                self.after_accepted(begins_text)
            }
        }
    }

    /// Checks if the constraint starts after `text`.
    fn watch(&mut self, text: &str) -> Result<TokenEffect, ConstraintError> {
        let events = self.watcher.push(text);
        let place = self.watcher.place();
        match (self.starts, place) {
            (Starts::AtToolCall, OutputPlace::Call { name, text }) => {
                let begun = text.to_owned();
                let name = name.map(str::to_owned);
                if !self.here()?.start(name.as_deref())? {
                    return Ok(TokenEffect::default());
                }
                self.begin(&begun)
            }
            (Starts::AtToolCall, _) => Ok(TokenEffect::default()),
            (_, OutputPlace::Text { is_final: true }) => {
                // Text after the marker within the same token belongs to the answer.
                let events = events.into_iter().chain(self.watcher.finish());
                let texts = events.filter_map(|event| match event {
                    OutputEvent::Text(text) => Some(text),
                    _ => None,
                });
                let begun: String = texts.collect();
                self.here()?.start(None)?;
                self.begin(&begun)
            }
            (_, OutputPlace::End) => Err(ConstraintError::Unfinished),
            _ => Ok(TokenEffect::default()),
        }
    }

    /// Starts the constraint with text that was already written.
    fn begin(&mut self, begun: &str) -> Result<TokenEffect, ConstraintError> {
        self.place = ConstraintPhase::Active;
        if let Some(tokenizer) = self.tokenizer.as_ref().filter(|_| !begun.is_empty()) {
            let options =
                EncodeOptions { add_special_tokens: false, special_text: SpecialText::Plain };
            let tokens = tokenizer.encode(begun, options);
            let failed =
                |error: nestling_text::TextError| ConstraintError::failed(error.to_string());
            for token in tokens.map_err(failed)? {
                self.here()?.accept(token)?;
            }
        }
        self.after_accepted(self.writes == Writes::Text)
    }

    fn after_accepted(&mut self, begins_text: bool) -> Result<TokenEffect, ConstraintError> {
        if self.forced.is_empty() {
            self.ask_forced()?;
        }
        let done = self.starts != Starts::AtToolCall && self.here()?.is_done()?;
        Ok(TokenEffect { begins_text, done })
    }

    fn ask_forced(&mut self) -> Result<(), ConstraintError> {
        let forced = self.here()?.forced()?;
        let vocab_size = self.mask.tokens();
        match forced.iter().find(|token| **token as usize >= vocab_size) {
            Some(&token) => Err(ConstraintError::Refused { token }),
            None => {
                self.forced = forced.into();
                Ok(())
            }
        }
    }

    /// Returns the next forced token, unless logits are needed for it.
    pub(super) fn next_forced(&self) -> Option<u32> {
        self.forced.front().copied().filter(|_| !self.one_by_one)
    }

    /// Returns true if the output may end where a marker ended it.
    ///
    /// # Errors
    /// Returns the error of the constraint.
    pub(super) fn may_end(&mut self) -> Result<bool, ConstraintError> {
        match self.place {
            ConstraintPhase::Waiting => Ok(self.starts == Starts::AtToolCall),
            ConstraintPhase::Opening | ConstraintPhase::Active => self.here()?.may_end(),
        }
    }

    fn here(&mut self) -> Result<&mut dyn Constraint, ConstraintError> {
        match &mut self.held {
            ConstraintSlot::Here(constraint) => Ok(constraint.as_mut()),
            ConstraintSlot::Away(_) | ConstraintSlot::Gone => {
                Err(ConstraintError::failed("it is not there"))
            }
        }
    }
}
