/* Stops an answer from another thread: cancel MODEL [MILLISECONDS], in which it is to stop (250). */
#include "common.h"

#include <pthread.h>
#include <time.h>

static struct timespec asked;

static void *stop_soon(void *generation)
{
    struct timespec soon = {.tv_nsec = 300 * 1000 * 1000};
    nanosleep(&soon, NULL);
    clock_gettime(CLOCK_MONOTONIC, &asked);
    nestling_generation_cancel(generation);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2 && count != 3)
        return 2;
    double allowed = count == 3 ? atof(arguments[2]) : 250;
    nestling_model *model = open_model(arguments[1]);
    nestling_session *session = begin_session(model);
    nestling_generate_options options = greedy(-1);
    options.ignore_end = 1; /* It would write until its context is full. */
    nestling_error *error;
    nestling_generation *answer;
    check(nestling_session_generate_text(session, "The storm came up in the night, and", &options, &answer, &error),
          error);
    pthread_t stopper;
    if (pthread_create(&stopper, NULL, stop_soon, answer))
        return 3;
    nestling_finish_reason reason = NESTLING_FINISH_REASON_NONE;
    while (reason == NESTLING_FINISH_REASON_NONE)
        reason = next_event(answer, -1).finish_reason;
    struct timespec ended;
    clock_gettime(CLOCK_MONOTONIC, &ended);
    pthread_join(stopper, NULL);
    double late = (double)(ended.tv_sec - asked.tv_sec) * 1e3 + (double)(ended.tv_nsec - asked.tv_nsec) / 1e6;
    fprintf(stderr, "reason %d, %.1f ms after it was asked\n", (int)reason, late);
    nestling_generation_free(answer);
    nestling_session_free(session);
    nestling_model_free(model);
    if (reason != NESTLING_FINISH_REASON_CANCELLED || late >= allowed)
        return 1;
    puts("cancelled");
    return 0;
}
