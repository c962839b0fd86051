/* Two sessions in two threads write what each writes alone: threads MODEL. */
#include "common.h"

#include <pthread.h>
#include <string.h>

struct work {
    nestling_model *model;
    const char *prompt;
    char text[4096];
};

/* Hears of every event. */
static int32_t add_text(void *text_of_work, const nestling_event *event)
{
    char *text = text_of_work;
    if (event->kind == NESTLING_EVENT_KIND_TEXT && strlen(text) + event->text_length < sizeof(((struct work *)0)->text))
        strcat(text, event->text);
    return 1; /* 0 would cancel it. */
}

static void *write_story(void *work_of_thread)
{
    struct work *work = work_of_thread;
    nestling_session *session = begin_session(work->model);
    nestling_generate_options options = greedy(32);
    nestling_error *error;
    nestling_generation *answer;
    check(nestling_session_generate_text(session, work->prompt, &options, &answer, &error), error);
    check(nestling_generation_run(answer, add_text, work->text, &error), error);
    nestling_generation_free(answer);
    nestling_session_free(session);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    nestling_model *model = open_model(arguments[1]);
    static struct work alone[2], together[2];
    static const char *prompts[2] = {"The captain said", "In the morning the wind"};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        alone[i] = together[i] = (struct work){.model = model, .prompt = prompts[i]};
        write_story(&alone[i]);
    }
    for (int i = 0; i < 2; i++)
        if (pthread_create(&threads[i], NULL, write_story, &together[i]))
            return 3;
    int same = 1;
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        same &= strcmp(alone[i].text, together[i].text) == 0;
        printf("%s%s\n", prompts[i], together[i].text);
    }
    nestling_model_free(model);
    return same ? 0 : 1;
}
