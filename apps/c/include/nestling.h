/*
 * Nestling: Mixture-of-Experts language models larger than memory, from C.
 *
 * Handles are made by functions that put them where their last argument but one points to, NULL where they fail, and are
 * freed by the _free function of their type, in any order, once each. NULL is never a handle: calls that can fail refuse it
 * (NESTLING_STATUS_CALLER), others do nothing.
 *
 * Calls that can fail return a nestling_status. Their last argument, which may be NULL, gets an error with words to be
 * freed by nestling_error_free, or NULL where all went well. No call prints, exits, or leaves a signal handler behind; a
 * fault of the library itself (a panic of Rust's, which says so on stderr, too) is NESTLING_STATUS_BROKEN.
 *
 * Structs begin with their size, so that they may grow: options are set by their _init function, and what the library
 * fills has its size set to sizeof by the caller; fields that are newer than the library stay as they were. Texts are UTF-8
 * and end with a zero. What is given to a call is not kept after it returned, but for callbacks and their user_data, as
 * far as their descriptions say.
 *
 * Threads: engines, models and cancel tokens may be used by any number of threads at once; a session, chat or generation by
 * one at a time (a call beside another one is NESTLING_STATUS_BUSY), but for nestling_generation_cancel. Handles may move
 * from thread to thread. No function may be called for a handle that is being freed. Threads of the library do not come
 * along with fork(): in a child, calls for the parent's handles are NESTLING_STATUS_STOPPED and freeing them does nothing; open
 * the model again there. fork() while another thread is in a call is not supported. The library stays loaded until the process ends.
 *
 * Memory: Linux, Android, macOS, iOS, Windows and FreeBSD report their free memory, which is the default budget, less a
 * margin. This was tested on Linux; for the other systems it was compiled, but not run.
 *
 * Callbacks return: no exception, longjmp or pthread_exit may leave one.
 */


#ifndef NESTLING_H
#define NESTLING_H

#include <stddef.h>
#include <stdint.h>

// Experts in memory if all of them fit the budget, streamed otherwise.
#define NESTLING_RESIDENCE_AUTO 0

// All experts in memory.
#define NESTLING_RESIDENCE_OWNED 1

// Keeps as many planes of experts in memory as the budget holds, and reads others on demand.
#define NESTLING_RESIDENCE_STREAMED 2

// Like AUTO, but the model opens before its experts are loaded.
#define NESTLING_RESIDENCE_LAZY 3

// Status of a call. Each status except NESTLING_STATUS_OK comes with an error, if the caller requested one.
typedef enum nestling_status {
    // Success.
    NESTLING_STATUS_OK = 0,
    // Invalid or too long arguments; the same call fails again.
    NESTLING_STATUS_CALLER = 1,
    // Later, it may work.
    NESTLING_STATUS_BUSY = 2,
    // Memory, pages or threads are not enough: less may work, or more of them.
    NESTLING_STATUS_NO_ROOM = 3,
    // Cancelled, or the engine was shut down.
    NESTLING_STATUS_STOPPED = 4,
    // Damaged, missing or unsuitable file, or a failing disk.
    NESTLING_STATUS_SOURCE = 5,
    // The model, its device or the library itself: open the model again, and report it.
    NESTLING_STATUS_BROKEN = 6,
} nestling_status;

// How important a line of the log is.
typedef enum nestling_log_level {
    // A failure.
    NESTLING_LOG_LEVEL_ERROR = 1,
    // A condition that deserves attention.
    NESTLING_LOG_LEVEL_WARN = 2,
    // Information for users.
    NESTLING_LOG_LEVEL_INFO = 3,
    // Details for debugging.
    NESTLING_LOG_LEVEL_DEBUG = 4,
    // Everything.
    NESTLING_LOG_LEVEL_TRACE = 5,
} nestling_log_level;

// Kind of an event.
typedef enum nestling_event_kind {
    // No event arrived within the timeout.
    NESTLING_EVENT_KIND_NONE = 0,
    // A token was chosen: `token`, its `token_bytes` and, if requested, `log_prob` and `top`. It precedes the text that it
    // completes.
    NESTLING_EVENT_KIND_TOKEN = 1,
    // More of the answer: `text`, whole characters.
    NESTLING_EVENT_KIND_TEXT = 2,
    // More of the reasoning before the answer: `text`.
    NESTLING_EVENT_KIND_REASONING = 3,
    // The model begins to call a tool: `index`, `id` and `name`.
    NESTLING_EVENT_KIND_TOOL_CALL_START = 4,
    // More of the arguments of the call `index`: `text`.
    NESTLING_EVENT_KIND_TOOL_CALL_ARGUMENTS = 5,
    // The call that began last, whole: `id`, `name`, and its arguments as JSON in `text`.
    NESTLING_EVENT_KIND_TOOL_CALL = 6,
    // End of the generation, with `finish_reason` and counts. The last event of a generation that did not fail.
    NESTLING_EVENT_KIND_FINISHED = 7,
    // End of the events.
    NESTLING_EVENT_KIND_END = 8,
    // A value that this header does not know.
    NESTLING_EVENT_KIND_OTHER = 9,
    // A token of the prompt, if `prompt_logprobs` requests it: fields as for NESTLING_EVENT_KIND_TOKEN. `log_prob` is NAN
    // for the prompt's first token. They precede all other events.
    NESTLING_EVENT_KIND_PROMPT_TOKEN = 10,
} nestling_event_kind;

// Reason for the end of a generation.
typedef enum nestling_finish_reason {
    // The generation has not ended.
    NESTLING_FINISH_REASON_NONE = 0,
    // The model ended its turn, or wrote a stop string.
    NESTLING_FINISH_REASON_STOP = 1,
    // max_tokens were generated.
    NESTLING_FINISH_REASON_LENGTH = 2,
    // The context has no room for another token.
    NESTLING_FINISH_REASON_CONTEXT_FULL = 3,
    // The model ended its turn with a tool call.
    NESTLING_FINISH_REASON_TOOL_CALLS = 4,
    // The generation was cancelled.
    NESTLING_FINISH_REASON_CANCELLED = 5,
    // A value that this header does not know.
    NESTLING_FINISH_REASON_OTHER = 6,
} nestling_finish_reason;

// Bytes that the library gave; freed with nestling_bytes_free.
typedef struct nestling_bytes nestling_bytes;

// A cancel token for openings of models and for generations. Any thread may use it, any number of times. It stays
// cancelled.
typedef struct nestling_cancel nestling_cancel;

// A conversation and its session: messages, answers, reasoning and tool calls. One thread at a time may use it.
typedef struct nestling_chat nestling_chat;

// Threads and a memory budget that models share. Any number of threads may use it at once; its models keep it running.
typedef struct nestling_engine nestling_engine;

// Reason for the failure of a call.
typedef struct nestling_error nestling_error;

// A generation under way. Its events are asked for by one thread at a time; any thread may cancel it. Freeing it cancels
// it.
typedef struct nestling_generation nestling_generation;

// A model, open. Any number of threads may use it at once; its sessions, chats and generations keep it open.
typedef struct nestling_model nestling_model;

// A token history and its computed state. One thread at a time may use it.
typedef struct nestling_session nestling_session;

// Tokens that the library returned; freed with nestling_tokens_free.
typedef struct nestling_tokens nestling_tokens;

// Hears of a line of the log, on the thread that it comes from, several at once perhaps. It must return soon and call
// nothing of this library.
typedef void (*nestling_log_callback)(void *user_data, enum nestling_log_level level, const char *line);

// How an engine is started. Set by nestling_engine_options_init; change what differs.
typedef struct nestling_engine_options {
    // sizeof of this struct.
    size_t size;
    // Memory budget of all models in bytes: weights, KV cache and scratch. 0 means the free memory that the system
    // reports, less a margin, or no limit if the system does not report it. UINT64_MAX means no limit.
    uint64_t memory_budget;
    // Number of compute threads, at most 1024; 0 means one per core.
    uint32_t threads;
    // Generations that may wait for room, further ones are NESTLING_STATUS_BUSY; 0 is the library's own number.
    uint32_t waiting_max;
} nestling_engine_options;

// State and counters of an engine. The caller sets `size` to sizeof.
typedef struct nestling_engine_status {
    // sizeof of this struct.
    size_t size;
    // Bytes that its models may take; UINT64_MAX is no limit.
    uint64_t memory_budget;
    // Bytes of them in use.
    uint64_t memory_used;
    // Generations whose tokens are computed.
    uint64_t running;
    // Generations that wait for room.
    uint64_t waiting;
    // Pages of keys and values.
    uint64_t pages_total;
    // Free KV pages.
    uint64_t pages_free;
    // Steps that were computed.
    uint64_t steps;
    // Tokens of prompts and answers that were computed.
    uint64_t rows;
    // How often a generation lost its pages to another.
    uint64_t preemptions;
    // First tokens that came after their deadline.
    uint64_t late;
    // Streamed experts that were there when they were wanted.
    uint64_t expert_hits;
    // Streamed experts of which something had to be read.
    uint64_t expert_misses;
    // Bytes of them that were read.
    uint64_t read_bytes;
    // Tokens of prompts for which beginnings were looked for that others had computed.
    uint64_t prefix_asked_tokens;
    // Prompt tokens found in the prefix cache.
    uint64_t prefix_found_tokens;
} nestling_engine_status;

// Hears how far the opening of a model is, on the thread that opens it. Once it returns 0, the opening is cancelled.
typedef int32_t (*nestling_progress)(void *user_data, uint64_t parts_done, uint64_t parts_total);

// How a model is opened. Set by nestling_model_options_init; change what differs.
typedef struct nestling_model_options {
    // sizeof of this struct.
    size_t size;
    // Compute device: "auto", "cpu", or "cuda" and "wgpu" if the library was built with them, with ":INDEX" or ":NAME".
    // NULL means "auto".
    const char *device;
    // Memory budget in bytes for weights, KV cache and scratch. 0 means the free memory that the system reports, less a
    // margin, or no limit if the system does not report it. UINT64_MAX means no limit. Must be 0 with `engine`, like
    // `threads`.
    uint64_t memory_budget;
    // GPU memory budget in bytes; 0 means all of it.
    uint64_t device_budget;
    // Number of compute threads, at most 1024; 0 means one per core.
    uint32_t threads;
    // Maximum number of tokens of a session, at most the trained context length; 0 means the trained context length, at
    // most 8192. nestling_model_status_now reports the value in effect.
    uint32_t context_length;
    // Tokens whose keys and values all sessions may hold together; 0 is twice the context length.
    uint32_t kv_tokens;
    // Bits of every weight to use, 2, 3, 4, 6 or 8; 0 is all that the store holds.
    uint32_t level;
    // Residence of the experts: a NESTLING_RESIDENCE_ constant.
    uint32_t residence;
    // Keys and values in 8 bits where not 0, else in 16.
    uint32_t kv_int8;
    // Hears of the progress; may be NULL.
    nestling_progress progress;
    // Argument of `progress`.
    void *progress_data;
    // Cancels the opening; may be NULL.
    const struct nestling_cancel *cancel;
    // Engine whose threads and memory budget the model shares; NULL creates an engine for this model.
    const struct nestling_engine *engine;
} nestling_model_options;

// Properties and state of a model. The caller sets `size` to sizeof.
typedef struct nestling_model_status {
    // sizeof of this struct.
    size_t size;
    // Maximum number of tokens of a session.
    uint64_t context_length;
    // Bytes of weights that are held.
    uint64_t weight_bytes;
    // Bytes of streamed experts in memory; 0 where they are not streamed.
    uint64_t expert_bytes;
    // Bytes that its engine may take; UINT64_MAX is no limit.
    uint64_t memory_budget;
    // Bytes of them in use.
    uint64_t memory_used;
    // Generations whose tokens are computed.
    uint64_t running;
    // Generations that wait for room.
    uint64_t waiting;
    // Total number of KV pages; `pages_free` is the number of free ones.
    uint64_t pages_total;
    // See pages_total.
    uint64_t pages_free;
    // Nonzero if experts are streamed.
    uint32_t is_streamed;
    // Nonzero if the model has a chat template, so that messages can be prompts.
    uint32_t has_chat;
    // Nonzero if the chat template supports tools.
    uint32_t has_tools;
    // Nonzero if answers may begin with reasoning.
    uint32_t has_reasoning;
} nestling_model_status;

// Bias of a token's logit.
typedef struct nestling_logit_bias {
    // Token id.
    uint32_t token;
    // Number that is added to the logit; -INFINITY excludes the token.
    float bias;
} nestling_logit_bias;

// How one answer is generated. Set by nestling_generate_options_init; change what differs. The same options do for any
// number of answers.
typedef struct nestling_generate_options {
    // sizeof of this struct.
    size_t size;
    // Maximum number of tokens to generate; negative means until the model ends or the context is full. With 0, the
    // prompt is computed and retained.
    int64_t max_tokens;
    // Divides the logits; 0 is the likeliest token always; NAN is the model's own.
    float temperature;
    // Probability that stays in the draw; 1 is all; NAN is the model's own.
    float top_p;
    // Least probability relative to the best token; 0 is none; NAN is the model's own.
    float min_p;
    // Above 1 makes tokens of prompt and answer less likely; NAN is the model's own.
    float repetition_penalty;
    // Subtracted from the logits of tokens in the answer; NAN is the model's own.
    float presence_penalty;
    // Subtracted for each time that a token is in the answer; NAN is the model's own.
    float frequency_penalty;
    // Tokens that stay in the draw; 0 is all; negative is the model's own.
    int64_t top_k;
    // Makes draws repeatable; NULL is another seed each time.
    const uint64_t *seed;
    // Number of likeliest tokens in `top` of each token's event. From 0, each token has an event with its `log_prob`;
    // negative means no log-probabilities.
    int32_t top_logprobs;
    // Nonzero requests an event for each token.
    uint32_t token_events;
    // The model's own end tokens are tokens like others where not 0.
    uint32_t ignore_end;
    // Level in bits, at most the one that the model was opened with; 0 means that level.
    uint32_t level;
    // Texts that end the answer and are not part of it.
    const char *const *stop;
    // How many of them.
    size_t stop_count;
    // The answer is JSON of this schema; NULL is any. At most one of the four forms may be given.
    const char *json_schema;
    // The answer matches this regular expression.
    const char *regex;
    // The answer matches this grammar, in Lark's syntax or in GBNF, llama.cpp's format.
    const char *lark;
    // Whether the model calls a tool: "auto", "none", "required", or the name of one that it calls; NULL is "auto".
    const char *tool_choice;
    // Deadline of the first token in milliseconds; 0 means none.
    uint64_t deadline_ms;
    // Generations with a greater number go first; -128 to 127.
    int32_t priority;
    // Unused; must be 0.
    uint32_t reserved;
    // Salt of the prefix cache: only generations with equal salts share prefixes. NULL is a salt, too.
    const char *cache_salt;
    // Probability of the tokens whose surprise is closest to the entropy, above 0 to 1; 1 is off; NAN is the model's own.
    float typical_p;
    // Maximum distance from the best logit in standard deviations; 0 or less is off; NAN is the model's own.
    float top_n_sigma;
    // Probability of applying XTC, 0 to 1; 0 is off; NAN is the model's own.
    float xtc_probability;
    // Minimum probability of the tokens that XTC considers, 0 to 1; default 0.1; above 0.5 is off; NAN is the model's
    // own.
    float xtc_threshold;
    // Factor of the DRY penalty, from 0; 0 is off; NAN is the model's own.
    float dry_multiplier;
    // Base of the DRY penalty, default 1.75; below 1 is off; NAN is the model's own.
    float dry_base;
    // Length in tokens of a repetition that DRY penalizes, default 2; negative is the model's own.
    int32_t dry_allowed_length;
    // Number of latest tokens that DRY scans, default -1: all; 0 is off; INT32_MIN is the model's own.
    int32_t dry_penalty_last_n;
    // Number of latest tokens that the three penalties count, default -1: all; 0 is off; INT32_MIN is the model's own.
    int32_t repeat_last_n;
    // Version of mirostat: 0 is off; 2 replaces all samplers but the temperature; negative is the model's own.
    int32_t mirostat;
    // Target surprise of mirostat in bits, from 0; default 5; NAN is the model's own.
    float mirostat_tau;
    // Learning rate of mirostat, from 0; default 0.1; NAN is the model's own.
    float mirostat_eta;
    // Half of the width of the dynamic temperature's interval, from 0; 0 is off; NAN is the model's own.
    float dynatemp_range;
    // Exponent of the dynamic temperature, from 0; default 1; NAN is the model's own.
    float dynatemp_exponent;
    // Texts of 1 to 40 bytes that end a repetition for DRY, at most 32; NULL is the model's own: newline, colon, double
    // quote, asterisk.
    const char *const *dry_sequence_breakers;
    // Number of sequence breakers.
    size_t dry_sequence_breaker_count;
    // Names of the samplers in their order, separated by semicolons, such as "top_k;temperature"; NULL is the default
    // order.
    const char *samplers;
    // Tokens that end the answer, besides the model's own. A token outside the vocabulary is an error.
    const uint32_t *stop_tokens;
    // Number of stop tokens.
    size_t stop_token_count;
    // Biases of logits. A token outside the vocabulary is an error.
    const struct nestling_logit_bias *logit_bias;
    // Number of biases; 0 means the model's own.
    size_t logit_bias_count;
    // Index of the first prompt token that `prompt_logprobs` reports.
    size_t prompt_logprobs_from;
    // Number of likeliest tokens in `top` of each prompt token's event. From 0, each token of the prompt has an event with
    // its `log_prob`, and the prompt is computed from there on even if it is cached; negative means no events.
    int32_t prompt_logprobs;
    // Unused; must be 0.
    uint32_t reserved_end;
} nestling_generate_options;

// Log-probability of a token.
typedef struct nestling_token_log_prob {
    // Token id.
    uint32_t token;
    // Natural logarithm of the token's probability before any sampling option.
    float log_prob;
} nestling_token_log_prob;

// One thing that happened in a generation. `size` is set to sizeof by the caller. Texts are UTF-8, end with a zero, and
// belong to the generation: they are valid until its next event is asked for or it is freed.
typedef struct nestling_event {
    // sizeof of this struct.
    size_t size;
    // Kind of the event. It decides which other fields have a meaning.
    enum nestling_event_kind kind;
    // Reason for the end.
    enum nestling_finish_reason finish_reason;
    // A text, else NULL.
    const char *text;
    // Length of `text` in bytes, excluding the terminating NUL.
    size_t text_length;
    // Identifier of the tool call, to which the tool's result refers; otherwise NULL.
    const char *id;
    // The function's name, else NULL.
    const char *name;
    // Which call of the answer, from 0.
    size_t index;
    // Token id.
    uint32_t token;
    // Natural logarithm of its probability, NAN where it was not asked for.
    float log_prob;
    // Tokens of the whole prompt.
    uint64_t prompt_tokens;
    // Prompt tokens that were cached and not computed again.
    uint64_t cached_tokens;
    // Tokens generated.
    uint64_t completion_tokens;
    // Seconds from the call to the first token.
    double first_token_seconds;
    // Seconds from the first token to the last.
    double decode_seconds;
    // The seed that tokens were drawn with.
    uint64_t seed;
    // Seconds from the start of the computation to the first token.
    double prompt_seconds;
    // Bytes of keys and values that the session holds.
    uint64_t kv_bytes;
    // Streamed experts that were there when they were wanted, for other generations of the same steps too.
    uint64_t expert_hits;
    // Expert uses that had to read planes.
    uint64_t expert_misses;
    // Bytes of them that were read.
    uint64_t read_bytes;
    // Bytes of the token, possibly part of a character; NULL if the token has no bytes of its own. They do not end with a
    // zero, and live as long as texts.
    const uint8_t *token_bytes;
    // Length of `token_bytes`.
    size_t token_bytes_length;
    // Likeliest tokens, likeliest first, as many as `top_logprobs` or `prompt_logprobs` requested; else NULL. They live as
    // long as texts. nestling_model_token_bytes returns their texts.
    const struct nestling_token_log_prob *top;
    // Length of `top`.
    size_t top_count;
} nestling_event;

// Hears of an event, whose texts are valid until it returns. Once it returns 0, the generation is cancelled; its last
// events follow.
typedef int32_t (*nestling_event_callback)(void *user_data, const struct nestling_event *event);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version, such as "0.1.0". It belongs to the library.
const char *nestling_version(void);

// Returns the class of an error, or NESTLING_STATUS_OK for NULL.
enum nestling_status nestling_error_status(const struct nestling_error *error);

// Returns the text of an error in UTF-8, which lives as long as the error. Returns "" for NULL.
const char *nestling_error_text(const struct nestling_error *error);

// Frees an error; nothing for NULL.
void nestling_error_free(struct nestling_error *error);

// Frees a text or bytes that the library gave; nothing for NULL.
void nestling_string_free(char *text);

// A token that is not cancelled. Never NULL.
struct nestling_cancel *nestling_cancel_new(void);

// Cancels; returns at once. Nothing for NULL.
void nestling_cancel_cancel(const struct nestling_cancel *cancel);

// Frees a cancel token, which then cancels nothing. NULL is ignored.
void nestling_cancel_free(struct nestling_cancel *cancel);

// Passes log lines up to `level_max` (1: errors only, 5: everything) to a callback until the process ends. Works once,
// and only if no Rust program around this library has installed a subscriber.
enum nestling_status nestling_set_log_callback(nestling_log_callback callback,
                                               void *user_data,
                                               int32_t level_max,
                                               struct nestling_error **error);

// Options with every default. `size` is sizeof(nestling_engine_options).
void nestling_engine_options_init(struct nestling_engine_options *options, size_t size);

// Starts an engine for models that are to share it. `options` may be NULL.
enum nestling_status nestling_engine_new(const struct nestling_engine_options *options,
                                         struct nestling_engine **engine,
                                         struct nestling_error **error);

// Releases an engine. It ends when its models are freed too. NULL is ignored.
void nestling_engine_free(struct nestling_engine *engine);

// Ends every generation of an engine, with NESTLING_STATUS_STOPPED, and refuses further ones: for a program that is about
// to end. Nothing for NULL.
void nestling_engine_shutdown(const struct nestling_engine *engine);

// Writes the present state of an engine. `status->size` must be set.
enum nestling_status nestling_engine_status_now(const struct nestling_engine *engine,
                                                struct nestling_engine_status *status,
                                                struct nestling_error **error);

// Options with every default. `size` is sizeof(nestling_model_options).
void nestling_model_options_init(struct nestling_model_options *options, size_t size);

// Opens a model: a .nest store, a GGUF file in place, or the folder of a Hugging Face checkpoint. Takes seconds for a
// store, up to minutes for a checkpoint. `options` may be NULL.
enum nestling_status nestling_model_open(const char *path,
                                         const struct nestling_model_options *options,
                                         struct nestling_model **model,
                                         struct nestling_error **error);

// Releases a model. It closes when its sessions, chats and generations are freed too. NULL is ignored.
void nestling_model_free(struct nestling_model *model);

// Returns the engine of a model, to share it with further models or to read its status.
enum nestling_status nestling_model_engine(const struct nestling_model *model,
                                           struct nestling_engine **engine,
                                           struct nestling_error **error);

// Gives the model's engine another memory budget, in bytes. It may be called at any time, and waits for the step that is
// under way. Streamed experts of this model give back what is too much; an engine whose models hold more without them is
// NESTLING_STATUS_NO_ROOM, and nothing has changed. UINT64_MAX is no limit.
enum nestling_status nestling_model_set_memory_budget(const struct nestling_model *model,
                                                      uint64_t bytes,
                                                      struct nestling_error **error);

// Evicts `bytes` bytes of streamed experts, least valuable first, before the next layer is computed; UINT64_MAX evicts
// all. Intended for memory pressure: it returns immediately, so a callback of the system may call it. Evicted experts
// return as they are used; nestling_model_set_memory_budget lowers the budget permanently.
enum nestling_status nestling_model_relieve_pressure(const struct nestling_model *model,
                                                     uint64_t bytes,
                                                     struct nestling_error **error);

// Writes the properties and the present state of a model. `status->size` must be set.
enum nestling_status nestling_model_status_now(const struct nestling_model *model,
                                               struct nestling_model_status *status,
                                               struct nestling_error **error);

// Options with every default. `size` is sizeof(nestling_generate_options).
void nestling_generate_options_init(struct nestling_generate_options *options, size_t size);

// Gives the next event, and waits for it at most `timeout_ms` milliseconds: 0 not at all, negative for ever. Where
// none comes in time, the event is NESTLING_EVENT_KIND_NONE; after the last it is NESTLING_EVENT_KIND_END.
// `event->size` must be set. A generation that failed is an error once, and has no further events.
enum nestling_status nestling_generation_next(const struct nestling_generation *generation,
                                              int64_t timeout_ms,
                                              struct nestling_event *event,
                                              struct nestling_error **error);

// Gives every event to a callback, on this thread, until the last one. The callback may free nothing that it is called
// for.
enum nestling_status nestling_generation_run(const struct nestling_generation *generation,
                                             nestling_event_callback callback,
                                             void *user_data,
                                             struct nestling_error **error);

// Asks a generation to stop, which it does within one layer; returns at once. Its last event then says so. Nothing for
// NULL.
void nestling_generation_cancel(const struct nestling_generation *generation);

// Cancels and frees a generation. Computed tokens stay in its session. NULL is ignored.
void nestling_generation_free(struct nestling_generation *generation);

// Begins an empty session of a model. Costs nothing until it computes.
enum nestling_status nestling_session_new(const struct nestling_model *model,
                                          struct nestling_session **session,
                                          struct nestling_error **error);

// Forks a session. Both share KV pages until one of them continues.
enum nestling_status nestling_session_fork(const struct nestling_session *session,
                                           struct nestling_session **fork,
                                           struct nestling_error **error);

// Frees a session. A running generation continues. NULL is ignored.
void nestling_session_free(struct nestling_session *session);

// Writes the number of tokens of a session. After a generation was freed, the call may wait up to one layer for its end.
enum nestling_status nestling_session_length(const struct nestling_session *session,
                                             size_t *tokens,
                                             struct nestling_error **error);

// Forgets all but the first tokens.
enum nestling_status nestling_session_truncate(const struct nestling_session *session,
                                               size_t tokens,
                                               struct nestling_error **error);

// Appends a text to the session and generates a completion, without a chat template. `options` may be NULL.
enum nestling_status nestling_session_generate_text(const struct nestling_session *session,
                                                    const char *prompt,
                                                    const struct nestling_generate_options *options,
                                                    struct nestling_generation **generation,
                                                    struct nestling_error **error);

// Appends tokens to the session and generates a completion. `options` may be NULL.
enum nestling_status nestling_session_generate_tokens(const struct nestling_session *session,
                                                      const uint32_t *tokens,
                                                      size_t count,
                                                      const struct nestling_generate_options *options,
                                                      struct nestling_generation **generation,
                                                      struct nestling_error **error);

// Generates the answer to a whole conversation, which replaces the session's history. A shared prefix is not computed
// again. `conversation` is JSON: {"messages": [...], "tools": [...], "chat_template_kwargs": {...}} as in the
// OpenAI API, the last two optional. `options` may be NULL.
enum nestling_status nestling_session_generate_conversation(const struct nestling_session *session,
                                                            const char *conversation,
                                                            const struct nestling_generate_options *options,
                                                            struct nestling_generation **generation,
                                                            struct nestling_error **error);

// The bytes; they belong to the handle.
const uint8_t *nestling_bytes_data(const struct nestling_bytes *bytes);

// How many there are.
size_t nestling_bytes_length(const struct nestling_bytes *bytes);

// Frees bytes; nothing for NULL.
void nestling_bytes_free(struct nestling_bytes *bytes);

// Gives a session as bytes, for nestling_model_restore in this process or another. With `with_pages` not 0 they hold what
// was computed, else the tokens alone, which are computed again.
enum nestling_status nestling_session_snapshot(const struct nestling_session *session,
                                               uint32_t with_pages,
                                               struct nestling_bytes **bytes,
                                               struct nestling_error **error);

// Makes the session that bytes of nestling_session_snapshot hold, with the same model opened with the same options.
enum nestling_status nestling_model_restore(const struct nestling_model *model,
                                            const uint8_t *data,
                                            size_t length,
                                            struct nestling_session **session,
                                            struct nestling_error **error);

// Starts a conversation. `conversation` is JSON as for nestling_session_generate_conversation, with earlier messages and
// tools; NULL is an empty conversation.
enum nestling_status nestling_chat_new(const struct nestling_model *model,
                                       const char *conversation,
                                       struct nestling_chat **chat,
                                       struct nestling_error **error);

// Frees a conversation. A running generation continues. NULL is ignored.
void nestling_chat_free(struct nestling_chat *chat);

// Says something as the user, and starts the answer, which is part of the conversation as far as it comes. `options` may
// be NULL.
enum nestling_status nestling_chat_send(const struct nestling_chat *chat,
                                        const char *message,
                                        const struct nestling_generate_options *options,
                                        struct nestling_generation **generation,
                                        struct nestling_error **error);

// Gives the results of the last answer's tool calls, in the order of the calls, and starts the next answer. `options` may
// be NULL.
enum nestling_status nestling_chat_reply_to_tools(const struct nestling_chat *chat,
                                                  const char *const *results,
                                                  size_t count,
                                                  const struct nestling_generate_options *options,
                                                  struct nestling_generation **generation,
                                                  struct nestling_error **error);

// Gives all that was said as JSON, a list of messages as in the OpenAI API, with the answer under way as far as it has
// come. It never waits. The text is freed with nestling_string_free.
enum nestling_status nestling_chat_transcript(const struct nestling_chat *chat,
                                              char **json,
                                              struct nestling_error **error);

// Returns the token ids, which belong to the handle.
const uint32_t *nestling_tokens_data(const struct nestling_tokens *tokens);

// Returns the number of tokens.
size_t nestling_tokens_length(const struct nestling_tokens *tokens);

// Frees tokens; nothing for NULL.
void nestling_tokens_free(struct nestling_tokens *tokens);

// Encodes `length` bytes of UTF-8, which may contain zero bytes. With `add_special` not 0 the tokens that the model
// expects before a text are added; with `parse_special` not 0 the texts of special tokens become these tokens.
enum nestling_status nestling_model_encode(const struct nestling_model *model,
                                           const char *text,
                                           size_t length,
                                           uint32_t add_special,
                                           uint32_t parse_special,
                                           struct nestling_tokens **tokens,
                                           struct nestling_error **error);

// Decodes tokens to UTF-8, without a zero at the end. Special tokens are left out unless `keep_special` is not 0. Bytes
// that are no UTF-8 become U+FFFD. A token outside the vocabulary is NESTLING_STATUS_CALLER.
enum nestling_status nestling_model_decode(const struct nestling_model *model,
                                           const uint32_t *tokens,
                                           size_t count,
                                           uint32_t keep_special,
                                           struct nestling_bytes **bytes,
                                           struct nestling_error **error);

// Returns the bytes of one token, such as one of `top`, possibly part of a character. They do not end with a zero, and
// belong to the model. NULL and a length of 0 for a token outside the vocabulary, and for all tokens of a vocabulary whose
// tokens have no bytes of their own. `length` must not be NULL.
const uint8_t *nestling_model_token_bytes(const struct nestling_model *model,
                                          uint32_t token,
                                          size_t *length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NESTLING_H */
