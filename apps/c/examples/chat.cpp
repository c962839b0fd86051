// Streams two turns of a conversation: chat MODEL.
#include "common.hpp"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    return guarded([&] {
        nestling::model model(arguments[1]);
        nestling::chat chat = model.begin_chat();
        for (const char *said : {"Tell me a story about a ship.", "And what did the captain say?"}) {
            nestling::generation answer = chat.send(said, greedy(40));
            answer.run([](const nestling_event &event) {
                if (event.kind == NESTLING_EVENT_KIND_TEXT)
                    std::cout << event.text << std::flush;
            });
            std::cout << '\n';
        }
        std::cout << chat.transcript() << '\n';
        return 0;
    });
}
