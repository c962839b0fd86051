// Texts with a zero byte are refused where C would cut them off, and become tokens and texts again: zero MODEL.
#include "common.hpp"

static int failures;

template <typename Call> static void refused(const char *name, Call call)
{
    try {
        call();
    } catch (const nestling::error &error) {
        if (error.status() == NESTLING_STATUS_CALLER && std::string(error.what()).find("zero byte") != std::string::npos)
            return;
    }
    std::cerr << name << '\n';
    failures++;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    return guarded([&]() -> int {
        nestling::model model{std::string(arguments[1])};
        nestling::session session = model.begin_session();
        nestling::chat chat = model.begin_chat();
        const std::string text("The ship\0 and the storm", 23);
        refused("prompt", [&] { session.generate(text); });
        refused("conversation", [&] { session.answer(text); });
        refused("chat", [&] { model.begin_chat(text); });
        refused("message", [&] { chat.send(text); });
        refused("results", [&] { chat.reply_to_tools({text}); });
        refused("path", [&] { nestling::model other(std::string(arguments[1]) + text); });
        failures += model.decode(model.encode(text)) != text;
        failures += model.token_bytes(model.encode("a")[0]).empty() || !model.token_bytes(UINT32_MAX).empty();
        return failures > 0 || session.length() != 0;
    });
}
