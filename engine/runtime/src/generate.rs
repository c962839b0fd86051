//! The handle of a running generation.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::engine::EngineCore;
use crate::event::{Event, GenerationSummary};
use crate::event_buffer::{EventBuffer, PopResult};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;

/// A running generation: a blocking iterator of events, a stream ([`Generation::into_stream`]), or a future
/// of the whole output (`generation.await`).
///
/// Dropping it cancels the generation. Unread events are buffered up to a limit. A generation whose buffer is
/// full pauses; others continue.
#[derive(Debug)]
#[must_use = "dropping it cancels the generation"]
pub struct Generation {
    pub(crate) buffer: Arc<EventBuffer>,
    pub(crate) engine: Arc<EngineCore>,
    pub(crate) cancel: CancelToken,
}

impl Generation {
    /// Requests cancellation, which takes effect within one layer.
    ///
    /// The last event is then [`crate::FinishReason::Cancelled`], unless the generation had already ended.
    pub fn cancel(&self) {
        self.cancel.cancel();
        self.engine.notice_cancelled();
    }

    /// Returns a token that cancels this generation.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// Returns the next event without blocking, for loops that poll between frames.
    ///
    /// Returns `Ready(None)` after the last event and `Pending` if no event is available yet. If the engine
    /// has no thread ([`crate::Driver::Caller`]), a call that finds no event computes one step.
    ///
    /// ```no_run
    /// # use std::task::Poll;
    /// # fn frame(generation: &mut nestling_runtime::Generation) -> Result<(), nestling_core::EngineError> {
    /// while let Poll::Ready(Some(event)) = generation.try_next() {
    ///     println!("{:?}", event?);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_next(&mut self) -> Poll<Option<Result<Event, EngineError>>> {
        let found = self.pop(None);
        if found.is_pending() && !self.engine.drives_itself() {
            self.engine.drive();
        }
        found
    }

    /// Works as [`Generation::try_next`], and wakes the task once an event is available.
    ///
    /// The waker may belong to a runtime's task or, through a custom [`std::task::Wake`], to a window to be
    /// redrawn. If the engine has no thread, a poll that finds no event computes one step, wakes its task and
    /// returns.
    pub fn poll_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Event, EngineError>>> {
        let found = self.pop(Some(context.waker()));
        if found.is_pending() && !self.engine.drives_itself() {
            self.engine.drive();
            // Woken even if an event is available by then, so that other tasks run in between.
            context.waker().wake_by_ref();
        }
        found
    }

    fn pop(&self, waker: Option<&Waker>) -> Poll<Option<Result<Event, EngineError>>> {
        match self.buffer.pop(waker) {
            PopResult::Event { event, was_full } => {
                if was_full {
                    self.engine.wake();
                }
                Poll::Ready(Some(*event))
            }
            PopResult::End => Poll::Ready(None),
            PopResult::Empty => Poll::Pending,
        }
    }

    /// Converts the generation to a stream of events, usable with any runtime.
    pub fn into_stream(self) -> EventStream {
        EventStream { generation: self }
    }

    /// Waits for the end and returns the text of the answer, without reasoning.
    ///
    /// # Errors
    /// Returns the error that ended the generation.
    pub fn into_text(self) -> Result<String, EngineError> {
        Ok(self.into_answer()?.0)
    }

    /// Waits for the end and returns the text of the answer with the [`GenerationSummary`] event.
    ///
    /// # Errors
    /// Returns the error that ended the generation.
    pub fn into_answer(mut self) -> Result<(String, GenerationSummary), EngineError> {
        let mut answer = String::new();
        for event in self.by_ref() {
            match event? {
                Event::Text(text) => answer.push_str(&text),
                Event::Finished(finished) => return Ok((answer, finished)),
                _ => {}
            }
        }
        Err(EngineError::EngineClosed)
    }
}

impl Iterator for Generation {
    type Item = Result<Event, EngineError>;

    /// Waits for the next event. Returns `None` after the last.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.engine.drives_itself() {
                let (event, was_full) = self.buffer.pop_wait()?;
                if was_full {
                    self.engine.wake();
                }
                return Some(event);
            }
            match self.buffer.pop(None) {
                PopResult::Event { event, .. } => return Some(*event),
                PopResult::End => return None,
                PopResult::Empty => self.engine.drive(),
            }
        }
    }
}

impl IntoFuture for Generation {
    type Output = Result<(String, GenerationSummary), EngineError>;
    type IntoFuture = AnswerFuture;

    /// Returns a future of the result of [`Generation::into_answer`], which does not block a thread.
    fn into_future(self) -> AnswerFuture {
        AnswerFuture { events: self.into_stream(), text: String::new() }
    }
}

/// Events of a generation as a stream; see [`Generation::into_stream`].
///
/// If the engine has no thread ([`crate::Driver::Caller`]), a poll that finds no event computes one step,
/// wakes its task and returns, so that other futures of the same executor run between two steps. Dropping the
/// stream cancels the generation.
#[derive(Debug)]
#[must_use = "dropping it cancels the generation"]
pub struct EventStream {
    generation: Generation,
}

impl EventStream {
    /// Cancels as [`Generation::cancel`] does.
    pub fn cancel(&self) {
        self.generation.cancel();
    }

    /// Returns the same token as [`Generation::cancel_token`].
    pub fn cancel_token(&self) -> CancelToken {
        self.generation.cancel_token()
    }
}

impl futures_core::Stream for EventStream {
    type Item = Result<Event, EngineError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.generation.poll_event(context)
    }
}

/// Future of the whole output: `generation.await`. Dropping it cancels the generation.
#[derive(Debug)]
#[must_use = "dropping it cancels the generation"]
pub struct AnswerFuture {
    events: EventStream,
    text: String,
}

impl Future for AnswerFuture {
    type Output = Result<(String, GenerationSummary), EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        use futures_core::Stream;

        while let Some(event) = std::task::ready!(Pin::new(&mut self.events).poll_next(context)) {
            match event? {
                Event::Text(text) => self.text.push_str(&text),
                Event::Finished(finished) => {
                    return Poll::Ready(Ok((std::mem::take(&mut self.text), finished)));
                }
                _ => {}
            }
        }
        Poll::Ready(Err(EngineError::EngineClosed))
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.buffer.close();
        self.cancel.cancel();
        self.engine.notice_cancelled();
    }
}
