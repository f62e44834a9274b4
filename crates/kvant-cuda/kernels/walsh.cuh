// The Walsh-Hadamard transform of rows, in the lanes of a warp or in shared memory.
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

// D = 2^k * m with m odd: the Kronecker product of a Walsh-Hadamard transform of 2^k points with a Hartley transform of m neighbours,
// as kvant-codec has it: y_i = sum over j, rising, of x_j (cos a + sin a), a = 2 pi (i j mod m) / m. Then butterflies, lowest stage first.
constexpr int odd_part(int d) { return d % 2 ? d : odd_part(d / 2); }

// cos a + sin a of the m-th part `n` of a turn, rounded from binary64.
template <int M>
DEVICE float hartley(int n) {
    static_assert(M == 1 || M == 3 || M == 5, "dims of 2^k, 3 * 2^k and 5 * 2^k");
    if (M == 3) return n == 0 ? 1.f : n == 1 ? 0x1.76cf5ep-2f : -0x1.5db3d8p+0f;
    if (M == 5) return n == 0 ? 1.f : n == 1 ? 0x1.42942ep+0f : n == 2 ? -0x1.c51526p-3f : n == 3 ? -0x1.6594d6p+0f : -0x1.48b968p-1f;
    return 1.f;
}

// In place, over D numbers of shared memory that are the caller's: THREADS threads take part, `meet` is their barrier. Unnormalised.
template <int D, int THREADS, class Meet>
DEVICE void turn_shared(float* x, int thread, Meet meet) {
    constexpr int M = odd_part(D);
    meet();
    if (M > 1) {
        for (int i = thread; i < D / M; i += THREADS) {
            float in[M], out[M];
#pragma unroll
            for (int j = 0; j < M; j++) in[j] = x[M * i + j];
#pragma unroll
            for (int k = 0; k < M; k++) {
                out[k] = 0.f;
#pragma unroll
                for (int j = 0; j < M; j++) out[k] = fmaf(in[j], hartley<M>(k * j % M), out[k]);
            }
#pragma unroll
            for (int j = 0; j < M; j++) x[M * i + j] = out[j];
        }
        meet();
    }
    for (int h = M; h < D; h *= 2) {
        for (int i = thread; i < D / 2; i += THREADS) {
            const int low = i / h * 2 * h + i % h;
            const float a = x[low], b = x[low + h];
            x[low] = a + b, x[low + h] = a - b;
        }
        meet();
    }
}
