/* Opens a model, writes with it and closes it, so many times: neither the live heap nor memory grows: cycles MODEL COUNT. */
#include "common.h"

#include <malloc.h>
#include <unistd.h>

static double resident_megabytes(void)
{
    long all = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld %ld", &all, &resident) != 2)
        exit(3);
    fclose(file);
    return (double)resident * (double)sysconf(_SC_PAGESIZE) / 1e6;
}

static double live_bytes(void)
{
    struct mallinfo2 now = mallinfo2();
    return (double)now.uordblks + (double)now.hblkhd;
}

static void cycle(const char *path)
{
    nestling_error *error;
    nestling_generation *answer;
    nestling_bytes *bytes;
    nestling_session *fork, *restored;
    nestling_model_options how;
    nestling_model_options_init(&how, sizeof how);
    how.threads = 2;
    nestling_model *model;
    check(nestling_model_open(path, &how, &model, &error), error);
    nestling_session *session = begin_session(model);
    nestling_generate_options options = greedy(4);
    options.regex = "[a-z]*";
    check(nestling_session_generate_text(session, "Ship", &options, &answer, &error), error);
    while (next_event(answer, -1).kind != NESTLING_EVENT_KIND_END)
        ;
    nestling_generation_free(answer);
    check(nestling_session_snapshot(session, 1, &bytes, &error), error);
    check(nestling_session_fork(session, &fork, &error), error);
    check(nestling_model_restore(model, nestling_bytes_data(bytes), nestling_bytes_length(bytes), &restored, &error),
          error);
    /* One that is freed before it has ended, an error, and everything in any order. */
    options = greedy(-1);
    options.ignore_end = 1;
    check(nestling_session_generate_text(restored, "Ship", &options, &answer, &error), error);
    nestling_session *none;
    if (nestling_model_restore(model, (const uint8_t *)"none", 4, &none, &error) == NESTLING_STATUS_OK)
        exit(4);
    nestling_error_free(error);
    nestling_model_free(model);
    nestling_bytes_free(bytes);
    nestling_session_free(restored);
    nestling_generation_free(answer);
    nestling_session_free(fork);
    nestling_session_free(session);
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 2;
    int cycles = atoi(arguments[2]), warm = cycles / 5;
    double live = 0, resident = 0;
    for (int i = 0; i < cycles; i++) {
        cycle(arguments[1]);
        if (i + 1 == warm) {
            live = live_bytes();
            resident = resident_megabytes();
        }
    }
    double grown = live_bytes() - live, more = resident_megabytes() - resident;
    printf("%d cycles after the first %d: live heap %+.0f bytes, resident %+.2f MB of %.1f MB\n", cycles - warm, warm,
           grown, more, resident + more);
    /* What threads keep for themselves goes up and down by some thousands of bytes; the smallest leak, one block of malloc
       in each of 1,000 cycles, would be more. Fewer cycles than 50 say nothing. */
    return cycles < 50 || (grown < 16384 && more < 4) ? 0 : 1;
}
