//! From a request to sessions, and from their generations to one line of events.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
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
use crate::server::Served;

/// Events between the model and what writes them, besides those that the engine keeps.
const CHANNEL_EVENTS: usize = 16;

/// What is to be generated.
#[derive(Debug)]
pub(crate) struct Job {
    pub prompts: Vec<Prompt>,
    /// Answers to each prompt. They share what was computed of it.
    pub choices: usize,
    pub options: GenerateOptions,
    /// Whether sessions of earlier requests are used, and this one's kept.
    pub keeps_sessions: bool,
    /// Tool calls after which an answer ends.
    pub calls_max: Option<usize>,
    /// The field that the prompts came in.
    pub param: &'static str,
}

/// What an answer says.
#[derive(Debug)]
pub(crate) struct Said {
    /// Which answer: those to the first prompt first.
    pub choice: usize,
    pub event: Event,
}

/// The events of all answers to a request, in the order in which they came. Dropping it cancels what is not done; what
/// was computed is kept.
#[derive(Debug)]
pub(crate) struct Answers {
    receiver: mpsc::Receiver<Result<Said, ApiError>>,
    pub choices: usize,
    /// Answers to each prompt.
    pub choices_each: usize,
    /// Tokens of all prompts.
    pub prompt_tokens: usize,
    /// Answers whose end has not been told.
    open: usize,
    _stop: StopOnDrop,
}

impl Answers {
    /// The next event; none after the last. An error is the last.
    pub async fn next(&mut self) -> Option<Result<Said, ApiError>> {
        poll_fn(|context| self.poll_next(context)).await
    }

    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Said, ApiError>>> {
        let next = ready!(self.receiver.poll_recv(context));
        match &next {
            Some(Ok(Said { event: Event::Finished(_), .. })) => self.open -= 1,
            Some(Err(_)) => self.open = 0,
            None if self.open > 0 => {
                self.open = 0;
                let message = "nobody took the answer, so it was stopped";
                return Poll::Ready(Some(Err(ApiError::internal(message))));
            }
            _ => {}
        }
        Poll::Ready(next)
    }
}

/// Cancels what belongs to a request that nobody waits for any more.
#[derive(Debug)]
struct StopOnDrop(CancelToken);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// A prompt in a session, being computed.
struct Begun {
    session: Session,
    generation: Generation,
    prompt_tokens: usize,
    /// The prompt, where more answers to it follow.
    again: Option<nestling::Prompt>,
    /// Tokens of the prompt that were there before it was computed for all its answers.
    shared: Option<usize>,
    /// What was told of the prompt then.
    prompt: Vec<TokenEvent>,
}

/// Starts all answers. What can be wrong with a request is found here.
///
/// # Errors
/// [`ApiError::busy`] where too many requests are under way; what the engine says.
pub(crate) async fn start(
    served: &Arc<Served>,
    mut job: Job,
    caller: &Caller,
) -> Result<Answers, ApiError> {
    let requests = Arc::clone(&served.requests);
    let permit = requests.try_acquire_owned();
    let permit = permit.map_err(|_| ApiError::busy("too many requests are under way"))?;
    let stop = StopOnDrop(CancelToken::new());
    job.options.cache_salt = caller.salted(job.options.cache_salt);
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
        for Begun { session, generation, again, .. } in begun {
            let (told, cached_tokens) = of_prompt(generation).await.map_err(refused)?;
            let again = again.ok_or_else(|| ApiError::internal("a prompt is gone"))?;
            computed.push(Computed { session, cached_tokens, prompt: again, told });
        }
        let (shared, cancel) = (Arc::clone(served), stop.0.clone());
        let work = Arc::clone(&job);
        let fork = move || Begin { served: &shared, job: &work, cancel: &cancel }.forks(computed);
        begun = blocking(fork).await?.map_err(refused)?;
    }
    let (sender, receiver) = mpsc::channel(CHANNEL_EVENTS);
    let pump = Pump::new(Arc::clone(served), begun, &job, sender, permit);
    tokio::spawn(pump.run());
    Ok(Answers { receiver, choices, choices_each, prompt_tokens, open: choices, _stop: stop })
}

/// A prompt that several answers share.
struct Computed {
    session: Session,
    /// Tokens that were there before.
    cached_tokens: usize,
    prompt: nestling::Prompt,
    /// What was told of it.
    told: Vec<TokenEvent>,
}

/// Waits until a prompt is computed. What was told of its tokens, and how many were there before.
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

/// How generations begin, on a thread that may wait.
struct Begin<'a> {
    served: &'a Served,
    job: &'a Job,
    cancel: &'a CancelToken,
}

impl Begin<'_> {
    /// A session for each prompt, which answers or, where several do, only computes the prompt.
    fn prompts(&self, answers: bool) -> Result<Vec<Begun>, EngineError> {
        self.job.prompts.iter().map(|prompt| self.prompt(prompt, answers)).collect()
    }

    fn prompt(&self, prompt: &Prompt, answers: bool) -> Result<Begun, EngineError> {
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
                Ok(Begun { session, generation, prompt_tokens, again, shared: None, prompt })
            }
            Err(error) => {
                // What it held is as good for the next request.
                if self.job.keeps_sessions {
                    self.served.keep(session, options.cache_salt);
                }
                Err(error)
            }
        }
    }

    /// The answers to prompts that are computed.
    fn forks(&self, computed: Vec<Computed>) -> Result<Vec<Begun>, EngineError> {
        let mut begun = Vec::with_capacity(self.job.prompts.len() * self.job.choices);
        for Computed { session, cached_tokens, prompt, told } in computed {
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
                begun.push(Begun { session, generation, prompt_tokens, again, shared, prompt });
            }
        }
        Ok(begun)
    }
}

impl Served {
    /// Keeps a session for later requests. May wait for a layer.
    fn keep(&self, session: Session, salt: Option<String>) {
        if let Err(error) = self.idle.keep(session, salt) {
            tracing::debug!("a session is not kept: {error}");
        }
    }
}

/// An answer on its way.
struct Choice {
    cancel: CancelToken,
    shared: Option<usize>,
    calls: usize,
    /// When its last token came.
    last_token: Option<Instant>,
}

type ChoiceStream =
    std::pin::Pin<Box<dyn Stream<Item = (usize, Result<Event, EngineError>)> + Send>>;

/// Carries events from the model to the writer, as long as there is one that takes them.
struct Pump {
    served: Arc<Served>,
    choices: Vec<Choice>,
    streams: Vec<ChoiceStream>,
    /// The session that each prompt leaves behind.
    kept: Vec<Session>,
    /// Who else may go on from them.
    salt: Option<String>,
    /// Answers to each prompt.
    choices_each: usize,
    calls_max: Option<usize>,
    param: &'static str,
    sender: mpsc::Sender<Result<Said, ApiError>>,
    permit: OwnedSemaphorePermit,
}

impl Pump {
    fn new(
        served: Arc<Served>,
        begun: Vec<Begun>,
        job: &Job,
        sender: mpsc::Sender<Result<Said, ApiError>>,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let (mut choices, mut streams, mut kept) = (Vec::new(), Vec::<ChoiceStream>::new(), vec![]);
        for (index, begun) in begun.into_iter().enumerate() {
            let Begun { session, generation, shared, prompt, .. } = begun;
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
            permit,
        }
    }

    async fn run(mut self) {
        let mut streams = select_all(std::mem::take(&mut self.streams));
        let mut open = self.choices.len();
        // What ends the answers is told when the next request can go on from them.
        let last = loop {
            let next = {
                let closed = pin!(self.sender.closed());
                match select(closed, streams.next()).await {
                    Either::Left(_) => None,
                    Either::Right((next, _)) => next,
                }
            };
            let Some((choice, event)) = next else { break None };
            let Some(said) = self.said(choice, event) else { continue };
            match &said {
                Ok(Said { event: Event::Finished(_), .. }) => open -= 1,
                Ok(_) => {}
                Err(_) => open = 0,
            }
            if open == 0 {
                break Some(said);
            }
            if self.sender.send_timeout(said, self.served.write_time).await.is_err() {
                break None;
            }
        };
        // Cancels what is not done.
        drop(streams);
        let Self { served, kept, salt, sender, permit, .. } = self;
        let write_time = served.write_time;
        let keep = move || kept.into_iter().for_each(|session| served.keep(session, salt.clone()));
        if let Err(error) = blocking(keep).await {
            tracing::warn!("sessions are lost: {}", error.message);
        }
        drop(permit);
        if let Some(last) = last
            && sender.send_timeout(last, write_time).await.is_err()
        {
            tracing::debug!("nobody heard how an answer ended");
        }
    }

    /// What is told of an event.
    fn said(
        &mut self,
        index: usize,
        event: Result<Event, EngineError>,
    ) -> Option<Result<Said, ApiError>> {
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
        Some(Ok(Said { choice: index, event }))
    }
}
