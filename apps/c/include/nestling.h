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

// As many planes of experts in memory as the budget has room for; others are read when they are wanted.
#define NESTLING_RESIDENCE_STREAMED 2

// As AUTO, but the model is open before its experts are there.
#define NESTLING_RESIDENCE_LAZY 3

// What became of a call. Anything but NESTLING_STATUS_OK comes with an error, where one was asked for.
typedef enum nestling_status {
    // It did what it is for.
    NESTLING_STATUS_OK = 0,
    // What was asked for makes no sense, or is too long: the same again fails again.
    NESTLING_STATUS_CALLER = 1,
    // Later, it may work.
    NESTLING_STATUS_BUSY = 2,
    // Memory, pages or threads are not enough: less may work, or more of them.
    NESTLING_STATUS_NO_ROOM = 3,
    // It was cancelled, or its engine was shut down.
    NESTLING_STATUS_STOPPED = 4,
    // A file that is damaged, missing or not what it should be, or a disk that fails.
    NESTLING_STATUS_SOURCE = 5,
    // The model, its device or the library itself: open the model again, and report it.
    NESTLING_STATUS_BROKEN = 6,
} nestling_status;

// How important a line of the log is.
typedef enum nestling_log_level {
    // Something failed.
    NESTLING_LOG_LEVEL_ERROR = 1,
    // Something is not as it should be.
    NESTLING_LOG_LEVEL_WARN = 2,
    // What people may want to know.
    NESTLING_LOG_LEVEL_INFO = 3,
    // What helps to find out why.
    NESTLING_LOG_LEVEL_DEBUG = 4,
    // Everything.
    NESTLING_LOG_LEVEL_TRACE = 5,
} nestling_log_level;

// What an event is.
typedef enum nestling_event_kind {
    // Nothing happened in the time that was given.
    NESTLING_EVENT_KIND_NONE = 0,
    // A token was chosen: `token`, and where asked for `log_prob`. Before the text that it completes.
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
    // It ended: `finish_reason` and the counts. The last event of a generation that did not fail.
    NESTLING_EVENT_KIND_FINISHED = 7,
    // There is no further event.
    NESTLING_EVENT_KIND_END = 8,
    // Something that this header does not know.
    NESTLING_EVENT_KIND_OTHER = 9,
} nestling_event_kind;

// Why a generation ended.
typedef enum nestling_finish_reason {
    // It has not ended.
    NESTLING_FINISH_REASON_NONE = 0,
    // The model ended its turn, or wrote a stop string.
    NESTLING_FINISH_REASON_STOP = 1,
    // max_tokens were generated.
    NESTLING_FINISH_REASON_LENGTH = 2,
    // The context has no room for another token.
    NESTLING_FINISH_REASON_CONTEXT_FULL = 3,
    // The model ended its turn with a tool call.
    NESTLING_FINISH_REASON_TOOL_CALLS = 4,
    // It was cancelled.
    NESTLING_FINISH_REASON_CANCELLED = 5,
    // Something that this header does not know.
    NESTLING_FINISH_REASON_OTHER = 6,
} nestling_finish_reason;

// Bytes that the library gave; freed with nestling_bytes_free.
typedef struct nestling_bytes nestling_bytes;

// Stops what it was given to: the opening of a model, a generation. It may be used from any thread and any number of
// times, and stays cancelled.
typedef struct nestling_cancel nestling_cancel;

// A conversation and its session: what is sent and what was answered, reasoning and tool calls included. One thread at a
// time uses it.
typedef struct nestling_chat nestling_chat;

// Threads and a memory budget that models share. Any number of threads may use it at once; its models keep it running.
typedef struct nestling_engine nestling_engine;

// Why a call failed.
typedef struct nestling_error nestling_error;

// A generation under way. Its events are asked for by one thread at a time; any thread may cancel it. Freeing it cancels
// it.
typedef struct nestling_generation nestling_generation;

// A model, open. Any number of threads may use it at once; its sessions, chats and generations keep it open.
typedef struct nestling_model nestling_model;

// A history of tokens, and what was computed for them. One thread at a time uses it.
typedef struct nestling_session nestling_session;

// Hears of a line of the log, on the thread that it comes from, several at once perhaps. It must return soon and call
// nothing of this library.
typedef void (*nestling_log_callback)(void *user_data, enum nestling_log_level level, const char *line);

// How an engine is started. Set by nestling_engine_options_init; change what differs.
typedef struct nestling_engine_options {
    // sizeof of this struct.
    size_t size;
    // Bytes of memory that all its models may take, weights, keys and values and scratch; 0 is what the system says is
    // free, less a margin; UINT64_MAX is no limit.
    uint64_t memory_budget;
    // Threads that compute; 0 is one for each core.
    uint32_t threads;
    // Generations that may wait for room, further ones are NESTLING_STATUS_BUSY; 0 is the library's own number.
    uint32_t waiting_max;
} nestling_engine_options;

// What an engine does, and what it did since it was started. `size` is set to sizeof by the caller.
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
    // Those that are free.
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
    // Of these, those that were found.
    uint64_t prefix_found_tokens;
} nestling_engine_status;

// Hears how far the opening of a model is, on the thread that opens it. Once it returns 0, the opening is cancelled.
typedef int32_t (*nestling_progress)(void *user_data, uint64_t parts_done, uint64_t parts_total);

// How a model is opened. Set by nestling_model_options_init; change what differs.
typedef struct nestling_model_options {
    // sizeof of this struct.
    size_t size;
    // What computes: "auto", "cpu", or where the library was built with them "cuda" or "wgpu", with ":INDEX" or ":NAME";
    // NULL is "auto".
    const char *device;
    // Bytes of memory that weights, keys and values and scratch may take; 0 is what the system says is free, less a
    // margin; UINT64_MAX is no limit. With `engine` it must be 0, and so must `threads`.
    uint64_t memory_budget;
    // Bytes of a GPU's memory; 0 is what it has.
    uint64_t device_budget;
    // Threads that compute; 0 is one for each core.
    uint32_t threads;
    // Most tokens of one session; 0 is what the model was trained for, at most 8192.
    uint32_t context_length;
    // Tokens whose keys and values all sessions may hold together; 0 is twice the context length.
    uint32_t kv_tokens;
    // Bits of every weight to use, 2, 3, 4, 6 or 8; 0 is all that the store holds.
    uint32_t level;
    // Where the experts are: a NESTLING_RESIDENCE_ constant.
    uint32_t residence;
    // Keys and values in 8 bits where not 0, else in 16.
    uint32_t kv_int8;
    // Hears of the progress; may be NULL.
    nestling_progress progress;
    // What progress is called with.
    void *progress_data;
    // Cancels the opening; may be NULL.
    const struct nestling_cancel *cancel;
    // The engine whose threads and memory budget the model shares with others; NULL is one of its own.
    const struct nestling_engine *engine;
} nestling_model_options;

// What a model is and does. `size` is set to sizeof by the caller.
typedef struct nestling_model_status {
    // sizeof of this struct.
    size_t size;
    // Most tokens of one session.
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
    // Pages of keys and values, and those that are free.
    uint64_t pages_total;
    // See pages_total.
    uint64_t pages_free;
    // Not 0 where its experts are streamed.
    uint32_t is_streamed;
    // Not 0 where messages are prompts: it has a chat template.
    uint32_t has_chat;
    // Not 0 where its chat template has a place for tools.
    uint32_t has_tools;
    // Not 0 where its answers may begin with reasoning.
    uint32_t has_reasoning;
} nestling_model_status;

// How one answer is generated. Set by nestling_generate_options_init; change what differs. The same options do for any
// number of answers.
typedef struct nestling_generate_options {
    // sizeof of this struct.
    size_t size;
    // Most tokens to generate; negative is until the model ends or the context is full. With 0 the prompt is computed
    // and kept for what comes after.
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
    // Log-probabilities with every token, and of so many best ones; negative is none.
    int32_t top_logprobs;
    // Every token is an event of its own where not 0.
    uint32_t token_events;
    // The model's own end tokens are tokens like others where not 0.
    uint32_t ignore_end;
    // Bits to compute with, at most those that the model was opened with; 0 is those.
    uint32_t level;
    // Texts that end the answer and are not part of it.
    const char *const *stop;
    // How many of them.
    size_t stop_count;
    // The answer is JSON of this schema; NULL is any. At most one of the four forms may be given.
    const char *json_schema;
    // The answer matches this regular expression.
    const char *regex;
    // The answer is derived from this grammar of Lark's.
    const char *lark;
    // Whether the model calls a tool: "auto", "none", "required", or the name of one that it calls; NULL is "auto".
    const char *tool_choice;
    // In how many milliseconds the first token is wanted; 0 is whenever it comes.
    uint64_t deadline_ms;
    // Generations with a greater number go first; -128 to 127.
    int32_t priority;
    // Not used.
    uint32_t reserved;
    // Whose beginnings of prompts it shares; NULL shares with all others that have NULL.
    const char *cache_salt;
} nestling_generate_options;

// One thing that happened in a generation. `size` is set to sizeof by the caller. Texts are UTF-8, end with a zero, and
// belong to the generation: they are valid until its next event is asked for or it is freed.
typedef struct nestling_event {
    // sizeof of this struct.
    size_t size;
    // What it is; the other fields have a meaning as far as this says.
    enum nestling_event_kind kind;
    // Why it ended.
    enum nestling_finish_reason finish_reason;
    // A text, else NULL.
    const char *text;
    // Its bytes without the zero.
    size_t text_length;
    // What the tool's result refers to, else NULL.
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
    // Of these, how many were not computed again.
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
    // Those of which something had to be read.
    uint64_t expert_misses;
    // Bytes of them that were read.
    uint64_t read_bytes;
} nestling_event;

// Hears of an event, whose texts are valid until it returns. Once it returns 0, the generation is cancelled; its last
// events follow.
typedef int32_t (*nestling_event_callback)(void *user_data, const struct nestling_event *event);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The library's version, such as "0.1.0". It belongs to the library.
const char *nestling_version(void);

// The class of an error; that of NULL is NESTLING_STATUS_OK.
enum nestling_status nestling_error_status(const struct nestling_error *error);

// The words of an error, in UTF-8. They belong to it. Those of NULL are "".
const char *nestling_error_text(const struct nestling_error *error);

// Frees an error; nothing for NULL.
void nestling_error_free(struct nestling_error *error);

// Frees a text or bytes that the library gave; nothing for NULL.
void nestling_string_free(char *text);

// A token that is not cancelled. Never NULL.
struct nestling_cancel *nestling_cancel_new(void);

// Cancels; returns at once. Nothing for NULL.
void nestling_cancel_cancel(const struct nestling_cancel *cancel);

// Frees a token; what it was given to can no longer be cancelled by it. Nothing for NULL.
void nestling_cancel_free(struct nestling_cancel *cancel);

// Tells a callback what the library logs, up to `level_max` (1 errors alone, to 5 everything), until the process ends.
// Only once, and only where no Rust program around this library has a subscriber of its own.
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

// Lets go of an engine. It ends when its models are freed too. Nothing for NULL.
void nestling_engine_free(struct nestling_engine *engine);

// Ends every generation of an engine, with NESTLING_STATUS_STOPPED, and refuses further ones: for a program that is about
// to end. Nothing for NULL.
void nestling_engine_shutdown(const struct nestling_engine *engine);

// Tells what an engine does at this moment. `status->size` must be set.
enum nestling_status nestling_engine_status_now(const struct nestling_engine *engine,
                                                struct nestling_engine_status *status,
                                                struct nestling_error **error);

// Options with every default. `size` is sizeof(nestling_model_options).
void nestling_model_options_init(struct nestling_model_options *options, size_t size);

// Opens a model: a .nest store, a GGUF file where it lies, or the folder of a Hugging Face checkpoint. Takes its time:
// seconds for a store, up to minutes for a checkpoint. `options` may be NULL.
enum nestling_status nestling_model_open(const char *path,
                                         const struct nestling_model_options *options,
                                         struct nestling_model **model,
                                         struct nestling_error **error);

// Lets go of a model. It is closed when its sessions, chats and generations are freed too. Nothing for NULL.
void nestling_model_free(struct nestling_model *model);

// Gives the engine of a model, to share it with further models or to see what it does.
enum nestling_status nestling_model_engine(const struct nestling_model *model,
                                           struct nestling_engine **engine,
                                           struct nestling_error **error);

// Gives the model's engine another memory budget, in bytes. It may be called at any time, and waits for the step that is
// under way. Streamed experts of this model give back what is too much; an engine whose models hold more without them is
// NESTLING_STATUS_NO_ROOM, and nothing has changed. UINT64_MAX is no limit.
enum nestling_status nestling_model_set_memory_budget(const struct nestling_model *model,
                                                      uint64_t bytes,
                                                      struct nestling_error **error);

// For a system short of memory: lets go of so many bytes of streamed experts, those that are missed least, at the latest
// before the next layer is computed; UINT64_MAX is as many as there are. Returns at once, so that it may be called in a
// callback of the system. They come back as they are used: less for good is nestling_model_set_memory_budget.
enum nestling_status nestling_model_relieve_pressure(const struct nestling_model *model,
                                                     uint64_t bytes,
                                                     struct nestling_error **error);

// Tells what a model is and does at this moment. `status->size` must be set.
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

// Cancels and frees a generation; what was computed stays with its session. Nothing for NULL.
void nestling_generation_free(struct nestling_generation *generation);

// Begins an empty session of a model. Costs nothing until it computes.
enum nestling_status nestling_session_new(const struct nestling_model *model,
                                          struct nestling_session **session,
                                          struct nestling_error **error);

// Makes a session that holds the same; it takes no pages of its own until both go on.
enum nestling_status nestling_session_fork(const struct nestling_session *session,
                                           struct nestling_session **fork,
                                           struct nestling_error **error);

// Frees a session; nothing for NULL. A generation of it goes on.
void nestling_session_free(struct nestling_session *session);

// Tells how many tokens a session holds. After a generation was freed it may wait a layer for its end.
enum nestling_status nestling_session_length(const struct nestling_session *session,
                                             size_t *tokens,
                                             struct nestling_error **error);

// Forgets all but the first tokens.
enum nestling_status nestling_session_truncate(const struct nestling_session *session,
                                               size_t tokens,
                                               struct nestling_error **error);

// Adds a text to what the session holds and generates what follows, without a chat template. `options` may be NULL.
enum nestling_status nestling_session_generate_text(const struct nestling_session *session,
                                                    const char *prompt,
                                                    const struct nestling_generate_options *options,
                                                    struct nestling_generation **generation,
                                                    struct nestling_error **error);

// Adds tokens to what the session holds and generates what follows. `options` may be NULL.
enum nestling_status nestling_session_generate_tokens(const struct nestling_session *session,
                                                      const uint32_t *tokens,
                                                      size_t count,
                                                      const struct nestling_generate_options *options,
                                                      struct nestling_generation **generation,
                                                      struct nestling_error **error);

// Generates the answer to a whole conversation, which becomes what the session holds; what both begin with is not
// computed again. `conversation` is JSON: {"messages": [...], "tools": [...], "chat_template_kwargs": {...}} as in the
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

// Begins a conversation. `conversation` is JSON as for nestling_session_generate_conversation, with what was said so far
// and the tools; NULL is an empty one.
enum nestling_status nestling_chat_new(const struct nestling_model *model,
                                       const char *conversation,
                                       struct nestling_chat **chat,
                                       struct nestling_error **error);

// Frees a conversation; nothing for NULL. An answer under way goes on.
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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* NESTLING_H */
