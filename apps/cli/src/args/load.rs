//! Arguments of `nestling bench serve`: the server, the requests and their arrival times.

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
    /// Base URL of the server, without /v1
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", env = "NESTLING_URL")]
    pub url: String,

    /// Name of the model at the server [default: the first listed model]
    #[arg(long, value_name = "NAME", env = "NESTLING_SERVED_MODEL")]
    pub served_model: Option<String>,

    /// File with the server's API key in its first line
    #[arg(long, value_name = "FILE", env = "NESTLING_CLIENT_KEY_FILE")]
    pub client_key_file: Option<PathBuf>,

    #[command(flatten)]
    pub work: WorkArgs,

    /// Percentiles of the latencies to report
    #[arg(long, value_name = "LIST", default_value = "50,90,95,99", env = "NESTLING_PERCENTILES")]
    #[arg(value_delimiter = ',', value_parser = clap::value_parser!(u8).range(1..=99))]
    pub percentiles: Vec<u8>,

    /// Service-level objective that a request must meet to count towards goodput, such as ttft:500, tpot:50
    /// or e2el:5000, in milliseconds; may be repeated
    #[arg(long, value_name = "TIME:MS", env = "NESTLING_GOODPUT", value_delimiter = ',')]
    pub goodput: Vec<Objective>,

    /// Format of the results on standard output
    #[arg(short = 'o', long, visible_alias = "output", value_enum, value_name = "FORMAT")]
    #[arg(default_value_t = Format::Md, env = "NESTLING_OUTPUT_FORMAT")]
    pub output_format: Format,

    /// Plot time to first token and gaps between tokens over the load into this file
    #[arg(long, value_name = "FILE.svg", env = "NESTLING_SVG")]
    pub svg: Option<PathBuf>,
}

/// Number, rate and shape of the requests.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Requests")]
pub struct WorkArgs {
    /// Number of requests for each load level
    #[arg(long, value_name = "N", default_value_t = 64, env = "NESTLING_NUM_PROMPTS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub num_prompts: u32,

    /// Maximum number of concurrent requests; each entry of a list is measured [default: 1, or 256 with
    /// --request-rate]
    #[arg(long, value_name = "LIST", env = "NESTLING_MAX_CONCURRENCY")]
    pub max_concurrency: Option<Numbers>,

    /// Request rate per second, with random arrival times; each entry of a list is measured [default:
    /// unlimited]
    #[arg(long, value_name = "LIST", env = "NESTLING_REQUEST_RATE", value_delimiter = ',')]
    pub request_rate: Vec<Rate>,

    /// Prompt length in tokens without the shared prefix: 512, a range 200-2000, or a list of both, drawn
    /// uniformly
    #[arg(long, value_name = "LIST", default_value = "512", env = "NESTLING_INPUT_LEN")]
    #[arg(value_delimiter = ',')]
    pub input_len: Vec<Lengths>,

    /// Number of output tokens of a request
    #[arg(long, value_name = "N", default_value_t = 64, env = "NESTLING_OUTPUT_LEN")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub output_len: u32,

    /// Length of the shared prefix in tokens
    #[arg(long, value_name = "N", default_value_t = 0, env = "NESTLING_PREFIX_LEN")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub prefix_len: u32,

    /// Number of different shared prefixes
    #[arg(long, value_name = "N", default_value_t = 1, env = "NESTLING_NUM_PREFIXES")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub num_prefixes: u32,

    /// Upper bound (exclusive) of random token ids [default: the vocabulary size that the server reports]
    #[arg(long, value_name = "N", env = "NESTLING_VOCAB_SIZE")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub vocab_size: Option<u32>,

    /// Seed of prompts and arrival times
    #[arg(short, long, value_name = "N", default_value_t = 1, env = "NESTLING_SEED")]
    pub seed: u64,
}

/// A range of prompt lengths in tokens, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    pub least: u32,
    pub most: u32,
}

/// Maximum prompt length in tokens.
const LENGTH_MAX: u32 = 1_000_000;

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| text.parse().ok().filter(|n| (1..=LENGTH_MAX).contains(n));
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        match (number(least), number(most)) {
            (Some(least), Some(most)) if least <= most => Ok(Self { least, most }),
            _ => Err(format!(
                "`{text}` is neither a number of tokens such as 512 nor a range such as 200-2000"
            )),
        }
    }
}

/// Requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate(pub f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rate = text.parse().ok().filter(|rate| (0.0001..=100_000.0).contains(rate));
        rate.map(Self)
            .ok_or_else(|| format!("`{text}` is not a number of requests per second such as 0.5"))
    }
}

/// A latency that an objective can bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Time to the first token.
    FirstToken,
    /// Mean time per token after the first.
    EachToken,
    /// Time to the end of the response.
    Whole,
}

/// A service-level objective of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    pub time: Time,
    /// Upper bound in seconds.
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
        parse().ok_or_else(|| {
            format!("`{text}` is not a bound such as ttft:500, tpot:50 or e2el:5000")
        })
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
