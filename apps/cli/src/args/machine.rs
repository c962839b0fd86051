//! Arguments of `nestling doctor`, some of them shared with `nestling plan`.

use super::HubArgs;
use super::generation::count;
use crate::bytes::ByteSize;
use clap::builder::FalseyValueParser;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Speed of the machine.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Machine")]
pub struct SpeedArgs {
    /// Number of compute threads [default: the fastest number, measured at first use]
    #[arg(short, long, value_name = "N", env = "NESTLING_THREADS", value_parser = threads)]
    pub threads: Option<u32>,

    /// Memory bandwidth per second, such as 40GB [default: measured]
    #[arg(long, value_name = "SIZE", env = "NESTLING_MEMORY_SPEED")]
    pub memory_speed: Option<ByteSize>,

    /// Disk bandwidth per second, such as 1.5GB [default: measured]
    #[arg(long, value_name = "SIZE", env = "NESTLING_DISK_SPEED")]
    pub disk_speed: Option<ByteSize>,

    /// Measure memory and disk again, ignoring the stored measurement
    #[arg(long, env = "NESTLING_MEASURE_AGAIN", value_parser = FalseyValueParser::new())]
    pub measure_again: bool,
}

/// Maximum number of compute threads.
const THREADS_MAX: u32 = 1024;

/// Parses a number of compute threads.
pub fn threads(text: &str) -> Result<u32, String> {
    let threads = count(text)?;
    match threads {
        1..=THREADS_MAX => Ok(threads),
        _ => Err(format!("{threads} is not in 1..={THREADS_MAX}")),
    }
}

/// Output format of the report.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Output")]
pub struct MachineFormatArgs {
    /// Output format
    #[arg(long, value_enum, default_value_t = MachineFormat::Text, env = "NESTLING_FORMAT")]
    pub format: MachineFormat,

    /// Print one JSON object: --format json
    #[arg(long, env = "NESTLING_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

impl MachineFormatArgs {
    pub fn is_json(self) -> bool {
        self.json || self.format == MachineFormat::Json
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MachineFormat {
    // Text for a terminal
    Text,
    // One JSON object
    Json,
}

#[derive(Args, Debug)]
#[command(
    after_help = "Measures memory and the disk that the store is on, and says what limits this \
machine, and what could be changed."
)]
pub struct DoctorArgs {
    /// Store or GGUF file to evaluate on this machine
    #[arg(value_name = "MODEL")]
    pub path: Option<PathBuf>,

    /// Store or GGUF file to evaluate on this machine [default: the bundled storyteller]
    #[arg(short, long, value_name = "MODEL", env = "NESTLING_MODEL")]
    pub model: Option<PathBuf>,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    pub machine: SpeedArgs,

    #[command(flatten)]
    pub format: MachineFormatArgs,
}
