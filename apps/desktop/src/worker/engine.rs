//! Commands carried out on the engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::task::Poll;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nestling::{
    CancelToken, Chat, Conversation, EngineError, Event, FinishReason, GenerateOptions, Generation,
    GenerationSummary, Model, OpenOptions, OpenProgress, Residence, Session,
};

use nestling_plan::plan::MachineSpeed;

use super::Settings;
use crate::messages::{AnswerSummary, Command, ModelDescription, Report, Status};
use crate::meter::{Meter, Totals};
use crate::plan::{Plan, Subject};
use crate::speed::{machine_speed, memory_speed};

/// Interval of status reports.
const STATUS_INTERVAL: Duration = Duration::from_millis(66);

/// Wait for a command between two looks at a running answer.
const ANSWER_INTERVAL: Duration = Duration::from_millis(5);

/// Context length in tokens left for an answer; older turns are dropped.
const ANSWER_RESERVE: usize = 128;

/// Commands, subject and open model of the engine's thread.
pub struct EngineLoop {
    settings: Settings,
    commands: Receiver<Command>,
    report: Box<dyn Fn(Report) + Send>,
    subject: Option<Subject>,
    /// Bytes per second of memory, once measured.
    memory_speed: Option<f64>,
    /// Speed of the machine for the subject, once measured.
    machine: Option<MachineSpeed>,
    /// Measurement of the machine in progress.
    measuring: Option<JoinHandle<Option<MachineSpeed>>>,
    /// Last plan, until its forecast is reported.
    unpredicted: Option<Plan>,
    open: Option<OpenModel>,
}

/// Source of answers: a chat, or a session for a model without a chat template.
enum Speaker {
    Chat(Box<Chat>),
    Session(Box<Session>),
}

struct OpenModel {
    model: Model,
    speaker: Speaker,
    answer: Option<Generation>,
    meter: Meter,
    /// Number of generated tokens.
    tokens: u64,
    opened: Instant,
    /// Time of the last status, reported or equal to the one before it.
    reported: Option<Instant>,
    /// Status that was reported last.
    shown: Option<Status>,
}

impl EngineLoop {
    /// Creates the state without a model.
    pub fn new(
        settings: Settings,
        commands: Receiver<Command>,
        report: Box<dyn Fn(Report) + Send>,
    ) -> Self {
        Self {
            settings,
            commands,
            report,
            subject: None,
            memory_speed: None,
            machine: None,
            measuring: None,
            unpredicted: None,
            open: None,
        }
    }

    /// Runs commands until [`Command::Quit`], or until no sender is left.
    pub fn run(mut self) {
        loop {
            let is_answering = self.open.as_ref().is_some_and(|open| open.answer.is_some());
            let wait = if is_answering { ANSWER_INTERVAL } else { STATUS_INTERVAL };
            match self.commands.recv_timeout(wait) {
                Ok(Command::Quit) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(command) => {
                    for command in self.with_latest_budget(command) {
                        if matches!(command, Command::Quit) {
                            return;
                        }
                        self.carry_out(command);
                    }
                }
                // The machine is measured when there is nothing else to do.
                Err(RecvTimeoutError::Timeout) if self.unpredicted.is_some() => self.measure(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.predict();
            self.take_events();
            self.report_status();
        }
    }

    /// Returns a command and those that wait behind it, without budgets that a later one replaces: a slider
    /// sends more of them than the engine can apply.
    fn with_latest_budget(&self, command: Command) -> Vec<Command> {
        let mut commands = vec![command];
        for next in self.commands.try_iter() {
            let replaces = match (commands.last(), &next) {
                (Some(Command::SetBudget(_)), Command::SetBudget(_)) => true,
                (Some(Command::Plan { path: before, .. }), Command::Plan { path, .. }) => {
                    before == path
                }
                _ => false,
            };
            if replaces {
                commands.pop();
            }
            commands.push(next);
        }
        commands
    }

    fn carry_out(&mut self, command: Command) {
        match command {
            Command::Plan { path, budget } => self.plan(path, budget),
            Command::Open { path, budget, cancel } => self.open(&path, budget, &cancel),
            Command::Send(text) => self.say(&text),
            Command::Stop => {
                if let Some(answer) = self.open.as_ref().and_then(|open| open.answer.as_ref()) {
                    answer.cancel();
                }
            }
            Command::SetBudget(bytes) => self.set_budget(bytes),
            Command::Close => {
                self.open = None;
                (self.report)(Report::Closed);
            }
            Command::Quit => {}
        }
    }

    fn plan(&mut self, path: PathBuf, budget: Option<u64>) {
        self.open = None;
        if self.subject.as_ref().is_none_or(|subject| subject.path() != path) {
            self.subject = None;
            self.machine = None;
            self.measuring = None;
        }
        let subject = match self.subject.take() {
            Some(subject) => Ok(subject),
            None => Subject::read(&path),
        };
        let planned = subject.and_then(|subject| {
            let plan = subject.plan(budget)?;
            Ok((subject, plan))
        });
        match planned {
            Ok((subject, plan)) => {
                (self.report)(Report::Planned(Box::new(plan.clone())));
                self.subject = Some(subject);
                self.unpredicted = Some(plan);
            }
            Err(error) => (self.report)(Report::PlanFailed(error.to_string())),
        }
    }

    /// Starts the measurement of the machine unless it is known or in progress. A model can be opened meanwhile.
    fn measure(&mut self) {
        let store = self.subject.as_ref().and_then(Subject::store);
        // Default: a checkpoint has no forecast.
        let Some(store) = store.filter(|_| self.settings.predict) else { return };
        if self.machine.is_some() || self.measuring.is_some() {
            return;
        }
        let (store, known) = (Arc::clone(store), self.memory_speed);
        let measured = std::thread::Builder::new().name("speed".into()).spawn(move || {
            let memory = known.unwrap_or_else(|| {
                let threads = std::thread::available_parallelism();
                // Default: one thread if the system does not report its cores.
                memory_speed(threads.map_or(1, usize::from))
            });
            machine_speed(memory, &store).ok()
        });
        // Without a thread there is no forecast.
        self.measuring = measured.ok();
    }

    /// Reports the forecast of the plan once the machine is measured.
    fn predict(&mut self) {
        if let Some(measured) = self.measuring.take_if(|measuring| measuring.is_finished()) {
            // Default: a disk that cannot be measured leaves the plan without a forecast.
            self.machine = measured.join().ok().flatten();
            self.memory_speed = self.machine.as_ref().map(|machine| machine.memory_bytes_per_s);
        }
        // Default: a forecast needs both.
        let (Some(machine), Some(subject)) = (&self.machine, &self.subject) else { return };
        if let Some(plan) = self.unpredicted.take() {
            (self.report)(Report::Predicted(subject.forecast(&plan, machine)));
        }
    }

    fn open(&mut self, path: &Path, budget: u64, cancel: &CancelToken) {
        self.open = None;
        self.unpredicted = None;
        let streams = self.subject.as_ref().is_some_and(Subject::can_stream);
        let mut options = OpenOptions::default();
        options.engine.memory_budget = Some(budget);
        if streams {
            // Streamed experts can release memory while the model runs.
            options.model.residence = Residence::Streamed;
        }
        let mut progress = |progress: OpenProgress| {
            let OpenProgress { parts_done, parts_total, .. } = progress;
            (self.report)(Report::Opening { parts_done, parts_total });
        };
        let opened = nestling::open_with(path, &options, &mut progress, cancel);
        match opened {
            Ok(model) => {
                let open = OpenModel::new(model);
                let mut opened = open.describe(budget);
                if let Some(subject) = self.subject.as_ref().filter(|_| opened.is_streamed) {
                    opened.levels = subject.served_levels();
                }
                (self.report)(Report::Opened(opened));
                self.open = Some(open);
            }
            Err(EngineError::Cancelled) => (self.report)(Report::OpenFailed(None)),
            Err(error) => (self.report)(Report::OpenFailed(Some(error.to_string()))),
        }
    }

    fn say(&mut self, text: &str) {
        // Default: without a model there is nothing to do.
        let Some(open) = &mut self.open else { return };
        let defaults = match self.settings.greedy {
            true => GenerateOptions::greedy(),
            false => GenerateOptions::default(),
        };
        let options = GenerateOptions {
            max_tokens: Some(self.settings.max_tokens),
            token_events: true,
            ..defaults
        };
        let answer = match &mut open.speaker {
            Speaker::Chat(chat) => chat.send(text, &options),
            Speaker::Session(session) => session.generate(text, &options),
        };
        match answer {
            Ok(answer) => open.answer = Some(answer),
            Err(error) => (self.report)(Report::AnswerFailed(error.to_string())),
        }
    }

    fn set_budget(&mut self, bytes: u64) {
        // Default: without a model there is nothing to do.
        let Some(open) = &self.open else { return };
        let in_force = open.model.engine().budget().total_bytes();
        match open.model.set_memory_budget(bytes) {
            Ok(()) => (self.report)(Report::BudgetSet(bytes)),
            Err(error) => (self.report)(Report::BudgetRefused {
                // Default: an engine without a budget has no limit.
                in_force: in_force.unwrap_or(u64::MAX),
                reason: error.to_string(),
            }),
        }
    }

    /// Reports all events of the running answer that have arrived.
    fn take_events(&mut self) {
        // Default: without a model there is nothing to do.
        let Some(open) = &mut self.open else { return };
        while let Some(answer) = &mut open.answer {
            let event = match answer.try_next() {
                Poll::Pending => return,
                Poll::Ready(event) => event,
            };
            match event {
                Some(Ok(Event::Token(_))) => open.tokens += 1,
                Some(Ok(Event::Text(text))) => (self.report)(Report::Text(text)),
                Some(Ok(Event::Reasoning(text))) => (self.report)(Report::Reasoning(text)),
                Some(Ok(Event::Finished(summary))) => {
                    open.answer = None;
                    (self.report)(Report::Finished(finished(&summary)));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    open.answer = None;
                    (self.report)(Report::AnswerFailed(error.to_string()));
                }
                None => open.answer = None,
            }
        }
    }

    fn report_status(&mut self) {
        // Default: without a model there is nothing to do.
        let Some(open) = &mut self.open else { return };
        if open.reported.is_none_or(|reported| reported.elapsed() >= STATUS_INTERVAL) {
            open.reported = Some(Instant::now());
            let status = open.status();
            // A window that shows it already needs no new picture.
            if open.shown.as_ref() != Some(&status) {
                (self.report)(Report::Status(Box::new(status.clone())));
                open.shown = Some(status);
            }
        }
    }
}

impl OpenModel {
    fn new(model: Model) -> Self {
        let session = model.session();
        let speaker = match model.capabilities().chat {
            true => {
                let reserve = ANSWER_RESERVE.min(model.context_length() / 2);
                let chat = Chat::new(session, Conversation::default()).dropping_old_turns(reserve);
                Speaker::Chat(Box::new(chat))
            }
            false => Speaker::Session(Box::new(session)),
        };
        Self {
            model,
            speaker,
            answer: None,
            meter: Meter::default(),
            tokens: 0,
            opened: Instant::now(),
            reported: None,
            shown: None,
        }
    }

    fn describe(&self, budget: u64) -> ModelDescription {
        ModelDescription {
            device: self.model.device_name().to_owned(),
            context_length: self.model.context_length(),
            has_template: matches!(self.speaker, Speaker::Chat(_)),
            is_streamed: self.model.expert_bytes().is_some(),
            budget,
            levels: Vec::new(),
        }
    }

    fn status(&mut self) -> Status {
        let engine = self.model.engine();
        let totals = Totals::of(self.tokens, &engine.status().experts);
        Status {
            used_bytes: engine.budget().used_bytes(),
            expert_bytes: self.model.expert_bytes(),
            map: self.model.expert_map(),
            rates: self.meter.add(self.opened.elapsed().as_secs_f64(), totals),
        }
    }
}

fn finished(summary: &GenerationSummary) -> AnswerSummary {
    AnswerSummary {
        prompt_tokens: summary.usage.prompt_tokens,
        answer_tokens: summary.usage.completion_tokens,
        was_stopped: summary.reason == FinishReason::Cancelled,
        tokens_per_second: summary.stats.decode_tokens_per_second(),
        hit_rate: summary.stats.streaming.hit_rate(),
        bits: summary.stats.mean_level(),
    }
}
