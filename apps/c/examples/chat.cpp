// Streams two turns of a conversation: chat MODEL.
#include "nestling.hpp"

#include <iostream>

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    try {
        nestling::model model(arguments[1]);
        nestling::chat chat = model.begin_chat();
        nestling::generate_options options;
        options.temperature = 0;
        options.max_tokens = 40;
        for (const char *said : {"Tell me a story about a ship.", "And what did the captain say?"}) {
            nestling::generation answer = chat.send(said, options);
            for (nestling_event event = answer.next(); event.kind != NESTLING_EVENT_KIND_END; event = answer.next())
                if (event.kind == NESTLING_EVENT_KIND_TEXT)
                    std::cout << event.text << std::flush;
            std::cout << '\n';
        }
        std::cout << chat.transcript() << '\n';
    } catch (const nestling::error &error) {
        std::cerr << "error (class " << error.status() << "): " << error.what() << '\n';
        return 1;
    }
}
