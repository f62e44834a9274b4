/* A conversation with a model: ./chat model.gguf [MAX_TOKENS [SEED]] */
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

/* Answers every line of the input. What was said stays in `turns`, `*count` of them, also where an answer fails. */
static kvant_status talk(const kvant_session *session, const kvant_generate_options *options, kvant_message *turns, size_t *count) {
    char line[4096];
    while (*count + 2 <= TURNS && fputs("> ", stdout) >= 0 && fgets(line, sizeof line, stdin)) {
        turns[(*count)++] = (kvant_message){.role = "user", .content = strndup(line, strcspn(line, "\n"))};
        kvant_reply *reply = NULL;
        kvant_status status = kvant_session_chat(session, turns, *count, options, print, NULL, &reply);
        if (status != KVANT_STATUS_OK) return status;
        turns[(*count)++] = (kvant_message){.role = "assistant", .content = strdup(kvant_reply_text(reply, NULL))};
        kvant_reply_free(reply);
        puts("");
    }
    return KVANT_STATUS_OK;
}

int main(int argc, char **argv) {
    kvant_generate_options options = {.struct_size = sizeof options, .max_tokens = 512, .temperature = 0.7f};
    if (argc > 2) options.max_tokens = strtoull(argv[2], NULL, 10);
    if (argc > 3) options.seed = strtoull(argv[3], NULL, 10);
    kvant_engine *engine = NULL;
    kvant_session *session = NULL;
    kvant_message turns[TURNS];
    size_t count = 0;
    kvant_status status = kvant_engine_open(argc > 1 ? argv[1] : "model.gguf", NULL, &engine);
    if (status == KVANT_STATUS_OK) status = kvant_session_new(engine, &session);
    if (status == KVANT_STATUS_OK) status = talk(session, &options, turns, &count);
    if (status != KVANT_STATUS_OK) fprintf(stderr, "error: %s\n", kvant_error_message());
    while (count > 0) free((void *)turns[--count].content);
    kvant_session_free(session);
    kvant_engine_free(engine);
    return status == KVANT_STATUS_OK ? 0 : 1;
}
