// Halves the memory of a streamed model while it writes: budget MODEL.
#include "common.hpp"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    return guarded([&] {
        nestling::model_options how;
        how.residence = NESTLING_RESIDENCE_STREAMED;
        how.context_length = 256;
        how.memory_budget = 64u << 20;
        nestling::model model(arguments[1], how);
        nestling::session session = model.begin_session();
        std::uint64_t half = 0;
        session.generate("The captain said", greedy(40)).run([&](const nestling_event &event) {
            if (event.kind != NESTLING_EVENT_KIND_TEXT)
                return;
            if (half == 0) {
                half = model.status().memory_used / 2;
                model.set_memory_budget(half);
            }
            std::cout << event.text;
        });
        std::cout << '\n';
        if (model.status().memory_used > half)
            return 1;
        try {
            model.set_memory_budget(1); // What does not fit is refused, and nothing has changed.
            return 1;
        } catch (const nestling::error &error) {
            return error.status() == NESTLING_STATUS_NO_ROOM ? 0 : 1;
        }
    });
}
