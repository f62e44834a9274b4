// What is done to a row around attention over latents: the rotation of some of its channels, a change of basis, f16.
#pragma once
#include "pages.cuh"

// The Walsh-Hadamard transform of n = 2^k numbers in shared memory, lowest stage first, by all threads of a CTA. It ends with a barrier.
DEVICE void turn_row(float* x, int n) {
    __syncthreads();
    for (int h = 1; h < n; h *= 2) {
        for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
            const int low = i / h * 2 * h + i % h;
            const float a = x[low], b = x[low + h];
            x[low] = a + b, x[low + h] = a - b;
        }
        __syncthreads();
    }
}

// Number c of a part of which the first 2 pairs channels are rotated.
DEVICE float rotated_at(const float* x, int c, const float2* turns, int pairs, int neighbours) {
    if (c >= 2 * pairs) return x[c];
    const int pair = neighbours ? c / 2 : c % pairs;
    const bool second = neighbours ? c % 2 : c >= pairs;
    const float other = x[neighbours ? c ^ 1 : second ? c - pairs : c + pairs];
    const float2 turn = __ldg(turns + pair);
    return __fadd_rn(__fmul_rn(x[c], turn.x), __fmul_rn(other, second ? turn.y : -turn.y));
}
// As f16; a number that it does not hold marks its row.
DEVICE u16 marked(float x, int row, int* refused) {
    const u16 y = f32_to_f16(x);
    if (!(fabsf(f16_to_f32(y)) <= 65504.f)) atomicMax(refused, 1 + row);
    return y;
}
