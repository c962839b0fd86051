// Stops an answer from another thread: cancel MODEL [MILLISECONDS], in which it is to stop (250).
#include "common.hpp"

#include <thread>

int main(int count, char **arguments)
{
    if (count != 2 && count != 3)
        return 2;
    return guarded([&] {
        std::chrono::milliseconds allowed(count == 3 ? std::stol(arguments[2]) : 250);
        nestling::model model(arguments[1]);
        nestling::session session = model.begin_session();
        nestling::generate_options options = greedy(-1);
        options.ignore_end = 1; // It would write until its context is full.
        nestling::generation answer = session.generate("The storm came up in the night, and", options);
        std::chrono::steady_clock::time_point asked;
        std::thread stopper([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(300));
            asked = std::chrono::steady_clock::now();
            answer.cancel();
        });
        nestling_event last{};
        try {
            while (last.kind != NESTLING_EVENT_KIND_FINISHED)
                last = answer.next();
        } catch (...) {
            stopper.join();
            throw;
        }
        stopper.join();
        if (last.finish_reason != NESTLING_FINISH_REASON_CANCELLED ||
            std::chrono::steady_clock::now() - asked >= allowed)
            return 1;
        std::cout << "cancelled\n";
        return 0;
    });
}
