//! What is kept of a run besides its text.

use clap::Args;
use clap::builder::FalseyValueParser;
use std::path::PathBuf;

#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Observation")]
pub struct ObserveArgs {
    /// Write when the model computed, waited and read into this file, for ui.perfetto.dev or
    /// about:tracing
    #[arg(long, value_name = "FILE", env = "NESTLING_TIMELINE")]
    pub timeline: Option<PathBuf>,

    /// Write which experts every token was sent to into this file, for `plan --trace`
    #[arg(long, value_name = "FILE", env = "NESTLING_RECORD_TRACE")]
    pub record_trace: Option<PathBuf>,
}

/// The same of a completion, and what it cost.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Observation")]
pub struct StatsArgs {
    #[command(flatten)]
    pub observe: ObserveArgs,

    /// Print what was forecast beside what came of it
    #[arg(long, env = "NESTLING_STATS", value_parser = FalseyValueParser::new())]
    pub stats: bool,

    /// Write that, and what every token cost, as JSON into this file; - is standard output, after
    /// the text
    #[arg(long, value_name = "FILE", env = "NESTLING_STATS_JSON")]
    pub stats_json: Option<PathBuf>,
}

impl StatsArgs {
    pub fn is_wanted(&self) -> bool {
        self.stats || self.stats_json.is_some()
    }
}
