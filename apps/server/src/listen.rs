//! Listening: the socket, its connections, and how they come to an end.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::pin::Pin;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::connection;
use crate::error::ApiError;
use crate::limits::{ConnectionLimits, LINGER_TIME};
use crate::router::router;
use crate::server::Server;

/// How long to wait after a connection could not be taken, as when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections too many that are told so at a time.
const LINGERING_MAX: usize = 64;

/// A server that listens. It has threads of its own, which end with it.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Why nobody listens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// An address that others reach, without keys.
    #[error(
        "{address} is reached from other machines, and without keys everybody there could ask; \
         give keys, or listen on 127.0.0.1"
    )]
    OpenToAll {
        /// The address.
        address: SocketAddr,
    },
    /// An address that there is not, or that is in use.
    #[error("cannot listen on {address}: {source}")]
    Address {
        /// What was asked for.
        address: String,
        /// The system's answer.
        source: io::Error,
    },
    /// The platform gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

impl Listener {
    /// Listens on the first address of `host`, and answers at once; before there is a model, that it is being loaded.
    /// Port 0 is any that is free.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn start(server: &Server, host: &str, port: u16) -> Result<Self, ListenError> {
        let wrong = |source| ListenError::Address { address: format!("{host}:{port}"), source };
        let mut addresses = (host, port).to_socket_addrs().map_err(wrong)?;
        let address = addresses.next().ok_or_else(|| wrong(io::ErrorKind::NotFound.into()))?;
        if !address.ip().is_loopback() && !server.access().has_keys() {
            return Err(ListenError::OpenToAll { address });
        }
        let listener = std::net::TcpListener::bind(address).map_err(wrong)?;
        listener.set_nonblocking(true).map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("nestling-http")
            .enable_io()
            .enable_time()
            .build()
            .map_err(ListenError::Thread)?;
        let listener = {
            let _context = runtime.enter();
            TcpListener::from_std(listener).map_err(wrong)?
        };
        let (stop, stopped) = watch::channel(false);
        let (routes, limits) = (router(server), *server.connection_limits());
        let thread = Builder::new().name("nestling-serve".into()).spawn(move || {
            runtime.block_on(accept(listener, routes, limits, stopped));
            // Whatever still waits is left behind.
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        Ok(Self { address, stop, thread: Some(thread.map_err(ListenError::Thread)?) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections; requests under way come to their end, within
    /// [`ConnectionLimits::drain_time`].
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Whether all has ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops, and waits for the end.
    pub fn end(mut self) {
        self.join();
    }

    fn join(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the server panicked");
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.join();
    }
}

/// Takes connections until it is told to stop, then waits for those that are open.
async fn accept(
    listener: TcpListener,
    routes: axum::Router,
    limits: ConnectionLimits,
    stop: watch::Receiver<bool>,
) {
    let count_max = limits.count_max.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
    let places = Arc::new(Semaphore::new(count_max));
    let lingering = Arc::new(Semaphore::new(LINGERING_MAX));
    let mut stopped = stop.clone();
    let mut stopped = std::pin::pin!(connection::wait(&mut stopped));
    loop {
        let accepted = std::pin::pin!(listener.accept());
        let taken = match select(accepted, stopped.as_mut()).await {
            Either::Left((taken, _)) => taken,
            Either::Right(_) => break,
        };
        let stream = match taken {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!("a connection was not taken: {error}");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            // Default: in a flood those beyond are closed without a word.
            if let Ok(place) = Arc::clone(&lingering).try_acquire_owned() {
                tokio::spawn(async move {
                    turn_away(stream).await;
                    drop(place);
                });
            }
            continue;
        };
        let (routes, stop) = (routes.clone(), stop.clone());
        tokio::spawn(async move {
            connection::serve(stream, routes, limits, stop).await;
            drop(place);
        });
    }
    drop(listener);
    let all = u32::try_from(count_max).unwrap_or(u32::MAX);
    if timeout(limits.drain_time, places.acquire_many(all)).await.is_err() {
        tracing::warn!(
            "requests that did not end within {} s are cut off",
            limits.drain_time.as_secs()
        );
    }
}

/// Closes a connection too many, and says why where that takes no time.
async fn turn_away(mut stream: TcpStream) {
    let error = ApiError::busy("too many connections are open");
    let body = error.to_json().to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let told = async {
        stream.writable().await?;
        // A new connection has room for these few bytes.
        stream.try_write(answer.as_bytes())?;
        poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await?;
        connection::linger(&stream).await;
        io::Result::Ok(())
    };
    if !matches!(timeout(LINGER_TIME, told).await, Ok(Ok(()))) {
        tracing::debug!("a connection too many was closed before its end");
    }
}
