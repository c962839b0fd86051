//! Arguments for models on the Hugging Face Hub, and arguments of `nestling upgrade`.

use super::LevelArg;
use clap::Args;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

/// A repository, and access to it.
#[derive(Args, Clone, Debug, Default)]
pub struct HubArgs {
    /// Hugging Face repository with safetensors or GGUF files, which are downloaded and, if necessary,
    /// converted, or with a store, which is fetched as it is read; also spelled -hf. A GGUF quantization (default: Q4_K_M if available) or a file
    /// name may follow after a colon
    #[arg(long, visible_alias = "hf", value_name = "OWNER/REPO[:FILE]", env = "NESTLING_HF_REPO")]
    pub hf_repo: Option<String>,

    /// Branch, tag or commit of the repository
    #[arg(long, value_name = "NAME", default_value = "main", env = "NESTLING_HF_REVISION")]
    pub hf_revision: String,

    /// Access token for the Hub; also spelled -hft
    #[arg(long, value_name = "TOKEN", env = "HF_TOKEN", hide_env_values = true)]
    pub hf_token: Option<String>,

    /// Use only cached files and no network; HF_HUB_OFFLINE has the same effect
    #[arg(long, env = "NESTLING_OFFLINE", value_parser = FalseyValueParser::new())]
    pub offline: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "A store whose later sections are missing runs at the level that is complete. What \
comes is checked against the store's own checksums before anybody can open it; an upgrade that was \
interrupted resumes where it stopped. It needs room for the whole new store beside the old one.

Examples:
  nestling run -hf owner/store --level 2 -p hello      fetch and use the first section alone
  nestling upgrade -hf owner/store --level 4           fetch what level 4 needs besides
  nestling upgrade model.nest                          fetch the rest of a downloaded store
  nestling upgrade model.nest -hf owner/store          the same where nothing says where it came from"
)]
pub struct UpgradeArgs {
    /// Store to extend [default: the one that -hf downloaded]
    #[arg(value_name = "STORE")]
    pub store: Option<PathBuf>,

    /// Target level: 2, 3, 4, 6 or 8 [default: all available levels]
    #[arg(long, value_name = "BITS", env = "NESTLING_LEVEL")]
    pub level: Option<LevelArg>,

    #[command(flatten)]
    pub hub: HubArgs,
}
