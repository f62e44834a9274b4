/* Attention of an engine of one's own on a compressed cache: two sequences, one call, held against exact attention. */
#include <kvant.h>
#include <math.h>
#include <stdio.h>

enum { KV_HEADS = 2, HEADS = 6, DIM = 64, TOKENS = 500, WIDTH = KV_HEADS * DIM };

#define CHECK(call) if ((call) != KVANT_STATUS_OK) return fprintf(stderr, "error: %s\n", kvant_error_message()), 1

/* Stands for a layer's projections: (tokens, heads, DIM). */
static void project(float *rows, size_t count, int kind) {
    for (size_t i = 0; i < count; i++) rows[i] = sinf(0.61f * (float)(i % 7919) + 1.7f * (float)kind) + 0.2f * cosf(0.013f * (float)i);
}

/* What head 0 of the last token should get. */
static void exact(const float *keys, const float *values, const float *query, double *out) {
    double weights[TOKENS], sum = 0;
    for (int t = 0; t < TOKENS; t++) {
        double score = 0;
        for (int i = 0; i < DIM; i++) score += (double)query[i] * keys[t * WIDTH + i];
        sum += weights[t] = exp(score / sqrt(DIM));
    }
    for (int i = 0; i < DIM; i++) out[i] = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < DIM; i++) out[i] += weights[t] / sum * values[t * WIDTH + i];
}

int main(void) {
    kvant_layer layer = {KV_HEADS, DIM, DIM, 0};
    kvant_cache_options options = {.struct_size = sizeof options, .kv = "int4", .layers = &layer, .layer_count = 1};
    kvant_cache *cache;
    kvant_sequence *both[2];
    kvant_pass *pass;
    CHECK(kvant_cache_new(&options, &cache));
    CHECK(kvant_sequence_new(cache, &both[0]));
    CHECK(kvant_sequence_new(cache, &both[1]));
    static float keys[TOKENS * WIDTH], values[TOKENS * WIDTH], queries[TOKENS * HEADS * DIM], out[2][TOKENS * HEADS * DIM];
    project(keys, TOKENS * WIDTH, 0), project(values, TOKENS * WIDTH, 1), project(queries, TOKENS * HEADS * DIM, 2);
    kvant_rows k = {keys, TOKENS * WIDTH, 0, 0, KVANT_DTYPE_F32}, v = {values, TOKENS * WIDTH, 0, 0, KVANT_DTYPE_F32};
    kvant_rows q = {queries, TOKENS * HEADS * DIM, 0, 0, KVANT_DTYPE_F32}, twice[3][2] = {{k, k}, {v, v}, {q, q}};
    kvant_output outputs[2] = {{out[0], TOKENS * HEADS * DIM, 0, 0, KVANT_DTYPE_F32}, {out[1], TOKENS * HEADS * DIM, 0, 0, KVANT_DTYPE_F32}};

    /* The second sequence gets its first token only. */
    size_t tokens[2] = {TOKENS, 1}, held;
    uint64_t bytes;
    CHECK(kvant_pass_begin(cache, (const kvant_sequence *const *)both, tokens, 2, &pass));
    CHECK(kvant_pass_append(pass, 0, twice[0], twice[1]));
    CHECK(kvant_pass_attend(pass, 0, HEADS, twice[2], outputs, NULL));
    CHECK(kvant_pass_end(pass));
    CHECK(kvant_sequence_size(both[0], &held, &bytes));

    double want[DIM], error = 0, size = 0;
    const size_t last = (TOKENS - 1) * HEADS * DIM;
    exact(keys, values, queries + last, want);
    for (int i = 0; i < DIM; i++) error += pow(out[0][last + i] - want[i], 2), size += want[i] * want[i];
    printf("%zu tokens in %llu bytes, %.2f of f16; relative error %.4f\n", held, (unsigned long long)bytes,
           (double)bytes / (TOKENS * WIDTH * 4), sqrt(error / size));
    kvant_sequence_free(both[0]), kvant_sequence_free(both[1]), kvant_cache_free(cache);
    return error / size < 0.01 ? 0 : 1;
}
