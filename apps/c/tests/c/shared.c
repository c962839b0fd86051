/* Two models in one engine share its budget and its threads: shared MODEL. */
#include "common.h"

static nestling_model *open_in(const nestling_engine *engine, const char *path)
{
    nestling_model_options how;
    nestling_model_options_init(&how, sizeof how);
    how.engine = engine;
    nestling_error *error;
    nestling_model *model;
    check(nestling_model_open(path, &how, &model, &error), error);
    return model;
}

static nestling_engine_status status_of(const nestling_engine *engine)
{
    nestling_engine_status status = {.size = sizeof status};
    nestling_error *error;
    check(nestling_engine_status_now(engine, &status, &error), error);
    return status;
}

#define HOLDS(WHAT) \
    do { \
        if (!(WHAT)) { \
            fprintf(stderr, "line %d\n", __LINE__); \
            return 1; \
        } \
    } while (0)

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    nestling_engine_options how;
    nestling_engine_options_init(&how, sizeof how);
    how.memory_budget = 64u << 20;
    how.threads = 2;
    how.waiting_max = 4;
    nestling_error *error;
    nestling_engine *engine;
    check(nestling_engine_new(&how, &engine, &error), error);
    HOLDS(status_of(engine).memory_budget == 64u << 20 && status_of(engine).memory_used == 0);
    nestling_model *models[2] = {open_in(engine, arguments[1]), NULL};
    uint64_t used = status_of(engine).memory_used;
    models[1] = open_in(engine, arguments[1]);
    nestling_model_status held = {.size = sizeof held};
    check(nestling_model_status_now(models[0], &held, &error), error);
    HOLDS(!held.is_streamed && held.expert_bytes == 0 && held.weight_bytes > 0);
    HOLDS(used > 0 && status_of(engine).memory_used >= 2 * used - used / 2);
    for (int i = 0; i < 2; i++) {
        nestling_session *session = begin_session(models[i]);
        nestling_generate_options options = greedy(4);
        options.ignore_end = 1;
        nestling_generation *answer;
        check(nestling_session_generate_text(session, "Ship", &options, &answer, &error), error);
        HOLDS(print_answer(answer) == NESTLING_FINISH_REASON_LENGTH);
        nestling_generation_free(answer);
        nestling_session_free(session);
    }
    HOLDS(status_of(engine).steps >= 8 && status_of(engine).rows >= 8);
    /* No room for a third. */
    check(nestling_model_set_memory_budget(models[0], status_of(engine).memory_used + 1, &error), error);
    nestling_model *third;
    nestling_model_options in_engine;
    nestling_model_options_init(&in_engine, sizeof in_engine);
    in_engine.engine = engine;
    HOLDS(nestling_model_open(arguments[1], &in_engine, &third, &error) == NESTLING_STATUS_NO_ROOM && !third);
    nestling_error_free(error);
    check(nestling_model_relieve_pressure(models[0], UINT64_MAX, &error), error);
    /* Its engine is the same one, and lives as long as its models. */
    nestling_engine *again;
    check(nestling_model_engine(models[1], &again, &error), error);
    nestling_engine_free(engine);
    HOLDS(status_of(again).memory_used == status_of(again).memory_budget - 1);
    nestling_engine_shutdown(again);
    nestling_session *session = begin_session(models[1]);
    nestling_generation *answer;
    HOLDS(nestling_session_generate_text(session, "Ship", NULL, &answer, &error) == NESTLING_STATUS_STOPPED);
    nestling_error_free(error);
    nestling_session_free(session);
    nestling_engine_free(again);
    nestling_model_free(models[0]);
    nestling_model_free(models[1]);
    return 0;
}
