//! Commands around the store.

use super::{DeviceArgs, HubArgs, LevelArg, MeanLevelArg, QuantizerArgs};
use crate::bytes::ByteSize;
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "A conversion that was interrupted goes on where it stopped when the same \
command is given again. The store appears under its name only when it is complete.")]
pub struct ConvertArgs {
    /// Hugging Face checkpoint folder (config.json, tokenizer.json, *.safetensors) or GGUF file, of
    /// several parts any; with --budget also a store
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: PathBuf,

    /// Store to write
    #[arg(short, long, value_name = "OUT.nest", env = "NESTLING_OUTPUT")]
    pub output: PathBuf,

    /// Size of the store, such as 12GiB: every matrix gets as many bits as pay best. A whole store is
    /// made first, beside the output, and removed afterwards [default: all levels]
    #[arg(long, value_name = "SIZE", env = "NESTLING_BUDGET")]
    pub budget: Option<ByteSize>,

    /// Highest level of every matrix [default: 8, and of a quantized GGUF file at most the bits that
    /// the matrix has there]
    #[arg(long, visible_alias = "level", value_name = "BITS", env = "NESTLING_TOP_LEVEL")]
    pub top_level: Option<LevelArg>,

    /// Keep the integers and scales of a quantized GGUF file as they are: no weight is rounded, and no
    /// calibration is needed. Weights that it has as floats are quantized as without. Such a store runs
    /// on the processor
    #[arg(long, env = "NESTLING_EXACT", value_parser = FalseyValueParser::new())]
    pub exact: bool,

    /// Replace the output if it exists
    #[arg(long, env = "NESTLING_FORCE", value_parser = FalseyValueParser::new())]
    pub force: bool,

    /// Threads that quantize [default: as many as the machine has cores]
    #[arg(short, long, value_name = "N", env = "NESTLING_THREADS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    #[command(flatten)]
    pub calibration: CalibrationArgs,

    #[command(flatten)]
    pub quantizer: QuantizerArgs,
}

/// What a conversion chooses codes by.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Calibration, when a checkpoint is converted")]
pub struct CalibrationArgs {
    /// Text that the model is run over, so that codes are chosen by what its matrices meet; `prose`
    /// for prose that comes with the program; `none` to choose codes by the weights alone [default:
    /// prose, but none for a GGUF file that is run as it is]
    #[arg(long, value_name = "FILE", env = "NESTLING_CALIBRATION")]
    pub calibration: Option<PathBuf>,

    /// Most tokens of the calibration text to use
    #[arg(long, value_name = "N", default_value_t = CALIBRATION_TOKENS)]
    #[arg(env = "NESTLING_CALIBRATION_TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub calibration_tokens: u32,
}

/// 200 sequences of 512 tokens.
pub const CALIBRATION_TOKENS: u32 = 102_400;

impl Default for CalibrationArgs {
    fn default() -> Self {
        Self { calibration: None, calibration_tokens: CALIBRATION_TOKENS }
    }
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    /// Store or GGUF file to show
    #[arg(value_name = "MODEL")]
    pub path: Option<PathBuf>,

    /// Store or GGUF file to show [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Show a store whose download was interrupted
    #[arg(long, env = "NESTLING_PARTIAL", value_parser = FalseyValueParser::new())]
    pub partial: bool,

    /// Print one JSON object
    #[arg(long, env = "NESTLING_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "A GGUF file has no checksums: every block of it is read and made into what would \
be computed with, its scales must be numbers, and what was read on an earlier occasion must be what it \
was. Exit codes: 0 the file is whole, 3 it is damaged, 1 it cannot be read."
)]
pub struct VerifyArgs {
    /// Store or GGUF file to check
    #[arg(value_name = "MODEL")]
    pub path: Option<PathBuf>,

    /// Store or GGUF file to check [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Check what is here of a store whose download was interrupted, up to the last level that is
    /// complete
    #[arg(long, env = "NESTLING_PARTIAL", value_parser = FalseyValueParser::new())]
    pub partial: bool,
}

#[derive(Args, Clone, Debug)]
#[command(
    after_help = "Without --reference, the perplexity of the store as it is run. With it, KL divergence \
to the unquantized model too, measured twice: weights only (float activations, embedding and head in \
float, f32 keys and values, on both sides), and the path that ships (int8 activations)."
)]
pub struct PerplexityArgs {
    /// Store or GGUF file to judge [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    /// The checkpoint that the store was made from, as a Hugging Face folder [default: none, and no
    /// divergence]
    #[arg(long, value_name = "HF_DIR", env = "NESTLING_REFERENCE")]
    pub reference: Option<PathBuf>,

    /// Text to judge on
    #[arg(short, long, value_name = "TEXT", env = "NESTLING_FILE")]
    pub file: PathBuf,

    /// Levels to judge, such as 2,4 [default: all that the store holds]
    #[arg(long, value_name = "LIST", env = "NESTLING_LEVELS", value_delimiter = ',')]
    pub levels: Vec<LevelArg>,

    /// Allocations to judge besides: at most so many bits per weight of attention and feed-forward
    /// matrices, such as 2.5,3.2
    #[arg(long, value_name = "LIST", env = "NESTLING_BITS", value_delimiter = ',')]
    pub bits: Vec<f64>,

    /// Allocations to judge besides: so many bytes for all weights, such as 9GiB,12GiB
    #[arg(long, value_name = "LIST", env = "NESTLING_BUDGETS", value_delimiter = ',')]
    pub budgets: Vec<ByteSize>,

    /// Mixes by dual routing to judge besides: mean level of experts, and the highest if it is not
    /// the store's, such as 2.6,3.2:4
    #[arg(long, value_name = "LIST", env = "NESTLING_MEAN_LEVELS", value_delimiter = ',')]
    pub mean_levels: Vec<MeanLevelArg>,

    /// Level of attention and other matrices that every token uses [default: what the level says,
    /// and what an allocation chooses]
    #[arg(long, value_name = "BITS", env = "NESTLING_ATTENTION_LEVEL")]
    pub attention_level: Option<LevelArg>,

    /// Leave out the path that ships
    #[arg(long, env = "NESTLING_WEIGHTS_ONLY", value_parser = FalseyValueParser::new())]
    pub weights_only: bool,

    /// Memory for the store as it is run, such as 20MiB: experts that have no room are streamed. Changes
    /// the result with --elastic alone [default: everything in memory]
    #[arg(long, value_name = "SIZE", env = "NESTLING_MEMORY", conflicts_with = "weights_only")]
    pub memory: Option<ByteSize>,

    /// Leave out bits that have not been read in time, where the store is run and --mean-levels mix
    #[arg(long, env = "NESTLING_ELASTIC", value_parser = FalseyValueParser::new())]
    #[arg(requires = "memory")]
    pub elastic: bool,

    /// Tokens of context for each piece of the text
    #[arg(short, long, value_name = "N", default_value_t = 512, env = "NESTLING_CTX_SIZE")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub ctx_size: u32,

    /// Most tokens of the text to use; 0 means all
    #[arg(long, value_name = "N", default_value_t = 0, env = "NESTLING_TOKENS")]
    pub tokens: usize,

    #[command(flatten)]
    pub device: DeviceArgs,

    /// Threads that compute [default: as many as the machine has cores]
    #[arg(short, long, value_name = "N", env = "NESTLING_THREADS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    /// How to print
    #[arg(long, value_enum, default_value_t = ReportFormat::Text, env = "NESTLING_FORMAT")]
    pub format: ReportFormat,

    /// Print one JSON object: --format json
    #[arg(long, env = "NESTLING_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,

    /// Draw divergence over bits per weight into this SVG file
    #[arg(long, value_name = "FILE", env = "NESTLING_SVG")]
    pub svg: Option<PathBuf>,

    /// Other quantizations of the same model on the same text, to draw and list beside it: a JSON
    /// file such as benches/records/peers-quality.json
    #[arg(long, value_name = "FILE", env = "NESTLING_PEERS")]
    pub peers: Option<PathBuf>,

    /// Which set of the peers' file to use [default: the first]
    #[arg(long, value_name = "NAME", env = "NESTLING_PEER_SET")]
    pub peer_set: Option<String>,
}

/// How a table is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReportFormat {
    // A table for a terminal
    Text,
    // A Markdown table
    Md,
    // One JSON object
    Json,
}

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}
