// What the examples in C++ share: an exception ends the program with its words.
#ifndef COMMON_HPP
#define COMMON_HPP

#include "nestling.hpp"

#include <iostream>

// Always the likeliest tokens, and so many of them.
inline nestling::generate_options greedy(std::int64_t max_tokens)
{
    nestling::generate_options options;
    options.temperature = 0;
    options.max_tokens = max_tokens;
    return options;
}

template <typename Program> int guarded(Program program)
{
    try {
        return program();
    } catch (const nestling::error &error) {
        std::cerr << "error (class " << error.status() << "): " << error.what() << '\n';
    } catch (const std::exception &error) {
        std::cerr << "error: " << error.what() << '\n';
    }
    return 1;
}

#endif
