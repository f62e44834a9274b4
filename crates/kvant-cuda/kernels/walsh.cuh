// The Walsh-Hadamard transform of rows that lie in the lanes of a warp.
#pragma once
#include "device.cuh"

// In place, over values that lie VALUES to a lane in LANES neighbouring ones: unnormalised Walsh-Hadamard, lowest stage first.
template <int VALUES, int LANES>
DEVICE void walsh_hadamard(float (&x)[VALUES], int lane) {
#pragma unroll
    for (int h = 1; h < VALUES; h *= 2)
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            if (!(i & h)) {
                const float a = x[i], b = x[i + h];
                x[i] = a + b, x[i + h] = a - b;
            }
#pragma unroll
    for (int h = 1; h < LANES; h *= 2)
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const float other = __shfl_xor_sync(~0u, x[i], h);
            x[i] = lane & h ? other - x[i] : x[i] + other;
        }
}
