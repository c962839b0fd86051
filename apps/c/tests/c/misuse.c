/* What is NULL, or is none of its values, is refused or does nothing: misuse MODEL. */
#include "common.h"

#include <string.h>

static int failures;

/* The next call's last argument. */
static nestling_error *error;

static void refused(int line, nestling_status status, nestling_status expected)
{
    const char *text = nestling_error_text(error);
    if (status != expected || nestling_error_status(error) != expected || *text == 0) {
        fprintf(stderr, "line %d: class %d: %s\n", line, (int)status, text);
        failures++;
    }
    nestling_error_free(error);
    error = NULL;
}

/* As REFUSED, with an error that contains a text. */
static void named(int line, nestling_status status, const char *words)
{
    const char *text = nestling_error_text(error);
    if (strstr(text, words) == NULL) {
        fprintf(stderr, "line %d: \"%s\" is not in: %s\n", line, words, text);
        failures++;
    }
    refused(line, status, NESTLING_STATUS_CALLER);
}

#define NAMED(CALL, WORDS) named(__LINE__, CALL, WORDS)
#define REFUSED(CALL) refused(__LINE__, CALL, NESTLING_STATUS_CALLER)
#define WRONG(WHAT) (failures += (WHAT) ? (fprintf(stderr, "line %d\n", __LINE__), 1) : 0)

static void nothing_for_null(void)
{
    nestling_error_free(NULL);
    nestling_string_free(NULL);
    nestling_bytes_free(NULL);
    nestling_tokens_free(NULL);
    nestling_cancel_free(NULL);
    nestling_cancel_cancel(NULL);
    nestling_engine_free(NULL);
    nestling_engine_shutdown(NULL);
    nestling_model_free(NULL);
    nestling_session_free(NULL);
    nestling_chat_free(NULL);
    nestling_generation_free(NULL);
    nestling_generation_cancel(NULL);
    nestling_engine_options_init(NULL, sizeof(nestling_engine_options));
    nestling_model_options_init(NULL, sizeof(nestling_model_options));
    nestling_generate_options_init(NULL, 0);
    WRONG(nestling_error_status(NULL) != NESTLING_STATUS_OK || *nestling_error_text(NULL) != 0);
    WRONG(nestling_bytes_data(NULL) != NULL || nestling_bytes_length(NULL) != 0);
    WRONG(nestling_tokens_data(NULL) != NULL || nestling_tokens_length(NULL) != 0);
    WRONG(nestling_model_token_bytes(NULL, 0, NULL) != NULL);
    WRONG(*nestling_version() == 0);
}

/* Every call without its handle, then with it and without the rest. */
static void handles_that_are_null(nestling_model *model, nestling_session *session, nestling_chat *chat)
{
    nestling_engine *engine;
    nestling_model *opened;
    nestling_session *other = (nestling_session *)&error;
    nestling_generation *answer;
    nestling_chat *talk;
    nestling_bytes *bytes;
    nestling_tokens *tokens;
    const uint32_t unknown = UINT32_MAX;
    nestling_engine_status engine_status = {.size = sizeof engine_status};
    nestling_model_status model_status = {.size = sizeof model_status};
    nestling_event event = {.size = sizeof event};
    size_t length;
    char *text;
    REFUSED(nestling_model_engine(NULL, &engine, &error));
    REFUSED(nestling_model_engine(model, NULL, &error));
    REFUSED(nestling_engine_new(NULL, NULL, &error));
    REFUSED(nestling_engine_status_now(NULL, &engine_status, &error));
    REFUSED(nestling_model_open(NULL, NULL, &opened, &error));
    REFUSED(nestling_model_open("model.nest", NULL, NULL, &error));
    REFUSED(nestling_model_set_memory_budget(NULL, 1, &error));
    REFUSED(nestling_model_relieve_pressure(NULL, 1, &error));
    REFUSED(nestling_model_status_now(NULL, &model_status, &error));
    REFUSED(nestling_session_new(NULL, &other, &error));
    WRONG(other != NULL);
    REFUSED(nestling_session_fork(NULL, &other, &error));
    REFUSED(nestling_session_fork(session, NULL, &error));
    REFUSED(nestling_session_length(NULL, &length, &error));
    REFUSED(nestling_session_length(session, NULL, &error));
    REFUSED(nestling_session_truncate(NULL, 0, &error));
    REFUSED(nestling_session_generate_text(NULL, "x", NULL, &answer, &error));
    REFUSED(nestling_session_generate_text(session, NULL, NULL, &answer, &error));
    REFUSED(nestling_session_generate_text(session, "x", NULL, NULL, &error));
    REFUSED(nestling_session_generate_tokens(NULL, NULL, 0, NULL, &answer, &error));
    REFUSED(nestling_session_generate_tokens(session, NULL, 3, NULL, &answer, &error));
    REFUSED(nestling_session_generate_tokens(session, (const uint32_t *)&length, SIZE_MAX, NULL, &answer, &error));
    REFUSED(nestling_session_generate_conversation(NULL, "{}", NULL, &answer, &error));
    REFUSED(nestling_session_generate_conversation(session, NULL, NULL, &answer, &error));
    REFUSED(nestling_session_snapshot(NULL, 1, &bytes, &error));
    REFUSED(nestling_session_snapshot(session, 1, NULL, &error));
    REFUSED(nestling_model_restore(NULL, (const uint8_t *)"x", 1, &other, &error));
    REFUSED(nestling_model_encode(NULL, "x", 1, 0, 0, &tokens, &error));
    REFUSED(nestling_model_encode(model, NULL, 1, 0, 0, &tokens, &error));
    REFUSED(nestling_model_encode(model, "\xff", 1, 0, 0, &tokens, &error));
    REFUSED(nestling_model_encode(model, "x", 1, 0, 0, NULL, &error));
    REFUSED(nestling_model_decode(NULL, &unknown, 1, 0, &bytes, &error));
    REFUSED(nestling_model_decode(model, &unknown, 1, 0, &bytes, &error));
    REFUSED(nestling_model_decode(model, NULL, 1, 0, &bytes, &error));
    WRONG(tokens != NULL);
    REFUSED(nestling_chat_new(NULL, NULL, &talk, &error));
    REFUSED(nestling_chat_send(NULL, "x", NULL, &answer, &error));
    REFUSED(nestling_chat_send(chat, NULL, NULL, &answer, &error));
    REFUSED(nestling_chat_reply_to_tools(NULL, NULL, 0, NULL, &answer, &error));
    REFUSED(nestling_chat_reply_to_tools(chat, NULL, 1, NULL, &answer, &error));
    REFUSED(nestling_chat_transcript(NULL, &text, &error));
    REFUSED(nestling_chat_transcript(chat, NULL, &error));
    REFUSED(nestling_generation_next(NULL, 0, &event, &error));
    REFUSED(nestling_generation_run(NULL, NULL, NULL, &error));
    WRONG(answer != NULL || bytes != NULL || talk != NULL || engine != NULL || opened != NULL);
    /* Nobody wants the error. */
    WRONG(nestling_chat_send(NULL, "x", NULL, &answer, NULL) != NESTLING_STATUS_CALLER);
}

static void values_that_are_none(const char *path, nestling_session *session)
{
    nestling_model *model;
    nestling_generation *answer;
    nestling_engine *engine;
    nestling_model_options how;
    nestling_model_options_init(&how, sizeof how);
    how.residence = 77;
    REFUSED(nestling_model_open(path, &how, &model, &error));
    nestling_model_options_init(&how, sizeof how);
    how.level = 5;
    REFUSED(nestling_model_open(path, &how, &model, &error));
    nestling_model_options_init(&how, sizeof how);
    how.device = "abacus";
    REFUSED(nestling_model_open(path, &how, &model, &error));
    nestling_model_options_init(&how, sizeof how);
    check(nestling_engine_new(NULL, &engine, &error), error);
    how.engine = engine;
    how.threads = 2;
    REFUSED(nestling_model_open(path, &how, &model, &error));
    nestling_engine_free(engine);
    nestling_model_options_init(&how, sizeof how);
    how.context_length = 1000000;
    NAMED(nestling_model_open(path, &how, &model, &error), "context_length: 1000000 exceeds the limit of 256");
    nestling_model_options_init(&how, sizeof how);
    how.threads = UINT32_MAX;
    NAMED(nestling_model_open(path, &how, &model, &error), "threads: 4294967295 exceeds the limit of 1024");
    WRONG(model != NULL);

    nestling_generate_options options = greedy(4);
    options.priority = 1000;
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    options = greedy(4);
    options.temperature = -1;
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    options = greedy(4);
    options.stop_count = 1;
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    options = greedy(4);
    options.regex = "(";
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    options = greedy(4);
    options.regex = "a";
    options.lark = "start: \"a\"";
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    options = greedy(4);
    options.lark = "root ::= missing";
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    options = greedy(4);
    options.tool_choice = "required";
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    options = greedy(4);
    const uint32_t unknown = 1000000;
    options.stop_tokens = &unknown;
    options.stop_token_count = 1;
    NAMED(nestling_session_generate_text(session, "x", &options, &answer, &error), "token 1000000 is outside");
    options = greedy(4);
    const nestling_logit_bias bias = {.token = 1000000, .bias = 1};
    options.logit_bias = &bias;
    options.logit_bias_count = 1;
    NAMED(nestling_session_generate_text(session, "x", &options, &answer, &error), "token 1000000 is outside");
    options.logit_bias = NULL;
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    options = greedy(4);
    options.size += 4;
    REFUSED(nestling_session_generate_text(session, "x", &options, &answer, &error));
    WRONG(answer != NULL);
}

static void conversations(const nestling_model *model)
{
    nestling_chat *chat;
    NAMED(nestling_chat_new(model, "{\"messages\": [], \"tools\": [7]}", &chat, &error),
        "tools[0]: tool: expected an object, found 7");
    NAMED(nestling_chat_new(model, "{\"messages\": [], \"tools\": [{\"function\": {}}]}", &chat, &error),
        "tools[0]: `name`: missing");
    WRONG(chat != NULL);
}

/* Generates two tokens and returns the first one's event, whose list of likeliest tokens has `count` entries. */
static nestling_event first_token(nestling_model *model, nestling_generate_options options, size_t count)
{
    nestling_session *session = begin_session(model);
    nestling_generation *answer;
    check(nestling_session_generate_text(session, "Ship", &options, &answer, &error), error);
    nestling_event first = {.size = sizeof first}, event = first;
    int tokens = 0;
    do {
        event = next_event(answer, -1);
        if (event.kind != NESTLING_EVENT_KIND_TOKEN)
            continue;
        WRONG(event.top_count != count || (event.top == NULL) != (count == 0));
        WRONG((event.token_bytes == NULL) != (event.token_bytes_length == 0));
        for (size_t i = 0; i + 1 < count; i++)
            WRONG(event.top[i].log_prob < event.top[i + 1].log_prob);
        /* Greedy choice. */
        WRONG(count > 0 && (event.top[0].token != event.token || event.top[0].log_prob != event.log_prob));
        if (tokens++ == 0)
            first = event;
    } while (event.kind != NESTLING_EVENT_KIND_END);
    WRONG(tokens == 0);
    nestling_generation_free(answer);
    nestling_session_free(session);
    return first;
}

static void tokens(nestling_model *model)
{
    nestling_generate_options options = greedy(2);
    options.ignore_end = 1;
    options.token_events = 1;
    nestling_event plain = first_token(model, options, 0);
    WRONG(plain.log_prob == plain.log_prob);
    options.top_logprobs = 3;
    WRONG(first_token(model, options, 3).token != plain.token);
    options.top_logprobs = 0;
    WRONG(!(first_token(model, options, 0).log_prob <= 0));
    const nestling_logit_bias bias = {.token = plain.token, .bias = -1000};
    options.logit_bias = &bias;
    options.logit_bias_count = 1;
    WRONG(first_token(model, options, 0).token == plain.token);
    options.logit_bias_count = 0;
    options.stop_tokens = &plain.token;
    options.stop_token_count = 1;
    nestling_session *session = begin_session(model);
    nestling_generation *answer;
    check(nestling_session_generate_text(session, "Ship", &options, &answer, &error), error);
    nestling_event event;
    do
        event = next_event(answer, -1);
    while (event.kind != NESTLING_EVENT_KIND_FINISHED);
    WRONG(event.finish_reason != NESTLING_FINISH_REASON_STOP);
    nestling_generation_free(answer);
    nestling_session_free(session);
}

static void events(nestling_session *session)
{
    nestling_generation *answer;
    nestling_event event = {.size = 3};
    nestling_generate_options options = greedy(2);
    check(nestling_session_generate_text(session, "Ship", &options, &answer, &error), error);
    REFUSED(nestling_generation_run(answer, NULL, NULL, &error));
    /* No event is lost for which there was no place. */
    REFUSED(nestling_generation_next(answer, -1, &event, &error));
    REFUSED(nestling_generation_next(answer, -1, NULL, &error));
    event.size = sizeof(size_t) + 2 * sizeof(int);
    int events = 0;
    do {
        check(nestling_generation_next(answer, -1, &event, &error), error);
        events++;
    } while (event.kind != NESTLING_EVENT_KIND_END);
    WRONG(events < 3);
    check(nestling_generation_next(answer, 0, &event, &error), error);
    WRONG(event.kind != NESTLING_EVENT_KIND_END);
    nestling_generation_free(answer);
}

static void count_lines(void *lines, nestling_log_level level, const char *line)
{
    (void)level;
    *(_Atomic int *)lines += *line != 0;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    static _Atomic int lines;
    REFUSED(nestling_set_log_callback(NULL, NULL, 5, &error));
    REFUSED(nestling_set_log_callback(count_lines, &lines, 6, &error));
    check(nestling_set_log_callback(count_lines, &lines, 5, &error), error);
    REFUSED(nestling_set_log_callback(count_lines, &lines, 5, &error));
    nothing_for_null();
    nestling_model *model = open_model(arguments[1]);
    nestling_session *session = begin_session(model);
    nestling_chat *chat;
    check(nestling_chat_new(model, NULL, &chat, &error), error);
    handles_that_are_null(model, session, chat);
    values_that_are_none(arguments[1], session);
    conversations(model);
    tokens(model);
    events(session);
    nestling_chat_free(chat);
    nestling_session_free(session);
    nestling_model_free(model);
    printf("%s\n", lines > 0 ? "lines of the log" : "no line of the log");
    return failures;
}
