/* Nestling for C++17: handles that free themselves, errors as exceptions. What calls mean stands in nestling.h. */
#ifndef NESTLING_HPP
#define NESTLING_HPP

#include "nestling.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace nestling {

class error : public std::runtime_error {
public:
    error(nestling_status status, const std::string &text) : std::runtime_error(text), status_(status) {}
    nestling_status status() const noexcept { return status_; }

private:
    nestling_status status_;
};

namespace detail {

template <auto Free> struct deleter {
    template <typename T> void operator()(T *handle) const noexcept { Free(handle); }
};
template <typename T, auto Free> using handle = std::unique_ptr<T, deleter<Free>>;

inline void check(nestling_status status, nestling_error *failed)
{
    if (status != NESTLING_STATUS_OK) {
        std::string text = nestling_error_text(failed);
        nestling_error_free(failed);
        throw error(status, text);
    }
}

/* Returns a text for C. One with a zero byte, at which C would cut it off, is an error of class Caller. */
inline const char *c_text(const char *name, const std::string &text)
{
    if (text.find('\0') != std::string::npos)
        throw error(NESTLING_STATUS_CALLER, std::string(name) + ": contains a zero byte");
    return text.c_str();
}

/* Calls a function whose last argument is where an error goes. */
template <typename Call> void done(Call call)
{
    nestling_error *failed = nullptr;
    nestling_status status = call(&failed);
    check(status, failed);
}

/* Asks for a struct that the library fills. */
template <typename T, typename Call> T filled(Call call)
{
    T value{};
    value.size = sizeof value;
    done([&](nestling_error **failed) { return call(&value, failed); });
    return value;
}

/* Calls a function whose last two arguments are where a handle and an error go. */
template <typename T, typename Call> T *make(Call call)
{
    T *made = nullptr;
    nestling_error *failed = nullptr;
    nestling_status status = call(&made, &failed);
    check(status, failed);
    return made;
}

} // namespace detail

class cancel_token {
public:
    cancel_token() : handle_(nestling_cancel_new()) {}
    void cancel() const noexcept { nestling_cancel_cancel(handle_.get()); }
    const nestling_cancel *get() const noexcept { return handle_.get(); }

private:
    detail::handle<nestling_cancel, nestling_cancel_free> handle_;
};

/* The options of C with their defaults set. */
struct generate_options : nestling_generate_options {
    generate_options() { nestling_generate_options_init(this, sizeof(nestling_generate_options)); }
};

struct model_options : nestling_model_options {
    model_options() { nestling_model_options_init(this, sizeof(nestling_model_options)); }
};

struct engine_options : nestling_engine_options {
    engine_options() { nestling_engine_options_init(this, sizeof(nestling_engine_options)); }
};

/* Threads and a memory budget that models share: model_options::engine is what get() gives. */
class engine {
public:
    explicit engine(const engine_options &options = {})
        : engine(detail::make<nestling_engine>(
              [&](auto made, auto failed) { return nestling_engine_new(&options, made, failed); }))
    {
    }
    explicit engine(nestling_engine *handle) : handle_(handle) {}
    const nestling_engine *get() const noexcept { return handle_.get(); }
    void shutdown() const noexcept { nestling_engine_shutdown(handle_.get()); }

    nestling_engine_status status() const
    {
        return detail::filled<nestling_engine_status>(
            [&](auto status, auto failed) { return nestling_engine_status_now(handle_.get(), status, failed); });
    }

private:
    detail::handle<nestling_engine, nestling_engine_free> handle_;
};

class generation {
public:
    explicit generation(nestling_generation *handle) : handle_(handle) {}

    /* The next event; none if it does not come in time. Its texts are valid until the next call. */
    std::optional<nestling_event> next(std::chrono::milliseconds timeout)
    {
        return next_within(timeout.count() < 0 ? 0 : static_cast<std::int64_t>(timeout.count()));
    }

    /* The next event, as long as it takes. */
    nestling_event next() { return *next_within(-1); }

    /* Calls back with every event until the last one. What `hears` throws cancels the generation and is thrown here. */
    template <typename Hears> void run(Hears hears)
    {
        struct listener {
            Hears &hears;
            std::exception_ptr thrown;
        } all{hears, nullptr};
        nestling_event_callback call = [](void *data, const nestling_event *event) -> std::int32_t {
            listener &told = *static_cast<listener *>(data);
            if (!told.thrown) {
                try {
                    told.hears(*event);
                } catch (...) {
                    told.thrown = std::current_exception();
                }
            }
            return !told.thrown;
        };
        nestling_error *failed = nullptr;
        nestling_status status = nestling_generation_run(handle_.get(), call, &all, &failed);
        if (all.thrown) {
            nestling_error_free(failed);
            std::rethrow_exception(all.thrown);
        }
        detail::check(status, failed);
    }

    /* Waits for the end and gives the answer's text. */
    std::string text()
    {
        std::string all;
        run([&](const nestling_event &event) {
            if (event.kind == NESTLING_EVENT_KIND_TEXT)
                all.append(event.text, event.text_length);
        });
        return all;
    }

    /* From any thread. */
    void cancel() const noexcept { nestling_generation_cancel(handle_.get()); }

private:
    std::optional<nestling_event> next_within(std::int64_t timeout_ms)
    {
        nestling_event event = detail::filled<nestling_event>([&](auto told, auto failed) {
            return nestling_generation_next(handle_.get(), timeout_ms, told, failed);
        });
        if (event.kind == NESTLING_EVENT_KIND_NONE)
            return std::nullopt;
        return event;
    }

    detail::handle<nestling_generation, nestling_generation_free> handle_;
};

class session {
public:
    explicit session(nestling_session *handle) : handle_(handle) {}

    generation generate(const std::string &prompt, const generate_options &options = {}) const
    {
        return generation(detail::make<nestling_generation>([&](auto made, auto failed) {
            return nestling_session_generate_text(handle_.get(), detail::c_text("prompt", prompt), &options, made, failed);
        }));
    }

    generation generate(const std::vector<std::uint32_t> &tokens, const generate_options &options = {}) const
    {
        return generation(detail::make<nestling_generation>([&](auto made, auto failed) {
            return nestling_session_generate_tokens(handle_.get(), tokens.data(), tokens.size(), &options, made, failed);
        }));
    }

    /* `conversation` is JSON with messages and tools. */
    generation answer(const std::string &conversation, const generate_options &options = {}) const
    {
        return generation(detail::make<nestling_generation>([&](auto made, auto failed) {
            return nestling_session_generate_conversation(handle_.get(), detail::c_text("conversation", conversation), &options, made, failed);
        }));
    }

    std::size_t length() const
    {
        std::size_t tokens = 0;
        detail::done([&](auto failed) { return nestling_session_length(handle_.get(), &tokens, failed); });
        return tokens;
    }

    void truncate(std::size_t tokens) const
    {
        detail::done([&](auto failed) { return nestling_session_truncate(handle_.get(), tokens, failed); });
    }

    session fork() const
    {
        return session(detail::make<nestling_session>(
            [&](auto made, auto failed) { return nestling_session_fork(handle_.get(), made, failed); }));
    }

    std::vector<std::uint8_t> snapshot(bool with_pages) const
    {
        detail::handle<nestling_bytes, nestling_bytes_free> bytes(
            detail::make<nestling_bytes>([&](auto made, auto failed) {
                return nestling_session_snapshot(handle_.get(), with_pages, made, failed);
            }));
        const std::uint8_t *data = nestling_bytes_data(bytes.get());
        return {data, data + nestling_bytes_length(bytes.get())};
    }

private:
    detail::handle<nestling_session, nestling_session_free> handle_;
};

class chat {
public:
    explicit chat(nestling_chat *handle) : handle_(handle) {}

    generation send(const std::string &message, const generate_options &options = {}) const
    {
        return generation(detail::make<nestling_generation>([&](auto made, auto failed) {
            return nestling_chat_send(handle_.get(), detail::c_text("message", message), &options, made, failed);
        }));
    }

    generation reply_to_tools(const std::vector<std::string> &results, const generate_options &options = {}) const
    {
        std::vector<const char *> texts;
        for (const std::string &result : results)
            texts.push_back(detail::c_text("results", result));
        return generation(detail::make<nestling_generation>([&](auto made, auto failed) {
            return nestling_chat_reply_to_tools(handle_.get(), texts.data(), texts.size(), &options, made, failed);
        }));
    }

    /* All that was said, as JSON. */
    std::string transcript() const
    {
        detail::handle<char, nestling_string_free> json(detail::make<char>(
            [&](auto made, auto failed) { return nestling_chat_transcript(handle_.get(), made, failed); }));
        return json.get();
    }

private:
    detail::handle<nestling_chat, nestling_chat_free> handle_;
};

class model {
public:
    explicit model(const std::string &path, const model_options &options = {})
        : handle_(detail::make<nestling_model>([&](auto made, auto failed) {
              return nestling_model_open(detail::c_text("path", path), &options, made, failed);
          }))
    {
    }

    session begin_session() const
    {
        return session(detail::make<nestling_session>(
            [&](auto made, auto failed) { return nestling_session_new(handle_.get(), made, failed); }));
    }

    session restore(const std::vector<std::uint8_t> &bytes) const
    {
        return session(detail::make<nestling_session>([&](auto made, auto failed) {
            return nestling_model_restore(handle_.get(), bytes.data(), bytes.size(), made, failed);
        }));
    }

    /* `conversation` is JSON with what was said and the tools; empty is an empty one. */
    chat begin_chat(const std::string &conversation = {}) const
    {
        return chat(detail::make<nestling_chat>([&](auto made, auto failed) {
            const char *json = conversation.empty() ? nullptr : detail::c_text("conversation", conversation);
            return nestling_chat_new(handle_.get(), json, made, failed);
        }));
    }

    engine shared_engine() const
    {
        return engine(detail::make<nestling_engine>(
            [&](auto made, auto failed) { return nestling_model_engine(handle_.get(), made, failed); }));
    }

    /* Tokens of a text: with what the model expects before it, and with the texts of special tokens as these. */
    std::vector<std::uint32_t> encode(const std::string &text, bool add_special = false, bool parse_special = false) const
    {
        detail::handle<nestling_tokens, nestling_tokens_free> tokens(
            detail::make<nestling_tokens>([&](auto made, auto failed) {
                return nestling_model_encode(handle_.get(), text.data(), text.size(), add_special, parse_special, made, failed);
            }));
        const std::uint32_t *data = nestling_tokens_data(tokens.get());
        return {data, data + nestling_tokens_length(tokens.get())};
    }

    std::string decode(const std::vector<std::uint32_t> &tokens, bool keep_special = false) const
    {
        detail::handle<nestling_bytes, nestling_bytes_free> bytes(
            detail::make<nestling_bytes>([&](auto made, auto failed) {
                return nestling_model_decode(handle_.get(), tokens.data(), tokens.size(), keep_special, made, failed);
            }));
        const std::uint8_t *data = nestling_bytes_data(bytes.get());
        return {data, data + nestling_bytes_length(bytes.get())};
    }

    /* Bytes of one token, possibly part of a character; empty if it has none of its own. */
    std::string token_bytes(std::uint32_t token) const
    {
        std::size_t length = 0;
        const std::uint8_t *data = nestling_model_token_bytes(handle_.get(), token, &length);
        return {data, data + length};
    }

    void set_memory_budget(std::uint64_t bytes) const
    {
        detail::done([&](auto failed) { return nestling_model_set_memory_budget(handle_.get(), bytes, failed); });
    }

    void relieve_pressure(std::uint64_t bytes = UINT64_MAX) const
    {
        detail::done([&](auto failed) { return nestling_model_relieve_pressure(handle_.get(), bytes, failed); });
    }

    nestling_model_status status() const
    {
        return detail::filled<nestling_model_status>(
            [&](auto status, auto failed) { return nestling_model_status_now(handle_.get(), status, failed); });
    }

private:
    detail::handle<nestling_model, nestling_model_free> handle_;
};

} // namespace nestling

#endif
