//! `nestling bench serve`: what is asked of a server, and when.

use super::lists::{Format, Numbers};
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

const AFTER_HELP: &str = "\
Prompts are random tokens, sent as token ids to /v1/completions with temperature 0 and without an end, so that any two
servers are asked the same. With --max-concurrency that many clients each ask again as soon as they are answered; with
--request-rate requests come at random times, as of many clients who know nothing of each other. Names of figures are
those of `vllm bench serve`.

Examples:
  nestling bench serve --max-concurrency 1,4,16 --input-len 200-2000 --output-len 64
  nestling bench serve --request-rate 0.5,1,2 --input-len 128,4000 --goodput ttft:2000 --goodput tpot:100
  nestling bench serve --url http://127.0.0.1:8081 --prefix-len 3000 --svg load.svg -o json";

#[derive(Args, Debug)]
#[command(after_help = AFTER_HELP)]
pub struct LoadArgs {
    /// Where the server is, without /v1
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", env = "NESTLING_URL")]
    pub url: String,

    /// What the server calls the model [default: the first that it lists]
    #[arg(long, value_name = "NAME", env = "NESTLING_SERVED_MODEL")]
    pub served_model: Option<String>,

    /// File with the server's key in its first line
    #[arg(long, value_name = "FILE", env = "NESTLING_CLIENT_KEY_FILE")]
    pub client_key_file: Option<PathBuf>,

    #[command(flatten)]
    pub work: WorkArgs,

    /// Percentiles of times
    #[arg(long, value_name = "LIST", default_value = "50,90,95,99", env = "NESTLING_PERCENTILES")]
    #[arg(value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=99))]
    pub percentiles: Vec<u8>,

    /// What a request must keep to be counted in goodput, such as ttft:500, tpot:50 or e2el:5000, in milliseconds; may
    /// be repeated
    #[arg(long, value_name = "TIME:MS", env = "NESTLING_GOODPUT", value_delimiter = ',')]
    pub goodput: Vec<Objective>,

    /// Format of the results on standard output
    #[arg(short = 'o', long, visible_alias = "output", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t = Format::Md, env = "NESTLING_OUTPUT_FORMAT")]
    pub output_format: Format,

    /// Draw first tokens and gaps over the load
    #[arg(long, value_name = "FILE.svg", env = "NESTLING_SVG")]
    pub svg: Option<PathBuf>,
}

/// What is asked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct WorkArgs {
    /// Requests for each load that is measured
    #[arg(long, value_name = "N", default_value_t = 64, env = "NESTLING_NUM_PROMPTS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub num_prompts: u32,

    /// Requests under way at a time; each of a list is measured [default: 1, or 256 with --request-rate]
    #[arg(long, value_name = "LIST", env = "NESTLING_MAX_CONCURRENCY")]
    pub max_concurrency: Option<Numbers>,

    /// Requests a second, at random times; each of a list is measured [default: as fast as they are answered]
    #[arg(long, value_name = "LIST", env = "NESTLING_REQUEST_RATE", value_delimiter = ',')]
    pub request_rate: Vec<Rate>,

    /// Tokens of a prompt besides a shared prefix: 512, a range 200-2000, or a list of both, drawn evenly
    #[arg(long, value_name = "LIST", default_value = "512", env = "NESTLING_INPUT_LEN")]
    #[arg(value_delimiter = ',')]
    pub input_len: Vec<Lengths>,

    /// Tokens of an answer
    #[arg(long, value_name = "N", default_value_t = 64, env = "NESTLING_OUTPUT_LEN")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub output_len: u32,

    /// Tokens that prompts begin with in common
    #[arg(long, value_name = "N", default_value_t = 0, env = "NESTLING_PREFIX_LEN")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub prefix_len: u32,

    /// Different such beginnings
    #[arg(long, value_name = "N", default_value_t = 1, env = "NESTLING_NUM_PREFIXES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub num_prefixes: u32,

    /// Tokens are drawn below this id [default: the vocabulary that the server tells]
    #[arg(long, value_name = "N", env = "NESTLING_VOCAB_SIZE")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub vocab_size: Option<u32>,

    /// Seed of prompts and times
    #[arg(short, long, value_name = "N", default_value_t = 1, env = "NESTLING_SEED")]
    pub seed: u64,
}

/// Tokens of a prompt, from the least to the most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    pub least: u32,
    pub most: u32,
}

/// Most tokens of a prompt that can be asked for.
const LENGTH_MAX: u32 = 1_000_000;

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|n| (1..=LENGTH_MAX).contains(n));
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        match (number(least), number(most)) {
            (Some(least), Some(most)) if least <= most => Ok(Self { least, most }),
            _ => Err(format!(
                "`{text}` is no number of tokens such as 512, and no range such as 200-2000"
            )),
        }
    }
}

/// Requests a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = text.parse().ok().filter(|rate| (0.0001..=100_000.0).contains(rate));
        rate.map(Self)
            .ok_or_else(|| format!("`{text}` is no number of requests a second, such as 0.5"))
    }
}

/// A time of a request that has a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// To the first token.
    FirstToken,
    /// For each token after the first, on average.
    EachToken,
    /// To the end of the answer.
    Whole,
}

/// What a request must keep to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    pub time: Time,
    /// Seconds.
    pub most: f64,
}

impl FromStr for Objective {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = || {
            let (name, most) = text.split_once(':')?;
            let time = match name {
                "ttft" => Time::FirstToken,
                "tpot" => Time::EachToken,
                "e2el" => Time::Whole,
                _ => return None,
            };
            let most = most.parse::<f64>().ok().filter(|most| most.is_finite() && *most > 0.0)?;
            Some(Self { time, most: most / 1e3 })
        };
        parse()
            .ok_or_else(|| format!("`{text}` is no bound such as ttft:500, tpot:50 or e2el:5000"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Lengths, Objective, Rate, Time};

    #[test]
    fn bounds_lengths_and_rates_are_read() {
        assert_eq!("512".parse(), Ok(Lengths { least: 512, most: 512 }));
        assert_eq!("200-2000".parse(), Ok(Lengths { least: 200, most: 2000 }));
        for wrong in ["", "0", "-5", "9-3", "5-", "1000001", "x"] {
            assert!(wrong.parse::<Lengths>().is_err(), "{wrong}");
        }
        assert_eq!("0.5".parse(), Ok(Rate(0.5)));
        for wrong in ["", "0", "-1", "inf", "nan", "1e9"] {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
        assert_eq!("tpot:50".parse(), Ok(Objective { time: Time::EachToken, most: 0.05 }));
        for wrong in ["", "ttft", "ttft:", "itl:5", "ttft:0", "ttft:-1", "e2el:inf"] {
            assert!(wrong.parse::<Objective>().is_err(), "{wrong}");
        }
    }
}
