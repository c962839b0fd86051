//! The prompt and how tokens are chosen.

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

    /// What the model is told before the conversation; also spelled -sys
    #[arg(long, visible_aliases = ["system", "sys"], value_name = "TEXT")]
    #[arg(env = "NESTLING_SYSTEM_PROMPT")]
    pub system_prompt: Option<String>,
}

/// Sampling. What is not given comes from the model's own `generation_config.json`.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Sampling")]
pub struct GenerationArgs {
    /// Most tokens to generate; -1 means until the model ends or the context is full
    #[arg(short = 'n', long, value_name = "N", env = "NESTLING_PREDICT", default_value_t = -1)]
    #[arg(visible_aliases = ["n-predict"], value_parser = predict)]
    pub predict: i64,

    /// Temperature; 0 always takes the likeliest token
    #[arg(long, visible_alias = "temperature", value_name = "T", env = "NESTLING_TEMP")]
    #[arg(value_parser = number::<0, 100>)]
    pub temp: Option<f32>,

    /// Choose among the K likeliest tokens; 0 is off
    #[arg(long, value_name = "K", env = "NESTLING_TOP_K", value_parser = count::<u32>)]
    pub top_k: Option<u32>,

    /// Choose among the likeliest tokens that together have probability P; 1 is off
    #[arg(long, value_name = "P", env = "NESTLING_TOP_P", value_parser = number::<0, 1>)]
    pub top_p: Option<f32>,

    /// Drop tokens less likely than P times the likeliest; 0 is off
    #[arg(long, value_name = "P", env = "NESTLING_MIN_P", value_parser = number::<0, 1>)]
    pub min_p: Option<f32>,

    /// Divide the score of tokens that were used; 1 is off
    #[arg(long, value_name = "X", env = "NESTLING_REPEAT_PENALTY", value_parser = number::<0, 100>)]
    pub repeat_penalty: Option<f32>,

    /// Lower the score of tokens that were generated at all; 0 is off
    #[arg(long, value_name = "X", env = "NESTLING_PRESENCE_PENALTY")]
    #[arg(value_parser = number::<-100, 100>)]
    pub presence_penalty: Option<f32>,

    /// Lower the score of tokens by how often they were generated; 0 is off
    #[arg(long, value_name = "X", env = "NESTLING_FREQUENCY_PENALTY")]
    #[arg(value_parser = number::<-100, 100>)]
    pub frequency_penalty: Option<f32>,

    /// Seed of the random choices; the same seed gives the same text [default: a new one each time]
    #[arg(short, long, value_name = "N", env = "NESTLING_SEED", value_parser = count::<u64>)]
    pub seed: Option<u64>,

    /// Raise or lower the score of a token, such as 42+1.5 or 42-inf; may be given several times
    #[arg(
        short = 'l',
        long,
        value_name = "ID±X",
        env = "NESTLING_LOGIT_BIAS",
        value_delimiter = ','
    )]
    pub logit_bias: Vec<LogitBias>,

    /// End when the text contains this; may be given several times
    #[arg(long, visible_alias = "reverse-prompt", value_name = "TEXT", env = "NESTLING_STOP")]
    #[arg(value_parser = stop_string)]
    pub stop: Vec<String>,
}

/// A finite number from `LOW` to `HIGH`.
fn number<const LOW: i32, const HIGH: i32>(text: &str) -> Result<f32, String> {
    let value: f32 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    if (LOW as f32..=HIGH as f32).contains(&value) {
        Ok(value)
    } else {
        Err(format!("{text} is not from {LOW} to {HIGH}"))
    }
}

/// A whole number from 0.
pub fn count<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is not a count"))
}

/// Tokens to generate; -1 for as many as come.
fn predict(text: &str) -> Result<i64, String> {
    let known = text.parse().ok().filter(|tokens| (-1..=i64::from(u32::MAX)).contains(tokens));
    known.ok_or_else(|| "-n takes -1 or a count, such as 128".into())
}

/// Most bytes of a stop string.
const STOP_BYTES_MAX: usize = 4096;

/// A text that ends a reply.
pub fn stop_string(text: &str) -> Result<String, String> {
    match text.len() {
        1..=STOP_BYTES_MAX => Ok(text.into()),
        bytes => Err(format!("a stop string has from 1 to {STOP_BYTES_MAX} bytes, not {bytes}")),
    }
}

/// `42+1.5` or `42-inf`: what to add to one token's score.
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
