//! What a generation tells whoever listens.

use nestling_core::backend::BackendCounters;
use nestling_experts::expert::StreamStats;
use nestling_text::{Message, MessageContent, ToolCall};

/// One thing that happened in a generation, in order.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "the large one comes once in a generation")]
#[non_exhaustive]
pub enum Event {
    /// A token was chosen. Comes before the text that it completes, and only where
    /// [`crate::GenerateOptions::token_events`] or
    /// [`crate::SamplingOptions::top_logprobs`] ask for it.
    Token(TokenEvent),
    /// A token of the prompt, with its log-probability after those before it; the first has none. Before everything
    /// else, where [`crate::GenerateOptions::prompt_logprobs`] asks for it.
    PromptToken(TokenEvent),
    /// A hidden row of the prompt, where [`crate::GenerateOptions::hidden`] asks for it.
    Hidden(HiddenRow),
    /// More of the answer; always whole characters. The tokens that came since the last text, reasoning or piece of a
    /// call are those that made it.
    Text(String),
    /// More of the reasoning before the answer.
    Reasoning(String),
    /// The model begins to call a tool: its name is known, its arguments follow. It stays a call, whatever follows.
    ToolCallStart {
        /// Among the calls of the answer, from 0.
        index: usize,
        /// What the tool's result refers to; unique in the conversation.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of the arguments of the call that began last.
    ToolCallArguments {
        /// The call's.
        index: usize,
        /// The pieces of a call are together its [`ToolCall::arguments_text`]. How they are cut means nothing.
        delta: String,
    },
    /// The call that began last, whole, for those who want no pieces. Where the answer ended within its arguments, or
    /// they are not what they began as, they are text in place of an object: [`ToolCall::arguments`] is a
    /// `Value::String` of all that came.
    ToolCall(ToolCall),
    /// The last event of a generation that did not fail.
    Finished(Finished),
}

/// A token, and how likely it was.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct TokenEvent {
    /// Token id.
    pub token: u32,
    /// The bytes that it stands for, which may be part of a character; empty where they are not known by themselves
    /// ([`nestling_text::Tokenizer::token_bytes`]).
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability before any sampling option, where asked for.
    pub log_prob: Option<f32>,
    /// The likeliest tokens with theirs, likeliest first; as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// The last layer's output for one token of a prompt, after the last norm: what logits are made of.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HiddenRow {
    /// Its position.
    pub position: usize,
    /// Its values.
    pub values: Vec<f32>, // [hidden_size]
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model ended its turn, or wrote a stop string.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context has no room for another token.
    ContextFull,
    /// The model ended its turn with a tool call.
    ToolCalls,
    /// It was cancelled.
    Cancelled,
}

/// How a generation ended.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Which stop string ended it, by its place in [`crate::GenerateOptions::stop`]; none where something else did.
    pub stop: Option<usize>,
    /// Tokens used.
    pub usage: Usage,
    /// Time used.
    pub stats: Stats,
    /// The seed that tokens were drawn with.
    pub seed: u64,
    /// All that was said, reasoning and tool calls too, as the message that goes on with a conversation.
    pub message: Message,
}

impl Finished {
    /// Adds a generation that went on where this one ended, with [`Input::History`] after
    /// [`Session::shift`]: the sum is what one long generation would have reported, and its time
    /// is time of generated tokens.
    ///
    /// [`Input::History`]: crate::Input::History
    /// [`Session::shift`]: crate::Session::shift
    pub fn go_on(&mut self, next: Self) {
        (self.reason, self.stop) = (next.reason, next.stop);
        add(&mut self.message, next.message);
        self.usage.completion_tokens += next.usage.completion_tokens;
        let (sum, next_stats) = (&mut self.stats, next.stats);
        // The step that ended the earlier part's last token gives the first one of this part.
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

/// Tokens that a generation used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens of the whole prompt, what the session already held included.
    pub prompt_tokens: usize,
    /// Of these, how many were held already and not computed again.
    pub cached_tokens: usize,
    /// Tokens generated.
    pub completion_tokens: usize,
}

impl Usage {
    /// Prompt and generated tokens.
    pub fn total_tokens(&self) -> usize {
        self.prompt_tokens + self.completion_tokens
    }
}

/// What a generation did, and how long it took. Times are wall clock, 0 where there is no clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Stats {
    /// Prompt tokens computed.
    pub prompt_tokens: usize,
    /// Seconds from the start to the first token's logits.
    pub prompt_seconds: f64,
    /// Tokens generated after the first.
    pub decode_tokens: usize,
    /// Seconds from the first token to the last.
    pub decode_seconds: f64,
    /// Seconds from the call to the first token.
    pub time_to_first_token_seconds: f64,
    /// Whether the first token came after [`crate::GenerateOptions::deadline`], or not at all.
    pub is_late: bool,
    /// How often it lost its pages to others, and computed its tokens again.
    pub preemptions: u32,
    /// Steps that the generation took part in.
    pub steps: usize,
    /// (Token, expert) pairs computed at each level, in the order of `Level::ALL`, in those steps;
    /// other generations that shared them included.
    pub expert_uses: [u64; 5],
    /// Bytes of weights that those steps read; other generations that shared them included.
    pub weight_read_bytes: u64,
    /// What those steps did to have streamed experts there; other generations that shared them
    /// included.
    pub streaming: StreamStats,
    /// What those steps gave a device to do; other generations that shared them included.
    pub device: BackendCounters,
    /// Bytes of weights that the model holds.
    pub weight_bytes: u64,
    /// Bytes of keys and values that the session holds at the end.
    pub kv_bytes: u64,
}

impl Stats {
    /// Prompt tokens per second.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        rate(self.prompt_tokens, self.prompt_seconds)
    }

    /// Generated tokens per second, the first left out.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.decode_tokens, self.decode_seconds)
    }

    /// Mean bits that experts were computed with; none where levels mean nothing.
    pub fn mean_level(&self) -> Option<f64> {
        let uses: u64 = self.expert_uses.iter().sum();
        let bits = nestling_formats::Level::ALL.into_iter().zip(self.expert_uses);
        let bits: u64 = bits.map(|(level, uses)| u64::from(level.bits()) * uses).sum();
        (uses > 0).then(|| bits as f64 / uses as f64)
    }
}

impl Stats {
    /// Mean bits that the levels of experts asked for: what was served where nothing was late.
    pub fn asked_mean_level(&self) -> Option<f64> {
        let uses: u64 = self.expert_uses.iter().sum();
        match self.streaming.asked_bits {
            0 => self.mean_level(),
            bits => (uses > 0).then(|| bits as f64 / uses as f64),
        }
    }
}

/// Adds what an answer says further to what it said.
fn add(said: &mut Message, more: Message) {
    let texts = [&said.content, &more.content].into_iter().flatten().map(MessageContent::text);
    let texts: Vec<String> = texts.collect();
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

    fn part(reason: FinishReason, completion_tokens: usize) -> Finished {
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
        Finished { reason, stop: None, usage, stats, seed: 1, message }
    }

    #[test]
    fn what_goes_on_is_counted_as_decode() {
        let mut whole = part(FinishReason::ContextFull, 5);
        whole.go_on(part(FinishReason::Stop, 3));
        assert_eq!(whole.reason, FinishReason::Stop);
        assert_eq!(whole.usage.completion_tokens, 8);
        assert_eq!((whole.stats.prompt_tokens, whole.stats.prompt_seconds), (8, 2.0));
        assert_eq!((whole.stats.decode_tokens, whole.stats.decode_seconds), (4 + 3, 4.0 + 4.0));
        assert_eq!(whole.stats.steps, 8);
        assert_eq!(whole.message, Message::assistant("5 3 "));
    }

    /// Cancelled before its first token: what was generated earlier is still reported.
    #[test]
    fn a_part_without_tokens_leaves_the_rest() {
        let mut whole = part(FinishReason::ContextFull, 5);
        whole.go_on(Finished { stats: Stats::default(), ..part(FinishReason::Cancelled, 0) });
        assert_eq!(whole.reason, FinishReason::Cancelled);
        assert_eq!((whole.stats.decode_tokens, whole.stats.decode_seconds), (4, 4.0));
    }
}
