//! Limits on requests and connections.

use std::time::Duration;

/// Maximum size of a request body in bytes.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// Maximum total size in bytes of all bodies being read or parsed.
pub const BODIES_BYTES_MAX: usize = 128 << 20;

/// Maximum size in bytes of all stored responses.
pub const STORED_RESPONSES_BYTES_MAX: usize = 64 << 20;

/// Maximum number of items in a list of input items.
pub const ITEMS_MAX: usize = 100;

/// Maximum size of a request head in bytes, including the request line.
pub const HEAD_BYTES_MAX: usize = 32 << 10;

/// Maximum number of headers per request.
pub const HEADERS_MAX: usize = 100;

/// Maximum number of requests per model that are parsed concurrently. Compiling a schema may take a second.
pub const READERS_MAX: usize = 4;

/// Maximum time a request waits to be parsed.
pub const READ_WAIT: Duration = Duration::from_secs(10);

/// Maximum nesting depth of a request body.
pub const JSON_DEPTH_MAX: usize = 64;

/// Maximum length in bytes of a JSON schema of an output or of tool arguments.
pub const SCHEMA_BYTES_MAX: usize = 64 << 10;

/// Maximum number of choices per prompt in the API. The limit of a server is
/// [`crate::ServerOptions::choices_max`].
pub const CHOICES_MAX: u64 = 128;

/// Maximum number of prompts per request.
pub const PROMPTS_MAX: usize = 128;

/// Maximum number of alternatives per token in the log-probabilities of a chat.
pub const TOP_LOGPROBS_MAX: u64 = 20;

/// Maximum number of alternatives per token in the log-probabilities of a completion.
pub const LOGPROBS_MAX: u64 = 20;

/// Maximum number of stop sequences per request.
pub const STOPS_MAX: usize = 256;

/// Maximum number of samplers, and of the texts that end a sequence for the DRY penalty.
pub const SAMPLERS_MAX: usize = 32;

/// Maximum length of a stop sequence in bytes.
pub const STOP_BYTES_MAX: usize = 1024;

/// Maximum number of messages in a conversation.
pub const MESSAGES_MAX: usize = 4096;

/// Maximum number of parts in a message.
pub const PARTS_MAX: usize = 1024;

/// Maximum number of tool calls in a message.
pub const CALLS_MAX: usize = 1024;

/// Maximum number of tools in a conversation.
pub const TOOLS_MAX: usize = 1024;

/// Maximum length of a type, a role or a schema name in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Maximum length of a tool name in bytes.
pub const TOOL_NAME_BYTES_MAX: usize = 256;

/// Maximum number of tokens with a logit bias.
pub const BIASES_MAX: usize = 1024;

/// Upper bound on `max_tokens` in a request. The context length limits it further.
pub const TOKENS_MAX: u64 = 1 << 24;

/// Maximum length in bytes of other strings, such as `user`.
pub const TEXT_BYTES_MAX: usize = 512;

/// Maximum time for receiving a request head, including the wait for its first byte.
pub const HEAD_TIME: Duration = Duration::from_secs(30);

/// Maximum time for receiving a request body.
pub const BODY_TIME: Duration = Duration::from_secs(30);

/// Maximum time a request waits for its model to open. After that it fails with a retryable error, and
/// opening continues.
pub const LOAD_TIME: Duration = Duration::from_secs(300);

/// Maximum time a client may stall reading before its generation is cancelled and its connection closed.
pub const WRITE_TIME: Duration = Duration::from_secs(30);

/// Maximum time for draining input of a client after the response was sent.
pub const LINGER_TIME: Duration = Duration::from_secs(1);

/// Maximum time to the first output for a client that has closed its sending side. A client that disconnected
/// looks the same until the server writes to it, and keeps the model busy for up to this time.
pub const HALF_CLOSED_TIME: Duration = Duration::from_secs(10);

/// Limits of the connections of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum time for receiving a request head, including the wait for its first byte.
    pub head_time: Duration,
    /// Maximum time for receiving a request body.
    pub body_time: Duration,
    /// Maximum time a client may stall reading before its generation is cancelled and its connection closed.
    pub write_time: Duration,
    /// Maximum time for running requests to finish after shutdown was requested.
    pub drain_time: Duration,
    /// Maximum number of open connections. Further ones are answered with 503.
    pub count_max: usize,
    /// Maximum total size in bytes of all bodies being read or parsed. A request whose body does not fit is
    /// answered with 503.
    pub bodies_bytes_max: usize,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            head_time: HEAD_TIME,
            body_time: BODY_TIME,
            write_time: WRITE_TIME,
            drain_time: DRAIN_TIME,
            count_max: CONNECTIONS_MAX,
            bodies_bytes_max: BODIES_BYTES_MAX,
        }
    }
}

/// Maximum number of open connections.
pub const CONNECTIONS_MAX: usize = 1024;

/// Interval between keep-alive messages on an idle stream.
pub const PING_TIME: Duration = Duration::from_secs(10);

/// Maximum time for running requests to finish after shutdown was requested.
pub const DRAIN_TIME: Duration = Duration::from_secs(60);

/// Number of buffered events of a generation at which the model pauses until the client reads.
pub const EVENTS_MAX: usize = 256;
