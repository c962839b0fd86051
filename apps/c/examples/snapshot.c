/* Goes on in another process: snapshot MODEL save FILE, then snapshot MODEL restore FILE. */
#include "common.h"

#include <string.h>

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    nestling_model *model = open_model(arguments[1]);
    nestling_session *session;
    nestling_error *error;
    nestling_generation *answer;
    nestling_generate_options options = greedy(16);
    if (strcmp(arguments[2], "save") == 0) {
        session = begin_session(model);
        check(nestling_session_generate_text(session, "The captain said", &options, &answer, &error), error);
        print_answer(answer);
        nestling_bytes *bytes;
        check(nestling_session_snapshot(session, 1, &bytes, &error), error);
        FILE *file = fopen(arguments[3], "wb");
        if (!file || fwrite(nestling_bytes_data(bytes), 1, nestling_bytes_length(bytes), file) !=
                         nestling_bytes_length(bytes) || fclose(file))
            return 3;
        nestling_bytes_free(bytes);
    } else {
        static unsigned char data[64 << 20];
        FILE *file = fopen(arguments[3], "rb");
        if (!file)
            return 3;
        size_t length = fread(data, 1, sizeof data, file);
        fclose(file);
        check(nestling_model_restore(model, data, length, &session, &error), error);
        check(nestling_session_generate_tokens(session, NULL, 0, &options, &answer, &error), error);
        print_answer(answer);
    }
    nestling_generation_free(answer);
    nestling_session_free(session);
    nestling_model_free(model);
    return 0;
}
