//! Arguments of `nestling bench`: the flags of llama-bench and extensions to them.

use super::level::mean_level;
use super::lists::{Format, Numbers, number};
use super::load::LoadArgs;
use super::{
    DeviceArgs, ExpertDivisionArgs, HostExpertsArgs, HubArgs, KvDivisionArgs, KvTypeArg, LevelArg,
    LoadModeArg, ObserveArgs,
};
use crate::bytes::ByteSize;
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand, ValueEnum};
use nestling_plan::synthetic::SyntheticShape;
use std::path::PathBuf;
use std::str::FromStr;

const AFTER_HELP: &str = "\
Every combination of the lists is measured: prompts first, then generations, then pairs. A list is
128,512 or a range: 1-4, 1-8*2, 128-512+128. Tokens are random, as in llama-bench; prompt and
generation begin at an empty context, or at each --n-depth.

Examples:
  nestling bench -m model.nest -p 512 -n 128 -t 1,2 -r 3
  nestling bench -m model.nest --level 2,4 -d 0,4096 -o json > record.json
  nestling bench -m model.nest -p 0 -n 64 --sessions 1,8 --ranks 1,2
  nestling bench -m model.nest -p 0 -n 64 --memory 6GiB --warmup-tokens 128
  nestling bench synth --shape olmoe-1b-7b --top-level 4 --router-skew 0.5 -o olmoe.nest";

#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true, after_help = AFTER_HELP)]
pub struct BenchArgs {
    #[command(subcommand)]
    pub tool: Option<BenchTool>,

    /// Store or GGUF file to measure [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    pub tests: TestArgs,

    #[command(flatten)]
    pub run: RunningArgs,

    #[command(flatten)]
    pub format: FormatArgs,

    #[command(flatten)]
    pub observe: ObserveArgs,
}

/// Parameters of the tests. Every flag takes a list, and all combinations are measured.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Tests")]
pub struct TestArgs {
    /// Prompt length in tokens; 0 skips the prompt test
    #[arg(short = 'p', long, value_name = "LIST", default_value = "512")]
    #[arg(env = "NESTLING_N_PROMPT")]
    pub n_prompt: Vec<Numbers>,

    /// Number of tokens to generate; 0 skips the generation test
    #[arg(short = 'n', long, value_name = "LIST", default_value = "128")]
    #[arg(env = "NESTLING_N_GEN")]
    pub n_gen: Vec<Numbers>,

    /// Measure a prompt followed by a generation as one test; also spelled -pg
    #[arg(long = "pg", value_name = "PP,TG", env = "NESTLING_PG")]
    pub pairs: Vec<Pair>,

    /// Context depth in tokens before the measured ones
    #[arg(short = 'd', long, value_name = "LIST", default_value = "0", env = "NESTLING_N_DEPTH")]
    pub n_depth: Vec<Numbers>,

    /// Levels to open the store at [default: all levels in the store]
    #[arg(long, value_name = "LIST", env = "NESTLING_LEVEL", value_delimiter = ',')]
    pub level: Vec<LevelArg>,

    /// Mean bits of the experts under dual routing, at most --level [default: the level for every expert]
    #[arg(long, value_name = "BITS", env = "NESTLING_MEAN_LEVEL", value_parser = mean_level)]
    pub mean_level: Option<f32>,

    /// Skip planes that arrive late, and request fewer while the disk is slow
    #[arg(long, env = "NESTLING_ELASTIC", value_parser = FalseyValueParser::new())]
    pub elastic: bool,

    /// Number of compute threads [default: number of cores]
    #[arg(short, long, value_name = "LIST", env = "NESTLING_THREADS")]
    pub threads: Vec<Numbers>,

    /// Number of ranks that the weights are divided over: threads of this process, with a share of its compute
    /// threads and memory, or a GPU each if --device names the first one
    #[arg(long, value_name = "LIST", default_value = "1", env = "NESTLING_RANKS")]
    pub ranks: Vec<Numbers>,

    /// Number of sessions in a batch; the speed counts the tokens of all of them
    #[arg(long, value_name = "LIST", default_value = "1", env = "NESTLING_SESSIONS")]
    pub sessions: Vec<Numbers>,

    /// Storage of the weights; also spelled -lm
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    #[arg(default_value = "owned", env = "NESTLING_LOAD_MODE")]
    pub load_mode: Vec<LoadModeArg>,
}

/// Settings that apply to all tests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Running")]
pub struct RunningArgs {
    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub host: HostExpertsArgs,

    #[command(flatten)]
    pub experts: ExpertDivisionArgs,

    #[command(flatten)]
    pub kv: KvDivisionArgs,

    /// Number of repetitions of each test
    #[arg(short, long, value_name = "N", default_value_t = 5, env = "NESTLING_REPETITIONS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub repetitions: u32,

    /// Maximum number of rows in a step; also spelled -ub
    #[arg(long, visible_alias = "batch-size", short = 'b', value_name = "N")]
    #[arg(default_value_t = 512, env = "NESTLING_UBATCH_SIZE")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub ubatch_size: u32,

    /// Number type of the KV cache
    #[arg(long, value_enum, default_value_t = KvTypeArg::F16, env = "NESTLING_KV_TYPE")]
    pub kv_type: KvTypeArg,

    /// Skip the warm-up run before each test
    #[arg(long, env = "NESTLING_NO_WARMUP", value_parser = FalseyValueParser::new())]
    pub no_warmup: bool,

    /// Skip the measurement of memory bandwidth
    #[arg(long, env = "NESTLING_NO_BANDWIDTH", value_parser = FalseyValueParser::new())]
    pub no_bandwidth: bool,

    /// Memory for weights, context and scratch, such as 6GiB: experts that do not fit are streamed from the
    /// store [default: free memory less a margin]
    #[arg(long, value_name = "SIZE", env = "NESTLING_MEMORY")]
    pub memory: Option<ByteSize>,

    /// Number of tokens to generate before the first generation test: the cold start of streamed experts,
    /// reported separately
    #[arg(long, value_name = "N", default_value_t = 0, env = "NESTLING_WARMUP_TOKENS")]
    pub warmup_tokens: u32,

    /// Pause before each test in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 0, env = "NESTLING_DELAY")]
    pub delay: u32,
}

/// Format and destination of the results.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub struct FormatArgs {
    /// Format of the results on standard output
    #[arg(short = 'o', long, visible_alias = "output", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t = Format::Md, env = "NESTLING_OUTPUT_FORMAT")]
    pub output_format: Format,

    /// Print the results on standard error too; also spelled -oe
    #[arg(long, value_enum, value_name = "FORMAT", env = "NESTLING_OUTPUT_ERR")]
    pub output_err: Option<Format>,

    /// Report each run on standard error as it starts, in llama-bench's wording
    #[arg(long, env = "NESTLING_PROGRESS", value_parser = FalseyValueParser::new())]
    pub progress: bool,
}

#[derive(Debug, Subcommand)]
pub enum BenchTool {
    /// Write a store of random weights in the shape of a published model
    Synth(SynthArgs),
    /// Measure the latency and throughput of a server under load
    Serve(LoadArgs),
}

#[derive(Args, Debug)]
#[command(after_help = "Speed, memory and reads of an engine can be measured with such a store; \
its text means nothing.")]
pub struct SynthArgs {
    /// Shape of the model
    #[arg(long, value_enum, env = "NESTLING_SHAPE")]
    pub shape: ShapeArg,

    /// Store to write
    #[arg(short, long, value_name = "OUT.nest", env = "NESTLING_OUTPUT")]
    pub output: PathBuf,

    /// Number of layers, up to the number in the model [default: all layers]
    #[arg(long, value_name = "N", env = "NESTLING_LAYERS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=128))]
    pub layers: Option<u32>,

    /// Highest level of every matrix; the head has at least 6
    #[arg(long, visible_alias = "level", value_name = "BITS", default_value = "4")]
    #[arg(env = "NESTLING_TOP_LEVEL")]
    pub top_level: LevelArg,

    /// Imbalance of expert use: standard deviation of the routers' fixed biases; 0 makes all experts equally
    /// likely
    #[arg(long, value_name = "S", default_value_t = 0.5, env = "NESTLING_ROUTER_SKEW")]
    pub router_skew: f64,

    /// Seed of the weights
    #[arg(short, long, value_name = "N", default_value_t = 1, env = "NESTLING_SEED")]
    pub seed: u64,

    /// Replace the output if it exists
    #[arg(long, env = "NESTLING_FORCE", value_parser = FalseyValueParser::new())]
    pub force: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ShapeArg {
    /// OLMoE-1B-7B: 16 layers of 64 experts
    #[value(name = "olmoe-1b-7b", alias = "olmoe")]
    Olmoe,
    /// Qwen3-30B-A3B: 48 layers of 128 experts
    #[value(name = "qwen3-30b-a3b", alias = "qwen3moe")]
    Qwen3,
    /// DeepSeek-V2-Lite: 27 layers, 26 of 64 experts, latent attention
    #[value(name = "deepseek-v2-lite")]
    DeepSeekV2Lite,
    /// GLM-4.7-Flash: 47 layers, 46 of 64 experts, latent attention
    #[value(name = "glm-4.7-flash")]
    Glm47Flash,
    /// gpt-oss-20b: 24 layers of 32 experts, half of them with windows
    #[value(name = "gpt-oss-20b")]
    GptOss20b,
    /// Qwen3-Next-80B-A3B: 48 layers of 512 experts, 36 of them gated DeltaNet
    #[value(name = "qwen3-next-80b-a3b")]
    Qwen3Next,
    /// LFM2-8B-A1B: 24 layers, 22 of 32 experts, 18 of them gated short convolutions
    #[value(name = "lfm2-8b-a1b")]
    Lfm2,
    /// Granite 4 H-Tiny: 40 layers of 64 experts, 36 of them Mamba-2
    #[value(name = "granite-4.0-h-tiny")]
    Granite4HTiny,
    /// 2 layers of 16 small experts, for quick tests
    Tiny,
}

impl ShapeArg {
    pub fn shape(self) -> SyntheticShape {
        match self {
            Self::Olmoe => SyntheticShape::OLMOE_1B_7B,
            Self::Qwen3 => SyntheticShape::QWEN3_30B_A3B,
            Self::DeepSeekV2Lite => SyntheticShape::DEEPSEEK_V2_LITE,
            Self::Glm47Flash => SyntheticShape::GLM_4_7_FLASH,
            Self::GptOss20b => SyntheticShape::GPT_OSS_20B,
            Self::Qwen3Next => SyntheticShape::QWEN3_NEXT_80B_A3B,
            Self::Lfm2 => SyntheticShape::LFM2_8B_A1B,
            Self::Granite4HTiny => SyntheticShape::GRANITE_4_H_TINY,
            Self::Tiny => SyntheticShape::TINY,
        }
    }
}

/// Lengths of a prompt and of the generation after it, written as `512,128`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub prompt: u32,
    pub generated: u32,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (prompt, generated) = text.split_once(',')?;
            Some(Self { prompt: number(prompt.trim())?, generated: number(generated.trim())? })
        };
        parse().ok_or_else(|| format!("`{text}` is not two numbers, such as 512,128"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        for (text, expected) in [
            ("512", &[512][..]),
            ("128, 512", &[128, 512]),
            ("1-4", &[1, 2, 3, 4]),
            ("1-8*2", &[1, 2, 4, 8]),
            ("16-64+16,128", &[16, 32, 48, 64, 128]),
            ("4-1", &[]),
            ("0", &[0]),
        ] {
            assert_eq!(text.parse::<Numbers>().unwrap().0, expected, "{text}");
        }
        for text in ["", "-1", "a", "1-", "1-8*1", "1-8+0", "0-8*2", "+3", "1,,2", "1-9999999"] {
            assert!(text.parse::<Numbers>().is_err(), "{text}");
        }
    }

    #[test]
    fn pairs() {
        assert_eq!("512,128".parse(), Ok(Pair { prompt: 512, generated: 128 }));
        for text in ["512", "a,1", "1,2,3", ""] {
            assert!(text.parse::<Pair>().is_err(), "{text}");
        }
    }
}
