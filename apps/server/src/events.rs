//! Streamed responses.

use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::Stream;
use serde_json::Value;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use crate::answers::{Answers, ChoiceEvent};
use crate::error::ApiError;
use crate::limits::PING_TIME;

/// Maximum size of one body frame in bytes, if further events are pending.
const PIECE_BYTES: usize = 16 << 10;

/// Format in which an API streams events.
pub(crate) trait StreamFormat: Send + Unpin + 'static {
    /// Writes the events before the first model event.
    fn begin(&mut self, out: &mut Frames);

    fn write_event(&mut self, said: ChoiceEvent, out: &mut Frames);

    /// Writes the end of the stream, after all choices have ended.
    fn end(&mut self, out: &mut Frames);

    /// Writes an error, which ends all choices.
    fn failed(&mut self, error: &ApiError, out: &mut Frames) {
        out.data(&error.to_json());
        out.done();
    }

    fn ping(&mut self, out: &mut Frames) {
        out.comment("ping");
    }
}

#[derive(Debug, Default)]
pub(crate) struct Frames {
    text: String,
}

impl Frames {
    pub fn data(&mut self, value: &Value) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "data: {value}\n\n");
    }

    pub fn done(&mut self) {
        self.text.push_str("data: [DONE]\n\n");
    }

    /// Appends a named event.
    pub fn event(&mut self, name: &str, value: &Value) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "event: {name}\ndata: {value}\n\n");
    }

    /// Appends a comment, which clients ignore.
    fn comment(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.text, ": {text}\n\n");
    }
}

struct EventBody<F> {
    /// `None` after the end.
    answers: Option<Answers>,
    form: F,
    frames: Frames,
    ping: Interval,
}

/// Returns a response that streams events in the given format.
pub(crate) fn response<F: StreamFormat>(answers: Answers, mut form: F) -> Response {
    let mut frames = Frames::default();
    form.begin(&mut frames);
    let mut ping = interval_at(Instant::now() + PING_TIME, PING_TIME);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let body = EventBody { answers: Some(answers), form, frames, ping };
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables response buffering in proxies.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl<F: StreamFormat> EventBody<F> {
    fn take(&mut self, said: Option<Result<ChoiceEvent, ApiError>>) {
        match said {
            Some(Ok(said)) => self.form.write_event(said, &mut self.frames),
            Some(Err(error)) => {
                self.answers = None;
                self.form.failed(&error, &mut self.frames);
            }
            None => {
                self.answers = None;
                self.form.end(&mut self.frames);
            }
        }
    }
}

impl<F: StreamFormat> Stream for EventBody<F> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.frames.text.len() < PIECE_BYTES {
            let Some(answers) = &mut this.answers else { break };
            match answers.poll_next(context) {
                Poll::Ready(said) => this.take(said),
                Poll::Pending if !this.frames.text.is_empty() => break,
                Poll::Pending => match this.ping.poll_tick(context) {
                    Poll::Ready(_) => this.form.ping(&mut this.frames),
                    Poll::Pending => return Poll::Pending,
                },
            }
        }
        let piece = std::mem::take(&mut this.frames.text);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Bytes::from(piece))))
    }
}
