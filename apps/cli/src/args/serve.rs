//! `nestling serve`: where to listen, and who may ask.

use super::{ModelArgs, ResourceArgs};
use clap::Args;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Routes: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics, /status, /plan,
/tokenize, /detokenize, /tokenizer_info.

Examples:
  nestling serve -m qwen3.nest
  nestling serve -m qwen3.nest --host 0.0.0.0 --api-key-file keys.txt --allow-host nest.example.org
  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"model\": \"qwen3\", \"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}'

Ctrl-C ends what is under way and then the program; a second one ends it at once.";

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct ServeArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub listen: ListenArgs,

    #[command(flatten)]
    pub resources: ResourceArgs,
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ListenArgs {
    /// Address to listen on; one that other machines reach needs --api-key-file
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", env = "NESTLING_HOST")]
    pub host: String,

    /// Port to listen on; 0 means any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080, env = "NESTLING_PORT")]
    pub port: u16,

    /// Take requests with one of the keys in this file alone, one a line
    #[arg(long, value_name = "FILE", env = "NESTLING_API_KEY_FILE")]
    pub api_key_file: Option<PathBuf>,

    /// Take requests for this name or address too; may be repeated [default: localhost, loopback
    /// addresses, this machine's name, *.local and *.internal]
    #[arg(long, value_name = "HOST", env = "NESTLING_ALLOW_HOST", value_delimiter = ',')]
    pub allow_host: Vec<String>,

    /// Let web pages of this origin ask, such as `https://ui.example.org`; may be repeated
    #[arg(long, value_name = "ORIGIN", env = "NESTLING_CORS_ORIGIN", value_delimiter = ',')]
    pub cors_origin: Vec<String>,

    /// What clients call the model [default: its file or folder without the ending]
    #[arg(long, value_name = "NAME", env = "NESTLING_ALIAS")]
    pub alias: Option<String>,
}
