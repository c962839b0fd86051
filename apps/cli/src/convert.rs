//! `nestling convert`: from a Hugging Face checkpoint to a store.

use crate::args::ConvertArgs;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::hub::Obtained;
use crate::interrupt::Interrupt;

pub fn convert(_args: &ConvertArgs, _console: &Console, _interrupt: &Interrupt) -> Result<()> {
    Err(Failure::new("this build cannot convert yet"))
}

/// Converts a download into Nestling's cache.
pub fn into_cache(_obtained: &Obtained, _console: &Console, _i: &Interrupt) -> Result<()> {
    Err(Failure::new("this build cannot convert yet"))
}
