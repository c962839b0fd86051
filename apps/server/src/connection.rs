//! A single HTTP/1.1 connection, within the limits of [`crate::limits`].

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response};
use futures_util::future::{Either, select};
use hyper::body::{Bytes, Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, Sleep, sleep, timeout};

use crate::limits::{ConnectionLimits, HALF_CLOSED_TIME, HEAD_BYTES_MAX, HEADERS_MAX, LINGER_TIME};
use crate::tracked_body::TrackedBody;

/// Start of the year 10000 in seconds since 1970.
const YEAR_10000: u64 = 253_402_300_800;

/// Serves a connection until it closes. After shutdown is signalled through `stop`, only the current request
/// is finished.
pub(crate) async fn serve(
    stream: TcpStream,
    router: Router,
    limits: ConnectionLimits,
    mut stop: watch::Receiver<bool>,
) {
    // A token is a small packet. Nagle's algorithm would delay it.
    let _ = stream.set_nodelay(true);
    let (back, mut returned) = oneshot::channel();
    let phase = Phase::default();
    let io = TokioIo::new(TimedStream::new(stream, limits.write_time, phase.clone(), back));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_time)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .auto_date_header(has_date(SystemTime::now()));
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |request: Request<Incoming>| {
        let answered = phase.begin();
        let (head, body) = request.into_parts();
        let (body, is_read) = TrackedBody::new(body);
        let response = routes.call(Request::from_parts(head, body));
        async move {
            let mut response = answered.followed(response.await?);
            if !is_read.get() {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut connection = Box::pin(builder.serve_connection(io, service));
    let stopped = std::pin::pin!(wait(&mut stop));
    let ended = match select(connection.as_mut(), stopped).await {
        Either::Left((ended, _)) => ended,
        Either::Right(_) => {
            connection.as_mut().graceful_shutdown();
            connection.as_mut().await
        }
    };
    drop(connection);
    match (ended, returned.try_recv()) {
        (Ok(()), Ok(stream)) => linger(&stream).await,
        // hyper answered an invalid head with 400 or 431.
        (Err(error), Ok(stream)) if error.is_parse() => linger(&stream).await,
        (Err(error), _) => tracing::debug!("a connection failed: {error}"),
        _ => {}
    }
}

/// Returns true if an HTTP date can express a time. hyper panics at others, and a server without a clock sends no
/// date (RFC 9110, 6.6.1).
fn has_date(now: SystemTime) -> bool {
    now.duration_since(UNIX_EPOCH).is_ok_and(|since| since < Duration::from_secs(YEAR_10000))
}

/// Reads and discards the input that a client sends after its response. Closing a socket with unread input
/// resets the connection, and the client could lose the response.
pub(crate) async fn linger(stream: &TcpStream) {
    let mut rest = [0; 4096];
    let drained = async {
        while stream.readable().await.is_ok() {
            match stream.try_read(&mut rest) {
                Ok(0) => break,
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => break,
                _ => {}
            }
        }
    };
    if timeout(LINGER_TIME, drained).await.is_err() {
        tracing::debug!("a connection was closed while its client was still sending");
    }
}

/// Progress of the current request.
#[derive(Clone, Debug, Default)]
struct Phase(Arc<AtomicU8>);

impl Phase {
    const IDLE: u8 = 0;
    /// A request was read, and its response has not started.
    const ASKED: u8 = 1;
    /// The response is being written.
    const ANSWERED: u8 = 2;

    fn begin(&self) -> OpenRequest {
        self.0.store(Self::ASKED, Ordering::Relaxed);
        OpenRequest(self.clone())
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Guard of a request that is being served.
struct OpenRequest(Phase);

impl OpenRequest {
    /// Attaches the guard to the response, so that it lives until the body is written or dropped.
    fn followed(self, response: Response<Body>) -> Response<GuardedBody> {
        self.0.0.store(Phase::ANSWERED, Ordering::Relaxed);
        response.map(|body| GuardedBody { body, _request: self })
    }
}

/// Response body with the guard of its request.
struct GuardedBody {
    body: Body,
    _request: OpenRequest,
}

impl hyper::body::Body for GuardedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.0.0.store(Phase::IDLE, Ordering::Relaxed);
    }
}

/// Waits until shutdown is signalled or the sender is dropped.
pub(crate) async fn wait(stop: &mut watch::Receiver<bool>) {
    drop(stop.wait_for(|stop| *stop).await);
}

/// A stream that enforces time limits. A client that stops reading makes writes fail, which closes the
/// connection and cancels its request. End of input is reported late during a request, because the client may
/// have closed only its sending side.
struct TimedStream {
    /// `None` after the stream was returned.
    stream: Option<TcpStream>,
    time: Duration,
    /// Deadline of a blocked write.
    late: Option<Pin<Box<Sleep>>>,
    phase: Phase,
    /// Deadline for the first output to a client that has closed its sending side.
    gone: Option<Pin<Box<Sleep>>>,
    /// Channel that returns the stream after hyper is finished with it.
    back: Option<oneshot::Sender<TcpStream>>,
}

impl Drop for TimedStream {
    fn drop(&mut self) {
        if let (Some(back), Some(stream)) = (self.back.take(), self.stream.take()) {
            // The receiver is gone if the server's runtime has ended.
            drop(back.send(stream));
        }
    }
}

impl TimedStream {
    fn new(
        stream: TcpStream,
        time: Duration,
        phase: Phase,
        back: oneshot::Sender<TcpStream>,
    ) -> Self {
        Self { stream: Some(stream), time, late: None, phase, gone: None, back: Some(back) }
    }

    /// Delays end of input while a half-closed client may still wait for its response. A client that
    /// disconnected looks the same until the server writes to it.
    fn poll_gone(&mut self, context: &mut Context<'_>) -> Poll<()> {
        match self.phase.get() {
            Phase::ASKED => {}
            Phase::ANSWERED => return Poll::Pending,
            _ => return Poll::Ready(()),
        }
        let gone = self.gone.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSED_TIME)));
        gone.as_mut().poll(context)
    }

    fn timed<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TcpStream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        let Some(stream) = &mut self.stream else {
            return Poll::Ready(Err(io::ErrorKind::NotConnected.into()));
        };
        if let Poll::Ready(written) = write(Pin::new(stream), context) {
            self.late = None;
            return Poll::Ready(written);
        }
        let time = self.time;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(time)));
        ready!(late.as_mut().poll(context));
        late.as_mut().reset(Instant::now());
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for TimedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Ok(())) };
        let before = buffer.filled().len();
        ready!(Pin::new(stream).poll_read(context, buffer))?;
        if buffer.filled().len() == before && buffer.remaining() > 0 {
            ready!(self.poll_gone(context));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TimedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.timed(context, |stream, context| stream.poll_write(context, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.timed(context, |stream, context| stream.poll_write_vectored(context, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(TcpStream::is_write_vectored)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.timed(context, |stream, context| stream.poll_flush(context))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.timed(context, |stream, context| stream.poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_outside_of_four_digit_years_gives_no_date() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        assert!(has_date(at(0)) && has_date(at(YEAR_10000 - 1)) && !has_date(at(YEAR_10000)));
        assert!(!has_date(UNIX_EPOCH - Duration::from_secs(1)));
    }
}
