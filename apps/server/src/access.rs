//! Access control: API keys, allowed host names and allowed web origins.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::error::ApiError;

/// Maximum length of a key in bytes.
const KEY_BYTES_MAX: usize = 512;

/// Alternative header for an API key, besides `Authorization: Bearer`.
const KEY_HEADER: &str = "x-api-key";

/// Access rules of a server. By default every client is allowed, under the host names of this machine and its
/// local network, but no foreign web page.
#[derive(Clone, Default)]
pub struct Access {
    /// SHA-256 hashes of the keys. Comparing hashes takes the same time for any key.
    keys: Vec<[u8; 32]>,
    shares_prefixes: bool,
    hosts: Vec<String>,
    origins: Vec<String>,
}

/// Identity of a caller, which determines the shared prefixes available to the request.
#[derive(Clone, Default)]
pub(crate) struct Caller {
    /// Salt derived from the request's key. `None` if all callers share prefixes.
    salt: Option<String>,
    /// Hash of the request's key. `None` if the server needs no key.
    key: Option<[u8; 32]>,
}

/// Owner of stored data: the holder of a key, or anyone if the server needs no key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner(Option<[u8; 32]>);

impl Owner {
    /// Owner of data on a server without keys.
    #[cfg(test)]
    pub const ANYONE: Self = Self(None);

    /// Returns the holder of the key with this hash.
    #[cfg(test)]
    pub fn of_key(hash: [u8; 32]) -> Self {
        Self(Some(hash))
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Owner(key)" } else { "Owner(anyone)" })
    }
}

impl Caller {
    /// Returns the fair-share group of a request: its user, if it names one, among the users of its key. Requests
    /// without a key and a user are groups of their own.
    pub fn group(&self, user: Option<u64>) -> Option<u64> {
        let mut hasher = DefaultHasher::new();
        (self.key, user).hash(&mut hasher);
        (self.key.is_some() || user.is_some()).then(|| hasher.finish())
    }

    /// Returns the owner of what this caller stores.
    pub fn owner(&self) -> Owner {
        Owner(self.key)
    }

    /// Combines the caller's salt with `own`, the salt given in the request.
    pub fn salted(&self, own: Option<String>) -> Option<String> {
        match (&self.salt, own) {
            (Some(salt), Some(own)) => Some(format!("{salt} {own}")),
            (Some(salt), None) => Some(salt.clone()),
            (None, own) => own,
        }
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys = self.keys.len();
        write!(f, "Access {{ {keys} keys, hosts: {:?}, origins: {:?} }}", self.hosts, self.origins)
    }
}

/// An invalid access rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// An invalid key. The message does not contain the key.
    #[error("line {line} of the keys: a key is 1 to 512 visible ASCII characters without spaces")]
    Key {
        /// Line number, from 1.
        line: usize,
    },
    /// A key list without any key.
    #[error("the list of keys is empty")]
    NoKeys,
    /// An invalid host name.
    #[error("{host:?} is not the name or address of a host, without scheme, port and path")]
    Host {
        /// The given host.
        host: String,
    },
    /// An invalid web origin.
    #[error("{origin:?} is not an origin such as https://example.org")]
    Origin {
        /// The given origin.
        origin: String,
    },
}

impl Access {
    /// Adds keys, one per line, and makes a key mandatory for requests. Blank lines are ignored.
    ///
    /// # Errors
    /// [`AccessError::Key`] if a line is not a valid key, [`AccessError::NoKeys`] if `lines` has no key.
    pub fn add_keys(&mut self, lines: &str) -> Result<(), AccessError> {
        let mut keys = Vec::new();
        for (index, key) in lines.lines().map(str::trim).enumerate() {
            if key.len() > KEY_BYTES_MAX || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(AccessError::Key { line: index + 1 });
            }
            if !key.is_empty() {
                keys.push(hash(key.as_bytes()));
            }
        }
        if keys.is_empty() {
            return Err(AccessError::NoKeys);
        }
        self.keys.extend(keys);
        Ok(())
    }

    /// Returns true if requests need a key.
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    /// Sets whether requests with different keys share prefixes. The default is false, because response times
    /// reveal whether a prefix was cached.
    pub fn share_prefixes(&mut self, shares: bool) {
        self.shares_prefixes = shares;
    }

    /// Accepts requests for `host`, besides loopback addresses, names without a dot, `*.localhost`, `*.local` and
    /// `*.internal`. A `*` stands for any characters.
    ///
    /// # Errors
    /// [`AccessError::Host`] if `host` is not a host name or an IP address.
    pub fn allow_host(&mut self, host: &str) -> Result<(), AccessError> {
        let name = host.trim_end_matches('.').to_ascii_lowercase();
        let is_address = name.parse::<IpAddr>().is_ok();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-._*".contains(c);
        if name.is_empty() || !(is_address || name.chars().all(is_name)) {
            return Err(AccessError::Host { host: host.to_owned() });
        }
        self.hosts.push(name);
        Ok(())
    }

    /// Allows web pages of `origin`, written as browsers send it: scheme, host and port, or `null`. A `*` stands
    /// for any characters, as in `https://*.example.org`. Pages of this machine are allowed without it, as are
    /// applications that are no web pages, such as editors.
    ///
    /// # Errors
    /// [`AccessError::Origin`] if `origin` is not an origin.
    pub fn allow_origin(&mut self, origin: &str) -> Result<(), AccessError> {
        let rest = origin.split_once("://").map(|(_, rest)| rest);
        let is_origin =
            rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '?', '#']));
        let is_visible = origin.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_visible || !(is_origin || origin == "null") {
            return Err(AccessError::Origin { origin: origin.to_owned() });
        }
        self.origins.push(origin.to_owned());
        Ok(())
    }

    /// Rejects foreign host names (a sign of DNS rebinding) and foreign web origins. Returns the origin for
    /// the `Access-Control-Allow-Origin` header, if any.
    pub(crate) fn check_place(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<Option<HeaderValue>, ApiError> {
        let mut named = headers.get_all(header::HOST).iter();
        let (host, second) = (named.next(), named.next());
        let host = host.and_then(|host| host.to_str().ok()).filter(|_| second.is_none());
        let host = host.ok_or_else(|| ApiError::malformed("one `Host` header was expected"))?;
        let names = [Some(host), uri.authority().map(|authority| authority.as_str())];
        for name in names.into_iter().flatten() {
            if !host_of(name).is_some_and(|name| self.knows(&name)) {
                return Err(ApiError::forbidden(format!(
                    "the host {name:?} is not one of this server; --allow-host adds it"
                )));
            }
        }
        // Clients other than browsers send no `Origin` header.
        let Some(origin) = headers.get(header::ORIGIN) else { return Ok(None) };
        // Default: an origin that is not ASCII is unknown.
        let text = origin.to_str().unwrap_or_default();
        let own = text.split_once("://");
        if own.is_some_and(|(_, own)| own.eq_ignore_ascii_case(host)) {
            return Ok(None);
        }
        let has_cookie = headers.contains_key(header::COOKIE);
        if self.origins.iter().any(|pattern| matches(pattern, text))
            || (!has_cookie && is_of_this_machine(text))
        {
            return Ok(Some(origin.clone()));
        }
        Err(ApiError::forbidden(format!(
            "web pages of {origin:?} may not ask; --cors-origin lets them"
        )))
    }

    fn knows(&self, name: &str) -> bool {
        if let Ok(address) = name.parse::<IpAddr>() {
            return address.is_loopback() || self.hosts.iter().any(|host| matches(host, name));
        }
        let is_below = |domain: &str| name.ends_with(domain);
        let is_label = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        // Names without a dot are those of containers and of a local network. Nobody can register one, so that
        // DNS rebinding cannot use it.
        name.chars().all(is_label)
            || [".localhost", ".local", ".internal"].into_iter().any(is_below)
            || self.hosts.iter().any(|host| matches(host, name))
    }

    /// # Errors
    /// Fails if keys are configured and the request has no valid one.
    pub(crate) fn check_key(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if self.keys.is_empty() {
            return Ok(Caller::default());
        }
        let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
            let (scheme, key) = value.as_bytes().split_at_checked(7)?;
            scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
        });
        let own = headers.get(KEY_HEADER).map(HeaderValue::as_bytes);
        let given = bearer.or(own).ok_or_else(ApiError::unauthorized)?;
        let given = hash(given.trim_ascii());
        let mut found = Choice::from(0);
        for key in &self.keys {
            found |= key.ct_eq(&given);
        }
        if !bool::from(found) {
            return Err(ApiError::unauthorized());
        }
        let salt = (!self.shares_prefixes).then(|| salt_of(&given));
        Ok(Caller { salt, key: Some(given) })
    }
}

/// Schemes of applications whose pages come with the application, and not from the web.
const APPLICATIONS: [&str; 4] = ["app", "tauri", "vscode-file", "vscode-webview"];

/// Returns true for the origin of an application, and of a page that this machine serves on any port.
fn is_of_this_machine(origin: &str) -> bool {
    let is_loopback = |host: String| {
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    match origin.split_once("://") {
        Some(("http" | "https", place)) => host_of(place).is_some_and(is_loopback),
        Some((scheme, _)) => APPLICATIONS.contains(&scheme),
        None => false,
    }
}

/// Returns true if `text` matches `pattern`, in which a `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => text.strip_prefix(start).is_some_and(|rest| matches_later(end, rest)),
        None => pattern == text,
    }
}

/// Returns true if the end of `text` matches `pattern`. The first place of each part is the best one.
fn matches_later(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        Some((part, end)) => {
            text.split_once(part).is_some_and(|(_, rest)| matches_later(end, rest))
        }
        None => text.ends_with(pattern),
    }
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// Returns the prefix salt of a key. The salt is the same in each process, so KV pages on disk stay usable.
fn salt_of(key: &[u8; 32]) -> String {
    let hash =
        Sha256::new().chain_update(b"nestling prefixes of a key\0").chain_update(key).finalize();
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the host of `host` or `host:port` in lower case, IPv6 addresses without brackets.
fn host_of(text: &str) -> Option<String> {
    let host = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_digits);
            address.parse::<std::net::Ipv6Addr>().ok().filter(|_| is_port)?.to_string()
        }
        None => match text.rsplit_once(':') {
            Some((host, port)) if is_digits(port) => host.to_owned(),
            Some(_) => return None,
            None => text.to_owned(),
        },
    };
    Some(host.trim_end_matches('.').to_ascii_lowercase()).filter(|host| !host.is_empty())
}

fn is_digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns the answer to a CORS preflight request of an allowed origin.
pub(crate) fn preflight(headers: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let answer = response.headers_mut();
    let methods = HeaderValue::from_static("GET, POST, DELETE");
    answer.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(asked) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    response
}

pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Sets the CORS headers that allow a page of `origin` to read the response.
pub(crate) fn name_origin(headers: &mut HeaderMap, origin: HeaderValue) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect::<HeaderMap>()
    }

    fn place(access: &Access, pairs: &[(&'static str, &'static str)]) -> Result<bool, u16> {
        let origin = access.check_place(&Uri::from_static("/v1/models"), &headers(pairs));
        origin.map(|origin| origin.is_some()).map_err(|error| error.status.as_u16())
    }

    #[test]
    fn only_names_of_this_machine_are_taken() {
        let mut access = Access::default();
        access.allow_host("Nest.example.org").unwrap();
        access.allow_host("192.168.1.7").unwrap();
        for host in [
            "127.0.0.1:8080",
            "127.9.9.9",
            "[::1]:8080",
            "[::1]",
            "LOCALHOST",
            "localhost.",
            "box.local:1",
            "ollama.internal",
            "ollama:11434",
            "nest.example.org:443",
            "192.168.1.7:8080",
        ] {
            assert_eq!(place(&access, &[("host", host)]), Ok(false), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "192.168.1.8",
            "local/x",
            "",
            "[::1",
            "127.0.0.1:80:80",
            "127.0.0.1.evil.example",
            "user@localhost",
            "::1",
        ] {
            assert_eq!(place(&access, &[("host", host)]), Err(403), "{host}");
        }
        assert_eq!(place(&access, &[]), Err(400));
        assert_eq!(place(&access, &[("host", "localhost"), ("host", "localhost")]), Err(400));
    }

    #[test]
    fn only_listed_pages_and_own_ones_may_ask() {
        let mut access = Access::default();
        access.allow_origin("https://ui.example").unwrap();
        let ask = |origin| place(&access, &[("host", "localhost:8080"), ("origin", origin)]);
        assert_eq!(ask("https://ui.example"), Ok(true));
        assert_eq!(ask("http://localhost:8080"), Ok(false));
        for origin in [
            "http://localhost:3000",
            "https://127.0.0.1:5173",
            "http://[::1]",
            "app://obsidian.md",
            "vscode-file://vscode-app",
        ] {
            assert_eq!(ask(origin), Ok(true), "{origin}");
            let headers = [("host", "localhost:8080"), ("origin", origin), ("cookie", "a=b")];
            assert_eq!(place(&access, &headers), Err(403), "{origin}");
        }
        for origin in [
            "null",
            "https://ui.example.evil",
            "localhost:8080",
            "https://localhost.evil.example",
            "http://127.0.0.1.evil.example",
            "http://user@localhost",
            "http://localhost:3000:1",
            "ftp://localhost",
        ] {
            assert_eq!(ask(origin), Err(403), "{origin}");
        }
        for wrong in ["ui.example", "https://ui.example/", "https://"] {
            assert!(access.clone().allow_origin(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_stand_for_several_names() {
        let mut access = Access::default();
        access.allow_host("*.example.org").unwrap();
        access.allow_origin("https://*.example.org").unwrap();
        let ask = |host, origin| place(&access, &[("host", host), ("origin", origin)]);
        assert_eq!(ask("nest.example.org", "https://ui.example.org"), Ok(true));
        assert_eq!(ask("nest.example.org", "https://ui.example.org.evil"), Err(403));
        assert_eq!(ask("example.org.evil", "https://ui.example.org"), Err(403));
        for (pattern, text, expected) in [
            ("", "", true),
            ("a", "ab", false),
            ("*", "", true),
            ("a*c", "abbc", true),
            ("a*c", "ac", true),
            ("a*a", "a", false),
            ("*b*", "abc", true),
            ("a*b*c", "acb", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} {text}");
        }
    }

    #[test]
    fn a_key_is_needed_once_there_are_keys() {
        let mut access = Access::default();
        assert!(access.check_key(&headers(&[])).is_ok());
        access.add_keys("first\n\n second \n").unwrap();
        for pair in [
            ("authorization", "Bearer first"),
            ("authorization", "bearer second"),
            ("x-api-key", "second"),
        ] {
            assert!(access.check_key(&headers(&[pair])).is_ok(), "{pair:?}");
        }
        for pair in [
            ("authorization", "Bearer third"),
            ("authorization", "Bearer "),
            ("authorization", "Basic first"),
            ("authorization", "first"),
            ("x-api-key", ""),
            ("x-api-key", "firs"),
            ("api-key", "first"),
        ] {
            let error = access.check_key(&headers(&[pair])).err().unwrap();
            assert_eq!(error.status, StatusCode::UNAUTHORIZED, "{pair:?}");
        }
        let group = |key: &'static str, user| {
            let caller = access.check_key(&headers(&[("x-api-key", key)])).ok().unwrap();
            caller.group(user)
        };
        assert_eq!(group("first", None), group("first", None));
        assert_ne!(group("first", None), group("second", None));
        assert_ne!(group("first", Some(1)), group("second", Some(1)));
        assert_ne!(group("first", Some(1)), group("first", None));
        assert_eq!(Caller::default().group(None), None);
        let salt = |access: &Access, key| {
            let caller = access.check_key(&headers(&[("x-api-key", key)])).ok().unwrap();
            caller.salted(Some("own".into())).unwrap()
        };
        assert_eq!(salt(&access, "first"), salt(&access, "first"));
        assert_ne!(salt(&access, "first"), salt(&access, "second"));
        assert!(salt(&access, "first").ends_with(" own"));
        access.share_prefixes(true);
        assert_eq!(salt(&access, "first"), "own");
        assert_eq!(access.add_keys("\n \n"), Err(AccessError::NoKeys));
        assert_eq!(access.add_keys("a\nb c\n"), Err(AccessError::Key { line: 2 }));
        assert!(!format!("{access:?}").contains("first"));
    }
}
