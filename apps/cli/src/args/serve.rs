//! Arguments of `nestling serve`: addresses, access control and served models.

use super::{ModelArgs, ResourceArgs};
use crate::bytes::ByteSize;
use clap::Args;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;
use std::time::Duration;

const AFTER_HELP: &str = "\
A browser finds a chat at http://127.0.0.1:8080/.
Routes: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, /status, /plan,
/v1/responses, /v1/responses/ID, /memory, /tokenize, /detokenize, /tokenizer_info; of Anthropic's API /v1/messages,
/v1/messages/count_tokens; of Ollama's API /api/chat, /api/generate, /api/tags,
/api/show, /api/ps, /api/version.

Examples:
  nestling serve -m qwen3.nest
  nestling serve --models ~/models --keep-alive 30m
  nestling serve -m qwen3.nest --host 0.0.0.0 --api-key-file keys.txt --allow-host nest.example.org
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"qwen3\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Ctrl-C finishes running requests and then ends the program; a second one ends it at once.";

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub several: SeveralArgs,

    #[command(flatten)]
    pub listen: ListenArgs,

    #[command(flatten)]
    pub resources: ResourceArgs,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ListenArgs {
    /// Address to listen on; an address reachable from other machines requires --api-key-file
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", env = "NESTLING_HOST")]
    pub host: String,

    /// Port to listen on; 0 chooses a free port
    #[arg(long, value_name = "PORT", default_value_t = 8080, env = "NESTLING_PORT")]
    pub port: u16,

    /// Accept only requests with one of the API keys in this file, one key a line
    #[arg(long, value_name = "FILE", env = "NESTLING_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Share KV pages of common prompt prefixes between requests with different keys; the holder of one key
    /// can then learn from response times what was requested with another
    #[arg(long, env = "NESTLING_SHARE_PREFIXES")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub share_prefixes: bool,

    /// Accept requests for this host name or address too, in which `*` stands for any characters; may be
    /// repeated [default: loopback addresses, this machine's name, names without a dot, *.local and *.internal]
    #[arg(long, value_name = "HOST", env = "NESTLING_ALLOW_HOST", value_delimiter = ',')]
    pub allow_host: Vec<String>,

    /// Allow requests from web pages of this origin, such as `https://*.example.org`; may be repeated
    /// [default: pages of this machine, and applications such as editors]
    #[arg(long, value_name = "ORIGIN", env = "NESTLING_CORS_ORIGIN", value_delimiter = ',')]
    pub cors_origin: Vec<String>,

    /// Refuse requests with fields that have no effect; by default they are accepted and listed in the
    /// response header `x-nestling-ignored`
    #[arg(long, env = "NESTLING_STRICT_FIELDS")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub strict_fields: bool,

    /// Refuse tools for models whose chat template has no place for them; by default such tools are described in
    /// the system message
    #[arg(long, env = "NESTLING_NO_GENERIC_TOOLS")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub no_generic_tools: bool,

    /// Memory for the responses that clients of /v1/responses continue by their id; the ones used longest ago
    /// leave first, and 0 stores none
    #[arg(long, value_name = "SIZE", default_value = "64MiB", env = "NESTLING_STORED_RESPONSES")]
    pub stored_responses: ByteSize,

    /// Name of the model for clients [default: its file or folder name without the extension]
    #[arg(long, value_name = "NAME", env = "NESTLING_ALIAS")]
    pub alias: Option<String>,
}

/// Several models behind one server, chosen by the model name in each request.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Several models")]
pub struct SeveralArgs {
    /// Serve every store and GGUF file in this folder: each is opened when a request names it, all of them
    /// within --memory
    #[arg(long, value_name = "DIR", env = "NESTLING_MODELS")]
    pub models: Option<PathBuf>,

    /// Serve every model that `nestling list` shows and that needs no conversion, in the same way
    #[arg(long, env = "NESTLING_CACHED", value_parser = FalseyValueParser::new())]
    pub cached: bool,

    /// Time that such a model stays open without requests, such as 90s, 5m or 2h; -1 means forever
    #[arg(long, value_name = "TIME", default_value = "5m", env = "NESTLING_KEEP_ALIVE")]
    #[arg(value_parser = keep_alive, allow_hyphen_values = true)]
    pub keep_alive: KeepAlive,
}

impl SeveralArgs {
    /// Returns true if several models are served.
    pub fn are_given(&self) -> bool {
        self.models.is_some() || self.cached
    }
}

/// Time to keep an idle model open. `None` means forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeepAlive(pub Option<Duration>);

/// Maximum keep-alive time in seconds: ten years.
const KEEP_SECONDS_MAX: u64 = 10 * 365 * 86_400;

fn keep_alive(text: &str) -> Result<KeepAlive, String> {
    if text == "-1" {
        return Ok(KeepAlive(None));
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "" | "s" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let seconds = scale.zip(number.parse::<u64>().ok());
    let seconds = seconds.and_then(|(scale, number)| number.checked_mul(scale));
    let seconds = seconds.filter(|seconds| *seconds <= KEEP_SECONDS_MAX);
    let wrong = || format!("`{text}` is not a time; write for example 90s, 5m, 2h or -1");
    seconds.map(|seconds| KeepAlive(Some(Duration::from_secs(seconds)))).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, seconds) in [("0", 0), ("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200)] {
            let expected = Ok(KeepAlive(Some(Duration::from_secs(seconds))));
            assert_eq!(keep_alive(text), expected, "{text}");
        }
        assert_eq!(keep_alive("-1"), Ok(KeepAlive(None)));
        for wrong in ["", "m", "-2", "1.5h", "5 m", "99999999999999999999", "9999999h"] {
            assert!(keep_alive(wrong).is_err(), "{wrong}");
        }
    }
}
