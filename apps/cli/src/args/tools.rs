//! Arguments of the commands that convert, inspect, verify and evaluate stores.

use super::{DeviceArgs, HubArgs, LevelArg, MeanLevelArg, QuantizerArgs};
use crate::bytes::ByteSize;
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "An interrupted conversion resumes where it stopped when the same \
command is given again. The store appears under its name only when it is complete.")]
pub struct ConvertArgs {
    /// Hugging Face checkpoint folder (config.json, tokenizer.json, *.safetensors) or GGUF file, any part of
    /// a split one; with --budget also a store
    #[arg(value_name = "CHECKPOINT")]
    pub checkpoint: PathBuf,

    /// Store to write
    #[arg(short, long, value_name = "OUT.nest", env = "NESTLING_OUTPUT")]
    pub output: PathBuf,

    /// Size of the store, such as 12GiB: bits are allocated to the matrices that benefit most. A store with
    /// all levels is written next to the output first and removed afterwards [default: all levels]
    #[arg(long, value_name = "SIZE", env = "NESTLING_BUDGET")]
    pub budget: Option<ByteSize>,

    /// Highest level of every matrix [default: 8; for a quantized GGUF file at most the bits of the matrix in
    /// the file]
    #[arg(long, visible_alias = "level", value_name = "BITS", env = "NESTLING_TOP_LEVEL")]
    pub top_level: Option<LevelArg>,

    /// Keep the integers and scales of a quantized GGUF file exactly: no weight is rounded, and no
    /// calibration is needed. Weights stored as floats are quantized as usual. Such a store runs only on the
    /// CPU
    #[arg(long, env = "NESTLING_EXACT", value_parser = FalseyValueParser::new())]
    pub exact: bool,

    /// Replace the output if it exists
    #[arg(long, env = "NESTLING_FORCE", value_parser = FalseyValueParser::new())]
    pub force: bool,

    /// Number of quantizer threads [default: number of cores]
    #[arg(short, long, value_name = "N", env = "NESTLING_THREADS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    #[command(flatten)]
    pub calibration: CalibrationArgs,

    #[command(flatten)]
    pub quantizer: QuantizerArgs,
}

/// Calibration text of a conversion.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Calibration, when a checkpoint is converted")]
pub struct CalibrationArgs {
    /// Calibration text that the model is run over to weigh quantization errors by real activations; `prose`
    /// for the bundled prose; `none` to use the weights alone [default: prose, but none for a GGUF file that
    /// runs in place]
    #[arg(long, value_name = "FILE", env = "NESTLING_CALIBRATION")]
    pub calibration: Option<PathBuf>,

    /// Maximum number of tokens of the calibration text to use
    #[arg(long, value_name = "N", default_value_t = CALIBRATION_TOKENS)]
    #[arg(env = "NESTLING_CALIBRATION_TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub calibration_tokens: u32,
}

/// Default number of calibration tokens: 200 sequences of 512 tokens.
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
    after_help = "A GGUF file has no checksums. Every block is read and transcoded, its scales must be \
finite, and the data must equal that of earlier reads. Exit codes: 0 the file is whole, 3 it is damaged, \
1 it cannot be opened, for example because it is cut."
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

    /// Check the downloaded part of a store whose download was interrupted, up to its highest complete level
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
    /// Store or GGUF file to evaluate [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Checkpoint that the store was converted from, as a Hugging Face folder [default: none, and no
    /// divergence]
    #[arg(long, value_name = "HF_DIR", env = "NESTLING_REFERENCE")]
    pub reference: Option<PathBuf>,

    /// Text to evaluate on
    #[arg(short, long, value_name = "TEXT", env = "NESTLING_FILE")]
    pub file: PathBuf,

    /// Levels to evaluate, such as 2,4 [default: all levels in the store]
    #[arg(long, value_name = "LIST", env = "NESTLING_LEVELS", value_delimiter = ',')]
    pub levels: Vec<LevelArg>,

    /// Allocations to evaluate too: maximum bits per weight of attention and feed-forward matrices, such as
    /// 2.5,3.2
    #[arg(long, value_name = "LIST", env = "NESTLING_BITS", value_delimiter = ',')]
    pub bits: Vec<f64>,

    /// Allocations to evaluate too: maximum size of all weights, such as 9GiB,12GiB
    #[arg(long, value_name = "LIST", env = "NESTLING_BUDGETS", value_delimiter = ',')]
    pub budgets: Vec<ByteSize>,

    /// Dual-routing mixes to evaluate too: mean level of the experts, and the highest level if it is below
    /// the store's, such as 2.6,3.2:4
    #[arg(long, value_name = "LIST", env = "NESTLING_MEAN_LEVELS", value_delimiter = ',')]
    pub mean_levels: Vec<MeanLevelArg>,

    /// Level of attention and other matrices that every token uses [default: from level or allocation]
    #[arg(long, value_name = "BITS", env = "NESTLING_ATTENTION_LEVEL")]
    pub attention_level: Option<LevelArg>,

    /// Evaluate the decoded weights only, skipping the store as it runs
    #[arg(long, env = "NESTLING_WEIGHTS_ONLY", value_parser = FalseyValueParser::new())]
    pub weights_only: bool,

    /// Memory for evaluating the store as it runs, such as 20MiB: experts that do not fit are streamed.
    /// Changes the result only with --elastic [default: everything in memory]
    #[arg(long, value_name = "SIZE", env = "NESTLING_MEMORY", conflicts_with = "weights_only")]
    pub memory: Option<ByteSize>,

    /// Skip planes that arrive late, in --mean-levels mixes of the store as it runs
    #[arg(long, env = "NESTLING_ELASTIC", value_parser = FalseyValueParser::new())]
    #[arg(requires = "memory")]
    pub elastic: bool,

    /// Context length in tokens of each chunk of the text
    #[arg(short, long, value_name = "N", default_value_t = 512, env = "NESTLING_CTX_SIZE")]
    #[arg(value_parser = clap::value_parser!(u32).range(2..))]
    pub ctx_size: u32,

    /// Maximum number of tokens of the text to use; 0 means all
    #[arg(long, value_name = "N", default_value_t = 0, env = "NESTLING_TOKENS")]
    pub tokens: usize,

    #[command(flatten)]
    pub device: DeviceArgs,

    /// Number of compute threads [default: number of cores]
    #[arg(short, long, value_name = "N", env = "NESTLING_THREADS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,

    /// Output format
    #[arg(long, value_enum, default_value_t = ReportFormat::Text, env = "NESTLING_FORMAT")]
    pub format: ReportFormat,

    /// Print one JSON object: --format json
    #[arg(long, env = "NESTLING_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,

    /// Plot divergence over bits per weight into this SVG file
    #[arg(long, value_name = "FILE", env = "NESTLING_SVG")]
    pub svg: Option<PathBuf>,

    /// Other quantizations of the same model on the same text, to plot and list next to it: a JSON file such
    /// as benches/records/peers-quality.json
    #[arg(long, value_name = "FILE", env = "NESTLING_PEERS")]
    pub peers: Option<PathBuf>,

    /// Set of the peers' file to use [default: the first]
    #[arg(long, value_name = "NAME", env = "NESTLING_PEER_SET")]
    pub peer_set: Option<String>,
}

/// Output format of the evaluation.
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
pub struct ManArgs {
    /// Folder to write the pages into, one for each command
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,
}

#[derive(Args, Debug)]
pub struct CompletionsArgs {
    /// Shell to print the script for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}
