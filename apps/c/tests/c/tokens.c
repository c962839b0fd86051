/* Texts become tokens and texts again, and each token of a prompt has its log-probability: tokens MODEL. */
#include "common.h"

#include <math.h>
#include <string.h>

#define EXPECT(WHAT) \
    do { \
        if (!(WHAT)) { \
            fprintf(stderr, "line %d: %s\n", __LINE__, #WHAT); \
            exit(1); \
        } \
    } while (0)

static nestling_tokens *encode(nestling_model *model, const char *text, size_t length)
{
    nestling_error *error;
    nestling_tokens *tokens;
    check(nestling_model_encode(model, text, length, 0, 0, &tokens, &error), error);
    return tokens;
}

/* A text with a zero byte and with characters of several bytes comes back as it was. */
static void round_trip(nestling_model *model)
{
    static const char text[] = "The ship\0 and the \xc3\xa9t\xc3\xa9";
    size_t length = sizeof text - 1, at = 0;
    nestling_error *error;
    nestling_bytes *bytes;
    nestling_tokens *tokens = encode(model, text, length);
    const uint32_t *ids = nestling_tokens_data(tokens);
    size_t count = nestling_tokens_length(tokens);
    EXPECT(count > 0 && count <= length);
    check(nestling_model_decode(model, ids, count, 0, &bytes, &error), error);
    EXPECT(nestling_bytes_length(bytes) == length && memcmp(nestling_bytes_data(bytes), text, length) == 0);
    for (size_t i = 0; i < count; i++) {
        size_t size;
        const uint8_t *part = nestling_model_token_bytes(model, ids[i], &size);
        EXPECT(part != NULL && at + size <= length && memcmp(part, text + at, size) == 0);
        at += size;
    }
    EXPECT(at == length);
    nestling_bytes_free(bytes);
    nestling_tokens_free(tokens);
    tokens = encode(model, NULL, 0);
    EXPECT(nestling_tokens_length(tokens) == 0);
    nestling_tokens_free(tokens);
}

/* Log-probabilities of the tokens from `from` on, with the two likeliest ones, without an answer. */
static size_t evaluate(nestling_model *model, const nestling_tokens *tokens, size_t from, double *sum)
{
    const uint32_t *ids = nestling_tokens_data(tokens);
    size_t count = nestling_tokens_length(tokens), seen = from;
    nestling_error *error;
    nestling_generation *answer;
    nestling_session *session = begin_session(model);
    nestling_generate_options options = greedy(0);
    options.prompt_logprobs = 2;
    options.prompt_logprobs_from = from;
    check(nestling_session_generate_tokens(session, ids, count, &options, &answer, &error), error);
    *sum = 0;
    for (;;) {
        nestling_event event = next_event(answer, -1);
        if (event.kind == NESTLING_EVENT_KIND_END)
            break;
        if (event.kind != NESTLING_EVENT_KIND_PROMPT_TOKEN)
            continue;
        EXPECT(seen < count && event.token == ids[seen]);
        EXPECT(event.token_bytes != NULL);
        if (seen == 0) {
            EXPECT(isnan(event.log_prob) && event.top == NULL);
        } else {
            size_t size;
            EXPECT(event.log_prob <= 0 && event.top_count == 2);
            EXPECT(event.top[0].log_prob >= event.top[1].log_prob && event.top[0].log_prob >= event.log_prob);
            EXPECT(nestling_model_token_bytes(model, event.top[0].token, &size) != NULL && size > 0);
            *sum += event.log_prob;
        }
        seen++;
    }
    EXPECT(seen == count);
    nestling_generation_free(answer);
    nestling_session_free(session);
    return seen;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    nestling_model *model = open_model(arguments[1]);
    static const char prompt[] = "The ship went down into the sea.";
    nestling_tokens *tokens = encode(model, prompt, sizeof prompt - 1);
    double all, rest;
    size_t length;
    round_trip(model);
    EXPECT(nestling_model_token_bytes(model, UINT32_MAX, &length) == NULL && length == 0);
    EXPECT(evaluate(model, tokens, 0, &all) > 2);
    evaluate(model, tokens, 2, &rest);
    EXPECT(isfinite(all) && all < rest && rest < 0);
    nestling_tokens_free(tokens);
    nestling_model_free(model);
    return 0;
}
