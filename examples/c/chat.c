/* A conversation with a model: ./chat model.gguf */
#include <kvant.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 64 };

static int32_t print(const kvant_event *event, void *user) {
    (void)user;
    if (event->kind == KVANT_EVENT_KIND_TEXT) fwrite(event->text, 1, event->length, stdout);
    return fflush(stdout);
}

static int failed(void) {
    fprintf(stderr, "error: %s\n", kvant_error_message());
    return 1;
}

int main(int argc, char **argv) {
    kvant_engine *engine = NULL;
    kvant_session *session = NULL;
    if (kvant_engine_open(argc > 1 ? argv[1] : "model.gguf", NULL, &engine) || kvant_session_new(engine, &session)) return failed();
    kvant_generate_options options = {.struct_size = sizeof options, .max_tokens = 512, .temperature = 0.7f};
    kvant_message turns[TURNS];
    size_t count = 0;
    char line[4096];
    while (count + 2 <= TURNS && fputs("> ", stdout) >= 0 && fgets(line, sizeof line, stdin)) {
        turns[count++] = (kvant_message){.role = "user", .content = strndup(line, strcspn(line, "\n"))};
        kvant_reply *reply = NULL;
        if (kvant_session_chat(session, turns, count, &options, print, NULL, &reply)) return failed();
        turns[count++] = (kvant_message){.role = "assistant", .content = strdup(kvant_reply_text(reply, NULL))};
        kvant_reply_free(reply);
        puts("");
    }
    while (count > 0) free((void *)turns[--count].content);
    kvant_session_free(session);
    kvant_engine_free(engine);
    return 0;
}
