//! Arguments for the prompt and for sampling.

use clap::Args;
use nestling::SamplerKind;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Prompt")]
pub struct PromptArgs {
    /// Text to complete or to answer
    #[arg(short, long, value_name = "TEXT", env = "NESTLING_PROMPT")]
    pub prompt: Option<String>,

    /// File with the text to complete or to answer; - is standard input
    #[arg(short, long, value_name = "FILE", env = "NESTLING_FILE")]
    pub file: Option<PathBuf>,

    /// System prompt, placed before the conversation; also spelled -sys
    #[arg(long, visible_aliases = ["system", "sys"], value_name = "TEXT")]
    #[arg(env = "NESTLING_SYSTEM_PROMPT")]
    pub system_prompt: Option<String>,
}

/// Sampling parameters. Defaults come from the model's `generation_config.json`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct GenerationArgs {
    /// Maximum number of tokens to generate (-1: until end of text or context)
    #[arg(short = 'n', long, value_name = "N", env = "NESTLING_PREDICT", default_value_t = -1)]
    #[arg(visible_aliases = ["n-predict"], value_parser = predict)]
    pub predict: i64,

    /// Sampling temperature; 0 always chooses the most likely token
    #[arg(long, visible_alias = "temperature", value_name = "T", env = "NESTLING_TEMP")]
    #[arg(value_parser = number::<0, 100>)]
    pub temp: Option<f32>,

    /// Sample from the K most likely tokens; 0 disables the limit
    #[arg(long, value_name = "K", env = "NESTLING_TOP_K", value_parser = count::<u32>)]
    pub top_k: Option<u32>,

    /// Sample from the most likely tokens whose probabilities add up to P; 1 disables the limit
    #[arg(long, value_name = "P", env = "NESTLING_TOP_P", value_parser = number::<0, 1>)]
    pub top_p: Option<f32>,

    /// Exclude tokens less likely than P times the most likely one; 0 disables the limit
    #[arg(long, value_name = "P", env = "NESTLING_MIN_P", value_parser = number::<0, 1>)]
    pub min_p: Option<f32>,

    /// Divide the logits of tokens that occurred in the context by X; 1 disables the penalty
    #[arg(long, value_name = "X", env = "NESTLING_REPEAT_PENALTY", value_parser = number::<0, 100>)]
    pub repeat_penalty: Option<f32>,

    /// Subtract X from the logits of tokens that were generated before; 0 disables the penalty
    #[arg(long, value_name = "X", env = "NESTLING_PRESENCE_PENALTY")]
    #[arg(value_parser = number::<-100, 100>)]
    pub presence_penalty: Option<f32>,

    /// Subtract X from the logit of a token for each time that it was generated; 0 disables the penalty
    #[arg(long, value_name = "X", env = "NESTLING_FREQUENCY_PENALTY")]
    #[arg(value_parser = number::<-100, 100>)]
    pub frequency_penalty: Option<f32>,

    /// Sample from the tokens whose surprise is closest to the entropy, up to probability P; 1 disables it
    #[arg(long, visible_alias = "typical-p", value_name = "P", env = "NESTLING_TYPICAL")]
    #[arg(value_parser = number::<0, 1>)]
    pub typical: Option<f32>,

    /// Exclude tokens more than N standard deviations below the best logit; 0 or less disables the limit
    #[arg(long, visible_alias = "top-n-sigma", value_name = "N", env = "NESTLING_TOP_NSIGMA")]
    #[arg(value_parser = number::<-1, 100>, allow_negative_numbers = true)]
    pub top_nsigma: Option<f32>,

    /// Probability of excluding the most likely tokens (XTC); 0 disables it
    #[arg(long, value_name = "P", env = "NESTLING_XTC_PROBABILITY", value_parser = number::<0, 1>)]
    pub xtc_probability: Option<f32>,

    /// Minimum probability of the tokens that XTC excludes [default: 0.1; above 0.5 disables it]
    #[arg(long, value_name = "P", env = "NESTLING_XTC_THRESHOLD", value_parser = number::<0, 1>)]
    pub xtc_threshold: Option<f32>,

    /// Factor of the DRY penalty of repeated sequences; 0 disables it
    #[arg(long, value_name = "X", env = "NESTLING_DRY_MULTIPLIER", value_parser = number::<0, 100>)]
    pub dry_multiplier: Option<f32>,

    /// Base of the DRY penalty [default: 1.75; below 1 disables it]
    #[arg(long, value_name = "X", env = "NESTLING_DRY_BASE", value_parser = number::<0, 100>)]
    pub dry_base: Option<f32>,

    /// Length in tokens of a repetition that DRY penalizes [default: 2]
    #[arg(long, value_name = "N", env = "NESTLING_DRY_ALLOWED_LENGTH", value_parser = count::<u32>)]
    pub dry_allowed_length: Option<u32>,

    /// Number of latest tokens that DRY scans; 0 disables it [default: -1, all]
    #[arg(long, value_name = "N", env = "NESTLING_DRY_PENALTY_LAST_N", value_parser = window)]
    #[arg(allow_negative_numbers = true)]
    pub dry_penalty_last_n: Option<i32>,

    /// Text that ends a repetition for DRY instead of the defaults, or none; may be repeated
    #[arg(long, value_name = "TEXT", env = "NESTLING_DRY_SEQUENCE_BREAKER")]
    pub dry_sequence_breaker: Vec<String>,

    /// Version of mirostat: 0 disables it, 2 replaces all samplers but the temperature
    #[arg(long, value_name = "N", env = "NESTLING_MIROSTAT", value_parser = mirostat)]
    pub mirostat: Option<u32>,

    /// Learning rate of mirostat [default: 0.1]
    #[arg(long, value_name = "X", env = "NESTLING_MIROSTAT_LR", value_parser = number::<0, 100>)]
    pub mirostat_lr: Option<f32>,

    /// Target surprise of mirostat in bits [default: 5]
    #[arg(long, value_name = "X", env = "NESTLING_MIROSTAT_ENT", value_parser = number::<0, 100>)]
    pub mirostat_ent: Option<f32>,

    /// Maximum distance of the dynamic temperature from --temp; 0 disables it
    #[arg(long, value_name = "X", env = "NESTLING_DYNATEMP_RANGE", value_parser = number::<0, 100>)]
    pub dynatemp_range: Option<f32>,

    /// Exponent of the entropy in the dynamic temperature [default: 1]
    #[arg(long, value_name = "X", env = "NESTLING_DYNATEMP_EXP", value_parser = number::<0, 100>)]
    pub dynatemp_exp: Option<f32>,

    /// Number of latest tokens that the penalties count; 0 disables them [default: -1, all]
    #[arg(long, value_name = "N", env = "NESTLING_REPEAT_LAST_N", value_parser = window)]
    #[arg(allow_negative_numbers = true)]
    pub repeat_last_n: Option<i32>,

    /// Samplers in their order, such as "penalties;top_k;temperature"
    #[arg(long, value_name = "NAMES", env = "NESTLING_SAMPLERS", value_parser = samplers)]
    pub samplers: Option<SamplerOrder>,

    /// Seed of the sampler; the same seed gives the same text [default: random]
    #[arg(short, long, value_name = "N", env = "NESTLING_SEED", value_parser = count::<u64>)]
    pub seed: Option<u64>,

    /// Bias added to the logit of a token, such as 42+1.5 or 42-inf; may be repeated
    #[arg(
        short = 'l',
        long,
        value_name = "ID±X",
        env = "NESTLING_LOGIT_BIAS",
        value_delimiter = ','
    )]
    pub logit_bias: Vec<LogitBias>,

    /// Stop sequence that ends the generation; may be repeated
    #[arg(long, visible_alias = "reverse-prompt", value_name = "TEXT", env = "NESTLING_STOP")]
    #[arg(value_parser = stop_string)]
    pub stop: Vec<String>,
}

/// Parses a finite number in `LOW..=HIGH`.
fn number<const LOW: i32, const HIGH: i32>(text: &str) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (LOW as f32..=HIGH as f32).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{text} is not from {LOW} to {HIGH}"))
    }
}

/// Samplers in the order of their application.
#[derive(Clone, Debug, PartialEq)]
pub struct SamplerOrder(pub Vec<SamplerKind>);

/// Parses names of samplers, separated by semicolons.
fn samplers(text: &str) -> Result<SamplerOrder, String> {
    SamplerKind::parse_list(text).map(SamplerOrder).map_err(|error| error.to_string())
}

/// Parses a version of mirostat.
fn mirostat(text: &str) -> Result<u32, String> {
    match text {
        "0" => Ok(0),
        "2" => Ok(2),
        "1" => Err("mirostat 1 is not supported; use 2".into()),
        _ => Err(format!("`{text}` is not a version of mirostat; use 0 or 2")),
    }
}

/// Parses a number of tokens, or -1 for all.
fn window(text: &str) -> Result<i32, String> {
    let tokens = text.parse().ok().filter(|tokens| *tokens >= -1);
    tokens.ok_or_else(|| format!("`{text}` is not -1 or a count"))
}

/// Parses a non-negative integer.
pub fn count<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a count"))
}

/// Parses a maximum number of tokens, or -1 for no limit.
fn predict(text: &str) -> Result<i64, String> {
    let known = text.parse().ok().filter(|tokens| (-1..=i64::from(u32::MAX)).contains(tokens));
    known.ok_or_else(|| "-n takes -1 or a count, such as 128".into())
}

/// Maximum length of a stop sequence in bytes.
const STOP_BYTES_MAX: usize = 4096;

/// Parses a stop sequence.
pub fn stop_string(text: &str) -> Result<String, String> {
    match text.len() {
        1..=STOP_BYTES_MAX => Ok(text.into()),
        bytes => Err(format!("a stop string has from 1 to {STOP_BYTES_MAX} bytes, not {bytes}")),
    }
}

/// A bias on the logit of one token, written as `42+1.5` or `42-inf`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitBias {
    pub token: u32,
    pub bias: f32,
}

impl FromStr for LogitBias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let sign = text.find(['+', '-'])?;
            let (token, bias) = text.split_at(sign);
            let (token, bias) = (token.parse().ok()?, bias.parse::<f32>().ok()?);
            (!bias.is_nan()).then_some(Self { token, bias })
        };
        parse().ok_or_else(|| format!("`{text}` is not a token id and a bias, such as 42-1.5"))
    }
}
