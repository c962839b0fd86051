//! Bodies of requests that tell whether they were read to their end.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};

/// Flag of a body that was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct ReadToEnd(Arc<AtomicBool>);

impl ReadToEnd {
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Body of a request. After a response to a request whose body was not read, hyper may close the connection, and
/// has to say so before (RFC 9112, 9.6): a client that does not know sends its next request into it.
#[derive(Debug)]
pub(crate) struct TrackedBody {
    body: Incoming,
    is_read: ReadToEnd,
}

impl TrackedBody {
    pub fn new(body: Incoming) -> (Self, ReadToEnd) {
        let is_read = ReadToEnd(Arc::new(AtomicBool::new(body.is_end_stream())));
        (Self { body, is_read: is_read.clone() }, is_read)
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if frame.is_none() || self.body.is_end_stream() {
            self.is_read.0.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
