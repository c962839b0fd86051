//! Arguments of the cache commands: `nestling list`, `pull`, `rm` and `gc`.

use super::{HubArgs, LevelArg, MachineFormatArgs};
use clap::Args;
use clap::builder::FalseyValueParser;

#[derive(Args, Debug)]
#[command(
    after_help = "Shows downloads of the Hub's cache, stores of Nestling's cache with what they were made of, and \
GGUF files that ran where they lie. `nestling rm` takes the names, `nestling gc` what nothing needs."
)]
pub struct ListArgs {
    #[command(flatten)]
    pub format: MachineFormatArgs,
}

#[derive(Args, Debug)]
#[command(
    after_help = "What was fetched is used by every command with -hf and the same name. A download that was \
interrupted resumes where it stopped.

Examples:
  nestling pull owner/model-GGUF:Q4_K_M         fetch a GGUF file, which runs in place
  nestling pull Qwen/Qwen3-30B-A3B --convert    fetch a checkpoint and make its store
  nestling pull owner/store --level 2           fetch the first section of a store"
)]
pub struct PullArgs {
    /// Hugging Face repository, optionally with a GGUF quantization or a file name after a colon
    #[arg(value_name = "OWNER/REPO[:FILE]")]
    pub path: Option<String>,

    /// Convert a checkpoint right away [default: at first use]
    #[arg(long, env = "NESTLING_CONVERT", value_parser = FalseyValueParser::new())]
    pub convert: bool,

    /// Highest level to download: 2, 3, 4, 6 or 8 [default: all levels in the store]
    #[arg(long, value_name = "BITS", env = "NESTLING_LEVEL")]
    pub level: Option<LevelArg>,

    #[command(flatten)]
    pub hub: HubArgs,
}

#[derive(Args, Debug)]
#[command(
    after_help = "A repository's name means its download and every store that was made of it. What a process has \
open, downloads or converts is not removed. Files outside the caches, and files behind a linked folder in a cache, \
are neither listed nor removed."
)]
pub struct RmArgs {
    /// Models to remove: owner/repo, the name of a store, or a path, as `nestling list` shows them
    #[arg(value_name = "MODEL", required = true)]
    pub names: Vec<String>,

    /// Remove without confirmation
    #[arg(short, long, env = "NESTLING_YES", value_parser = FalseyValueParser::new())]
    pub yes: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Removes interrupted downloads and conversions, temporary files, checksums of deleted files, and \
outdated stores whose source or newer store is present. Models and files in use are kept."
)]
pub struct GcArgs {
    /// Show what would be removed without removing anything
    #[arg(short = 'n', long, env = "NESTLING_DRY_RUN", value_parser = FalseyValueParser::new())]
    pub dry_run: bool,
}
