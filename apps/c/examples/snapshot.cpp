// Goes on in another process: snapshot MODEL save FILE, then snapshot MODEL restore FILE.
#include "common.hpp"

#include <fstream>
#include <iterator>

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    return guarded([&] {
        nestling::model model(arguments[1]);
        if (std::string(arguments[2]) == "save") {
            nestling::session session = model.begin_session();
            std::cout << session.generate("The captain said", greedy(16)).text() << '\n';
            std::vector<std::uint8_t> bytes = session.snapshot(true);
            std::ofstream file(arguments[3], std::ios::binary);
            file.write(reinterpret_cast<const char *>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
            return file.flush() ? 0 : 3;
        }
        std::ifstream file(arguments[3], std::ios::binary);
        std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
        std::cout << model.restore(bytes).generate(std::vector<std::uint32_t>(), greedy(16)).text() << '\n';
        return 0;
    });
}
