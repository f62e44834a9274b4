/* Products with weights of 4 bits: quantised and packed once, multiplied by any number of tokens at once. */
#include <kvant.h>
#include <math.h>
#include <stdio.h>

enum { ROWS = 96, COLUMNS = 256, TOKENS = 3 };

#define CHECK(call) if ((call) != KVANT_STATUS_OK) return fprintf(stderr, "error: %s\n", kvant_error_message()), 1

int main(void) {
    static float weights[ROWS * COLUMNS], x[TOKENS * COLUMNS], out[TOKENS * ROWS];
    for (int i = 0; i < ROWS * COLUMNS; i++) weights[i] = sinf(0.37f * (float)(i % 4099));
    for (int i = 0; i < TOKENS * COLUMNS; i++) x[i] = cosf(0.11f * (float)(i % 977));

    kvant_pool *pool;
    kvant_matrix *matrix;
    CHECK(kvant_pool_new(0, &pool));
    kvant_rows rows = {weights, ROWS * COLUMNS, 0, 0, KVANT_DTYPE_F32}, input = {x, TOKENS * COLUMNS, 0, 0, KVANT_DTYPE_F32};
    kvant_output output = {out, TOKENS * ROWS, 0, 0, KVANT_DTYPE_F32};
    CHECK(kvant_matrix_new(KVANT_WEIGHTS_INT4, ROWS, COLUMNS, &rows, &matrix));
    CHECK(kvant_matrix_multiply(matrix, pool, TOKENS, &input, &output));

    double error = 0, size = 0;
    for (int t = 0; t < TOKENS; t++)
        for (int r = 0; r < ROWS; r++) {
            double want = 0;
            for (int c = 0; c < COLUMNS; c++) want += (double)weights[r * COLUMNS + c] * x[t * COLUMNS + c];
            error += pow(out[t * ROWS + r] - want, 2), size += want * want;
        }
    printf("%d x %d weights in %zu bytes; relative error %.4f\n", ROWS, COLUMNS, kvant_matrix_bytes(matrix), sqrt(error / size));
    kvant_matrix_free(matrix);
    kvant_pool_free(pool);
    return error / size < 0.02 ? 0 : 1;
}
