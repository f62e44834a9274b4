// Products of packed weights with a few tokens' activations, and rows of packed embeddings.
//
// A tile of 16 output rows belongs to one CTA; its 8 warps deal the blocks of channels among themselves, in a fixed way, and are summed in
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

// One block's activations of up to 32 tokens, straight from memory: lane g of a column tile has token 8nt+g.
struct ReadActivations {
    const u16* row;  // of this lane's token in tile 0, at the block's channel 4t
    u64 stride;      // halves from one column tile to the next
    int tokens;      // from this lane's on; none where it is not positive
    DEVICE uint2 at(int nt, int ks) const {
        if (tokens <= 8 * nt) return make_uint2(0u, 0u);
        return __ldcg(reinterpret_cast<const uint2*>(row + nt * stride + 16 * ks));  // the kernel before wrote them: never by the read-only path
    }
};
// The same of up to 8 tokens, from shared memory: (k-steps, tokens, t) of four channels.
struct StagedActivations {
    const uint2* step;  // this lane's of the block's first k-step
    int tokens, g;
    DEVICE uint2 at(int, int ks) const { return g < tokens ? step[ks * tokens * 4] : make_uint2(0u, 0u); }
};

// The 16 rows of a tile: warps' sums in the order of warps.
template <int NT>
DEVICE void write_tile(const LinearParams& p, const float (&parts)[LINEAR_WARPS][NT * 8][17], int tile) {
    for (int i = threadIdx.x; i < min(NT * 8, p.tokens) * 16; i += LINEAR_WARPS * WARP) {
        const int token = i / 16, row = tile * 16 + i % 16;
        if (row >= p.rows) continue;
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < LINEAR_WARPS; w++) sum += parts[w][token][i % 16];
        float* y = p.y + (u64)token * p.rows + row;
        *y = p.accumulate ? *y + sum : sum;
    }
}
template <int NT>
DEVICE void put_part(float (&part)[NT * 8][17], const float (&total)[NT][4], int lane) {
#pragma unroll
    for (int nt = 0; nt < NT; nt++)
#pragma unroll
        for (int j = 0; j < 4; j++) part[nt * 8 + 2 * (lane % 4) + (j & 1)][lane / 4 + 8 * (j / 2)] = total[nt][j];
}

// Any number of tokens up to 8 NT: a CTA per tile.
template <class W, int NT>
DEVICE void linear_many(const LinearParams& p) {
    __shared__ float parts[LINEAR_WARPS][NT * 8][17];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int blocks = p.channels / W::CHANNELS;
    const u8* tile = p.weights + (u64)blockIdx.x * blocks * W::BYTES;
    const Fill constants = W::constants(p.zero);
    constexpr bool AHEAD = NT > 1 && W::CHANNELS == 64;  // else two blocks in registers would spill
    typename W::Raw raw = {};
    if (AHEAD && warp < blocks) raw = W::load(tile + (u64)warp * W::BYTES, lane);  // weights do not depend on the kernel before
    pdl_wait();
    pdl_trigger();
    float total[NT][4] = {};
#pragma unroll 1
    for (int block = warp; block < blocks; block += LINEAR_WARPS) {
        const typename W::Raw now = AHEAD ? raw : W::load(tile + (u64)block * W::BYTES, lane);
        const int next = block + LINEAR_WARPS;
        if (AHEAD && next < blocks) raw = W::load(tile + (u64)next * W::BYTES, lane);
        const ReadActivations x = {p.x + (u64)g * p.channels + 4 * t + (u64)block * W::CHANNELS, 8 * (u64)p.channels, p.tokens - g};
        W::template add<NT>(total, now, x, constants);
    }
    put_part<NT>(parts[warp], total, lane);
    __syncthreads();
    write_tile<NT>(p, parts, blockIdx.x);
}

// Up to 8 tokens whose activations fit into shared memory: any grid, tiles dealt round robin; every warp has DEPTH blocks on their
// way, across tiles. Reading the activations again for every tile would keep L2 busier than the weights do.
template <class W>
DEVICE void linear_few(const LinearParams& p) {
    DYNAMIC_SHARED(memory);
    uint2* const shared_x = reinterpret_cast<uint2*>(memory);
    __shared__ float parts[2][LINEAR_WARPS][8][17];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int blocks = p.channels / W::CHANNELS, tiles = (p.rows + 15) / 16;
    const Fill constants = W::constants(p.zero);

    typename W::Raw raw[W::DEPTH];
    int ahead_block = warp, ahead_tile = blockIdx.x;
    const u8* ahead = p.weights + ((u64)ahead_tile * blocks + warp) * W::BYTES;  // the next block to ask for
    auto ask = [&](typename W::Raw& into) {
        if (ahead_tile < tiles) into = W::load(ahead, lane);
        ahead += LINEAR_WARPS * W::BYTES, ahead_block += LINEAR_WARPS;
        if (ahead_block >= blocks) {  // on to the next tile of this CTA
            ahead_tile += gridDim.x, ahead_block = warp;
            ahead = p.weights + ((u64)ahead_tile * blocks + warp) * W::BYTES;
        }
    };
    if (warp < blocks) {
#pragma unroll
        for (int i = 0; i < W::DEPTH; i++) ask(raw[i]);
    }
    pdl_wait();
    pdl_trigger();
    for (int token = 0; token < p.tokens; token++)
        for (int quad = threadIdx.x; quad < p.channels / 4; quad += LINEAR_WARPS * WARP)
            shared_x[(quad / 4 * p.tokens + token) * 4 + quad % 4] = __ldcg(reinterpret_cast<const uint2*>(p.x + (u64)token * p.channels) + quad);
    __syncthreads();

    const uint2* const first = shared_x + ((warp * (W::CHANNELS / 16)) * p.tokens + g) * 4 + t;
    const int stride = LINEAR_WARPS * (W::CHANNELS / 16) * p.tokens * 4;
    StagedActivations x = {first, p.tokens, g};
    int turn = 0, tile = blockIdx.x, block = warp;
    float total[1][4] = {};
    auto finish = [&]() {
        put_part<1>(parts[turn][warp], total, lane);
        __syncthreads();
        write_tile<1>(p, parts[turn], tile);
        turn ^= 1, tile += gridDim.x, block = warp, x.step = first;
#pragma unroll
        for (int j = 0; j < 4; j++) total[0][j] = 0.f;
    };
    if (warp >= blocks)
        while (tile < tiles) finish();
#pragma unroll 1
    while (tile < tiles) {
#pragma unroll
        for (int i = 0; i < W::DEPTH; i++) {
            W::template add<1>(total, raw[i], x, constants);
            ask(raw[i]);
            block += LINEAR_WARPS, x.step += stride;
            if (block >= blocks) {
                finish();
                if (tile >= tiles) break;
            }
        }
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

#define KERNEL(NAME, WHAT, CTAS) \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * 32, CTAS) NAME(const __grid_constant__ LinearParams p) { WHAT(p); }
#define KERNELS(NAME, TYPE)                            \
    KERNEL(linear_##NAME##_few, (linear_few<TYPE>), 2)     \
    KERNEL(linear_##NAME##_t8, (linear_many<TYPE, 1>), 2)  \
    KERNEL(linear_##NAME##_t32, (linear_many<TYPE, 4>), 1) \
    extern "C" __global__ void __launch_bounds__(256) embed_##NAME(const __grid_constant__ EmbedParams p) { embed<TYPE>(p); }
KERNELS(q4_0, Q4_0)
KERNELS(q8_0, Q8_0)
KERNELS(f16, F16)
KERNELS(q4_k, Q4_K)
KERNELS(q6_k, Q6_K)
