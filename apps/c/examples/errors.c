/* What makes no sense is an error with a class and words, and never the end of the program: errors MODEL. */
#include "common.h"

static int refused(const char *what, nestling_status status, nestling_error *error, nestling_status expected)
{
    printf("%s: class %d: %s\n", what, (int)status, nestling_error_text(error));
    int right = status == expected && nestling_error_status(error) == expected;
    nestling_error_free(error);
    return right ? 0 : 1;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    nestling_error *error;
    nestling_model *model = NULL;
    nestling_session *session = NULL;
    nestling_generation *answer = NULL;
    nestling_status status = nestling_model_open("/nowhere/model.nest", NULL, &model, &error);
    int wrong = refused("a file that is not there", status, error, NESTLING_STATUS_SOURCE);
    status = nestling_session_new(NULL, &session, &error);
    wrong += refused("no model", status, error, NESTLING_STATUS_CALLER);
    status = nestling_model_open(arguments[1], NULL, NULL, &error);
    wrong += refused("no place", status, error, NESTLING_STATUS_CALLER);
    wrong += model != NULL || session != NULL;

    model = open_model(arguments[1]);
    session = begin_session(model);
    nestling_generate_options options = greedy(4);
    options.temperature = -1;
    status = nestling_session_generate_text(session, "Ship", &options, &answer, &error);
    wrong += refused("a temperature below 0", status, error, NESTLING_STATUS_CALLER);
    options = greedy(4);
    options.json_schema = "{\"type\": 7}";
    status = nestling_session_generate_text(session, "Ship", &options, &answer, &error);
    wrong += refused("a schema that is none", status, error, NESTLING_STATUS_CALLER);
    options = greedy(4);
    options.size = 3;
    status = nestling_session_generate_text(session, "Ship", &options, &answer, &error);
    wrong += refused("options without a size", status, error, NESTLING_STATUS_CALLER);
    status = nestling_session_generate_text(session, "\xff\xfe", NULL, &answer, &error);
    wrong += refused("a text that is not UTF-8", status, error, NESTLING_STATUS_CALLER);
    status = nestling_session_generate_conversation(session, "{\"messages\": [], \"tool\": 1}", NULL, &answer, &error);
    wrong += refused("an unknown field", status, error, NESTLING_STATUS_CALLER);
    nestling_session *restored = NULL;
    status = nestling_model_restore(model, (const uint8_t *)"no session", 10, &restored, &error);
    wrong += refused("bytes that are no session", status, error, NESTLING_STATUS_CALLER);
    wrong += answer != NULL || restored != NULL;

    /* The session is as it was. */
    options = greedy(4);
    check(nestling_session_generate_text(session, "Ship", &options, &answer, &error), error);
    print_answer(answer);
    nestling_generation_free(answer);
    nestling_session_free(session);
    nestling_model_free(model);
    nestling_error_free(NULL);
    return wrong;
}
