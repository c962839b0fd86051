//! One generation in the step loop.

use std::sync::Arc;
use std::time::Duration;

use super::Answer;
use super::answer::{Choice, Outcome, RowOutput};
use super::prompt_rows::{PromptRows, RowWants, Score};
use crate::event::{Event, FinishReason, GenerationSummary, Stats, TokenEvent, Usage};
use crate::event_buffer::EventBuffer;
use crate::model_core::ModelCore;
use crate::prefix::PrefixStatus;
use crate::sequence::Sequence;
use crate::slot::SessionSlot;
use crate::stored_pages::{disown_stored, offer_kept};
use nestling_core::batch::LevelPolicy;
use nestling_core::cancel::CancelToken;
use nestling_core::clock::Moment;
use nestling_core::error::EngineError;
use nestling_core::runner::StepStats;
use nestling_core::schedule::{Candidate, Claim, GenerationPhase, Turn};
use nestling_core::sync::whole;

/// A generation with the sequence it extends and the buffer of its events.
#[derive(Debug)]
pub(crate) struct Task {
    pub model: Arc<ModelCore>,
    /// Slot that receives the sequence at the end.
    pub slot: Arc<SessionSlot>,
    pub sequence: Sequence,
    pub buffer: Arc<EventBuffer>,
    pub cancel: CancelToken,
    pub answer: Answer,
    /// Requested outputs of the prompt rows.
    pub prompt_rows: PromptRows,
    pub levels: LevelPolicy,
    pub usage: Usage,
    pub stats: Stats,
    pub started: Moment,
    pub deadline: Option<Duration>,
    pub first_token: Option<Moment>,
    /// Scheduling order among generations.
    pub turn: Turn,
    pub standing: GenerationPhase,
    /// Set after a failed step with others: it runs alone, until a step shows which generation is at fault.
    pub alone: bool,
    pub done: Option<FinishReason>,
    pub failed: Option<EngineError>,
}

impl Task {
    /// Returns true if its next tokens can be computed.
    pub fn is_ready(&self) -> bool {
        let runs = self.standing == GenerationPhase::Running;
        !self.has_ended() && runs && !self.sequence.pending().is_empty() && self.buffer.has_room()
    }

    /// Returns true if it has ended and only has to be removed.
    pub fn has_ended(&self) -> bool {
        self.done.is_some() || self.failed.is_some()
    }

    /// Returns its state for the scheduler's choice of rows.
    pub fn candidate(&self) -> Candidate {
        let is_under_way = self.first_token.is_some() && self.sequence.computed() > 0;
        Candidate { turn: self.turn, pending: self.sequence.pending().len(), is_under_way }
    }

    /// Returns its page claim for admission and preemption.
    pub fn claim(&self) -> Claim {
        let tokens = self.sequence.tokens().len();
        let context_left = self.model.context_length().saturating_sub(tokens);
        Claim {
            turn: self.turn,
            standing: self.standing,
            held: self.sequence.pages().len(),
            tokens,
            growth: self.answer.tokens_left().min(context_left),
            is_read: self.buffer.has_room(),
        }
    }

    /// Returns the requested outputs of the row at a position.
    pub(super) fn wants(&self, position: usize) -> RowWants {
        let is_last = position + 1 == self.sequence.tokens().len();
        let choice = is_last && self.answer.tokens_max > 0;
        RowWants { choice, ..self.prompt_rows.wants(position) }
    }

    /// Returns the scoring of the prompt token after a position, if log-probabilities are requested.
    pub(super) fn score<'a>(&self, position: usize, logits: &'a [f32]) -> Option<Score<'a>> {
        let token = *self.sequence.tokens().get(position + 1)?;
        let top = self.prompt_rows.logprobs?;
        let vocab_size = self.answer.sampler.vocab_size();
        Some(Score { token, logits, top, vocab_size, found: None })
    }

    /// Chooses the next token. [`Self::accept`] applies the choice later.
    ///
    /// # Errors
    /// Fails as [`Answer::choose`] does.
    pub(super) fn choose(&mut self, next: RowOutput<'_>) -> Result<Choice, EngineError> {
        let position = self.sequence.tokens().len();
        let room = self.model.context_length().saturating_sub(position);
        let mut choice = self.answer.choose(next, position, room)?;
        for event in &mut choice.events {
            if let Event::Token(event) = event {
                event.bytes = self.model.token_bytes(event.token);
            }
        }
        Ok(choice)
    }

    /// Adopts pages of a shared prefix before the generation starts or resumes.
    pub(super) fn adopt(&mut self) {
        let last = self.sequence.tokens().len().saturating_sub(1);
        let first_needed = self.prompt_rows.first_needed(last, self.answer.tokens_max > 0);
        let PrefixStatus { found_tokens, .. } = self.sequence.adopt(first_needed);
        if self.standing == GenerationPhase::Waiting {
            // The lookup itself was counted on arrival.
            self.usage.cached_tokens += found_tokens as usize;
            self.model.pool.note_prefix(PrefixStatus { asked_tokens: 0, found_tokens });
        }
    }

    /// Applies the outcome of a step that computed `rows` tokens.
    pub(super) fn accept(&mut self, rows: usize, step: &StepStats, outcome: Outcome) {
        self.alone = false;
        self.sequence.keep_computed();
        self.stats.steps += 1;
        for (sum, uses) in self.stats.expert_uses.iter_mut().zip(step.expert_uses) {
            *sum += uses;
        }
        self.stats.weight_read_bytes += step.weight_bytes;
        self.stats.streaming.add(&step.streaming);
        self.stats.device += step.device;
        if self.first_token.is_none() {
            self.stats.prompt_tokens += rows;
        }
        self.give_prompt_rows(outcome.events);
        match outcome.choice {
            Some(choice) => self.take(choice),
            None if self.sequence.pending().is_empty() => self.done = Some(FinishReason::Length),
            None => {}
        }
    }

    /// Sends the requested outputs of the computed prompt rows.
    fn give_prompt_rows(&mut self, events: Vec<Event>) {
        let is_first = self.prompt_rows.done == 0;
        if let (true, Some(_), Some(&token)) =
            (is_first, self.prompt_rows.logprobs, self.sequence.tokens().first())
        {
            // The first token has no predecessor, and therefore no log-probability.
            let bytes = self.model.token_bytes(token);
            let event = TokenEvent { token, bytes, ..TokenEvent::default() };
            self.buffer.push(Ok(Event::PromptToken(event)));
        }
        for event in events {
            self.buffer.push(Ok(event));
        }
        let computed = self.sequence.computed().min(self.prompt_rows.length);
        self.prompt_rows.done = self.prompt_rows.done.max(computed);
    }

    /// Records whether the deadline of the first token was missed.
    fn note_lateness(&mut self) {
        let waited = Moment::now().seconds_since(self.started);
        self.stats.is_late = self.deadline.is_some_and(|most| waited > most.as_secs_f64());
        whole(self.model.service.lock()).late += u64::from(self.stats.is_late);
    }

    fn take(&mut self, choice: Choice) {
        let now = Moment::now();
        if self.first_token.is_none() {
            self.first_token = Some(now);
            self.stats.prompt_seconds = now.seconds_since(self.started);
            self.stats.time_to_first_token_seconds = self.stats.prompt_seconds;
            self.note_lateness();
        } else if let Some(first) = self.first_token {
            self.stats.decode_tokens += 1;
            self.stats.decode_seconds = now.seconds_since(first);
        }
        choice.tokens.iter().for_each(|token| self.sequence.push(*token));
        self.usage.completion_tokens += choice.tokens.len();
        // Forced tokens after the first are computed like a prompt.
        self.stats.decode_tokens += choice.tokens.len().saturating_sub(1);
        for event in choice.events {
            self.buffer.push(Ok(event));
        }
        let full = self.sequence.tokens().len() >= self.model.context_length();
        self.done = choice.finish.or(full.then_some(FinishReason::ContextFull));
    }

    /// Fails the generation for an error in its results, such as non-finite logits. Everything computed for
    /// it is discarded.
    pub fn reject(&mut self, error: EngineError) {
        disown_stored(&self.model, &self.sequence);
        self.sequence.disown_computed();
        self.failed = Some(error);
    }

    /// Ends the generation with its recorded error or reason.
    pub fn end(mut self) {
        match (self.failed.take(), self.done) {
            (Some(error), _) => self.fail(error),
            (None, reason) => self.finish(reason.unwrap_or(FinishReason::Cancelled)),
        }
    }

    /// Ends the generation successfully.
    pub fn finish(mut self, reason: FinishReason) {
        if self.first_token.is_none() {
            self.note_lateness();
        }
        let events = self.answer.flush();
        let called = reason == FinishReason::Stop && self.answer.called_tools;
        let reason = if called { FinishReason::ToolCalls } else { reason };
        self.stats.weight_bytes = self.model.weight_bytes();
        self.stats.kv_bytes =
            self.model.kv_bytes(self.sequence.pages().len(), self.sequence.states());
        let seed = self.answer.sampler.seed();
        let (stop, usage, stats) = (self.answer.stop, self.usage, self.stats);
        offer_kept(&self.model, &self.sequence);
        // The session is free before the end is visible. If its handle is gone, its pages are released.
        self.slot.put_back(self.sequence);
        drop(self.slot);
        for event in events {
            self.buffer.push(Ok(event));
        }
        let message = self.buffer.message();
        let finished = GenerationSummary { reason, stop, usage, stats, seed, message };
        self.buffer.push(Ok(Event::Finished(finished)));
    }

    /// Ends the generation with an error.
    pub fn fail(self, error: EngineError) {
        tracing::debug!(%error, "a generation failed");
        offer_kept(&self.model, &self.sequence);
        self.slot.put_back(self.sequence);
        drop(self.slot);
        self.buffer.push(Err(error));
    }
}
