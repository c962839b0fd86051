//! Events of a generation.

use nestling_core::backend::BackendCounters;
use nestling_experts::expert::StreamStats;
use nestling_text::{Message, MessageContent, ToolCall};

/// An event of a generation. Events arrive in order.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "the large one comes once in a generation")]
#[non_exhaustive]
pub enum Event {
    /// A chosen token, sent before the text that it completes.
    ///
    /// Sent only if [`crate::GenerateOptions::token_events`] or [`crate::SamplingOptions::top_logprobs`]
    /// requests it.
    Token(TokenEvent),
    /// A prompt token with its log-probability given the tokens before it. The first token has none.
    ///
    /// Sent before all other events, if [`crate::GenerateOptions::prompt_logprobs`] requests it.
    PromptToken(TokenEvent),
    /// A hidden row of the prompt, if [`crate::GenerateOptions::hidden`] requests it.
    Hidden(HiddenRow),
    /// Further text of the answer, always whole characters.
    ///
    /// The token events since the last text, reasoning or tool-call event belong to this text.
    Text(String),
    /// Further text of the reasoning before the answer.
    Reasoning(String),
    /// The start of a tool call: its name is known and its arguments follow. A started call is never
    /// retracted.
    ToolCallStart {
        /// Index among the tool calls of the output, from 0.
        index: usize,
        /// Call id that the tool's result refers to, unique in the conversation.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// Further arguments of the most recently started call.
    ToolCallArguments {
        /// Index of the call.
        index: usize,
        /// Next part of [`ToolCall::arguments_text`]. Boundaries between parts have no meaning.
        delta: String,
    },
    /// The completed tool call, for consumers that ignore the deltas.
    ///
    /// If the output ended within the arguments, or they are not a valid object, [`ToolCall::arguments`] is a
    /// `Value::String` of the text received.
    ToolCall(ToolCall),
    /// The last event of a generation that did not fail.
    Finished(GenerationSummary),
}

/// A token with its probability.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TokenEvent {
    /// Token id.
    pub token: u32,
    /// Bytes of the token, possibly part of a character. Empty if a token has no bytes independent of context
    /// ([`nestling_text::Tokenizer::token_bytes`]).
    pub bytes: Vec<u8>,
    /// Natural logarithm of the token's probability before any sampling option, if requested.
    pub log_prob: Option<f32>,
    /// The requested number of likeliest tokens with their log-probabilities, likeliest first.
    pub top: Vec<(u32, f32)>,
}

/// A hidden row: output of the last layer for one prompt token, after the final norm. Logits are computed
/// from it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HiddenRow {
    /// Position of the token.
    pub position: usize,
    /// Elements of the row.
    pub values: Vec<f32>, // [hidden_size]
}

/// Reason for the end of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its turn, or produced a stop string.
    Stop,
    /// `max_tokens` tokens were generated.
    Length,
    /// The context is full.
    ContextFull,
    /// The model ended its turn with a tool call.
    ToolCalls,
    /// The generation was cancelled.
    Cancelled,
}

/// Result of a completed generation.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct GenerationSummary {
    /// Reason for the end.
    pub reason: FinishReason,
    /// Index in [`crate::GenerateOptions::stop`] of the stop string that ended the output, if one did.
    pub stop: Option<usize>,
    /// Token counts.
    pub usage: Usage,
    /// Timings and resource usage.
    pub stats: Stats,
    /// Seed used for sampling.
    pub seed: u64,
    /// Message that continues the conversation, with reasoning and tool calls.
    pub message: Message,
}

impl GenerationSummary {
    /// Adds the result of a generation that continued this one, with [`Input::History`] after
    /// [`Session::shift`].
    ///
    /// The sum equals the result of one long generation. The time of the added part counts as decode time.
    ///
    /// [`Input::History`]: crate::Input::History
    /// [`Session::shift`]: crate::Session::shift
    pub fn append(&mut self, next: Self) {
        (self.reason, self.stop) = (next.reason, next.stop);
        add(&mut self.message, next.message);
        self.usage.completion_tokens += next.usage.completion_tokens;
        let (sum, next_stats) = (&mut self.stats, next.stats);
        // The first token of this part comes from the step that also took the last token of the earlier part.
        sum.decode_tokens += next.usage.completion_tokens;
        sum.decode_seconds += next_stats.prompt_seconds + next_stats.decode_seconds;
        sum.steps += next_stats.steps;
        sum.preemptions += next_stats.preemptions;
        for (uses, more) in sum.expert_uses.iter_mut().zip(next_stats.expert_uses) {
            *uses += more;
        }
        sum.weight_read_bytes += next_stats.weight_read_bytes;
        sum.streaming.add(&next_stats.streaming);
        sum.device += next_stats.device;
        sum.weight_bytes = next_stats.weight_bytes;
        sum.kv_bytes = next_stats.kv_bytes;
    }
}

/// Token counts of a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the whole prompt, including those cached in the session.
    pub prompt_tokens: usize,
    /// Prompt tokens that were cached and not recomputed.
    pub cached_tokens: usize,
    /// Generated tokens.
    pub completion_tokens: usize,
}

impl Usage {
    /// Returns the sum of prompt and generated tokens.
    pub fn total_tokens(&self) -> usize {
        self.prompt_tokens + self.completion_tokens
    }
}

/// Work and timings of a generation. Times are wall-clock seconds, 0 if no clock is available.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Prompt tokens computed.
    pub prompt_tokens: usize,
    /// Seconds from the start to the logits of the first token.
    pub prompt_seconds: f64,
    /// Tokens generated after the first.
    pub decode_tokens: usize,
    /// Seconds from the first token to the last.
    pub decode_seconds: f64,
    /// Seconds from the call to the first token.
    pub time_to_first_token_seconds: f64,
    /// True if the first token came after [`crate::GenerateOptions::deadline`], or never.
    pub is_late: bool,
    /// Number of preemptions, after each of which the tokens were recomputed.
    pub preemptions: u32,
    /// Number of steps that included the generation.
    pub steps: usize,
    /// (Token, expert) pairs computed at each level in those steps, in the order of `Level::ALL`. Includes
    /// other generations in the same steps.
    pub expert_uses: [u64; 5],
    /// Weight bytes read by those steps. Includes other generations in the same steps.
    pub weight_read_bytes: u64,
    /// Expert streaming of those steps. Includes other generations in the same steps.
    pub streaming: StreamStats,
    /// Device work submitted by those steps. Includes other generations in the same steps.
    pub device: BackendCounters,
    /// Bytes of weights held by the model.
    pub weight_bytes: u64,
    /// Bytes of the session's KV cache at the end.
    pub kv_bytes: u64,
}

impl Stats {
    /// Returns the prompt speed in tokens per second.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt_seconds)
    }

    /// Returns the decode speed in tokens per second, excluding the first token.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decode_tokens, self.decode_seconds)
    }

    /// Returns the mean bits used for experts. Returns `None` if the model has no levels.
    pub fn mean_level(&self) -> Option<f64> {
        let uses: u64 = self.expert_uses.iter().sum();
        let bits = nestling_formats::Level::ALL.into_iter().zip(self.expert_uses);
        let bits: u64 = bits.map(|(level, uses)| u64::from(level.bits()) * uses).sum();
        (uses > 0).then(|| bits as f64 / uses as f64)
    }
}

impl Stats {
    /// Returns the mean bits requested for experts, which equals [`Self::mean_level`] if no plane was late.
    pub fn asked_mean_level(&self) -> Option<f64> {
        let uses: u64 = self.expert_uses.iter().sum();
        match self.streaming.asked_bits {
            0 => self.mean_level(),
            bits => (uses > 0).then(|| bits as f64 / uses as f64),
        }
    }
}

/// Appends the output of a continuation to a message.
fn add(said: &mut Message, more: Message) {
    let texts = [&said.content, &more.content].into_iter().flatten().map(MessageContent::text);
    let texts: Vec<_> = texts.collect();
    said.content = (!texts.is_empty()).then(|| texts.concat().into());
    let thoughts: Vec<_> = said.reasoning.take().into_iter().chain(more.reasoning).collect();
    said.reasoning = (!thoughts.is_empty()).then(|| thoughts.concat());
    said.tool_calls.extend(more.tool_calls);
}

fn rate(count: usize, seconds: f64) -> f64 {
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(reason: FinishReason, completion_tokens: usize) -> GenerationSummary {
        let usage = Usage { prompt_tokens: 8, cached_tokens: 0, completion_tokens };
        let decode_tokens = completion_tokens.saturating_sub(1);
        let decode_seconds = decode_tokens as f64;
        let stats = Stats {
            prompt_tokens: 8,
            prompt_seconds: 2.0,
            decode_tokens,
            decode_seconds,
            steps: completion_tokens,
            ..Stats::default()
        };
        let message = Message::assistant(format!("{completion_tokens} "));
        GenerationSummary { reason, stop: None, usage, stats, seed: 1, message }
    }

    #[test]
    fn what_goes_on_is_counted_as_decode() {
        let mut whole = part(FinishReason::ContextFull, 5);
        whole.append(part(FinishReason::Stop, 3));
        assert_eq!(whole.reason, FinishReason::Stop);
        assert_eq!(whole.usage.completion_tokens, 8);
        assert_eq!((whole.stats.prompt_tokens, whole.stats.prompt_seconds), (8, 2.0));
        assert_eq!((whole.stats.decode_tokens, whole.stats.decode_seconds), (4 + 3, 4.0 + 4.0));
        assert_eq!(whole.stats.steps, 8);
        assert_eq!(whole.message, Message::assistant("5 3 "));
    }

    /// Cancelled before its first token: the earlier output is still reported.
    #[test]
    fn a_part_without_tokens_leaves_the_rest() {
        let mut whole = part(FinishReason::ContextFull, 5);
        whole.append(GenerationSummary {
            stats: Stats::default(),
            ..part(FinishReason::Cancelled, 0)
        });
        assert_eq!(whole.reason, FinishReason::Cancelled);
        assert_eq!((whole.stats.decode_tokens, whole.stats.decode_seconds), (4, 4.0));
    }
}
