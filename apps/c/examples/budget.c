/* Halves the memory of a streamed model while it writes: budget MODEL. */
#include "common.h"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    nestling_model_options how;
    nestling_model_options_init(&how, sizeof how);
    how.residence = NESTLING_RESIDENCE_STREAMED;
    how.context_length = 256;
    how.memory_budget = 64u << 20;
    nestling_error *error;
    nestling_model *model;
    check(nestling_model_open(arguments[1], &how, &model, &error), error);
    nestling_model_status before = {.size = sizeof before}, after = {.size = sizeof after};
    nestling_session *session = begin_session(model);
    nestling_generate_options options = greedy(40);
    nestling_generation *answer;
    check(nestling_session_generate_text(session, "The captain said", &options, &answer, &error), error);
    nestling_event event = next_event(answer, -1);
    while (event.kind != NESTLING_EVENT_KIND_TEXT)
        event = next_event(answer, -1);
    fputs(event.text, stdout);
    check(nestling_model_status_now(model, &before, &error), error);
    uint64_t half = before.memory_used / 2;
    check(nestling_model_set_memory_budget(model, half, &error), error);
    print_answer(answer);
    check(nestling_model_status_now(model, &after, &error), error);
    fprintf(stderr, "%.1f MB in use before, %.1f MB after\n", (double)before.memory_used / 1e6,
            (double)after.memory_used / 1e6);
    /* What does not fit is refused, and nothing has changed. */
    nestling_status refused = nestling_model_set_memory_budget(model, 1, &error);
    fprintf(stderr, "1 byte: %s\n", nestling_error_text(error));
    nestling_error_free(error);
    nestling_generation_free(answer);
    nestling_session_free(session);
    nestling_model_free(model);
    return refused == NESTLING_STATUS_NO_ROOM && after.memory_used <= half ? 0 : 1;
}
