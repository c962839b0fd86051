//! Arguments of `nestling plan`.

use super::{
    DeviceArgs, ExpertDivisionArgs, HubArgs, KvDivisionArgs, KvTypeArg, LevelArg,
    MachineFormatArgs, SpeedArgs,
};
use crate::bytes::ByteSize;
use clap::Args;
use nestling::ranks::RANKS_MAX;
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(
    after_help = "Nothing is loaded: the plan is computed from the store's index, from how often its \
experts are used (measured at conversion, assumed otherwise), and from how fast this machine reads \
memory and disk, which is measured first. `run --stats` compares the forecast with the run.
With -hf, and for a model that is not a store yet, configuration and headers suffice: a few range \
requests show the download, the disk and memory that it needs, and its speed.

Examples:
  nestling plan -hf Qwen/Qwen3-30B-A3B --memory 12GiB
  nestling plan -hf owner/model-GGUF:Q4_K_M
  nestling plan qwen3.nest --memory 6GiB
  nestling plan qwen3.nest --memory 6GiB --wanted-speed 10
  nestling plan qwen3.nest --memory 6GiB --trace chat.trace
  nestling plan qwen3.nest --memory 6GiB --ranks 4 --topology 10gbe
  nestling plan qwen3.nest --memory 16GiB --disk-speed 6GB --memory-speed 80GB --json"
)]
pub struct PlanArgs {
    /// Store, GGUF file or Hugging Face checkpoint folder to plan for
    #[arg(value_name = "MODEL")]
    pub path: Option<PathBuf>,

    /// Store, GGUF file or Hugging Face checkpoint folder to plan for [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    /// Memory for weights, context and scratch, such as 6GiB [default: free memory less a margin]
    #[arg(long, value_name = "SIZE", env = "NESTLING_MEMORY")]
    pub memory: Option<ByteSize>,

    /// Bits of every weight to use: 2, 3, 4, 6 or 8 [default: all bits in the store]
    #[arg(long, value_name = "BITS", env = "NESTLING_LEVEL")]
    pub level: Option<LevelArg>,

    /// Mean bits of the experts, such as 3.2, under dual routing
    #[arg(long, value_name = "BITS", env = "NESTLING_MEAN_LEVEL", value_parser = positive)]
    pub mean_level: Option<f64>,

    /// Context length in tokens [default: the length that a model with this budget is opened with]
    #[arg(short, long, visible_alias = "context", value_name = "N", env = "NESTLING_CTX_SIZE")]
    pub ctx_size: Option<u32>,

    /// Number type of the KV cache
    #[arg(long, value_enum, default_value_t = KvTypeArg::F16, env = "NESTLING_KV_TYPE")]
    pub kv_type: KvTypeArg,

    /// Target speed in tokens per second; the report shows the level or the memory that reaches it
    #[arg(long, value_name = "T/S", env = "NESTLING_WANTED_SPEED", value_parser = positive)]
    pub wanted_speed: Option<f64>,

    /// Number of ranks to divide the model over. Each has the memory of --memory and the speed of this machine
    #[arg(long, value_name = "N", env = "NESTLING_RANKS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX as i64))]
    pub ranks: Option<u32>,

    #[command(flatten)]
    pub experts: ExpertDivisionArgs,

    #[command(flatten)]
    pub kv: KvDivisionArgs,

    /// Links between ranks: nvlink, pcie, 100gbe, 10gbe, or a JSON file [default: each of the four]
    #[arg(long, value_name = "NAME|FILE", env = "NESTLING_TOPOLOGY")]
    pub topology: Option<String>,

    /// Routing trace written by `--record-trace`, to simulate the expert cache at this budget
    #[arg(long, value_name = "FILE", env = "NESTLING_TRACE")]
    pub trace: Option<PathBuf>,

    #[command(flatten)]
    pub device: DeviceArgs,

    #[command(flatten)]
    pub machine: SpeedArgs,

    #[command(flatten)]
    pub format: MachineFormatArgs,
}

fn positive(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok().filter(|x: &f64| x.is_finite() && *x > 0.0);
    number.ok_or_else(|| format!("`{text}` is not a number above 0"))
}
