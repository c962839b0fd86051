/* What the examples share: an error ends the program with its words. */
#ifndef COMMON_H
#define COMMON_H

#include "nestling.h"

#include <stdio.h>
#include <stdlib.h>

/* The call comes before the error is looked at: as arguments of a function they would have no order. */
#define check(CALL, ERROR) \
    do { \
        nestling_status status_ = (CALL); \
        end_if_failed(status_, ERROR); \
    } while (0)

static inline void end_if_failed(nestling_status status, nestling_error *error)
{
    if (status != NESTLING_STATUS_OK) {
        fprintf(stderr, "error (class %d): %s\n", (int)status, nestling_error_text(error));
        nestling_error_free(error);
        exit(1);
    }
}

static inline nestling_model *open_model(const char *path)
{
    nestling_error *error;
    nestling_model *model;
    check(nestling_model_open(path, NULL, &model, &error), error);
    return model;
}

static inline nestling_session *begin_session(nestling_model *model)
{
    nestling_error *error;
    nestling_session *session;
    check(nestling_session_new(model, &session, &error), error);
    return session;
}

/* Always the likeliest tokens, and so many of them. */
static inline nestling_generate_options greedy(int64_t max_tokens)
{
    nestling_generate_options options;
    nestling_generate_options_init(&options, sizeof options);
    options.temperature = 0;
    options.max_tokens = max_tokens;
    return options;
}

static inline nestling_event next_event(nestling_generation *generation, int64_t timeout_ms)
{
    nestling_error *error;
    nestling_event event = {.size = sizeof event};
    check(nestling_generation_next(generation, timeout_ms, &event, &error), error);
    return event;
}

/* Prints an answer to its end; returns why it ended. */
static inline nestling_finish_reason print_answer(nestling_generation *generation)
{
    nestling_finish_reason reason = NESTLING_FINISH_REASON_NONE;
    for (;;) {
        nestling_event event = next_event(generation, -1);
        if (event.kind == NESTLING_EVENT_KIND_TEXT) {
            fputs(event.text, stdout);
            fflush(stdout);
        } else if (event.kind == NESTLING_EVENT_KIND_FINISHED) {
            reason = event.finish_reason;
        } else if (event.kind == NESTLING_EVENT_KIND_END) {
            putchar('\n');
            return reason;
        }
    }
}

#endif
