//! `nestling perplexity`: the judge of levels.

use crate::args::PerplexityArgs;
use crate::console::Console;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

pub fn perplexity(_args: &PerplexityArgs, _console: &Console, _i: &Interrupt) -> Result<()> {
    Err(Failure::new("this build cannot judge levels yet"))
}
