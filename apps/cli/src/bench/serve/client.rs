//! Client of a server: sends a streamed completion request and records when tokens arrive.

use super::work::Request;
use nestling::CancelToken;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::time::{Duration, Instant};
use ureq::{Agent, RequestBuilder};

/// Maximum length of a line of a response in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Maximum length of a response that is not streamed, in bytes.
const BODY_BYTES_MAX: u64 = 16 << 20;

/// Read timeout. It is long because the server may process other prompts first.
const SILENCE: Duration = Duration::from_secs(600);

/// Description of a model, as the server reports it.
#[derive(Clone, Debug)]
pub struct ServedModel {
    pub name: String,
    /// Size of the vocabulary, if reported.
    pub vocab_size: Option<u32>,
}

/// Measurements of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Delay in seconds between the scheduled and the actual time of sending.
    pub late: f64,
    /// Time to the first token in seconds, if there was one.
    pub first: Option<f64>,
    /// Gaps in seconds between successive parts of the response.
    pub gaps: Vec<f64>,
    /// Time to the end of the response in seconds.
    pub whole: f64,
    pub prompt_tokens: u64,
    /// Number of prompt tokens that the server had cached.
    pub cached_tokens: u64,
    pub tokens: u64,
    /// Error message if the response is incomplete.
    pub failure: Option<String>,
}

impl Outcome {
    /// Returns the mean time per token after the first in seconds, or `None` for fewer than two tokens.
    pub fn each_token(&self) -> Option<f64> {
        let first = self.first.filter(|_| self.tokens > 1)?;
        Some((self.whole - first) / (self.tokens - 1) as f64)
    }
}

/// Client of one server. Clones share its connections.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
}

impl Client {
    pub fn new(url: &str, key: Option<String>) -> Self {
        let config = Agent::config_builder()
            .user_agent(concat!("nestling/", env!("CARGO_PKG_VERSION")))
            .max_redirects(0)
            .http_status_as_error(false)
            // A proxy would distort the measurement.
            .proxy(None)
            .timeout_connect(Some(Duration::from_secs(30)))
            .timeout_recv_response(Some(SILENCE))
            .timeout_per_read(Some(SILENCE))
            .build();
        Self { agent: config.new_agent(), url: url.trim_end_matches('/').to_owned(), key }
    }

    fn with_key<Body>(&self, request: RequestBuilder<Body>) -> RequestBuilder<Body> {
        match &self.key {
            Some(key) => request.header("Authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Returns the models that the server lists.
    ///
    /// # Errors
    /// Returns an error message if the request fails or the response is malformed.
    pub fn models(&self) -> Result<Vec<ServedModel>, String> {
        let request = self.with_key(self.agent.get(format!("{}/v1/models", self.url)));
        let mut response = request.call().map_err(|error| error.to_string())?;
        let text = whole(response.body_mut().as_reader())?;
        let value: Value = serde_json::from_str(&text).map_err(|_| unexpected(&text))?;
        if !response.status().is_success() {
            return Err(message(&value).unwrap_or_else(|| unexpected(&text)));
        }
        let list = value["data"].as_array().ok_or_else(|| unexpected(&text))?;
        let served = |model: &Value| {
            let sizes = ["vocab_size", "n_vocab"].map(|name| model["meta"][name].as_u64());
            let vocab_size = sizes.into_iter().flatten().next();
            let vocab_size = vocab_size.and_then(|size| u32::try_from(size).ok());
            Some(ServedModel { name: model["id"].as_str()?.to_owned(), vocab_size })
        };
        list.iter().map(served).collect::<Option<_>>().ok_or_else(|| unexpected(&text))
    }

    /// Sends a request and reads the response to its end or until `cancel`.
    pub fn complete(&self, model: &str, request: &Request, cancel: &CancelToken) -> Outcome {
        let body = json!({
            "model": model, "prompt": request.prompt, "max_tokens": request.answer, "temperature": 0,
            "ignore_eos": true, "stream": true, "stream_options": { "include_usage": true },
        });
        let mut outcome = Outcome::default();
        let sent = Instant::now();
        if let Err(failure) = self.stream(&body.to_string(), sent, &mut outcome, cancel) {
            outcome.failure = Some(failure);
        }
        outcome.whole = sent.elapsed().as_secs_f64();
        outcome
    }

    fn stream(
        &self,
        body: &str,
        sent: Instant,
        outcome: &mut Outcome,
        cancel: &CancelToken,
    ) -> Result<(), String> {
        let request = self.with_key(self.agent.post(format!("{}/v1/completions", self.url)));
        let request = request.header("Content-Type", "application/json");
        let mut response = request.send(body).map_err(|error| error.to_string())?;
        let status = response.status();
        let reader = response.body_mut().as_reader();
        if !status.is_success() {
            let text = whole(reader)?;
            let said = serde_json::from_str(&text).ok().as_ref().and_then(message);
            return Err(format!("{status}: {}", said.unwrap_or_else(|| unexpected(&text))));
        }
        let mut lines = BufReader::new(reader);
        let (mut line, mut last) = (String::new(), sent);
        while !cancel.is_cancelled() {
            line.clear();
            let read = lines.by_ref().take(LINE_BYTES_MAX).read_line(&mut line);
            if read.map_err(|error| error.to_string())? == 0 {
                return Err("the answer broke off".into());
            }
            let Some(data) = line.trim_end().strip_prefix("data:").map(str::trim) else { continue };
            if data == "[DONE]" {
                return Ok(());
            }
            let part: Value = serde_json::from_str(data).map_err(|_| unexpected(data))?;
            if let Some(message) = message(&part) {
                return Err(message);
            }
            if has_text(&part) {
                let now = Instant::now();
                match outcome.first {
                    None => outcome.first = Some((now - sent).as_secs_f64()),
                    Some(_) => outcome.gaps.push((now - last).as_secs_f64()),
                }
                last = now;
            }
            outcome.count(&part["usage"]);
        }
        Err("it was interrupted".into())
    }
}

impl Outcome {
    fn count(&mut self, usage: &Value) {
        // Default: the previous value, because most parts contain no usage.
        let number = |value: &Value, before| value.as_u64().unwrap_or(before);
        self.prompt_tokens = number(&usage["prompt_tokens"], self.prompt_tokens);
        self.tokens = number(&usage["completion_tokens"], self.tokens);
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        self.cached_tokens = number(cached, self.cached_tokens);
    }
}

fn has_text(part: &Value) -> bool {
    part["choices"][0]["text"].as_str().is_some_and(|text| !text.is_empty())
}

fn message(value: &Value) -> Option<String> {
    let error = value.get("error").filter(|error| !error.is_null())?;
    let message = error["message"].as_str().map(str::to_owned);
    Some(message.unwrap_or_else(|| error.to_string()))
}

fn whole(reader: impl Read) -> Result<String, String> {
    let mut text = String::new();
    let read = reader.take(BODY_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    Ok(text)
}

/// Returns an error message for a malformed response, quoting its first 120 characters.
fn unexpected(text: &str) -> String {
    let start: String = text.chars().filter(|c| !c.is_control()).take(120).collect();
    format!("an answer that is none of this API's: {start:?}")
}
