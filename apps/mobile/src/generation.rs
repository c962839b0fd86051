//! Running generations.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream as _;
use nestling::{CancelToken, EventStream};

use crate::error::NestlingError;
use crate::event::Event;
use crate::exclusive::Exclusive;
use crate::summary::{Summary, ToolCall};

/// A complete answer.
#[derive(Clone, Debug, PartialEq, uniffi::Record)]
pub struct Answer {
    /// Text of the answer.
    pub text: String,
    /// Text of the reasoning before the answer.
    pub reasoning: String,
    /// Tool calls of the answer.
    pub tool_calls: Vec<ToolCall>,
    /// Result of the answer.
    pub summary: Summary,
}

/// A running generation. It is cancelled when the handle is closed, or a call that waits for it is cancelled.
#[derive(Debug, uniffi::Object)]
pub struct Generation {
    cancel: CancelToken,
    state: Exclusive<StreamState>,
}

struct StreamState {
    events: EventStream,
    ended: bool,
}

impl StreamState {
    /// Waits for the next event. Returns `None` after the last.
    async fn next(&mut self) -> Result<Option<Event>, NestlingError> {
        while !self.ended {
            let next = poll_fn(|context| Pin::new(&mut self.events).poll_next(context)).await;
            self.ended = !matches!(next, Some(Ok(_)));
            match next.transpose()?.map(Event::of) {
                None => break,
                Some(None) => {}
                Some(event) => return Ok(event),
            }
        }
        Ok(None)
    }
}

/// Cancels the generation if the call that waits for it is dropped.
struct CancelOnDrop<'a>(Option<&'a CancelToken>);

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(cancel) = self.0 {
            cancel.cancel();
        }
    }
}

impl Generation {
    pub(crate) fn new(generation: nestling::Generation) -> Arc<Self> {
        let events = generation.into_stream();
        let cancel = events.cancel_token();
        let state = Exclusive::new("generation", StreamState { events, ended: false });
        Arc::new(Self { cancel, state })
    }
}

#[uniffi::export]
impl Generation {
    /// Waits for the next event. Returns nothing after the last.
    ///
    /// # Errors
    /// Fails with the error that ended the generation, and with `Busy` while another call waits.
    pub async fn next(&self) -> Result<Option<Event>, NestlingError> {
        let mut state = self.state.take()?;
        let mut waits = CancelOnDrop(Some(&self.cancel));
        let next = state.get()?.next().await;
        waits.0 = None;
        next
    }

    /// Waits for the end. Returns the events that were not read yet as one answer.
    ///
    /// # Errors
    /// Fails as `next` does, and with `Stopped` if the end was read already.
    pub async fn answer(&self) -> Result<Answer, NestlingError> {
        let mut state = self.state.take()?;
        let mut waits = CancelOnDrop(Some(&self.cancel));
        let (mut text, mut reasoning, mut tool_calls) = (String::new(), String::new(), Vec::new());
        let mut finished = None;
        let state = state.get()?;
        while let Some(event) = state.next().await? {
            match event {
                Event::Text { text: more } => text.push_str(&more),
                Event::Reasoning { text: more } => reasoning.push_str(&more),
                Event::ToolCallDone { call } => tool_calls.push(call),
                Event::Finished { summary } => finished = Some(summary),
                _ => {}
            }
        }
        waits.0 = None;
        let summary = finished.ok_or_else(|| {
            NestlingError::Stopped("the end of this generation was read already".into())
        })?;
        Ok(Answer { text, reasoning, tool_calls, summary })
    }

    /// Waits for the end. Returns the text that was not read yet.
    ///
    /// # Errors
    /// Fails as `answer` does.
    pub async fn text(&self) -> Result<String, NestlingError> {
        Ok(self.answer().await?.text)
    }

    /// Requests cancellation without waiting. The answer ends within one layer of the model.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}
