//! The command line: every flag, its environment variable and its help text.

mod bench;
mod cache;
mod device;
mod form;
mod generation;
mod hub;
mod level;
mod lists;
mod load;
mod machine;
mod mistakes;
mod model;
mod observe;
mod planning;
mod precedence;
mod quantizer;
mod serve;
mod tools;

pub use bench::{BenchArgs, BenchTool, FormatArgs, RunningArgs, SynthArgs};
pub use cache::{GcArgs, ListArgs, PullArgs, RmArgs};
pub use device::{DeviceArgs, DevicesArgs, HostExpertsArgs};
pub use form::FormArgs;
pub use generation::{GenerationArgs, PromptArgs, SamplerOrder, stop_string};
pub use hub::{HubArgs, UpgradeArgs};
pub use level::{LevelArg, MeanLevelArg};
pub use lists::{Format, Numbers};
pub use load::{Lengths, LoadArgs, Objective, Time, WorkArgs};
pub use machine::{DoctorArgs, MachineFormatArgs, SpeedArgs};
pub use model::{
    ExpertDivisionArgs, KvDivisionArgs, KvTypeArg, LoadModeArg, ModelArgs, RanksArg, ResourceArgs,
};
pub use observe::{ObserveArgs, StatsArgs};
pub use planning::PlanArgs;
pub use quantizer::{QuantizerArgs, Rotation};
pub use serve::{ListenArgs, ServeArgs, SeveralArgs};
pub use tools::{
    CALIBRATION_TOKENS, CalibrationArgs, CompletionsArgs, ConvertArgs, InspectArgs, ManArgs,
    PerplexityArgs, ReportFormat, VerifyArgs,
};

use clap::builder::FalseyValueParser;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
Without a model, every command uses the small storyteller that comes with the program.
Without a command, `nestling` is `nestling chat`.

Examples:
  nestling                                      chat with the bundled storyteller
  nestling plan -hf Qwen/Qwen3-30B-A3B          say what it would take and how fast it would be
  nestling -hf Qwen/Qwen3-30B-A3B               download, convert and chat with a real model
  nestling -hf owner/model-GGUF:Q4_K_M          the same from a GGUF file
  nestling run -p 'The ship left' -n 64 --temp 0
  nestling convert ~/models/Qwen3-30B-A3B -o qwen3.nest
  nestling chat -m ~/models/Qwen3-30B-A3B-Q4_K_M.gguf
  nestling chat -m qwen3.nest --level 4
  nestling serve -m qwen3.nest                  answer at http://127.0.0.1:8080/v1

Every flag has an environment variable, shown beside it; the flag wins.
Sizes: 6G means 6 GiB (1024 x 1024 x 1024 bytes each), as 6GiB does; 6GB means 1000 x 1000 x 1000.

Exit codes: 0 success, also where the reader closed the output, as `nestling run | head` does;
1 failure, 2 wrong command line, 3 damaged store, 4 mapped file cut, 130 interrupted.";

/// Runs Mixture-of-Experts language models from one bit-nested store.
#[derive(Debug, Parser)]
#[command(name = "nestling", version, after_help = AFTER_HELP, max_term_width = 100)]
#[command(override_usage = "nestling [COMMAND] [OPTIONS]")]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,

    #[command(flatten)]
    pub output: OutputArgs,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Chat with a model
    Chat(ChatArgs),
    /// Complete a prompt and exit
    Run(RunArgs),
    /// Serve an OpenAI-compatible HTTP API
    Serve(ServeArgs),
    /// Convert a Hugging Face checkpoint or a GGUF file into a store
    Convert(ConvertArgs),
    /// Show the contents of a store
    Inspect(InspectArgs),
    /// Verify the checksums of a whole store
    Verify(VerifyArgs),
    /// Evaluate the levels of a store against the unquantized checkpoint
    Perplexity(PerplexityArgs),
    /// Show memory placement and predicted speed for a memory budget
    Plan(PlanArgs),
    /// Download the missing sections of a store
    Upgrade(UpgradeArgs),
    /// List the models on this machine, their sizes and sources
    List(ListArgs),
    /// Download a model without running it
    Pull(PullArgs),
    /// Remove downloaded or converted models
    Rm(RmArgs),
    /// Delete unused cache files: interrupted downloads and conversions, outdated stores
    Gc(GcArgs),
    /// Show what limits speed on this machine
    Doctor(DoctorArgs),
    /// List compute devices
    Devices(DevicesArgs),
    /// Measure speed and memory, in the manner of llama-bench
    Bench(BenchArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages into a folder
    Man(ManArgs),
}

/// Terminal output options, valid before and after the command.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Use of colours: auto (on a terminal), always or never. NO_COLOR is respected
    #[arg(long, value_enum, default_value_t = ColorChoice::Auto, value_name = "WHEN")]
    #[arg(env = "NESTLING_COLOR", global = true)]
    pub color: ColorChoice,

    /// Print full timings and the library's log; give twice for debug messages
    #[arg(short, long, action = clap::ArgAction::Count, env = "NESTLING_VERBOSE", global = true)]
    pub verbose: u8,

    /// Print no progress, welcome screen or statistics
    #[arg(short, long, env = "NESTLING_QUIET", global = true)]
    #[arg(value_parser = FalseyValueParser::new())]
    pub quiet: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColorChoice {
    Auto,
    Always,
    Never,
}

#[derive(Args, Clone, Debug)]
#[command(after_help = "In the chat: /? lists the commands, Ctrl-C stops a reply, Ctrl-D ends.")]
pub struct ChatArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub prompt: PromptArgs,

    /// Answer one message and exit
    #[arg(long, visible_alias = "st", env = "NESTLING_SINGLE_TURN")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub single_turn: bool,

    /// Convert a GGUF file into a store during the chat, on one low-priority thread. The next start uses the
    /// store, at any --level. An interrupted conversion resumes in the next chat
    #[arg(long, env = "NESTLING_CONVERT_IN_BACKGROUND", value_parser = FalseyValueParser::new())]
    pub convert_in_background: bool,

    #[command(flatten)]
    pub history: HistoryArgs,

    #[command(flatten)]
    pub generation: GenerationArgs,

    #[command(flatten)]
    pub form: FormArgs,

    #[command(flatten)]
    pub resources: ResourceArgs,
}

/// Input history of a chat.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Chat")]
pub struct HistoryArgs {
    /// File that stores the input history between chats
    #[arg(long, value_name = "FILE", env = "NESTLING_HISTORY")]
    pub history: Option<PathBuf>,

    /// Keep no input history
    #[arg(long, env = "NESTLING_NO_HISTORY")]
    #[arg(value_parser = FalseyValueParser::new())]
    pub no_history: bool,
}

#[derive(Args, Debug)]
#[command(
    after_help = "The prompt comes from -p, from -f or from standard input, and is completed \
as raw text unless --chat is given. With no prompt at a terminal, `run` is `chat`. Tokens go to \
standard output, everything else to standard error."
)]
pub struct RunArgs {
    #[command(flatten)]
    pub model: ModelArgs,

    #[command(flatten)]
    pub prompt: PromptArgs,

    /// Apply the model's chat template to the prompt instead of completing it as raw text
    #[arg(long, env = "NESTLING_CHAT", value_parser = FalseyValueParser::new())]
    pub chat: bool,

    #[command(flatten)]
    pub history: HistoryArgs,

    #[command(flatten)]
    pub generation: GenerationArgs,

    #[command(flatten)]
    pub form: FormArgs,

    #[command(flatten)]
    pub resources: ResourceArgs,

    #[command(flatten)]
    pub stats: StatsArgs,
}

impl Cli {
    /// Parses the program's command line. Fails with clap's error, which also covers `--help` and
    /// `--version`.
    pub fn from_command_line(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> Result<Self, clap::Error> {
        let line = mistakes::bind_negative(normalize(arguments));
        Self::from_line(&line).map_err(|error| mistakes::explained(error, &line))
    }

    fn from_line(line: &[OsString]) -> Result<Self, clap::Error> {
        let matches = Self::shown().try_get_matches_from(line)?;
        let mut cli = Self::from_arg_matches(&matches)?;
        precedence::settle(&mut cli, &matches)?;
        Ok(cli)
    }

    /// Returns the clap command with the values of environment variables hidden in help texts.
    pub fn shown() -> clap::Command {
        fn hidden(command: clap::Command) -> clap::Command {
            command.mut_args(|argument| argument.hide_env_values(true)).mut_subcommands(hidden)
        }
        let hide = |argument: clap::Arg| argument.hide(true);
        // `run` without a prompt starts a chat; the help of `chat` documents these two flags.
        hidden(Self::command())
            .mut_subcommand("run", |run| run.mut_arg("history", hide).mut_arg("no_history", hide))
    }
}

/// Multi-letter short flags of llama.cpp and their long forms. clap does not support multi-letter short
/// flags.
const LONG_OF: [(&str, &str); 8] = [
    ("-hf", "--hf-repo"),
    ("-hfr", "--hf-repo"),
    ("-hft", "--hf-token"),
    ("-sys", "--system-prompt"),
    ("-st", "--single-turn"),
    ("-lm", "--load-mode"),
    ("-dev", "--device"),
    ("-ctk", "--kv-type"),
];

/// Multi-letter short flags of llama-bench, recognized only after `bench`.
const BENCH_LONG_OF: [(&str, &str); 3] =
    [("-pg", "--pg"), ("-oe", "--output-err"), ("-ub", "--ubatch-size")];

/// Rewrites a command line for clap: multi-letter short flags become long ones, and `chat` is inserted if no
/// command is given.
fn normalize(arguments: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut out: Vec<OsString> = Vec::new();
    let (mut literal, mut bench) = (false, false);
    for argument in arguments {
        literal |= argument == "--";
        bench |= argument == "bench";
        let long = argument.to_str().filter(|_| !literal);
        let long = long.and_then(|argument| long_spelling(argument, bench));
        out.push(long.map_or(argument, OsString::from));
    }
    // Global flags may precede the command.
    let mut rest = out.iter().skip(1).filter_map(|argument| argument.to_str());
    let first = loop {
        match rest.next() {
            Some("--color") => drop(rest.next()),
            Some(flag) if is_output_flag(flag) => {}
            other => break other,
        }
    };
    let chats = match first {
        None => true,
        Some("-h" | "--help" | "-V" | "--version") => false,
        Some(first) => first.starts_with('-'),
    };
    if chats {
        out.insert(out.len().min(1), OsString::from("chat"));
    }
    out
}

fn is_output_flag(flag: &str) -> bool {
    let letters = |flag: &str| flag.chars().all(|letter| "vq".contains(letter));
    let short = flag.strip_prefix('-').is_some_and(|flag| !flag.is_empty() && letters(flag));
    short || matches!(flag, "--verbose" | "--quiet") || flag.starts_with("--color=")
}

fn long_spelling(argument: &str, bench: bool) -> Option<String> {
    let (flag, value) = match argument.split_once('=') {
        Some((flag, value)) => (flag, Some(value)),
        None => (argument, None),
    };
    let more = if bench { &BENCH_LONG_OF[..] } else { &[] };
    let (_, long) = LONG_OF.iter().chain(more).find(|(short, _)| *short == flag)?;
    Some(value.map_or_else(|| (*long).into(), |value| format!("{long}={value}")))
}

#[cfg(test)]
mod tests;
