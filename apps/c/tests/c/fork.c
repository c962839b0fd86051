/* Handles of the parent are refused in a child after fork(), and freeing them there does nothing: fork MODEL. */
#include "nestling.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* By reference: arguments are evaluated in any order. */
static int refused(enum nestling_status status, struct nestling_error *const *failed)
{
    struct nestling_error *error = *failed;
    int right = status == NESTLING_STATUS_STOPPED && strstr(nestling_error_text(error), "fork") != NULL;
    nestling_error_free(error);
    return right;
}

static int child(struct nestling_model *model, struct nestling_session *session, struct nestling_generation *generation, const char *path)
{
    struct nestling_error *error = NULL;
    struct nestling_session *made = NULL;
    struct nestling_event event = {.size = sizeof event};
    size_t tokens = 0;
    if (!refused(nestling_session_new(model, &made, &error), &error))
        return 2;
    if (!refused(nestling_session_length(session, &tokens, &error), &error))
        return 3;
    if (!refused(nestling_generation_next(generation, -1, &event, &error), &error))
        return 4;
    nestling_generation_cancel(generation);
    nestling_generation_free(generation);
    nestling_session_free(session);
    nestling_model_free(model);
    struct nestling_model *again = NULL;
    if (nestling_model_open(path, NULL, &again, NULL) != NESTLING_STATUS_OK)
        return 5;
    nestling_model_free(again);
    return 0;
}

int main(int count, char **arguments)
{
    struct nestling_model *model = NULL;
    struct nestling_session *session = NULL;
    struct nestling_generation *generation = NULL;
    if (count != 2 || nestling_model_open(arguments[1], NULL, &model, NULL) != NESTLING_STATUS_OK)
        return 1;
    if (nestling_session_new(model, &session, NULL) != NESTLING_STATUS_OK)
        return 1;
    const uint32_t tokens[] = {1, 2, 3};
    if (nestling_session_generate_tokens(session, tokens, 3, NULL, &generation, NULL) != NESTLING_STATUS_OK)
        return 1;
    fflush(stdout);
    pid_t process = fork();
    if (process == 0)
        _exit(child(model, session, generation, arguments[1]));
    int status = 0;
    waitpid(process, &status, 0);
    nestling_generation_free(generation);
    nestling_session_free(session);
    nestling_model_free(model);
    printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    return 0;
}
