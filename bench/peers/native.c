/* llama.cpp behind functions with simple arguments: bench/peers/build.sh compiles this beside it, native.py calls it. */

#include <stdlib.h>
#include <string.h>

#include "llama.h"

static void silence(enum ggml_log_level level, const char *text, void *data) {
    (void)level, (void)text, (void)data;
}

const char *peer_system(void) { return llama_print_system_info(); }

struct llama_model *peer_model(const char *path) {
    llama_log_set(silence, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    return llama_model_load_from_file(path, params);
}

int peer_vocabulary(const struct llama_model *model) { return llama_vocab_n_tokens(llama_model_get_vocab(model)); }

/* The beginning-of-text id where this model wants it in front of a text, else -1. */
int peer_beginning(const struct llama_model *model) {
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    return llama_vocab_get_add_bos(vocab) ? llama_vocab_bos(vocab) : -1;
}

/* How many ids, or minus how many there would be. */
int peer_tokenize(const struct llama_model *model, const char *text, int *ids, int room) {
    return llama_tokenize(llama_model_get_vocab(model), text, (int)strlen(text), ids, room, true, false);
}

struct llama_context *peer_context(struct llama_model *model, int size, int threads, int type, int flash, int batch) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = size;
    params.n_batch = batch;
    params.n_threads = params.n_threads_batch = threads;
    params.type_k = params.type_v = (enum ggml_type)type;
    params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return llama_init_from_model(model, params);
}

void peer_close(struct llama_context *context) { llama_free(context); }

void peer_threads(struct llama_context *context, int threads) { llama_set_n_threads(context, threads, threads); }

void peer_synchronize(struct llama_context *context) { llama_synchronize(context); }

/* Reads `count` tokens from `position` on. Logits are kept of all of them, or of the last. */
int peer_read(struct llama_context *context, const int *ids, int count, int position, int all) {
    struct llama_batch batch = llama_batch_init(count, 0, 1);
    batch.n_tokens = count;
    for (int i = 0; i < count; i++) {
        batch.token[i] = ids[i];
        batch.pos[i] = position + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = all || i == count - 1;
    }
    int outcome = llama_decode(context, batch);
    llama_batch_free(batch);
    return outcome;
}

const float *peer_logits(struct llama_context *context, int index) { return llama_get_logits_ith(context, index); }

/* How many tokens a context holds. */
int peer_held(struct llama_context *context) { return llama_memory_seq_pos_max(llama_get_memory(context), 0) + 1; }

/* Forgets everything from `position` on; 0 if this kind of memory cannot, and has forgotten all. */
int peer_forget(struct llama_context *context, int position) {
    if (llama_memory_seq_rm(llama_get_memory(context), 0, position, -1)) return 1;
    llama_memory_clear(llama_get_memory(context), true);
    return 0;
}
