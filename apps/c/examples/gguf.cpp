// Runs a GGUF file in place, and prints the tokens that it chooses: gguf FILE.
#include "common.hpp"

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    return guarded([&] {
        nestling::model model(arguments[1]);
        nestling::generate_options options = greedy(8);
        options.token_events = 1;
        options.ignore_end = 1;
        std::vector<std::uint32_t> prompt{3, 1, 4, 1, 5};
        model.begin_session().generate(prompt, options).run([](const nestling_event &event) {
            if (event.kind == NESTLING_EVENT_KIND_TOKEN)
                std::cout << event.token << '\n';
        });
        return 0;
    });
}
