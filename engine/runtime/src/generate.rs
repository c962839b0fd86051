//! A running generation: the handle that its events are read from.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::engine::EngineCore;
use crate::event::{Event, Finished};
use crate::event_buffer::{EventBuffer, Popped};
use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;

/// A generation under way: its events as a blocking iterator, as a stream of any runtime
/// ([`Generation::into_stream`]), or its whole answer as a future (`generation.await`).
///
/// Dropping it cancels the generation. The events that nobody has read yet are bounded; a
/// generation whose buffer is full waits, and the others go on.
#[derive(Debug)]
#[must_use = "dropping it cancels the generation"]
pub struct Generation {
    pub(crate) buffer: Arc<EventBuffer>,
    pub(crate) engine: Arc<EngineCore>,
    pub(crate) cancel: CancelToken,
}

impl Generation {
    /// Asks for a stop, which comes within one layer; the last event then is
    /// [`crate::FinishReason::Cancelled`], unless the generation had ended already.
    pub fn cancel(&self) {
        self.cancel.cancel();
        self.engine.notice_cancelled();
    }

    /// A token that cancels this generation.
    pub fn cancel_token(&self) -> CancelToken {
        self.cancel.clone()
    }

    /// The next event if there is one, for loops that draw between two looks: `Ready(None)` after the last, `Pending`
    /// where none is there yet. It never waits; where the engine has no thread of its own ([`crate::Driver::Caller`]),
    /// a call that finds no event computes one step for the next one.
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

    /// [`Generation::try_next`] that also wakes whoever waits once there is an event: a runtime's task, or a window
    /// that is to be drawn again, through a [`std::task::Wake`] of its own.
    ///
    /// Where the engine has no thread of its own, a poll that finds no event computes one step, wakes its task and
    /// gives control back.
    pub fn poll_event(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Event, EngineError>>> {
        let found = self.pop(Some(context.waker()));
        if found.is_pending() && !self.engine.drives_itself() {
            self.engine.drive();
            // Even if there is an event now: whoever waits beside this one has its turn.
            context.waker().wake_by_ref();
        }
        found
    }

    fn pop(&self, waker: Option<&Waker>) -> Poll<Option<Result<Event, EngineError>>> {
        match self.buffer.pop(waker) {
            Popped::Event { event, was_full } => {
                if was_full {
                    self.engine.wake();
                }
                Poll::Ready(Some(*event))
            }
            Popped::End => Poll::Ready(None),
            Popped::Empty => Poll::Pending,
        }
    }

    /// The events as a stream for any runtime.
    pub fn into_stream(self) -> EventStream {
        EventStream { generation: self }
    }

    /// Waits for the end and gives the answer's text, without reasoning.
    ///
    /// # Errors
    /// What made the generation fail.
    pub fn into_text(self) -> Result<String, EngineError> {
        Ok(self.into_answer()?.0)
    }

    /// Waits for the end and gives the answer's text and how it ended.
    ///
    /// # Errors
    /// What made the generation fail.
    pub fn into_answer(mut self) -> Result<(String, Finished), EngineError> {
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

    /// The next event; waits for it. None after the last.
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
                Popped::Event { event, .. } => return Some(*event),
                Popped::End => return None,
                Popped::Empty => self.engine.drive(),
            }
        }
    }
}

impl IntoFuture for Generation {
    type Output = Result<(String, Finished), EngineError>;
    type IntoFuture = AnswerFuture;

    /// The whole answer, as [`Generation::into_answer`] gives it, without blocking a thread.
    fn into_future(self) -> AnswerFuture {
        AnswerFuture { events: self.into_stream(), text: String::new() }
    }
}

/// The events of a generation as a stream for any runtime; see [`Generation::into_stream`].
///
/// Where the engine has no thread of its own ([`crate::Driver::Caller`]), a poll that finds no event
/// computes one step, wakes its task and gives control back, so that other futures of the same
/// executor run between two steps. Dropping it cancels the generation.
#[derive(Debug)]
#[must_use = "dropping it cancels the generation"]
pub struct EventStream {
    generation: Generation,
}

impl EventStream {
    /// As [`Generation::cancel`].
    pub fn cancel(&self) {
        self.generation.cancel();
    }

    /// As [`Generation::cancel_token`].
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

/// A whole answer that is being generated: `generation.await`. Dropping it cancels the generation.
#[derive(Debug)]
#[must_use = "dropping it cancels the generation"]
pub struct AnswerFuture {
    events: EventStream,
    text: String,
}

impl Future for AnswerFuture {
    type Output = Result<(String, Finished), EngineError>;

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
