/* What one token costs beside Rust (per_token.rs), counted by callgrind: per_token MODEL TOKENS. */
#include "common.h"

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    nestling_model_options how;
    nestling_model_options_init(&how, sizeof how);
    how.threads = 1;
    how.context_length = 128;
    nestling_error *error;
    nestling_model *model;
    check(nestling_model_open(arguments[1], &how, &model, &error), error);
    nestling_session *session = begin_session(model);
    nestling_generate_options options = greedy(atoi(arguments[2]));
    options.ignore_end = 1;
    options.token_events = 1;
    nestling_generation *answer;
    check(nestling_session_generate_text(session, "The captain said", &options, &answer, &error), error);
    size_t bytes = 0, tokens = 0;
    for (nestling_event event = next_event(answer, -1); event.kind != NESTLING_EVENT_KIND_END;
         event = next_event(answer, -1)) {
        bytes += event.text_length;
        tokens += event.kind == NESTLING_EVENT_KIND_TOKEN;
    }
    printf("%zu bytes, %zu tokens\n", bytes, tokens);
    nestling_generation_free(answer);
    nestling_session_free(session);
    nestling_model_free(model);
    return 0;
}
