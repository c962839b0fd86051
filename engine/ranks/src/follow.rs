//! The loop of all ranks but rank 0.

use nestling_core::cancel::CancelToken;
use nestling_core::error::EngineError;
use nestling_core::group::Group;
use nestling_core::runner::{ModelRunner, StepStats};

use crate::command::{Command, Order, Report, Settled, decode, gather_page, settle};
use crate::mover::{adopt, finish, prepare};

/// Carries out the commands of rank 0 until it closes the model. Errors of single commands are reported to rank 0 and
/// leave the loop running.
///
/// # Errors
/// [`EngineError::Rank`] if a rank was lost.
pub fn follow(runner: &mut dyn ModelRunner, group: &dyn Group) -> Result<(), EngineError> {
    loop {
        let bytes = group.broadcast(&[])?;
        let order: Order = decode(0, &bytes)?;
        order.set_expert_memory(runner);
        if matches!(order.command, Command::Close) {
            return Ok(());
        }
        let moves = matches!(order.command, Command::Replicate(_));
        let result = carry_out(runner, group.share().rank, order.command);
        // Default: resident experts are not counted.
        let expert_bytes = runner.expert_memory().map_or(0, |memory| memory.used_bytes());
        // Rank 0 returns the error of a failed command.
        let settled: Settled<_, Report> =
            settle(group, result, |done| Report { stats: done.stats, expert_bytes })?;
        if moves {
            finish(runner, settled.is_ok());
        }
        if let Ok((CommandResult { page: Some(part), .. }, _)) = settled {
            gather_page(group, part)?;
        }
    }
}

/// Result of a command on one rank.
#[derive(Default)]
struct CommandResult {
    stats: StepStats,
    /// This rank's part of a page, which it sends once all ranks have read theirs.
    page: Option<Vec<u8>>,
}

fn carry_out(
    runner: &mut dyn ModelRunner,
    rank: usize,
    command: Command,
) -> Result<CommandResult, EngineError> {
    let done = |()| CommandResult::default();
    match command {
        Command::Step(batch) => {
            // Rank 0 alone decides on cancellation, and its failure ends the step here.
            let output = runner.step_blocking(&batch, &CancelToken::new())?;
            let stats = output.stats;
            runner.recycle(output);
            Ok(CommandResult { stats, page: None })
        }
        Command::ReadPage { page } => {
            let part = runner.read_page(page)?;
            Ok(CommandResult { page: Some(part), ..CommandResult::default() })
        }
        Command::ChangeExpertMemory => runner.change_expert_memory().map(done),
        Command::CopyPage { source, destination } => {
            runner.copy_page(source, destination).map(done)
        }
        Command::WritePage { page, bytes } => runner.write_page(page, &bytes).map(done),
        Command::WriteState { state, bytes } => runner.write_state(state, &bytes).map(done),
        Command::RestorePage { ranks, page, bytes } if ranks.contains(&rank) => {
            runner.write_page(page, &bytes).map(done)
        }
        Command::RestoreState { ranks, state, bytes } if ranks.contains(&rank) => {
            runner.write_state(state, &bytes).map(done)
        }
        Command::Replicate(replicas) => prepare(runner, &replicas).map(done),
        Command::RestoreReplicas(replicas) => adopt(runner, &replicas).map(done),
        Command::RestorePage { .. } | Command::RestoreState { .. } => Ok(CommandResult::default()),
        Command::Close => Ok(CommandResult::default()),
    }
}
