// A game's loop, which gives an answer at most a millisecond of each frame: frames MODEL.
#include "common.hpp"

#include <thread>

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    return guarded([&] {
        using namespace std::chrono_literals;
        nestling::model model(arguments[1]);
        nestling::session session = model.begin_session();
        nestling::generation answer = session.generate("The captain said", greedy(40));
        int frames = 0;
        for (bool ended = false; !ended; frames++) {
            for (auto event = answer.next(1ms); event && !ended; event = answer.next(0ms)) {
                if (event->kind == NESTLING_EVENT_KIND_TEXT)
                    std::cout << event->text;
                ended = event->kind == NESTLING_EVENT_KIND_END;
            }
            std::this_thread::sleep_for(15ms); // The game.
        }
        std::cout << '\n';
        std::cerr << frames << " frames\n";
        return 0;
    });
}
