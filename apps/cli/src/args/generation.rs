//! Arguments for the prompt and for sampling.

use clap::Args;
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
