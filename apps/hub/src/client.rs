//! HTTP client for the Hub and the hosts that it redirects to, with limits.
//!
//! Redirects are followed here, one request each. The token is sent only to the scheme, host and port of the
//! endpoint, and not to an address that another host has chosen.

use crate::error::{HubError, plain};
use std::fmt;
use std::io::{self, Read};
use std::net::{IpAddr, ToSocketAddrs};
use std::time::{Duration, Instant};
use ureq::http::{Response, Uri};
use ureq::{Agent, Body, Timeout};

const REDIRECTS_MAX: usize = 10;

/// Maximum size of a response's head in bytes.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Minimum number of bytes that must arrive within [`Limits::silence`].
const LEAST_BYTES: u64 = 16 << 10;

/// Timeouts of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Timeout for name resolution and for connecting, each.
    pub connect: Duration,
    /// Timeout for the start of a response and for each read.
    pub silence: Duration,
    /// Timeout for the whole listing.
    pub listing: Duration,
    /// Pause before the second attempt; doubled for each further one.
    pub pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(30),
            silence: Duration::from_secs(60),
            listing: Duration::from_secs(120),
            pause: Duration::from_millis(500),
        }
    }
}

/// Error of a request, classified by the necessary reaction.
#[derive(Debug)]
pub enum RequestError {
    /// Error status of the response.
    Status(u16),
    /// Missing response, or interrupted connection.
    Unreachable(String),
    /// File that is not the one that was begun.
    Changed,
    /// Permanent error that a retry cannot fix.
    Failed(HubError),
}

/// An address to request, and whether it may receive the token.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    uri: Uri,
    receives_token: bool,
}

impl Target {
    /// Returns an address of the endpoint.
    pub fn of_endpoint(address: &str) -> Result<Self, RequestError> {
        let uri = absolute(address).ok_or_else(|| senseless(&format!("`{address}`")))?;
        Ok(Self { uri, receives_token: true })
    }
}

impl fmt::Debug for Target {
    /// Omits the query, which may be a signature.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({:?}, {})", self.uri.host(), self.uri.path())
    }
}

/// An HTTP client. Clones share connections.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    token: Option<String>,
    pub limits: Limits,
}

impl fmt::Debug for Client {
    /// Omits the token, which must not appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Client {
    pub fn new(token: Option<String>, limits: Limits) -> Self {
        let config = Agent::config_builder()
            .user_agent(concat!("nestling/", env!("CARGO_PKG_VERSION")))
            .max_redirects(0)
            .max_response_header_size(HEAD_BYTES_MAX)
            .timeout_resolve(Some(limits.connect))
            .timeout_connect(Some(limits.connect))
            .timeout_send_request(Some(limits.silence))
            .timeout_recv_response(Some(limits.silence))
            .timeout_per_read(Some(limits.silence))
            .build();
        Self { agent: config.new_agent(), token, limits }
    }

    /// Requests an address of the endpoint: the whole content, or the bytes of a `Range` header. `within`
    /// limits the duration of the whole response.
    pub fn get(
        &self,
        address: &str,
        range: Option<&str>,
        within: Option<Duration>,
    ) -> Result<Response<Body>, RequestError> {
        let target = Target::of_endpoint(address)?;
        self.follow(target, range, within).map(|(response, _)| response)
    }

    /// Requests an address and follows its redirects. Also returns the address of the response.
    pub fn follow(
        &self,
        start: Target,
        range: Option<&str>,
        within: Option<Duration>,
    ) -> Result<(Response<Body>, Target), RequestError> {
        let started = Instant::now();
        let Target { uri: mut at, receives_token } = start;
        let mut token = self.token.as_deref().filter(|_| receives_token);
        let mut is_home = receives_token;
        for _ in 0..=REDIRECTS_MAX {
            // Content encodings would change the bytes.
            let mut request = self.agent.get(at.clone()).header("Accept-Encoding", "identity");
            if let Some(range) = range {
                request = request.header("Range", range);
            }
            if let Some(token) = token {
                request = request.header("Authorization", format!("Bearer {token}"));
            }
            let left = within.map(|within| within.saturating_sub(started.elapsed()));
            let request = request.config().timeout_global(left).build();
            let response = request.call().map_err(|error| self.trouble(&error))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok((response, Target { uri: at, receives_token: is_home }));
            }
            let location = response.headers().get("location");
            let location = location.ok_or_else(|| senseless("a redirect to nowhere"))?;
            // Default: an invalid header value is treated as empty and refused below.
            let location = location.to_str().unwrap_or_default();
            let next = target(&at, location).ok_or_else(|| {
                senseless(&format!("a redirect to `{}`", location.escape_debug()))
            })?;
            if at.scheme_str() == Some("https") && next.scheme_str() != Some("https") {
                return Err(senseless("a redirect from https to http"));
            }
            if is_link_local(&next) && !is_link_local(&at) {
                // Default: addresses without a host are not link-local.
                let host = next.host().unwrap_or_default();
                return Err(senseless(&format!("a redirect to the link-local address `{host}`")));
            }
            // The token is not restored by a redirect back to the endpoint, since another host has chosen
            // that address.
            is_home &= origin(&at) == origin(&next);
            token = token.filter(|_| is_home);
            at = next;
        }
        Err(senseless(&format!("more than {REDIRECTS_MAX} redirects")))
    }

    fn trouble(&self, error: &ureq::Error) -> RequestError {
        match error {
            ureq::Error::StatusCode(status) => RequestError::Status(*status),
            ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                let seconds = self.limits.connect.as_secs_f64();
                RequestError::Unreachable(format!("no connection within {seconds} s"))
            }
            ureq::Error::Timeout(Timeout::Global) => too_long(self.limits.listing),
            ureq::Error::Timeout(_) => silent(self.limits.silence),
            ureq::Error::Io(error) => RequestError::Unreachable(plain(error)),
            other => RequestError::Unreachable(other.to_string()),
        }
    }

    /// Returns a reader of a body that fails if the transfer is too slow.
    pub fn read(&self, body: Body) -> Steady<impl Read> {
        Steady {
            inner: body.into_with_config().limit(u64::MAX).reader(),
            silence: self.limits.silence,
            since: Instant::now(),
            bytes: 0,
        }
    }
}

/// A reader with a minimum transfer rate. Without it, a server that sends a byte now and then could block
/// forever.
pub struct Steady<R> {
    inner: R,
    silence: Duration,
    since: Instant,
    /// Number of bytes that arrived since `since`.
    bytes: u64,
}

impl<R: Read> Read for Steady<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(out)?;
        self.bytes += count as u64;
        if self.bytes >= LEAST_BYTES {
            (self.since, self.bytes) = (Instant::now(), 0);
        } else if count > 0 && self.since.elapsed() >= self.silence {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(count)
    }
}

/// Classifies an error while reading a body.
pub fn broken(error: &io::Error, limits: &Limits) -> RequestError {
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(ureq::Error::Timeout(Timeout::Global)) => too_long(limits.listing),
        Some(ureq::Error::Timeout(_)) => silent(limits.silence),
        _ if error.kind() == io::ErrorKind::TimedOut => silent(limits.silence),
        _ => RequestError::Unreachable(plain(error)),
    }
}

fn silent(limit: Duration) -> RequestError {
    RequestError::Unreachable(format!(
        "nothing, or hardly anything, came for {} s",
        limit.as_secs_f64()
    ))
}

fn too_long(limit: Duration) -> RequestError {
    RequestError::Unreachable(format!("the answer took longer than {} s", limit.as_secs_f64()))
}

/// Returns a permanent error for a malformed response.
fn senseless(what: &str) -> RequestError {
    RequestError::Failed(unreadable(what))
}

pub fn unreadable(what: &str) -> HubError {
    HubError::new(format!("the Hub's answer makes no sense: {what}"))
        .advise("check HF_ENDPOINT, or try again later")
}

pub fn absolute(text: &str) -> Option<Uri> {
    let uri: Uri = text.parse().ok()?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    (known && uri.host().is_some_and(|host| !host.is_empty())).then_some(uri)
}

/// Resolves the target of a redirect.
pub fn target(from: &Uri, location: &str) -> Option<Uri> {
    let (scheme, authority) = (from.scheme_str()?, from.authority()?);
    // A colon before the first slash ends a scheme.
    if location.split(['/', '?', '#']).next().is_some_and(|start| start.contains(':')) {
        return absolute(location);
    }
    let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
    absolute(&match location {
        "" => return None,
        rest if rest.starts_with("//") => format!("{scheme}:{rest}"),
        rest if rest.starts_with('/') => format!("{scheme}://{authority}{rest}"),
        rest => format!("{scheme}://{authority}{folder}/{rest}"),
    })
}

/// Returns true for link-local hosts, where cloud metadata services provide credentials. Host names are not
/// resolved.
fn is_link_local(uri: &Uri) -> bool {
    // Default: an address without a host is refused elsewhere.
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).trim_end_matches('.');
    let is_number = || {
        let last = host.rsplit('.').next();
        last.is_some_and(|last| last.starts_with(|first: char| first.is_ascii_digit()))
    };
    let address = host.parse::<IpAddr>().ok().or_else(|| {
        // Numbers such as `0xa9fea9fe` are parsed as addresses by the system, without a lookup.
        let mut found = is_number().then(|| (host, 0).to_socket_addrs().ok())??;
        found.next().map(|address| address.ip())
    });
    match address.map(|address| address.to_canonical()) {
        Some(IpAddr::V4(address)) => address.is_link_local(),
        Some(IpAddr::V6(address)) => address.is_unicast_link_local(),
        None => false,
    }
}

/// Returns scheme, host and port, which determine whether the token is sent.
pub fn origin(uri: &Uri) -> Option<(&str, String, u16)> {
    let scheme = uri.scheme_str()?;
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme, uri.host()?.to_ascii_lowercase(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    /// Starts a server that answers one request with `head` and then repeats `rest` until the client closes
    /// the connection. Returns its address, and the number of bytes sent.
    fn endless(
        head: &'static str,
        rest: &'static [u8],
        pause: Duration,
    ) -> (String, std::thread::JoinHandle<usize>) {
        use std::io::Write as _;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}/x", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            let mut sent = 0;
            while sent < 1 << 30 && stream.write_all(rest).is_ok() {
                sent += rest.len();
                std::thread::sleep(pause);
            }
            sent
        });
        (address, server)
    }

    #[test]
    fn response_heads_are_limited() {
        for line in [&b"X: 0123456789\r\n"[..], b"0123456789abcdef"] {
            let (address, server) =
                endless("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nY: ", line, Duration::ZERO);
            let client = Client::new(None, Limits::default());
            let error = client.get(&address, None, None).unwrap_err();
            assert!(matches!(error, RequestError::Unreachable(_)), "{error:?}");
            drop(client);
            // What the system buffers between the two was sent too.
            let sent = server.join().unwrap();
            assert!(sent < 32 << 20, "{sent} bytes of a head");
        }
    }

    /// Each byte of a head arrives within the silence, but the head as a whole does not.
    #[test]
    fn slow_response_heads_are_not_waited_for_without_end() {
        let (address, server) = endless("HTTP/1.1 200 OK\r\nY: ", b"x", Duration::from_millis(20));
        let limits = Limits { silence: Duration::from_millis(500), ..Limits::default() };
        let client = Client::new(None, limits);
        let started = Instant::now();
        let error = client.get(&address, None, None).unwrap_err();
        assert!(matches!(error, RequestError::Unreachable(_)), "{error:?}");
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
        drop(client);
        server.join().unwrap();
    }

    #[test]
    fn redirects_go_where_they_say() {
        let from = uri("https://hub.example:8443/a/b/c?d=e");
        for (location, expected) in [
            ("https://cdn.example/x?y=z", Some("https://cdn.example/x?y=z")),
            ("//cdn.example/x", Some("https://cdn.example/x")),
            ("/x?y", Some("https://hub.example:8443/x?y")),
            ("x", Some("https://hub.example:8443/a/b/x")),
            ("", None),
            ("ftp://cdn.example/x", None),
            ("file:///etc/passwd", None),
            ("javascript:1", None),
            ("https:///x", None),
            ("https://", None),
        ] {
            assert_eq!(target(&from, location), expected.map(uri), "{location}");
        }
    }

    #[test]
    fn link_local_addresses_are_known_however_they_are_written() {
        for address in [
            "169.254.169.254",
            "169.254.0.1",
            "[fe80::1]",
            "[::ffff:169.254.169.254]",
            "2852039166",
            "0xa9fea9fe",
            "169.254.43518",
            "169.254.169.254.",
        ] {
            assert!(is_link_local(&uri(&format!("http://{address}/latest"))), "{address}");
        }
        for address in ["127.0.0.1", "169.253.0.1", "[::1]", "hub.example", "10.0.0.1"] {
            assert!(!is_link_local(&uri(&format!("http://{address}/latest"))), "{address}");
        }
    }

    #[test]
    fn scheme_host_and_port_are_an_origin() {
        let home = uri("https://Hub.example/a");
        for same in
            ["https://hub.example/b?c", "https://hub.example:443/", "https://u@hub.example/"]
        {
            assert_eq!(origin(&home), origin(&uri(same)), "{same}");
        }
        for other in [
            "http://hub.example/a",
            "https://hub.example:8443/a",
            "https://cdn.hub.example/a",
            "https://hub.example.evil/a",
            "https://hub.example@evil/a",
        ] {
            assert_ne!(origin(&home), origin(&uri(other)), "{other}");
        }
    }
}
