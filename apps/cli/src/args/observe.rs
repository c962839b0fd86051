//! Arguments that record a run: timelines, routing traces and statistics.

use clap::Args;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Observation")]
pub struct ObserveArgs {
    /// Write a timeline of computation, waits and reads to this file, for ui.perfetto.dev or about:tracing
    #[arg(long, value_name = "FILE", env = "NESTLING_TIMELINE")]
    pub timeline: Option<PathBuf>,

    /// Write a routing trace, the experts chosen for every token, to this file, for `plan --trace`
    #[arg(long, value_name = "FILE", env = "NESTLING_RECORD_TRACE")]
    pub record_trace: Option<PathBuf>,
}

/// Recordings and statistics of a completion.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Observation")]
pub struct StatsArgs {
    #[command(flatten)]
    pub observe: ObserveArgs,

    /// Print the predicted speed next to the measured one
    #[arg(long, env = "NESTLING_STATS", value_parser = FalseyValueParser::new())]
    pub stats: bool,

    /// Write the statistics, including the cost of every token, as JSON to this file; - is standard output,
    /// after the text
    #[arg(long, value_name = "FILE", env = "NESTLING_STATS_JSON")]
    pub stats_json: Option<PathBuf>,
}

impl StatsArgs {
    pub fn is_wanted(&self) -> bool {
        self.stats || self.stats_json.is_some()
    }
}
