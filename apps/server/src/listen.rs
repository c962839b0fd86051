//! The listening socket, its connections and its shutdown.

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

/// Pause after a failed `accept`, for example without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum number of excess connections that are concurrently answered with 503.
const LINGERING_MAX: usize = 64;

/// A listening server. It owns its threads, which end with it.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// An error of [`Listener::start`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// A non-loopback address without API keys.
    #[error(
        "{address} is reached from other machines, and without keys everybody there could ask; \
         give keys, or listen on 127.0.0.1"
    )]
    OpenToAll {
        /// The address.
        address: SocketAddr,
    },
    /// An address that does not exist or is in use.
    #[error("cannot listen on {address}: {source}")]
    Address {
        /// The requested address.
        address: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// Thread creation failed.
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}

impl Listener {
    /// Listens on the first address of `host` and starts to answer. Until a model is set, requests fail with
    /// "Loading model". Port 0 selects a free port.
    ///
    /// # Errors
    /// Returns a [`ListenError`] if the address is not allowed, listening fails or no thread can be started.
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
            // Tasks that still run are abandoned.
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        Ok(Self { address, stop, thread: Some(thread.map_err(ListenError::Thread)?) })
    }

    /// Returns the address of the socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections. Running requests finish within [`ConnectionLimits::drain_time`].
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Returns true after all threads have ended.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops the server and waits for its end.
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

/// Accepts connections until shutdown is signalled, then waits for open ones to finish.
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
            // Default: under a flood of connections, further ones are closed without a response.
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

/// Answers an excess connection with 503 and closes it. The response is dropped if it cannot be written at
/// once.
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
        // The send buffer of a new connection has space for this response.
        stream.try_write(answer.as_bytes())?;
        poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await?;
        connection::linger(&stream).await;
        io::Result::Ok(())
    };
    if !matches!(timeout(LINGER_TIME, told).await, Ok(Ok(()))) {
        tracing::debug!("a connection too many was closed before its end");
    }
}
