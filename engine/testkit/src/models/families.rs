//! Tiny checkpoints of all families, compared between the device and the CPU.
//!
//! Weights are floats, so that results only differ by the rounding of sums. The CPU's routing is replayed, so
//! that near ties of a router have no effect.

use std::sync::Arc;

use nestling_core::EngineError;
use nestling_core::backend::Backend;
use nestling_core::cancel::CancelToken;
use nestling_core::runner::ModelRunner;
use nestling_cpu::Cpu;
use nestling_experts::expert::{CheckpointSource, ExpertSource};
use nestling_runtime::model::{Runner, RunnerOptions};

use super::common::{family, recorded, replayed, step};
use crate::{ModelsDevice, Test, note, tests};

/// Defines a case for each folder of `engine/runtime/tests/data/families`.
macro_rules! families {
    ($($case:ident: $folder:literal,)*) => {
        $(fn $case<D: ModelsDevice>() {
            has_the_logits_of_the_cpu::<D>($folder);
        })*

        pub fn suite<D: ModelsDevice>() -> Vec<Test> {
            tests![$($case::<D>,)*]
        }
    };
}

families! {
    afmoe: "afmoe",
    bailing_moe_v2: "bailing-moe-v2",
    deepseek_v2: "deepseek-v2",
    deepseek_v2_lite: "deepseek-v2-lite",
    deepseek_v3: "deepseek-v3",
    deepseek_v32: "deepseek-v32",
    dots1: "dots1",
    ernie4_5_moe: "ernie4-5-moe",
    exaone_moe: "exaone-moe",
    gemma3: "gemma3",
    gemma4: "gemma4",
    glm4_moe: "glm4-moe",
    glm4_moe_lite: "glm4-moe-lite",
    glm_moe_dsa: "glm-moe-dsa",
    gpt_oss: "gpt-oss",
    gpt_oss_bf16: "gpt-oss-bf16",
    granite: "granite",
    granite_moe: "granite-moe",
    granite_moe_bias: "granite-moe-bias",
    granite_moe_hybrid: "granite-moe-hybrid",
    granite_moe_hybrid_dense: "granite-moe-hybrid-dense",
    nemotron_h: "nemotron-h",
    nemotron_h_dense: "nemotron-h-dense",
    granite_moe_shared: "granite-moe-shared",
    kimi_k2: "kimi-k2",
    hunyuan_v1_moe: "hunyuan-v1-moe",
    laguna: "laguna",
    lfm2: "lfm2",
    lfm2_moe: "lfm2-moe",
    lfm2_moe_bias: "lfm2-moe-bias",
    llama: "llama",
    llama_bias: "llama-bias",
    minimax_m2: "minimax-m2",
    mistral: "mistral",
    mixtral: "mixtral",
    olmoe: "olmoe",
    qwen2: "qwen2",
    qwen2_moe: "qwen2-moe",
    qwen3: "qwen3",
    qwen3_5_moe: "qwen3-5-moe",
    qwen3_next: "qwen3-next",
    qwen3_next_bias: "qwen3-next-bias",
    qwen3_omni_moe: "qwen3-omni-moe",
    qwen3_vl_moe: "qwen3-vl-moe",
    solar_open: "solar-open",
}

/// Rows of a chunk in the second computation, which reads pages and states left by earlier chunks.
const PIECE: usize = 23;

/// Maximum difference of a logit, relative to the largest logit. Each of at most four layers adds about ten
/// sums of at most 128 products, each off by at most 128 / 16 + 6 roundings of 2^-24. Norms and the states of
/// gated DeltaNet amplify that about ten times.
pub const TOLERANCE: f32 = 4.0 * 10.0 * 14.0 * 10.0 / (1 << 24) as f32;

fn load<B: Backend>(
    backend: B,
    source: &Arc<dyn ExpertSource>,
    rows_max: usize,
) -> Result<Runner<B>, EngineError> {
    let options = RunnerOptions { rows_max, kv_pages: Some(4), ..RunnerOptions::default() };
    Runner::load(backend, Arc::clone(source), &options, &CancelToken::new(), &mut |_, _| {})
}

fn has_the_logits_of_the_cpu<D: ModelsDevice>(name: &str) {
    let device = D::device();
    let source: Arc<dyn ExpertSource> = Arc::new(CheckpointSource::new(family(name)));
    let mut found = load(device, &source, D::family_tokens()).unwrap();
    let vocabulary = source.config().vocab_size as u32;
    let tokens: Vec<u32> =
        (0..D::family_tokens() as u32).map(|at| at * 7919 % vocabulary).collect();
    let mut cpu = load(Cpu::new(2), &source, D::family_tokens()).unwrap();
    let (expected, routing) = recorded(&mut cpu, (0, &tokens));
    let largest = expected.iter().fold(0.0, |most: f32, logit| most.max(logit.abs()));
    let whole = replayed(&mut found, (0, &tokens), routing);
    let off = whole.iter().zip(&expected).fold(0.0, |most: f32, (a, b)| most.max((a - b).abs()));
    note!("{name}: off by {off:e}, logits up to {largest}");
    assert!(off <= TOLERANCE * largest, "{name}: {off} of {largest}");
    // The device's own routing gives equal results in chunks and as a whole.
    let [own, pieces] = [tokens.len(), PIECE].map(|piece| in_pieces(&mut found, &tokens, piece));
    assert!(own == pieces, "{name}: in pieces of {PIECE}");
}

/// Returns the logits after the last token of each chunk of [`PIECE`] rows, computed `piece` rows at a time.
fn in_pieces(runner: &mut dyn ModelRunner, tokens: &[u32], piece: usize) -> Vec<f32> {
    let mut logits = Vec::new();
    for (index, part) in tokens.chunks(piece).enumerate() {
        let first = index * piece;
        let wants = |at: usize| (first + at) % PIECE == PIECE - 1;
        logits.extend(step(runner, (first, part), wants).logits);
    }
    logits
}

/// Cases that are slow without a real device. Their operations are covered by other families and by the CPU's
/// tests of all families.
pub const SLOW: &[&str] = &[
    "families::afmoe",
    "families::bailing_moe_v2",
    "families::deepseek_v2",
    "families::deepseek_v2_lite",
    "families::deepseek_v32",
    "families::dots1",
    "families::ernie4_5_moe",
    "families::exaone_moe",
    "families::glm4_moe",
    "families::glm4_moe_lite",
    "families::glm_moe_dsa",
    "families::gpt_oss_bf16",
    "families::granite_moe_bias",
    "families::granite_moe_shared",
    "families::kimi_k2",
    "families::minimax_m2",
    "families::mixtral",
    "families::olmoe",
    "families::qwen2_moe",
    "families::qwen3_5_moe",
    "families::qwen3_next_bias",
    "families::qwen3_omni_moe",
    "families::qwen3_vl_moe",
    "families::solar_open",
];
