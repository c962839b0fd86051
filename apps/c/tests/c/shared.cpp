// The wrapper's engines, streams that throw, and errors: shared MODEL.
#include "common.hpp"

static int failures;

static void holds(bool what, const char *name)
{
    if (!what) {
        std::cerr << name << '\n';
        failures++;
    }
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    return guarded([&] {
        nestling::engine_options how;
        how.threads = 1;
        nestling::engine engine(how);
        nestling::model_options in_engine;
        in_engine.engine = engine.get();
        nestling::model first(arguments[1], in_engine), second(arguments[1], in_engine);
        holds(first.shared_engine().status().memory_used == engine.status().memory_used, "one engine");
        nestling_model_status status = first.status();
        holds(!status.is_streamed && status.expert_bytes == 0 && status.weight_bytes > 0, "held whole");
        nestling::session session = first.begin_session();
        nestling::generate_options options = greedy(-1);
        options.ignore_end = 1;
        options.token_events = 1;
        try {
            session.generate("Ship", options).run([](const nestling_event &) { throw std::logic_error("enough"); });
            holds(false, "thrown on");
        } catch (const std::logic_error &error) {
            holds(error.what() == std::string("enough"), "its words");
        }
        holds(session.length() > 0, "length");
        session.truncate(1);
        holds(session.fork().length() == 1, "fork");
        holds(second.restore(session.snapshot(false)).length() == 1, "restored");
        try {
            first.set_memory_budget(1);
            holds(false, "a budget of 1 byte");
        } catch (const nestling::error &error) {
            holds(error.status() == NESTLING_STATUS_NO_ROOM && *error.what(), "class and words");
        }
        try {
            second.begin_chat("no JSON");
            holds(false, "no JSON");
        } catch (const nestling::error &error) {
            holds(error.status() == NESTLING_STATUS_CALLER && *error.what(), "class and words of JSON");
        }
        std::string asked = R"({"messages": [{"role": "user", "content": "Ship?"}]})";
        try {
            session.answer(asked, greedy(2)).text();
        } catch (const nestling::error &error) {
            holds(error.status() == NESTLING_STATUS_CALLER, "a model without a template");
        }
        second.relieve_pressure();
        engine.shutdown();
        return failures;
    });
}
