/* Makes a model call a tool, whose arguments keep to its schema, and gives it the result: tool MODEL. */
#include "common.h"

static const char *TOOLS =
    "{\"messages\": [], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\":"
    "{\"type\": \"object\", \"required\": [\"city\", \"days\"], \"additionalProperties\": false, \"properties\":"
    "{\"city\": {\"type\": \"string\", \"maxLength\": 8}, \"days\": {\"type\": \"integer\", \"minimum\": 1,"
    "\"maximum\": 9}}}}}]}";

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    nestling_model *model = open_model(arguments[1]);
    nestling_error *error;
    nestling_chat *chat;
    check(nestling_chat_new(model, TOOLS, &chat, &error), error);

    nestling_generate_options options = greedy(300);
    options.tool_choice = "weather"; /* It must call this one. */
    nestling_generation *answer;
    check(nestling_chat_send(chat, "Will it rain in Bergen?", &options, &answer, &error), error);
    const char *results[8];
    size_t calls = 0;
    for (nestling_event event = next_event(answer, -1); event.kind != NESTLING_EVENT_KIND_END;
         event = next_event(answer, -1)) {
        if (event.kind != NESTLING_EVENT_KIND_TOOL_CALL || calls == sizeof results / sizeof *results)
            continue;
        printf("%s %s\n", event.name, event.text);
        results[calls++] = "{\"rain\": true}";
    }
    nestling_generation_free(answer);

    options = greedy(16);
    options.tool_choice = "none"; /* Now it is to answer. */
    check(nestling_chat_reply_to_tools(chat, results, calls, &options, &answer, &error), error);
    print_answer(answer);
    nestling_generation_free(answer);
    nestling_chat_free(chat);
    nestling_model_free(model);
    return calls == 1 ? 0 : 1;
}
