/* Streams two turns of a conversation: chat MODEL. */
#include "common.h"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    static const char *said[2] = {"Tell me a story about a ship.", "And what did the captain say?"};
    nestling_model *model = open_model(arguments[1]);
    nestling_generate_options options = greedy(40);
    nestling_error *error;
    nestling_chat *chat;
    check(nestling_chat_new(model, NULL, &chat, &error), error);
    for (int turn = 0; turn < 2; turn++) {
        nestling_generation *answer;
        check(nestling_chat_send(chat, said[turn], &options, &answer, &error), error);
        print_answer(answer);
        nestling_generation_free(answer);
    }
    char *transcript;
    check(nestling_chat_transcript(chat, &transcript, &error), error);
    puts(transcript);
    nestling_string_free(transcript);
    nestling_chat_free(chat);
    nestling_model_free(model);
    return 0;
}
