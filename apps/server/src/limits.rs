//! Every bound on what a request may ask for, and on what a connection may take.

use std::time::Duration;

/// Longest body of a request.
pub const BODY_BYTES_MAX: usize = 8 << 20;

/// Maximum number of bytes of all bodies that are being read or parsed at a time.
pub const BODIES_BYTES_MAX: usize = 128 << 20;

/// Longest head of a request, its line included.
pub const HEAD_BYTES_MAX: usize = 32 << 10;

/// Most headers of a request.
pub const HEADERS_MAX: usize = 100;

/// Maximum number of requests to one model that are parsed at a time. A schema may take a second to compile.
pub const READERS_MAX: usize = 4;

/// Maximum time that a request waits until it is parsed.
pub const READ_WAIT: Duration = Duration::from_secs(10);

/// Deepest nesting of objects and lists in a body.
pub const JSON_DEPTH_MAX: usize = 64;

/// Longest JSON schema of an answer or of a tool's arguments, as text.
pub const SCHEMA_BYTES_MAX: usize = 64 << 10;

/// Most answers to one prompt that the API knows; what a server allows is [`crate::ServerOptions::choices_max`].
pub const CHOICES_MAX: u64 = 128;

/// Most prompts of one request.
pub const PROMPTS_MAX: usize = 128;

/// Most likely tokens beside each token of a chat's answer.
pub const TOP_LOGPROBS_MAX: u64 = 20;

/// The same of a completion.
pub const LOGPROBS_MAX: u64 = 5;

/// Most texts that end an answer.
pub const STOPS_MAX: usize = 4;

/// The same of an answer to Anthropic's API.
pub const STOP_SEQUENCES_MAX: usize = 64;

/// Longest text that ends an answer, in bytes.
pub const STOP_BYTES_MAX: usize = 1024;

/// Most messages of a conversation.
pub const MESSAGES_MAX: usize = 4096;

/// Most parts of a message.
pub const PARTS_MAX: usize = 1024;

/// Most calls of a message.
pub const CALLS_MAX: usize = 128;

/// Most tools of a conversation.
pub const TOOLS_MAX: usize = 128;

/// Longest name of a tool or of a schema, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

/// Longest name of a tool in Anthropic's API, in bytes.
pub const TOOL_NAME_BYTES_MAX: usize = 128;

/// Most tokens with a bias.
pub const BIASES_MAX: usize = 1024;

/// Most tokens of an answer that can be asked for; what the context has room for is fewer.
pub const TOKENS_MAX: u64 = 1 << 24;

/// Longest other text, such as `user`, in bytes.
pub const TEXT_BYTES_MAX: usize = 512;

/// Within what time the head of a request must be there, the wait for it included.
pub const HEAD_TIME: Duration = Duration::from_secs(30);

/// Within what time the body of a request must be there.
pub const BODY_TIME: Duration = Duration::from_secs(30);

/// How long a request waits for its model to be opened; after that it is told to come back, and opening goes on.
pub const LOAD_TIME: Duration = Duration::from_secs(300);

/// How long a reader may take nothing before its answer is cancelled and its connection closed.
pub const WRITE_TIME: Duration = Duration::from_secs(30);

/// How long the bytes are read that a client sends after its answer.
pub const LINGER_TIME: Duration = Duration::from_secs(1);

/// How long a client that has closed its sending side may wait for its answer to begin. A client that is gone looks the
/// same until something is written to it, and keeps the model busy for that long at most.
pub const HALF_CLOSED_TIME: Duration = Duration::from_secs(10);

/// What a connection may take; every server has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Within what time the head of a request must be there, the wait for it included.
    pub head_time: Duration,
    /// Within what time the body of a request must be there.
    pub body_time: Duration,
    /// How long a reader may take nothing before its answer is cancelled and its connection closed.
    pub write_time: Duration,
    /// How long requests under way may take to end once the server is told to stop.
    pub drain_time: Duration,
    /// Most connections at a time; more are told to come back.
    pub count_max: usize,
    /// Maximum number of bytes of all bodies that are being read or parsed at a time. A request whose body does not fit is
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

/// Most connections at a time.
pub const CONNECTIONS_MAX: usize = 1024;

/// How often a stream without news says that it lives.
pub const PING_TIME: Duration = Duration::from_secs(10);

/// How long requests under way may take to end once the server is told to stop.
pub const DRAIN_TIME: Duration = Duration::from_secs(60);

/// Events of an answer that wait for its reader before the model pauses.
pub const EVENTS_MAX: usize = 256;
