//! `nestling chat`: an interactive conversation in a terminal.

use crate::args::{ChatArgs, ModelArgs};
use crate::background::Background;
use crate::console::{Console, write_out};
use crate::conversation::{Transcript, read_text};
use crate::explain::explain;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::located::{LocatedModel, WebStart};
use crate::opened::{self, LoadedModel};
use crate::output_constraint::OutputConstraint;
use crate::places;
use crate::prompt::{expect_model, prompt_text};
use crate::repl::command::{self, SlashCommand, Verbosity};
use crate::repl::input::{InputEvent, Lines};
use crate::reply::{Reply, write_reply};
use crate::rising::RisingStore;
use crate::settings::Settings;
use crate::single_turn::complete;
use crate::stats::{self, ReplyTimes};
use crate::welcome;
use crate::words::counted;
use nestling::engine::cancel::CancelToken;
use nestling::engine::text::Message;
use nestling::engine::{EngineError, FinishReason, Input, Session};
use nestling::formats::Level;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Divisor of the context length: at most a quarter of it is reserved for the reply.
const REPLY_SHARE: usize = 4;

pub fn chat(args: ChatArgs, console: &Console, interrupt: &Interrupt) -> Result<()> {
    expect_model(&args.model, &args.prompt)?;
    let prompt = prompt_text(&args.prompt)?;
    // Input from a pipe is a single message.
    let once = args.single_turn || !std::io::stdin().is_terminal();
    let form = OutputConstraint::new(&args.form)?;
    let located = locate(&args, once, console, interrupt)?;
    let level = located.level;
    // It opens the copy first, since only one open copy writes to its file.
    let rising = match level {
        Some(_) if args.model.level.is_none() => RisingStore::begin(&located.path)?,
        _ => None,
    };
    let mut opened =
        opened::open_at(located, &args.model, &args.resources, None, console, interrupt)?;
    if args.convert_in_background {
        convert_beside(&mut opened, console);
    }
    let settings = Settings::new(&args.generation, opened.model.default_sampling()).with_form(form);
    let transcript = Transcript { system: args.prompt.system_prompt.clone(), messages: vec![] };
    if let (true, Some(prompt)) = (once, &prompt) {
        let transcript =
            Transcript { messages: vec![Message::user(prompt.as_str())], ..transcript };
        let input = Input::Messages(transcript.conversation(None));
        return complete(&opened, input, &settings, console, interrupt).map(drop);
    }
    let lines = Lines::open(history(&args)?)?;
    welcome::print(&opened, console);
    let session = opened.model.session();
    let console = console.clone();
    let mut chat = Chat {
        opened,
        level,
        rising,
        session,
        transcript,
        settings,
        think: None,
        attached: String::new(),
        lines,
        console,
        interrupt,
        args,
    };
    if let Some(prompt) = prompt {
        chat.console.line(format_args!(">>> {prompt}"));
        chat.turn(&prompt)?;
    }
    loop {
        match chat.talk()? {
            TalkEnd::Bye => return Ok(()),
            TalkEnd::Risen(text) => {
                chat = chat.risen()?;
                chat.turn_or_tell(&text)?;
            }
        }
    }
}

/// Locates the model. A conversation begins with the first level of a store on the web.
fn locate(
    args: &ChatArgs,
    once: bool,
    console: &Console,
    interrupt: &Interrupt,
) -> Result<LocatedModel> {
    let start = match (args.model.lazy, once) {
        (true, _) => WebStart::Index,
        (false, true) => WebStart::Level,
        (false, false) => WebStart::FirstLevel,
    };
    opened::locate_from(&args.model, start, console, interrupt)
}

/// Reason why [`Chat::talk`] returns.
enum TalkEnd {
    /// The user ends the chat.
    Bye,
    /// A higher level of the store has arrived before this message is answered.
    Risen(String),
}

/// Starts a background conversion if the chat runs a GGUF file in place.
fn convert_beside(opened: &mut LoadedModel, console: &Console) {
    match opened.file {
        Some(_) => opened.background = Background::begin(&opened.path, console),
        None => console
            .warn("--convert-in-background has no effect: the model is not a GGUF file that runs in place"),
    }
}

fn history(args: &ChatArgs) -> Result<Option<PathBuf>> {
    match (&args.history.history, args.history.no_history) {
        (_, true) => Ok(None),
        (Some(path), false) => Ok(Some(path.clone())),
        (None, false) => places::history_file().map(Some),
    }
}

struct Chat<'a> {
    opened: LoadedModel,
    /// Level of the model, if the rest of its store was still to come when it was opened.
    level: Option<Level>,
    rising: Option<RisingStore>,
    session: Session,
    transcript: Transcript,
    settings: Settings,
    think: Option<bool>,
    /// Text that `/read` adds to the next message.
    attached: String,
    lines: Lines,
    console: Console,
    interrupt: &'a Interrupt,
    args: ChatArgs,
}

impl Chat<'_> {
    /// Reads and answers messages until the user ends the chat or a higher level has arrived.
    fn talk(&mut self) -> Result<TalkEnd> {
        let mut interrupted = false;
        loop {
            let entered = self.lines.read(&self.console, self.interrupt)?;
            if entered == InputEvent::Interrupt && interrupted {
                return Err(Failure { message: String::new(), ..Failure::interrupted() });
            }
            interrupted = entered == InputEvent::Interrupt;
            let result = match entered {
                InputEvent::End => return Ok(TalkEnd::Bye),
                InputEvent::Interrupt => {
                    self.console.say("Ctrl-C again or Ctrl-D ends the chat");
                    Ok(())
                }
                InputEvent::Dropped => Ok(()),
                InputEvent::Text(text) if text.trim_start().starts_with('/') => {
                    match command::parse(&text) {
                        Ok(SlashCommand::Bye) => return Ok(TalkEnd::Bye),
                        Ok(command) => self.obey(command),
                        Err(sentence) => Err(Failure::new(sentence)),
                    }
                }
                InputEvent::Text(text) if self.has_risen() => return Ok(TalkEnd::Risen(text)),
                InputEvent::Text(text) => self.turn(&text),
            };
            self.tell(result)?;
        }
    }

    /// Prints an error, after which the chat continues unless the output was closed.
    fn tell(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(failure) if failure.message.is_empty() => return Err(failure),
            Err(failure) => self.console.failure(&failure),
            Ok(()) => {}
        }
        Ok(())
    }

    fn turn_or_tell(&mut self, text: &str) -> Result<()> {
        let result = self.turn(text);
        self.tell(result)
    }

    fn has_risen(&self) -> bool {
        self.rising.as_ref().is_some_and(|rising| rising.level_above(self.level).is_some())
    }

    /// Opens the store again at the highest level that has arrived. The conversation continues.
    fn risen(self) -> Result<Self> {
        let Self { opened, session, level, rising, interrupt, args, .. } = self;
        let risen = rising.as_ref().and_then(|rising| rising.level_above(level));
        // Default: a store that does not rise keeps its path.
        let path = rising.as_ref().map_or_else(|| opened.path.clone(), RisingStore::settle);
        // Both would not fit into memory.
        drop((session, opened));
        let open = |level| {
            let located = LocatedModel { level, ..LocatedModel::at(path.clone()) };
            opened::open_at(located, &args.model, &args.resources, None, &self.console, interrupt)
        };
        let (opened, level) = match risen.map(|risen| (risen, open(Some(risen)))) {
            Some((risen, Ok(opened))) => {
                let told = format_args!("level {risen} has arrived and answers from now on");
                self.console.note(told);
                (opened, Some(risen))
            }
            Some((_, Err(failure))) => {
                self.console.failure(&failure);
                (open(level)?, level)
            }
            None => (open(level)?, level),
        };
        let session = opened.model.session();
        Ok(Self { opened, session, level, rising, interrupt, args, ..self })
    }

    fn turn(&mut self, text: &str) -> Result<()> {
        let attached = std::mem::take(&mut self.attached);
        let message =
            if attached.is_empty() { text.into() } else { format!("{attached}\n\n{text}") };
        self.transcript.messages.push(Message::user(message));
        let result = self.answer();
        if result.is_err() {
            // The failed message is removed, so that the user can type it again.
            self.transcript.messages.pop();
        }
        result
    }

    fn answer(&mut self) -> Result<()> {
        // One guard for all parts of a reply; between two guards, Ctrl-C would end the program.
        let interrupt = self.interrupt;
        interrupt.guard(|cancel| self.answer_until(cancel))
    }

    fn answer_until(&mut self, cancel: &CancelToken) -> Result<()> {
        let started = Instant::now();
        let mut conversation = self.transcript.conversation(self.think);
        let context = self.opened.model.context_length();
        let reserve = self.settings.tokens_max.unwrap_or(usize::MAX).min(context / REPLY_SHARE);
        let fitted = self.opened.model.fit_with_cancel(&conversation, reserve, cancel);
        let fitted = fitted.map_err(|error| explain(&error))?;
        if fitted.dropped_messages > 0 {
            conversation = fitted.conversation;
            let (oldest, are) = match fitted.dropped_messages {
                1 => ("oldest message".into(), "is"),
                count => (format!("oldest {count} messages"), "are"),
            };
            self.console.note(format_args!(
                "the context of {context} tokens is full: the {oldest} {are} left out"
            ));
        }
        let mut reply = self.generate(conversation.into(), 0, cancel)?;
        // A continuation is a new generation whose constraint would start again, so constrained replies are
        // not continued.
        while let Some(generated) =
            reply.filled_the_context().filter(|_| !self.settings.form.is_given())
        {
            self.shift(context)?;
            reply.append(self.generate(Input::History, generated, cancel)?);
        }
        write_out("\n\n")?;
        let finished = reply.finished.take();
        if let Some(finished) = &finished {
            self.settings.form.warn_if_cut(&reply.text, &finished.reason, &self.console);
        }
        self.transcript.add_reply(reply);
        if let Some(finished) = finished {
            if let (FinishReason::Length, Some(most)) = (&finished.reason, self.settings.tokens_max)
            {
                let tokens = counted(finished.usage.completion_tokens, "token");
                self.console.note(format_args!("stopped after {tokens} (predict is {most})"));
            }
            let took = ReplyTimes { load: Duration::ZERO, total: started.elapsed() };
            stats::print(&self.console, &self.opened, &finished, took);
        }
        if let Some(status) = self.rising.as_ref().and_then(RisingStore::status) {
            self.console.note(format_args!("{status}"));
        }
        Ok(())
    }

    /// Generates a reply, or continues one of which `generated` tokens exist.
    fn generate(&mut self, input: Input, generated: usize, cancel: &CancelToken) -> Result<Reply> {
        let mut options = self.settings.generate_options();
        options.max_tokens = options.max_tokens.map(|most| most.saturating_sub(generated));
        let generation = self.session.generate_with_cancel(input, &options, cancel);
        write_reply(generation.map_err(|error| explain(&error))?, &self.console)
    }

    /// Discards the older half of a full context, so that a reply can continue.
    fn shift(&mut self, context: usize) -> Result<()> {
        let keep = self.system_tokens().map_err(|error| explain(&error))?;
        let discard = context.saturating_sub(keep).div_ceil(2);
        self.console.line("");
        self.console.note(format_args!(
            "the context of {context} tokens is full: forgetting the oldest {discard} tokens"
        ));
        self.session.shift(keep, discard).map_err(|error| explain(&error))
    }

    /// Returns the number of tokens at the start of the context that a shift keeps: those of the system
    /// prompt.
    fn system_tokens(&self) -> std::result::Result<usize, EngineError> {
        let alone = Transcript { system: self.transcript.system.clone(), messages: vec![] };
        let messages = alone.all();
        if messages.is_empty() {
            return Ok(0);
        }
        let mut conversation = alone.conversation(self.think);
        conversation.add_generation_prompt = false;
        Ok(self.opened.model.conversation_tokens(&conversation)?.len())
    }

    fn obey(&mut self, command: SlashCommand) -> Result<()> {
        match command {
            SlashCommand::Help => self.console.paragraphs(command::HELP),
            SlashCommand::Bye => {}
            SlashCommand::Clear => {
                self.transcript.messages.clear();
                self.attached.clear();
                self.console.say("the conversation is forgotten");
            }
            SlashCommand::Regenerate => return self.regenerate(),
            SlashCommand::Read(path) => {
                let text = read_text(&path)?;
                let count = text.lines().count();
                let (lines, go) = (counted(count, "line"), if count == 1 { "goes" } else { "go" });
                self.attached += text.trim_end();
                self.console.say(format_args!("{lines} {go} with your next message"));
            }
            SlashCommand::Save { path, force } => {
                self.transcript.save(&path, force)?;
                self.console.say(format_args!("saved to {}", path.display()));
            }
            SlashCommand::Load(path) => return self.load(&path),
            SlashCommand::System(None) => match &self.transcript.system {
                Some(text) => self.console.line(text),
                None => self.console.say("there is no system prompt"),
            },
            SlashCommand::System(Some(text)) => {
                self.transcript.system = Some(text).filter(|text| !text.is_empty());
                self.console.say("the system prompt is set; it holds from the next message on");
            }
            SlashCommand::Parameter { name, value } => {
                self.settings.set(&name, value.as_deref()).map_err(Failure::new)?;
                self.console.say(self.settings.confirmation(&name, value.as_deref()));
            }
            SlashCommand::Think(think) => self.set_think(think)?,
            SlashCommand::Verbosity(verbosity) => {
                self.console.quiet = verbosity == Verbosity::Quiet;
                self.console.verbose = u8::from(verbosity == Verbosity::Verbose);
                self.console.say(match verbosity {
                    Verbosity::Quiet => "no statistics are shown",
                    Verbosity::Verbose => "timings are shown in full",
                });
            }
            SlashCommand::History(on) => self.keep_history(on)?,
            SlashCommand::ShowInfo => self.console.line(self.opened.describe()),
            SlashCommand::ShowParameters => self.console.line(&self.settings),
        }
        Ok(())
    }

    /// Enables or disables reasoning. Fails if the template does not support the choice.
    fn set_think(&mut self, think: bool) -> Result<()> {
        let message = Transcript { system: None, messages: vec![Message::user("?")] };
        let prompt = |think| {
            let tokens = self.opened.model.conversation_tokens(&message.conversation(Some(think)));
            tokens.map_err(|error| explain(&error))
        };
        if prompt(true)? == prompt(false)? {
            return Err(Failure::new(
                "thinking cannot be switched on or off: this model's chat template does not ask",
            ));
        }
        self.think = Some(think);
        let whether = if think { "reasons before it answers" } else { "answers at once" };
        self.console.say(format_args!("from the next message on the model {whether}"));
        Ok(())
    }

    fn keep_history(&mut self, on: bool) -> Result<()> {
        let file = places::history_file()?;
        match on {
            true => {
                let shown = file.display();
                self.console.say(format_args!("what you type is kept in {shown}"));
            }
            false => self.console.say("input is no longer saved to the history"),
        }
        self.lines.set_history(on.then_some(file));
        Ok(())
    }

    fn regenerate(&mut self) -> Result<()> {
        let before = self.transcript.clone();
        if !self.transcript.drop_reply() {
            return Err(Failure::new("there is no reply to regenerate"));
        }
        // The same seed would produce the same reply.
        let seed = &mut self.settings.sampling.seed;
        *seed = seed.map(|seed| seed.wrapping_add(1));
        let result = self.answer();
        if result.is_err() {
            self.transcript = before;
        }
        result
    }

    /// Loads a saved conversation or another model.
    fn load(&mut self, path: &Path) -> Result<()> {
        if path.extension().is_some_and(|extension| extension == "json") {
            self.transcript = Transcript::load(path)?;
            let messages = counted(self.transcript.messages.len(), "message");
            self.console.say(format_args!("{messages} loaded"));
            return Ok(());
        }
        let model = self.arguments_for(path)?;
        let opened = opened::open(&model, &self.args.resources, &self.console, self.interrupt)?;
        let mut opened = LoadedModel { on_cpu: None, ..opened };
        if self.args.convert_in_background {
            convert_beside(&mut opened, &self.console);
        }
        self.session = opened.model.session();
        let form = std::mem::take(&mut self.settings.form);
        let settings = Settings::new(&self.args.generation, opened.model.default_sampling());
        self.settings = settings.with_form(form);
        self.transcript.messages.clear();
        self.opened = opened;
        welcome::print(&self.opened, &self.console);
        Ok(())
    }

    /// Returns the model arguments with the path replaced.
    fn arguments_for(&self, path: &Path) -> Result<ModelArgs> {
        let wrong = |problem: &str| {
            Failure::new(format!("cannot load {}: {problem}", path.display())).advise(
                "check the spelling, or `/load` a .nest store, a .gguf file or a checkpoint folder",
            )
        };
        if !path.exists() {
            return Err(wrong("no such file or folder"));
        }
        if path.is_dir() && !path.join("config.json").is_file() {
            return Err(wrong("the folder has no config.json"));
        }
        let mut model = self.args.model.clone();
        (model.path, model.model, model.hub.hf_repo) = (Some(path.into()), None, None);
        Ok(model)
    }
}
