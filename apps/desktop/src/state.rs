//! Model of the application: changed by the user and by reports of the engine's thread, drawn by the window.
//!
//! Methods return the command that a change requires. Nothing here blocks, draws or knows a window.

use std::path::PathBuf;

use nestling::CancelToken;
use nestling_plan::plan::Forecast;

use crate::messages::{AnswerSummary, Command, ModelDescription, Report, Status};
use crate::plan::Plan;

/// Stage of the work on a model.
#[derive(Debug, Default)]
pub enum Phase {
    /// Start: no model is chosen.
    #[default]
    Empty,
    /// The headers of a file are being read.
    Planning,
    /// A plan is shown, and the model can be opened.
    Planned,
    /// The model is being opened.
    Opening {
        /// Number of opened parts.
        parts_done: usize,
        /// Number of all parts; 0 before the first report.
        parts_total: usize,
        /// Cancels the opening.
        cancel: CancelToken,
    },
    /// The model is open.
    Open(ModelDescription),
}

/// Author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// The person at the window.
    User,
    /// The model.
    Model,
}

/// A message of the conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Author of the message.
    pub author: Author,
    /// Reasoning before the text.
    pub reasoning: String,
    /// Text so far.
    pub text: String,
}

/// Model, conversation and settings that the window shows.
#[derive(Debug, Default)]
pub struct Application {
    /// Stage of the work on the model.
    pub phase: Phase,
    /// Path of the chosen model.
    pub path: Option<PathBuf>,
    /// Last plan.
    pub plan: Option<Plan>,
    /// Forecast for the plan.
    pub forecast: Option<Forecast>,
    /// Memory budget in bytes, as the slider shows it.
    pub budget: u64,
    /// Conversation, oldest first.
    pub lines: Vec<Line>,
    /// Message being typed.
    pub draft: String,
    /// True if an answer is running.
    pub is_answering: bool,
    /// Last status of the open model.
    pub status: Option<Status>,
    /// End of the last answer.
    pub finished: Option<AnswerSummary>,
    /// Last error.
    pub error: Option<String>,
    /// True if a planned model is opened without a click.
    pub opens_itself: bool,
    /// Message to send once the model is open.
    pub first_message: Option<String>,
}

impl Application {
    /// Chooses a model, and plans it within a budget in bytes. An open model is closed.
    pub fn choose(&mut self, path: PathBuf, budget: Option<u64>) -> Option<Command> {
        if let Phase::Opening { cancel, .. } = &self.phase {
            cancel.cancel();
        }
        *self = Self {
            phase: Phase::Planning,
            path: Some(path.clone()),
            opens_itself: self.opens_itself,
            first_message: self.first_message.take(),
            ..Self::default()
        };
        Some(Command::Plan { path, budget })
    }

    /// Opens the planned model.
    pub fn open(&mut self) -> Option<Command> {
        let (Phase::Planned, Some(path)) = (&self.phase, &self.path) else { return None };
        let (path, cancel) = (path.clone(), CancelToken::new());
        self.phase = Phase::Opening { parts_done: 0, parts_total: 0, cancel: cancel.clone() };
        self.error = None;
        Some(Command::Open { path, budget: self.budget, cancel })
    }

    /// Changes the budget in bytes: of the open model, or of the plan.
    pub fn set_budget(&mut self, bytes: u64) -> Option<Command> {
        self.budget = bytes;
        match (&self.phase, &self.path) {
            (Phase::Open(_), _) => Some(Command::SetBudget(bytes)),
            (Phase::Planned, Some(path)) => {
                Some(Command::Plan { path: path.clone(), budget: Some(bytes) })
            }
            _ => None,
        }
    }

    /// Sends the message being typed.
    pub fn send(&mut self) -> Option<Command> {
        let text = self.draft.trim().to_owned();
        if !matches!(self.phase, Phase::Open(_)) || self.is_answering || text.is_empty() {
            return None;
        }
        self.draft.clear();
        self.error = None;
        self.finished = None;
        self.is_answering = true;
        for (author, text) in [(Author::User, text.clone()), (Author::Model, String::new())] {
            self.lines.push(Line { author, reasoning: String::new(), text });
        }
        Some(Command::Send(text))
    }

    /// Stops the running answer, or the opening.
    pub fn stop(&mut self) -> Option<Command> {
        if let Phase::Opening { cancel, .. } = &self.phase {
            cancel.cancel();
        }
        self.is_answering.then_some(Command::Stop)
    }

    /// Closes the model.
    pub fn close(&mut self) -> Option<Command> {
        matches!(self.phase, Phase::Open(_)).then_some(Command::Close)
    }

    /// Returns the limits of the budget in bytes. `None` before the first plan.
    pub fn budget_range(&self) -> Option<std::ops::RangeInclusive<u64>> {
        let plan = self.plan.as_ref()?;
        Some(plan.least_bytes..=plan.useful_bytes().max(self.budget))
    }

    /// Takes in a report, and returns the command that follows without a click.
    pub fn apply(&mut self, report: Report) -> Option<Command> {
        match report {
            Report::Planned(plan) => {
                self.phase = Phase::Planned;
                if self.plan.is_none() {
                    // Later plans follow the slider.
                    self.budget = plan.budget;
                }
                self.forecast = None;
                self.error = None;
                self.plan = Some(*plan);
                let opens = std::mem::take(&mut self.opens_itself);
                return if opens { self.open() } else { None };
            }
            Report::Predicted(forecast) => self.forecast = Some(forecast),
            Report::PlanFailed(reason) => {
                self.phase = if self.plan.is_some() { Phase::Planned } else { Phase::Empty };
                self.error = Some(reason);
            }
            Report::Opening { parts_done: done, parts_total: total } => {
                if let Phase::Opening { parts_done, parts_total, .. } = &mut self.phase {
                    (*parts_done, *parts_total) = (done, total);
                }
            }
            Report::Opened(opened) => {
                self.budget = opened.budget;
                self.phase = Phase::Open(opened);
                if let Some(text) = self.first_message.take() {
                    self.draft = text;
                    return self.send();
                }
            }
            Report::OpenFailed(reason) => {
                self.phase = Phase::Planned;
                self.error = reason;
            }
            Report::Closed => *self = Self { plan: None, ..Self::default() },
            other => self.apply_running(other),
        }
        None
    }

    /// Takes in a report about the open model.
    fn apply_running(&mut self, report: Report) {
        match report {
            Report::Text(text) => self.answer(|line| line.text += &text),
            Report::Reasoning(text) => self.answer(|line| line.reasoning += &text),
            Report::Finished(finished) => {
                self.is_answering = false;
                self.finished = Some(finished);
            }
            Report::AnswerFailed(reason) => {
                self.is_answering = false;
                self.error = Some(reason);
            }
            Report::BudgetSet(bytes) => self.budget_is(bytes),
            Report::BudgetRefused { in_force, reason } => {
                self.budget_is(in_force);
                self.budget = in_force;
                self.error = Some(reason);
            }
            Report::Status(status) => self.status = Some(*status),
            _ => {}
        }
    }

    fn budget_is(&mut self, bytes: u64) {
        if let Phase::Open(opened) = &mut self.phase {
            opened.budget = bytes;
        }
    }

    fn answer(&mut self, change: impl FnOnce(&mut Line)) {
        if let Some(line) = self.lines.last_mut().filter(|line| line.author == Author::Model) {
            change(line);
        }
    }
}

#[cfg(test)]
mod tests;
