/* Runs a GGUF file in place, and prints the tokens that it chooses: gguf FILE. */
#include "common.h"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    nestling_model *model = open_model(arguments[1]);
    nestling_session *session = begin_session(model);
    static const uint32_t prompt[] = {3, 1, 4, 1, 5};
    nestling_generate_options options = greedy(8);
    options.token_events = 1;
    options.ignore_end = 1;
    nestling_error *error;
    nestling_generation *answer;
    check(nestling_session_generate_tokens(session, prompt, sizeof prompt / sizeof *prompt, &options, &answer, &error),
          error);
    for (nestling_event event = next_event(answer, -1); event.kind != NESTLING_EVENT_KIND_END;
         event = next_event(answer, -1))
        if (event.kind == NESTLING_EVENT_KIND_TOKEN)
            printf("%u\n", (unsigned)event.token);
    nestling_generation_free(answer);
    nestling_session_free(session);
    nestling_model_free(model);
    return 0;
}
