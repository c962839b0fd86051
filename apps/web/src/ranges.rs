//! Range requests and the check of their replies.

use std::ops::Range;

/// Server of one file.
pub trait RangeSource: Send {
    /// Returns the address for error messages.
    fn url(&self) -> String;

    /// Requests `range` of the file, and blocks until the reply is complete.
    ///
    /// # Errors
    /// Fails with [`RangeError::Unreachable`] without a complete reply.
    fn fetch(&mut self, range: &Range<u64>) -> Result<Reply, RangeError>;

    /// Requests the headers of the file alone.
    ///
    /// # Errors
    /// Fails with [`RangeError::Unreachable`] without a complete reply.
    fn head(&mut self) -> Result<Head, RangeError>;
}

/// An unchecked reply to a range request.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Header `Content-Range`.
    pub content_range: Option<String>,
    /// Header `ETag`.
    pub etag: Option<String>,
    /// Received bytes.
    pub body: Vec<u8>,
}

/// An unchecked reply to a request for headers.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// HTTP status.
    pub status: u16,
    /// Header `Content-Length`.
    pub length: Option<u64>,
    /// Header `ETag`.
    pub etag: Option<String>,
}

/// Identity of a file on its server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Length in bytes.
    pub length: u64,
    /// Entity tag; empty if the server sends none.
    pub etag: String,
}

/// Checked bytes of a file.
#[derive(Debug)]
pub struct Part {
    /// Byte offset in the file.
    pub start: u64,
    /// Bytes from there on.
    pub bytes: Vec<u8>,
    /// Identity of the file.
    pub version: Version,
}

/// A failed range request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The server sent no complete reply.
    #[error("{url}: no complete reply ({reason})")]
    Unreachable {
        /// Address.
        url: String,
        /// Reason from the browser.
        reason: String,
    },
    /// The server refused the request.
    #[error("{url}: the server replied with status {status}")]
    Refused {
        /// Address.
        url: String,
        /// HTTP status.
        status: u16,
    },
    /// The reply does not contain the requested bytes.
    #[error("{url}: expected {expected}, found {found}")]
    Mismatch {
        /// Address.
        url: String,
        /// Requested bytes.
        expected: String,
        /// Contents of the reply.
        found: String,
    },
    /// The file on the server was replaced after its first bytes were fetched.
    #[error("{url}: the file changed on the server; open the model again")]
    Changed {
        /// Address.
        url: String,
    },
    /// The browser's storage failed.
    #[error("the browser's storage failed: {reason}")]
    Storage {
        /// Reason from the browser.
        reason: String,
    },
}

impl RangeError {
    /// Returns the kind for JavaScript.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Unreachable { .. } => "network",
            Self::Refused { .. } | Self::Mismatch { .. } => "server",
            Self::Changed { .. } => "changed",
            Self::Storage { .. } => "storage",
        }
    }

    /// Returns whether the same request may succeed a little later.
    pub fn may_retry(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Mismatch { .. } => true,
            Self::Refused { status, .. } => matches!(status, 408 | 429 | 500..),
            Self::Changed { .. } | Self::Storage { .. } => false,
        }
    }
}

/// Checks a reply to a request for `range` of a file whose version is `known`, if anything of it was fetched before.
///
/// A server that ignores ranges replies with status 200 and the whole file, which is accepted.
///
/// # Errors
/// Returns an error unless the reply contains exactly the requested bytes of the same version.
pub fn check(
    url: &str,
    reply: Reply,
    range: &Range<u64>,
    known: Option<&Version>,
) -> Result<Part, RangeError> {
    let mismatch = |expected: String, found: String| RangeError::Mismatch {
        url: url.to_owned(),
        expected,
        found,
    };
    let received = reply.body.len() as u64;
    let (start, length) = match reply.status {
        200 => (0, received),
        206 => {
            // Default: an empty header fails the comparison below.
            let header = reply.content_range.unwrap_or_default();
            let total = header.rsplit('/').next().and_then(|total| total.parse::<u64>().ok());
            let end = total.map_or(range.end, |total| range.end.min(total));
            let expected = format!("bytes {}-{}/", range.start, end.saturating_sub(1));
            match total {
                Some(total) if header.starts_with(&expected) => {
                    if received != end - range.start {
                        let expected = format!("{} bytes", end - range.start);
                        return Err(mismatch(expected, format!("{received} bytes")));
                    }
                    (range.start, total)
                }
                _ => {
                    return Err(mismatch(
                        format!("Content-Range: {expected}*"),
                        format!("'{header}'"),
                    ));
                }
            }
        }
        416 if known.is_some() => return Err(RangeError::Changed { url: url.to_owned() }),
        status => return Err(RangeError::Refused { url: url.to_owned(), status }),
    };
    // Default: without a tag, only the length identifies the version; checksums find other bytes.
    let version = Version { length, etag: reply.etag.unwrap_or_default() };
    match known {
        Some(known) if *known != version => Err(RangeError::Changed { url: url.to_owned() }),
        _ => Ok(Part { start, bytes: reply.body, version }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, content_range: &str, body: usize) -> Reply {
        let content_range = (!content_range.is_empty()).then(|| content_range.to_owned());
        Reply { status, content_range, etag: Some("\"a\"".into()), body: vec![7; body] }
    }

    fn checked(reply: Reply) -> Result<Part, RangeError> {
        check("model", reply, &(10..20), Some(&Version { length: 100, etag: "\"a\"".into() }))
    }

    #[test]
    fn the_requested_bytes_and_whole_files_are_accepted() {
        let part = checked(reply(206, "bytes 10-19/100", 10)).unwrap();
        assert_eq!((part.start, part.bytes.len()), (10, 10));
        let part = checked(reply(200, "", 100)).unwrap();
        assert_eq!((part.start, part.bytes.len()), (0, 100));
        let part = check("model", reply(206, "bytes 10-14/15", 5), &(10..20), None).unwrap();
        assert_eq!((part.bytes.len(), part.version.length), (5, 15));
    }

    #[test]
    fn other_bytes_are_errors() {
        let kind = |reply| checked(reply).unwrap_err().kind();
        assert_eq!(kind(reply(206, "bytes 10-18/100", 9)), "server", "fewer bytes by the header");
        assert_eq!(
            kind(reply(206, "bytes 10-19/100", 9)),
            "server",
            "fewer bytes than the header says"
        );
        assert_eq!(kind(reply(206, "bytes 11-20/100", 10)), "server", "another offset");
        assert_eq!(kind(reply(206, "", 10)), "server", "no header");
        assert_eq!(kind(reply(206, "bytes 10-19/*", 10)), "server", "no length");
        assert_eq!(kind(reply(206, "bytes 10-19/101", 10)), "changed", "another length");
        assert_eq!(kind(Reply { etag: None, ..reply(206, "bytes 10-19/100", 10) }), "changed");
        assert_eq!(kind(reply(200, "", 99)), "changed", "a whole file of another length");
        assert_eq!(kind(reply(416, "", 0)), "changed");
        assert_eq!(kind(reply(404, "", 0)), "server");
    }

    #[test]
    fn temporary_refusals_may_be_retried() {
        let retries = |status| checked(reply(status, "", 0)).unwrap_err().may_retry();
        assert!(retries(429) && retries(503));
        assert!(!retries(404) && !retries(403));
    }
}
