// Two sessions in two threads write what each writes alone: threads MODEL.
#include "common.hpp"

#include <array>
#include <future>

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    return guarded([&] {
        nestling::model model(arguments[1]);
        auto story = [&](const char *prompt) { return model.begin_session().generate(prompt, greedy(32)).text(); };
        std::array<const char *, 2> prompts{"The captain said", "In the morning the wind"};
        std::array<std::string, 2> alone{story(prompts[0]), story(prompts[1])};
        std::array<std::future<std::string>, 2> together{std::async(std::launch::async, story, prompts[0]),
                                                         std::async(std::launch::async, story, prompts[1])};
        bool same = true;
        for (std::size_t i = 0; i < prompts.size(); i++) {
            std::string text = together[i].get();
            std::cout << prompts[i] << text << '\n';
            same = same && text == alone[i];
        }
        return same ? 0 : 1;
    });
}
