//! Runs the generations of a request and merges their events into one stream.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_util::future::{Either, select};
use futures_util::stream::{Stream, StreamExt, iter, select_all};
use nestling::{
    CancelToken, EngineError, Event, EventStream, FinishReason, GenerateOptions, Generation,
    Session, TokenEvent,
};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::access::Caller;
use crate::blocking::blocking;
use crate::error::ApiError;
use crate::prompt::Prompt;
use crate::server::ServedModel;

/// Capacity of the channel between the generations and the response writer. The engine has buffers in
/// addition.
const CHANNEL_EVENTS: usize = 16;

#[derive(Debug)]
pub(crate) struct Job {
    pub prompts: Vec<Prompt>,
    /// Number of choices per prompt. All choices share the computed prompt.
    pub choices: usize,
    pub options: GenerateOptions,
    /// True if idle sessions may be reused and the sessions of this job are kept as idle sessions.
    pub keeps_sessions: bool,
    /// Number of tool calls after which a choice ends.
    pub calls_max: Option<usize>,
    /// Name of the request field that holds the prompts, for error messages.
    pub param: &'static str,
}

#[derive(Debug)]
pub(crate) struct ChoiceEvent {
    /// Index of the choice; the choices of the first prompt come first.
    pub choice: usize,
    pub event: Event,
}

/// Events of all choices of a request, in order of arrival. Dropping the stream cancels unfinished
/// generations; computed KV pages stay available.
#[derive(Debug)]
pub(crate) struct Answers {
    receiver: mpsc::Receiver<Result<ChoiceEvent, ApiError>>,
    pub choices: usize,
    /// Number of choices per prompt.
    pub choices_each: usize,
    /// Total number of prompt tokens.
    pub prompt_tokens: usize,
    /// Number of choices whose end has not been returned yet.
    open: usize,
    /// True once the client has not read for the maximum time.
    stalled: Arc<AtomicBool>,
    _stop: StopOnDrop,
}

impl Answers {
    /// Returns the next event, or `None` after the end. An error ends the stream.
    pub async fn next(&mut self) -> Option<Result<ChoiceEvent, ApiError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub fn poll_next(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<ChoiceEvent, ApiError>>> {
        let next = ready!(self.receiver.poll_recv(context));
        match &next {
            Some(Ok(ChoiceEvent { event: Event::Finished(_), .. })) => self.open -= 1,
            Some(Err(_)) => self.open = 0,
            None if self.open > 0 => {
                self.open = 0;
                let error = match self.stalled.load(Ordering::Acquire) {
                    true => ApiError::internal(
                        "the client stopped reading, so the answer was cancelled",
                    ),
                    // Only the runtime's end drops the generations before their last event.
                    false => ApiError::shut_down(),
                };
                return Poll::Ready(Some(Err(error)));
            }
            _ => {}
        }
        Poll::Ready(next)
    }
}

/// Cancels the generations of a request when its response is dropped.
#[derive(Debug)]
struct StopOnDrop(CancelToken);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A session whose prompt is being computed.
struct StartedChoice {
    session: Session,
    generation: Generation,
    prompt_tokens: usize,
    /// The prompt, retained if further choices need it.
    again: Option<nestling::Prompt>,
    /// Number of cached tokens when the prompt was computed once for several choices.
    shared: Option<usize>,
    /// Prompt token events of that computation.
    prompt: Vec<TokenEvent>,
}

/// Starts all generations of a job, which occupies the slot of its request until it ends. Invalid prompts and
/// options are detected here.
///
/// # Errors
/// Returns the engine's errors.
pub(crate) async fn start(
    served: &Arc<ServedModel>,
    mut job: Job,
    slot: OwnedSemaphorePermit,
    caller: &Caller,
) -> Result<Answers, ApiError> {
    let stop = StopOnDrop(CancelToken::new());
    job.options.cache_salt = caller.salted(job.options.cache_salt);
    job.options.group = caller.group(job.options.group);
    let job = Arc::new(job);
    let (choices, choices_each) = (job.prompts.len() * job.choices, job.choices);
    let param = job.param;
    let refused = |error: EngineError| served.refused(error, param);
    let alone = job.choices == 1;
    let (shared, cancel) = (Arc::clone(served), stop.0.clone());
    let work = Arc::clone(&job);
    let begin = move || Begin { served: &shared, job: &work, cancel: &cancel }.prompts(alone);
    let mut begun = blocking(begin).await?.map_err(refused)?;
    let prompt_tokens = begun.iter().map(|begun| begun.prompt_tokens).sum();
    if !alone {
        let mut computed = Vec::with_capacity(begun.len());
        for StartedChoice { session, generation, again, .. } in begun {
            let (told, cached_tokens) = of_prompt(generation).await.map_err(refused)?;
            let again = again.ok_or_else(|| ApiError::internal("a prompt is gone"))?;
            computed.push(SharedPrompt { session, cached_tokens, prompt: again, told });
        }
        let (shared, cancel) = (Arc::clone(served), stop.0.clone());
        let work = Arc::clone(&job);
        let fork = move || Begin { served: &shared, job: &work, cancel: &cancel }.forks(computed);
        begun = blocking(fork).await?.map_err(refused)?;
    }
    let (sender, receiver) = mpsc::channel(CHANNEL_EVENTS);
    let pump = Pump::new(Arc::clone(served), begun, &job, sender, slot);
    let stalled = Arc::clone(&pump.stalled);
    tokio::spawn(pump.run());
    let open = choices;
    Ok(Answers { receiver, choices, choices_each, prompt_tokens, open, stalled, _stop: stop })
}

/// A computed prompt that several choices share.
struct SharedPrompt {
    session: Session,
    /// Number of prompt tokens that were cached.
    cached_tokens: usize,
    prompt: nestling::Prompt,
    /// Prompt token events.
    told: Vec<TokenEvent>,
}

/// Waits until a prompt is computed. Returns its token events and its number of cached tokens.
async fn of_prompt(generation: Generation) -> Result<(Vec<TokenEvent>, usize), EngineError> {
    let (mut events, mut tokens) = (generation.into_stream(), Vec::new());
    while let Some(event) = events.next().await {
        match event? {
            Event::PromptToken(token) => tokens.push(token),
            Event::Finished(finished) if finished.reason == FinishReason::Cancelled => break,
            Event::Finished(finished) => return Ok((tokens, finished.usage.cached_tokens)),
            _ => {}
        }
    }
    Err(EngineError::Cancelled)
}

/// Context for starting generations. Its methods may block.
struct Begin<'a> {
    served: &'a ServedModel,
    job: &'a Job,
    cancel: &'a CancelToken,
}

impl Begin<'_> {
    /// Opens a session per prompt and starts it. With `answers` it generates, otherwise it only computes the
    /// prompt.
    fn prompts(&self, answers: bool) -> Result<Vec<StartedChoice>, EngineError> {
        self.job.prompts.iter().map(|prompt| self.prompt(prompt, answers)).collect()
    }

    fn prompt(&self, prompt: &Prompt, answers: bool) -> Result<StartedChoice, EngineError> {
        let model = &self.served.model;
        let options = GenerateOptions {
            max_tokens: if answers { self.job.options.max_tokens } else { Some(0) },
            ..self.job.options.clone()
        };
        let reserve = usize::from(self.job.options.max_tokens != Some(0));
        let prompt = prompt.prepare(model, reserve, self.cancel)?;
        let tokens = prompt.tokens();
        let mut session = match self.job.keeps_sessions {
            true => self.served.idle.session_for(model, tokens, options.cache_salt.as_deref()),
            false => model.session(),
        };
        let prompt_tokens = tokens.len();
        let again = (!answers).then(|| prompt.clone());
        match session.generate_with_cancel(prompt, &options, self.cancel) {
            Ok(generation) => {
                let prompt = Vec::new();
                Ok(StartedChoice {
                    session,
                    generation,
                    prompt_tokens,
                    again,
                    shared: None,
                    prompt,
                })
            }
            Err(error) => {
                // The session's KV cache is still useful to later requests.
                if self.job.keeps_sessions {
                    self.served.keep(session, options.cache_salt);
                }
                Err(error)
            }
        }
    }

    /// Starts all choices of computed prompts, in forked sessions.
    fn forks(&self, computed: Vec<SharedPrompt>) -> Result<Vec<StartedChoice>, EngineError> {
        let mut begun = Vec::with_capacity(self.job.prompts.len() * self.job.choices);
        for SharedPrompt { session, cached_tokens, prompt, told } in computed {
            let forks = (1..self.job.choices).map(|_| session.fork());
            let mut sessions = forks.collect::<Result<Vec<_>, _>>()?;
            sessions.insert(0, session);
            for (index, mut session) in sessions.into_iter().enumerate() {
                let mut options =
                    GenerateOptions { prompt_logprobs: None, ..self.job.options.clone() };
                let seed = &mut options.sampling.seed;
                *seed = seed.map(|seed| seed.wrapping_add(index as u64));
                let (asked, prompt_tokens) = (prompt.clone(), prompt.tokens().len());
                let generation = session.generate_with_cancel(asked, &options, self.cancel)?;
                let (shared, prompt) = (Some(cached_tokens), told.clone());
                let again = None;
                begun.push(StartedChoice {
                    session,
                    generation,
                    prompt_tokens,
                    again,
                    shared,
                    prompt,
                });
            }
        }
        Ok(begun)
    }
}

impl ServedModel {
    /// Keeps a session as an idle session. May block for one layer of a running step.
    fn keep(&self, session: Session, salt: Option<String>) {
        if let Err(error) = self.idle.keep(session, salt) {
            tracing::debug!("a session is not kept: {error}");
        }
    }
}

struct Choice {
    cancel: CancelToken,
    shared: Option<usize>,
    calls: usize,
    last_token: Option<Instant>,
}

type ChoiceStream =
    std::pin::Pin<Box<dyn Stream<Item = (usize, Result<Event, EngineError>)> + Send>>;

/// Forwards events from the generations to the response writer, until the writer is dropped.
struct Pump {
    served: Arc<ServedModel>,
    choices: Vec<Choice>,
    streams: Vec<ChoiceStream>,
    /// Session of each prompt, kept as idle sessions at the end.
    kept: Vec<Session>,
    salt: Option<String>,
    /// Number of choices per prompt.
    choices_each: usize,
    calls_max: Option<usize>,
    param: &'static str,
    sender: mpsc::Sender<Result<ChoiceEvent, ApiError>>,
    /// Set once the client has not read for the maximum time.
    stalled: Arc<AtomicBool>,
    slot: OwnedSemaphorePermit,
}

impl Pump {
    fn new(
        served: Arc<ServedModel>,
        begun: Vec<StartedChoice>,
        job: &Job,
        sender: mpsc::Sender<Result<ChoiceEvent, ApiError>>,
        slot: OwnedSemaphorePermit,
    ) -> Self {
        let (mut choices, mut streams, mut kept) = (Vec::new(), Vec::<ChoiceStream>::new(), vec![]);
        for (index, begun) in begun.into_iter().enumerate() {
            let StartedChoice { session, generation, shared, prompt, .. } = begun;
            let stream: EventStream = generation.into_stream();
            let cancel = stream.cancel_token();
            choices.push(Choice { cancel, shared, calls: 0, last_token: None });
            let prompt = iter(prompt).map(|token| Ok(Event::PromptToken(token)));
            streams.push(Box::pin(prompt.chain(stream).map(move |event| (index, event))));
            if job.keeps_sessions && index.is_multiple_of(job.choices) {
                kept.push(session);
            }
        }
        let (choices_each, calls_max, param) = (job.choices, job.calls_max, job.param);
        let salt = job.options.cache_salt.clone();
        let stalled = Arc::default();
        Self {
            served,
            choices,
            streams,
            kept,
            salt,
            choices_each,
            calls_max,
            param,
            sender,
            stalled,
            slot,
        }
    }

    async fn run(mut self) {
        let mut streams = select_all(std::mem::take(&mut self.streams));
        let mut open = self.choices.len();
        // The last event is sent after the sessions are kept, so that the next request can reuse them.
        let last = loop {
            let next = {
                let closed = pin!(self.sender.closed());
                match select(closed, streams.next()).await {
                    Either::Left(_) => None,
                    Either::Right((next, _)) => next,
                }
            };
            let Some((choice, event)) = next else { break None };
            let Some(said) = self.convert(choice, event) else { continue };
            match &said {
                Ok(ChoiceEvent { event: Event::Finished(_), .. }) => open -= 1,
                Ok(_) => {}
                Err(_) => open = 0,
            }
            if open == 0 {
                break Some(said);
            }
            if self.sender.send_timeout(said, self.served.write_time).await.is_err() {
                self.stalled.store(true, Ordering::Release);
                break None;
            }
        };
        // Cancels unfinished generations.
        drop(streams);
        if last.is_none() {
            self.served.metrics.left(open);
        }
        let Self { served, kept, salt, sender, stalled, slot, .. } = self;
        let write_time = served.write_time;
        let keep = move || kept.into_iter().for_each(|session| served.keep(session, salt.clone()));
        if let Err(error) = blocking(keep).await {
            tracing::warn!("sessions are lost: {}", error.message);
        }
        drop(slot);
        if let Some(last) = last
            && sender.send_timeout(last, write_time).await.is_err()
        {
            stalled.store(true, Ordering::Release);
            tracing::debug!("the client left before the answer ended");
        }
    }

    /// Converts an event of one choice for the writer and updates the metrics.
    fn convert(
        &mut self,
        index: usize,
        event: Result<Event, EngineError>,
    ) -> Option<Result<ChoiceEvent, ApiError>> {
        let metrics = &self.served.metrics;
        let choice = self.choices.get_mut(index)?;
        let is_cut = self.calls_max.is_some_and(|most| choice.calls >= most);
        let event = match event {
            Ok(Event::Finished(mut finished)) => {
                if is_cut && finished.reason == FinishReason::Cancelled {
                    finished.reason = FinishReason::ToolCalls;
                }
                if let Some(cached) = choice.shared {
                    finished.usage.cached_tokens = cached;
                }
                metrics.finished(&finished, index.is_multiple_of(self.choices_each));
                if finished.reason == FinishReason::Cancelled {
                    return Some(Err(ApiError::engine(EngineError::Cancelled, self.param)));
                }
                Event::Finished(finished)
            }
            Ok(_) if is_cut => return None,
            Ok(event) => event,
            Err(error) => return Some(Err(self.served.refused(error, self.param))),
        };
        match &event {
            Event::Token(_) => {
                let now = Instant::now();
                if let Some(last) = choice.last_token.replace(now) {
                    metrics.token_after(now - last);
                }
            }
            Event::ToolCall(_) => {
                choice.calls += 1;
                if self.calls_max.is_some_and(|most| choice.calls >= most) {
                    choice.cancel.cancel();
                }
            }
            _ => {}
        }
        Some(Ok(ChoiceEvent { choice: index, event }))
    }
}
