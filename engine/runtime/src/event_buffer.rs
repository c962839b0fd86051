//! The bounded event buffer between the step loop and the handle of a generation.

use std::collections::VecDeque;
use std::task::Waker;

use crate::event::Event;
use crate::message_builder::MessageBuilder;
use nestling_core::error::EngineError;
use nestling_core::sync::{Condvar, Mutex, MutexGuard, whole};
use nestling_text::Message;

pub(crate) enum PopResult {
    Event { event: Box<Result<Event, EngineError>>, was_full: bool },
    Empty,
    End,
}

/// Bounded queue of events from the step loop to a generation's handle.
#[derive(Debug)]
pub(crate) struct EventBuffer {
    state: Mutex<BufferState>,
    changed: Condvar,
    events_max: usize,
}

#[derive(Debug, Default)]
struct BufferState {
    events: VecDeque<Result<Event, EngineError>>,
    waker: Option<Waker>,
    /// Output of all events pushed, read or unread.
    said: MessageBuilder,
    /// Set once the last event was pushed.
    ended: bool,
    /// Set once the handle was dropped. Later events are discarded.
    closed: bool,
}

impl EventBuffer {
    pub(crate) fn new(events_max: usize) -> Self {
        let state = Mutex::new(BufferState::default());
        Self { state, changed: Condvar::new(), events_max: events_max.max(1) }
    }

    /// Returns true if the events of another step may be pushed. Events of one step always fit.
    pub(crate) fn has_room(&self) -> bool {
        let state = self.lock();
        state.closed || state.events.len() < self.events_max
    }

    pub(crate) fn push(&self, event: Result<Event, EngineError>) {
        let last = matches!(event, Err(_) | Ok(Event::Finished(_)));
        let mut state = self.lock();
        if state.ended {
            return;
        }
        state.ended = last;
        if let Ok(event) = &event {
            state.said.take(event);
        }
        if !state.closed {
            state.events.push_back(event);
        }
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        // Woken outside the lock, since a waker is foreign code.
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn pop(&self, waker: Option<&Waker>) -> PopResult {
        let mut state = self.lock();
        let was_full = state.events.len() >= self.events_max;
        if let Some(event) = state.events.pop_front() {
            return PopResult::Event { event: Box::new(event), was_full };
        }
        if state.ended {
            return PopResult::End;
        }
        if let Some(waker) = waker {
            state.waker = Some(waker.clone());
        }
        PopResult::Empty
    }

    /// Waits for an event and returns it with a flag that is true if the buffer was full. Returns `None`
    /// after the last event.
    pub(crate) fn pop_wait(&self) -> Option<(Result<Event, EngineError>, bool)> {
        let mut state = self.lock();
        while state.events.is_empty() && !state.ended {
            state = whole(self.changed.wait(state));
        }
        let was_full = state.events.len() >= self.events_max;
        state.events.pop_front().map(|event| (event, was_full))
    }

    /// Returns the output up to the present as a message.
    pub(crate) fn message(&self) -> Message {
        self.lock().said.message()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.lock().ended
    }

    pub(crate) fn wait_end(&self) {
        let mut state = self.lock();
        while !state.ended {
            state = whole(self.changed.wait(state));
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        let unread = std::mem::take(&mut state.events);
        let waker = state.waker.take();
        drop(state);
        drop((unread, waker));
    }

    fn lock(&self) -> MutexGuard<'_, BufferState> {
        whole(self.state.lock())
    }
}
