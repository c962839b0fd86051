// Makes a model call a tool, whose arguments keep to its schema, and gives it the result: tool MODEL.
#include "common.hpp"

static const char *TOOLS = R"({"messages": [], "tools": [{"type": "function", "function": {"name": "weather",
    "parameters": {"type": "object", "required": ["city", "days"], "additionalProperties": false, "properties":
        {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}}}}]})";

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    return guarded([&] {
        nestling::model model(arguments[1]);
        nestling::chat chat = model.begin_chat(TOOLS);
        nestling::generate_options options = greedy(300);
        options.tool_choice = "weather"; // It must call this one.
        std::vector<std::string> results;
        chat.send("Will it rain in Bergen?", options).run([&](const nestling_event &event) {
            if (event.kind == NESTLING_EVENT_KIND_TOOL_CALL) {
                std::cout << event.name << ' ' << event.text << '\n';
                results.push_back(R"({"rain": true})");
            }
        });
        options = greedy(16);
        options.tool_choice = "none"; // Now it is to answer.
        std::cout << chat.reply_to_tools(results, options).text() << '\n';
        return results.size() == 1 ? 0 : 1;
    });
}
