//! Responses streamed as lines of JSON.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::Stream;
use serde_json::{Value, json};

use super::message_of;
use super::reply::Writer;
use crate::answers::{Answers, ChoiceEvent};
use crate::error::ApiError;

/// Maximum size of one body frame in bytes, if further lines are pending.
const PIECE_BYTES: usize = 16 << 10;

struct LineBody {
    /// `None` after the end.
    answers: Option<Answers>,
    writer: Writer,
    text: String,
}

pub(super) fn response(answers: Answers, writer: Writer) -> Response {
    let body = LineBody { answers: Some(answers), writer, text: String::new() };
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables response buffering in proxies.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl LineBody {
    fn line(&mut self, value: &Value) {
        self.text.push_str(&value.to_string());
        self.text.push('\n');
    }

    fn take(&mut self, said: Option<Result<ChoiceEvent, ApiError>>) {
        match said {
            Some(Ok(said)) => {
                if let Some(object) = self.writer.said(said.event) {
                    self.line(&object);
                }
            }
            Some(Err(error)) => {
                self.answers = None;
                self.line(&json!({ "error": message_of(&error) }));
            }
            None => self.answers = None,
        }
    }
}

impl Stream for LineBody {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        while this.text.len() < PIECE_BYTES {
            let Some(answers) = &mut this.answers else { break };
            match answers.poll_next(context) {
                Poll::Ready(said) => this.take(said),
                Poll::Pending if !this.text.is_empty() => break,
                Poll::Pending => return Poll::Pending,
            }
        }
        let piece = std::mem::take(&mut this.text);
        Poll::Ready((!piece.is_empty()).then(|| Ok(Bytes::from(piece))))
    }
}
