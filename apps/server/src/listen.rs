//! Listening: the socket, its connections, and how they come to an end.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use futures_util::future::{Either, select};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

use crate::connection;
use crate::error::ApiError;
use crate::limits::DRAIN_TIME;
use crate::router::router;
use crate::server::Server;

/// Most connections at a time; more are told to come back.
const CONNECTIONS_MAX: usize = 1024;

/// How long to wait after a connection could not be taken, as when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
        let routes = router(server);
        let thread = Builder::new().name("nestling-serve".into()).spawn(move || {
            runtime.block_on(accept(listener, routes, stopped));
            // Whatever still waits is left behind.
            runtime.shutdown_timeout(Duration::from_secs(1));
        });
        Ok(Self { address, stop, thread: Some(thread.map_err(ListenError::Thread)?) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes no more connections; requests under way come to their end, within a minute.
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
async fn accept(listener: TcpListener, routes: axum::Router, stop: watch::Receiver<bool>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
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
            tokio::spawn(turn_away(stream));
            continue;
        };
        let (routes, stop) = (routes.clone(), stop.clone());
        tokio::spawn(async move {
            connection::serve(stream, routes, stop).await;
            drop(place);
        });
    }
    drop(listener);
    let all = u32::try_from(CONNECTIONS_MAX).unwrap_or(u32::MAX);
    if timeout(DRAIN_TIME, places.acquire_many(all)).await.is_err() {
        tracing::warn!("requests that did not end within {} s are cut off", DRAIN_TIME.as_secs());
    }
}

/// Closes a connection too many, and says why where that takes no time.
async fn turn_away(stream: TcpStream) {
    let error = ApiError::busy("too many connections are open");
    let body = error.to_json().to_string();
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let is_ready = timeout(Duration::from_secs(1), stream.writable()).await;
    if !matches!(is_ready, Ok(Ok(()))) || stream.try_write(answer.as_bytes()).is_err() {
        tracing::debug!("a connection too many was closed without a word");
    }
}
