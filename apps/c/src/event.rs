//! Events of a generation.
#![expect(unsafe_code, reason = "structs of C are read and written")]

use std::ffi::{CString, c_char};
use std::ptr;

use nestling::{Event, FinishReason, GenerationSummary, TokenEvent};

use crate::sized::SizedStruct;
use crate::text::c_text;

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum NestlingEventKind {
    /// No event arrived within the timeout.
    None = 0,
    /// A token was chosen: `token`, its `token_bytes` and, if requested, `log_prob` and `top`. It precedes the text that it
    /// completes.
    Token = 1,
    /// More of the answer: `text`, whole characters.
    Text = 2,
    /// More of the reasoning before the answer: `text`.
    Reasoning = 3,
    /// The model begins to call a tool: `index`, `id` and `name`.
    ToolCallStart = 4,
    /// More of the arguments of the call `index`: `text`.
    ToolCallArguments = 5,
    /// The call that began last, whole: `id`, `name`, and its arguments as JSON in `text`.
    ToolCall = 6,
    /// End of the generation, with `finish_reason` and counts. The last event of a generation that did not fail.
    Finished = 7,
    /// End of the events.
    End = 8,
    /// A value that this header does not know.
    Other = 9,
    /// A token of the prompt, if `prompt_logprobs` requests it: fields as for NESTLING_EVENT_KIND_TOKEN. `log_prob` is NAN
    /// for the prompt's first token. They precede all other events.
    PromptToken = 10,
}

/// Reason for the end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum NestlingFinishReason {
    /// The generation has not ended.
    None = 0,
    /// The model ended its turn, or wrote a stop string.
    Stop = 1,
    /// max_tokens were generated.
    Length = 2,
    /// The context has no room for another token.
    ContextFull = 3,
    /// The model ended its turn with a tool call.
    ToolCalls = 4,
    /// The generation was cancelled.
    Cancelled = 5,
    /// A value that this header does not know.
    Other = 6,
}

/// Log-probability of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub struct NestlingTokenLogProb {
    /// Token id.
    pub token: u32,
    /// Natural logarithm of the token's probability before any sampling option.
    pub log_prob: f32,
}

/// One thing that happened in a generation. `size` is set to sizeof by the caller. Texts are UTF-8, end with a zero, and
/// belong to the generation: they are valid until its next event is asked for or it is freed.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct NestlingEvent {
    /// sizeof of this struct.
    pub size: usize,
    /// Kind of the event. It decides which other fields have a meaning.
    pub kind: NestlingEventKind,
    /// Reason for the end.
    pub finish_reason: NestlingFinishReason,
    /// A text, else NULL.
    pub text: *const c_char,
    /// Length of `text` in bytes, excluding the terminating NUL.
    pub text_length: usize,
    /// Identifier of the tool call, to which the tool's result refers; otherwise NULL.
    pub id: *const c_char,
    /// The function's name, else NULL.
    pub name: *const c_char,
    /// Which call of the answer, from 0.
    pub index: usize,
    /// Token id.
    pub token: u32,
    /// Natural logarithm of its probability, NAN where it was not asked for.
    pub log_prob: f32,
    /// Tokens of the whole prompt.
    pub prompt_tokens: u64,
    /// Prompt tokens that were cached and not computed again.
    pub cached_tokens: u64,
    /// Tokens generated.
    pub completion_tokens: u64,
    /// Seconds from the call to the first token.
    pub first_token_seconds: f64,
    /// Seconds from the first token to the last.
    pub decode_seconds: f64,
    /// The seed that tokens were drawn with.
    pub seed: u64,
    /// Seconds from the start of the computation to the first token.
    pub prompt_seconds: f64,
    /// Bytes of keys and values that the session holds.
    pub kv_bytes: u64,
    /// Streamed experts that were there when they were wanted, for other generations of the same steps too.
    pub expert_hits: u64,
    /// Expert uses that had to read planes.
    pub expert_misses: u64,
    /// Bytes of them that were read.
    pub read_bytes: u64,
    /// Bytes of the token, possibly part of a character; NULL if the token has no bytes of its own. They do not end with a
    /// zero, and live as long as texts.
    pub token_bytes: *const u8,
    /// Length of `token_bytes`.
    pub token_bytes_length: usize,
    /// Likeliest tokens, likeliest first, as many as `top_logprobs` or `prompt_logprobs` requested; else NULL. They live as
    /// long as texts. nestling_model_token_bytes returns their texts.
    pub top: *const NestlingTokenLogProb,
    /// Length of `top`.
    pub top_count: usize,
}

// SAFETY: `repr(C)`, the size first. It is written for C and never read from it.
unsafe impl SizedStruct for NestlingEvent {
    fn unset() -> Self {
        Self {
            size: size_of::<Self>(),
            kind: NestlingEventKind::None,
            finish_reason: NestlingFinishReason::None,
            text: ptr::null(),
            text_length: 0,
            id: ptr::null(),
            name: ptr::null(),
            index: 0,
            token: 0,
            log_prob: f32::NAN,
            prompt_tokens: 0,
            cached_tokens: 0,
            completion_tokens: 0,
            first_token_seconds: 0.0,
            decode_seconds: 0.0,
            seed: 0,
            prompt_seconds: 0.0,
            kv_bytes: 0,
            expert_hits: 0,
            expert_misses: 0,
            read_bytes: 0,
            token_bytes: ptr::null(),
            token_bytes_length: 0,
            top: ptr::null(),
            top_count: 0,
        }
    }
}

/// Texts and lists that an event points to.
#[derive(Debug, Default)]
pub(crate) struct EventTexts {
    text: Option<CString>,
    id: Option<CString>,
    name: Option<CString>,
    token_bytes: Vec<u8>,
    top: Vec<NestlingTokenLogProb>,
}

impl EventTexts {
    /// An event for C, whose texts are here until the next one.
    pub(crate) fn hold(&mut self, event: Event) -> NestlingEvent {
        *self = Self::default();
        let mut told = NestlingEvent::unset();
        match event {
            Event::Token(token) => {
                told.kind = NestlingEventKind::Token;
                self.hold_token(&mut told, token);
            }
            Event::PromptToken(token) => {
                told.kind = NestlingEventKind::PromptToken;
                self.hold_token(&mut told, token);
            }
            Event::Text(text) => {
                told.kind = NestlingEventKind::Text;
                self.text = Some(c_text(text));
            }
            Event::Reasoning(text) => {
                told.kind = NestlingEventKind::Reasoning;
                self.text = Some(c_text(text));
            }
            Event::ToolCallStart { index, id, name } => {
                told.kind = NestlingEventKind::ToolCallStart;
                told.index = index;
                (self.id, self.name) = (Some(c_text(id)), Some(c_text(name)));
            }
            Event::ToolCallArguments { index, delta } => {
                told.kind = NestlingEventKind::ToolCallArguments;
                told.index = index;
                self.text = Some(c_text(delta));
            }
            Event::ToolCall(call) => {
                told.kind = NestlingEventKind::ToolCall;
                self.text = Some(c_text(call.arguments_text()));
                (self.id, self.name) = (Some(c_text(call.id)), Some(c_text(call.name)));
            }
            Event::Finished(finished) => finish(&mut told, &finished),
            _ => told.kind = NestlingEventKind::Other,
        }
        let at = |text: &Option<CString>| text.as_ref().map_or(ptr::null(), |text| text.as_ptr());
        (told.text, told.id, told.name) = (at(&self.text), at(&self.id), at(&self.name));
        told.text_length = self.text.as_ref().map_or(0, |text| text.as_bytes().len());
        told
    }

    fn hold_token(&mut self, told: &mut NestlingEvent, token: TokenEvent) {
        told.token = token.token;
        // Default: it was not requested.
        told.log_prob = token.log_prob.unwrap_or(f32::NAN);
        self.token_bytes = token.bytes;
        let pairs = token.top.into_iter();
        self.top =
            pairs.map(|(token, log_prob)| NestlingTokenLogProb { token, log_prob }).collect();
        (told.token_bytes, told.token_bytes_length) = list(&self.token_bytes);
        (told.top, told.top_count) = list(&self.top);
    }
}

/// Returns the address and the length of a list; NULL for an empty one.
fn list<T>(items: &[T]) -> (*const T, usize) {
    let address = if items.is_empty() { ptr::null() } else { items.as_ptr() };
    (address, items.len())
}

fn finish(told: &mut NestlingEvent, finished: &GenerationSummary) {
    told.kind = NestlingEventKind::Finished;
    told.finish_reason = match finished.reason {
        FinishReason::Stop => NestlingFinishReason::Stop,
        FinishReason::Length => NestlingFinishReason::Length,
        FinishReason::ContextFull => NestlingFinishReason::ContextFull,
        FinishReason::ToolCalls => NestlingFinishReason::ToolCalls,
        FinishReason::Cancelled => NestlingFinishReason::Cancelled,
        _ => NestlingFinishReason::Other,
    };
    told.prompt_tokens = finished.usage.prompt_tokens as u64;
    told.cached_tokens = finished.usage.cached_tokens as u64;
    told.completion_tokens = finished.usage.completion_tokens as u64;
    told.first_token_seconds = finished.stats.time_to_first_token_seconds;
    told.decode_seconds = finished.stats.decode_seconds;
    told.seed = finished.seed;
    told.prompt_seconds = finished.stats.prompt_seconds;
    told.kv_bytes = finished.stats.kv_bytes;
    told.expert_hits = finished.stats.streaming.expert_hits;
    told.expert_misses = finished.stats.streaming.expert_misses;
    told.read_bytes = finished.stats.streaming.read_total();
}
