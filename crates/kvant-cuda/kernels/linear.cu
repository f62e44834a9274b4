// Products of packed weights with a few tokens' activations, and rows of packed embeddings.
//
// One CTA per tile of 16 output rows; its 8 warps deal the blocks of channels among themselves, in a fixed way, and are summed in
// their order: the bits of an output depend on the weights and its own token alone. A column of the mma tile is a token, so up to 8
// tokens cost what one does, and 32 are four column tiles over one reading of the weights.
#include "weights.cuh"

constexpr int LINEAR_WARPS = 8;

struct LinearParams {
    const u8* weights;   // (tiles of 16 rows, blocks of channels)
    const u16* x;        // (tokens, channels) f16
    float* y;            // (tokens, rows)
    int rows, channels, tokens;
    int accumulate;      // y += instead of y =
    int zero[4];         // zeros that the compiler cannot see
};

template <class W, int NT>
DEVICE void linear(const LinearParams& p) {
    __shared__ float parts[LINEAR_WARPS][NT * 8][16 + 1];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int blocks = p.channels / W::CHANNELS;
    const u8* tile = p.weights + (u64)blockIdx.x * blocks * W::BYTES;
    const Fill constants = W::constants(p.zero);
    constexpr bool AHEAD = NT == 1 || W::CHANNELS == 64;  // else two blocks in registers would spill
    typename W::Raw raw = {};
    if (AHEAD && warp < blocks) raw = W::load(tile + (u64)warp * W::BYTES, lane);  // weights do not depend on the kernel before
    pdl_wait();
    pdl_trigger();
    const Activations x = {p.x + (u64)g * p.channels + 4 * t, 8 * (u64)p.channels, p.tokens - g};
    float total[NT][4] = {};
#pragma unroll 1
    for (int block = warp; block < blocks; block += LINEAR_WARPS) {
        const typename W::Raw now = AHEAD ? raw : W::load(tile + (u64)block * W::BYTES, lane);
        const int next = block + LINEAR_WARPS;
        if (AHEAD && next < blocks) raw = W::load(tile + (u64)next * W::BYTES, lane);
        W::template add<NT>(total, now, x, block * W::CHANNELS, constants);
    }
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int j = 0; j < 4; j++) parts[warp][nt * 8 + 2 * t + (j & 1)][g + 8 * (j / 2)] = total[nt][j];
    __syncthreads();
    for (int i = threadIdx.x; i < NT * 8 * 16; i += LINEAR_WARPS * WARP) {
        const int token = i / 16, row = blockIdx.x * 16 + i % 16;
        if (token >= p.tokens || row >= p.rows) continue;
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < LINEAR_WARPS; w++) sum += parts[w][token][i % 16];
        float* y = p.y + (u64)token * p.rows + row;
        *y = p.accumulate ? *y + sum : sum;
    }
}

struct EmbedParams {
    const u8* weights;
    const int* ids;      // (tokens)
    float* out;          // (tokens, channels)
    int channels;
    float scale;
};

// Grid: (tokens); each thread every blockDim-th channel.
template <class W>
DEVICE void embed(const EmbedParams& p) {
    const int id = p.ids[blockIdx.x], blocks = p.channels / W::CHANNELS;
    const u8* tile = p.weights + (u64)(id / 16) * blocks * W::BYTES;
    for (int c = threadIdx.x; c < p.channels; c += blockDim.x)
        p.out[(u64)blockIdx.x * p.channels + c] = p.scale * W::at(tile + (u64)(c / W::CHANNELS) * W::BYTES, id % 16, c % W::CHANNELS);
}

#define KERNELS(NAME, TYPE)                                                                                                              \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * 32) linear_##NAME##_t8(const __grid_constant__ LinearParams p) { linear<TYPE, 1>(p); }   \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * 32) linear_##NAME##_t32(const __grid_constant__ LinearParams p) { linear<TYPE, 4>(p); } \
    extern "C" __global__ void __launch_bounds__(256) embed_##NAME(const __grid_constant__ EmbedParams p) { embed<TYPE>(p); }
KERNELS(q4_0, Q4_0)
KERNELS(q8_0, Q8_0)
KERNELS(f16, F16)
KERNELS(q4_k, Q4_K)
KERNELS(q6_k, Q6_K)
