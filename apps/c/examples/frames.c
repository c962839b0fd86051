/* A game's loop, which gives an answer at most a millisecond of each frame: frames MODEL. */
#include "common.h"

#include <time.h>

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    nestling_model *model = open_model(arguments[1]);
    nestling_session *session = begin_session(model);
    nestling_generate_options options = greedy(40);
    nestling_error *error;
    nestling_generation *answer;
    check(nestling_session_generate_text(session, "The captain said", &options, &answer, &error), error);
    const struct timespec rest_of_frame = {.tv_nsec = 15 * 1000 * 1000};
    int frames = 0;
    for (int ended = 0; !ended; frames++) {
        nestling_event event = next_event(answer, 1);
        while (event.kind != NESTLING_EVENT_KIND_NONE && !ended) {
            if (event.kind == NESTLING_EVENT_KIND_TEXT)
                fputs(event.text, stdout);
            ended = event.kind == NESTLING_EVENT_KIND_END;
            if (!ended)
                event = next_event(answer, 0);
        }
        nanosleep(&rest_of_frame, NULL); /* The game. */
    }
    putchar('\n');
    fprintf(stderr, "%d frames\n", frames);
    nestling_generation_free(answer);
    nestling_session_free(session);
    nestling_model_free(model);
    return 0;
}
