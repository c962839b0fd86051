//! Which model, and what it may use of the machine.

use super::generation::count;
use super::level::mean_level;
use super::machine::threads;
use super::{CalibrationArgs, DeviceArgs, HostExpertsArgs, HubArgs, LevelArg};
use crate::bytes::ByteSize;
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use nestling::engine::{DualOptions, LevelMode};
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Store to open, a GGUF file (run where it lies), or a
    /// Hugging Face checkpoint folder to run unquantized
    #[arg(value_name = "MODEL")]
    pub path: Option<PathBuf>,

    /// Store to open, a GGUF file (run where it lies), or a
    /// Hugging Face checkpoint folder to run unquantized [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Bits of every weight to use: 2, 3, 4, 6 or 8 [default: all that the store holds]
    #[arg(long, value_name = "BITS", env = "NESTLING_LEVEL")]
    pub level: Option<LevelArg>,

    /// Mean bits of experts, such as 3.2: each token's experts get as many bits as they are worth to it
    /// (dual routing), at most --level [default: the same bits for every expert]
    #[arg(long, value_name = "BITS", env = "NESTLING_MEAN_LEVEL", value_parser = mean_level)]
    pub mean_level: Option<f32>,

    /// Leave out bits that have not been read in time, and ask for fewer while the disk is slow: the
    /// text then depends on timing
    #[arg(long, env = "NESTLING_ELASTIC", value_parser = FalseyValueParser::new())]
    pub elastic: bool,

    /// Bytes that weights may take, such as 12GiB: every matrix gets as many bits as pay best, at
    /// most --level [default: the same bits for every matrix]
    #[arg(long, value_name = "SIZE", env = "NESTLING_WEIGHT_BUDGET")]
    pub weight_budget: Option<ByteSize>,

    /// Open a store whose download was interrupted, at the last level that is complete
    #[arg(long, env = "NESTLING_PARTIAL", value_parser = FalseyValueParser::new())]
    pub partial: bool,

    /// What -hf converts with.
    #[command(flatten)]
    pub calibration: CalibrationArgs,
}

impl ModelArgs {
    /// Dual routing, where it was asked for.
    pub fn dual(&self) -> Option<DualOptions> {
        let mode = match self.elastic {
            true => LevelMode::Elastic,
            false => LevelMode::Strict,
        };
        let mean_level = self.mean_level;
        let asked = mean_level.is_some() || self.elastic;
        asked.then(|| DualOptions { mean_level, mode, ..DualOptions::default() })
    }

    /// The path that was given, by position or by `-m`.
    pub fn given_path(&self) -> Option<&PathBuf> {
        self.path.as_ref().or(self.model.as_ref())
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Machine")]
pub struct ResourceArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub host: HostExpertsArgs,

    /// Threads that compute [default: as many as ran best when that was measured, at first use]
    #[arg(short, long, value_name = "N", env = "NESTLING_THREADS", value_parser = threads)]
    pub threads: Option<u32>,

    /// Bind each of these threads to a processor (Linux)
    #[arg(long, env = "NESTLING_PIN_THREADS", value_parser = FalseyValueParser::new())]
    pub pin_threads: bool,

    /// Memory for weights, context and scratch, such as 6GiB; 6G means 6 GiB, 6GB a little less
    /// [default: what is free, less a margin]
    #[arg(long, value_name = "SIZE", env = "NESTLING_MEMORY")]
    pub memory: Option<ByteSize>,

    /// How weights are held: read and verified into memory, or mapped from the file and used in
    /// place, verified before they are used first (starts sooner; the file must not be changed
    /// meanwhile: a file that is cut within a step ends the program with status 4, and a page that is
    /// changed after it was verified is not seen); also spelled -lm
    #[arg(long, value_enum, default_value_t = LoadModeArg::Owned, env = "NESTLING_LOAD_MODE")]
    pub load_mode: LoadModeArg,

    /// Tokens of context; 0 means all that the model was trained for [default: that, at most 8192]
    #[arg(short, long, value_name = "N", env = "NESTLING_CTX_SIZE", value_parser = count::<u32>)]
    pub ctx_size: Option<u32>,

    /// Tokens that keys and values are kept for, of all sessions together; more sessions take turns
    /// [default: twice the context]
    #[arg(long, value_name = "N", env = "NESTLING_KV_TOKENS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_tokens: Option<u32>,

    /// Number type of the keys and values kept for the context
    #[arg(long, value_enum, default_value_t = KvTypeArg::F16, env = "NESTLING_KV_TYPE")]
    pub kv_type: KvTypeArg,

    /// Keep what was computed of prompts in this folder too, for sessions that lost it and for the next start of the
    /// program; who may read the folder can learn the prompts, who may write it can change answers
    #[arg(long, value_name = "DIR", env = "NESTLING_PAGE_STORE")]
    pub page_store: Option<PathBuf>,

    /// Disk space for it; what was unused for longest is removed
    #[arg(long, value_name = "SIZE", default_value = "8GiB", requires = "page_store")]
    #[arg(env = "NESTLING_PAGE_STORE_SIZE")]
    pub page_store_size: ByteSize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoadModeArg {
    // Read into memory; every byte is verified
    Owned,
    // Map the file and use it in place
    #[value(alias = "mapped")]
    Mmap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvTypeArg {
    // Half precision
    F16,
    // Single precision
    F32,
    // Integers with a scale for each position and head: half of f16's memory
    #[value(alias = "q8_0")]
    Int8,
}
