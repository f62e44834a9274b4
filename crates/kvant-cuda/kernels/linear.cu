// Products of packed weights with a few tokens' activations, and rows of packed embeddings.
//
// One or two tiles of 16 output rows belong to one CTA; its 8 warps deal the blocks of channels among themselves, in a fixed way, and are summed in
// their order: the bits of an output depend on the weights and its own token alone. A column of the mma tile is a token, so up to 8
// tokens cost what one does, and 32 are four column tiles over one reading of the weights. tile.cu has more.
#include "weights.cuh"

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

// The rows of MT tiles, from tile MT n on: warps' sums in the order of warps.
template <int MT, int NT>
DEVICE void write_tile(const LinearParams& p, const Span& of, const float (&parts)[LINEAR_WARPS][NT * 8][16 * MT + 1], int n) {
    for (int i = threadIdx.x; i < min(NT * 8, of.count) * 16 * MT; i += LINEAR_WARPS * WARP) {
        const int token = i / (16 * MT), row = n * 16 * MT + i % (16 * MT);
        if (row >= p.rows) continue;
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < LINEAR_WARPS; w++) sum += parts[w][token][i % (16 * MT)];
        p.put((u64)(of.first + token) * p.rows + row, sum);
    }
}
template <int MT, int NT>
DEVICE void put_part(float (&part)[NT * 8][16 * MT + 1], const float (&total)[MT][NT][4], int lane) {
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int j = 0; j < 4; j++) part[nt * 8 + 2 * (lane % 4) + (j & 1)][mt * 16 + lane / 4 + 8 * (j / 2)] = total[mt][nt][j];
}

// Any number of tokens up to 8 NT: a CTA for every MT tiles.
template <class W, int MT, int NT>
DEVICE void linear_many(const LinearParams& p, const Span& of, int n) {
    __shared__ float parts[LINEAR_WARPS][NT * 8][16 * MT + 1];
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int blocks = p.channels / W::CHANNELS, last = (p.rows + 15) / 16 - 1;
    const u8* tile[MT];  // past the last tile the last once more, which is not written
#pragma unroll
    for (int mt = 0; mt < MT; mt++) tile[mt] = of.weights + (u64)min(n * MT + mt, last) * blocks * W::BYTES;
    const Fill constants = W::constants(p.zero);
    constexpr bool AHEAD = W::CHANNELS == 64;  // else two blocks in registers would spill
    typename W::Raw raw[MT] = {};
    auto ask = [&](int block) {
#pragma unroll
        for (int mt = 0; mt < MT; mt++) raw[mt] = W::load(tile[mt] + (u64)block * W::BYTES, lane);
    };
    if (AHEAD && warp < blocks) ask(warp);  // weights do not depend on the kernel before
    pdl_wait();
    pdl_trigger();
    const u16* const row = p.x + (u64)(NT == 1 ? of.source(min(g, of.count - 1)) : of.first + g) * p.channels + 4 * t;
    float total[MT][NT][4] = {};
#pragma unroll 1
    for (int block = warp; block < blocks; block += LINEAR_WARPS) {
        if (!AHEAD) ask(block);
        typename W::Raw now[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) now[mt] = raw[mt];
        if (AHEAD && block + LINEAR_WARPS < blocks) ask(block + LINEAR_WARPS);
        const ReadActivations x = {row + (u64)block * W::CHANNELS, 8 * (u64)p.channels, of.count - g};
        add_block<W, MT, NT>(total, now, x, constants);
    }
    put_part<MT, NT>(parts[warp], total, lane);
    __syncthreads();
    write_tile<MT, NT>(p, of, parts, n);
}
template <class W, int MT, int NT>
DEVICE void linear_many(const LinearParams& p) { linear_many<W, MT, NT>(p, Span{p.weights, nullptr, 0, p.tokens}, blockIdx.x); }
// Grid: (groups of at most 8 pairs, MT tiles).
template <class W, int MT>
DEVICE void linear_group(const GroupedParams& p) {
    const Span of = group_span(p, blockIdx.x);
    if (of.count) linear_many<W, MT, 1>(p.p, of, blockIdx.y);
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
    float total[1][1][4] = {};
    auto finish = [&]() {
        put_part<1, 1>(parts[turn][warp], total, lane);
        __syncthreads();
        write_tile<1, 1>(p, Span{nullptr, nullptr, 0, p.tokens}, parts[turn], tile);
        turn ^= 1, tile += gridDim.x, block = warp, x.step = first;
#pragma unroll
        for (int j = 0; j < 4; j++) total[0][0][j] = 0.f;
    };
    if (warp >= blocks)
        while (tile < tiles) finish();
#pragma unroll 1
    while (tile < tiles) {
#pragma unroll
        for (int i = 0; i < W::DEPTH; i++) {
            add_block<W, 1, 1>(total, &raw[i], x, constants);
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

#define KERNEL(NAME, PARAMS, WHAT, CTAS) \
    extern "C" __global__ void __launch_bounds__(LINEAR_WARPS * 32, CTAS) NAME(const __grid_constant__ PARAMS p) { WHAT(p); }
// Two tiles' raw blocks of 256 channels would spill.
#define KERNELS(NAME, TYPE)                                                                            \
    KERNEL(linear_##NAME##_few, LinearParams, (linear_few<TYPE>), 2)                                   \
    KERNEL(linear_##NAME##_t8, LinearParams, (linear_many<TYPE, TYPE::CHANNELS == 64 ? 2 : 1, 1>), 2)    \
    KERNEL(linear_##NAME##_t32, LinearParams, (linear_many<TYPE, TYPE::CHANNELS == 64 ? 2 : 1, 4>), 1)   \
    KERNEL(linear_##NAME##_group8, GroupedParams, (linear_group<TYPE, TYPE::CHANNELS == 64 ? 2 : 1>), 2) \
    extern "C" __global__ void __launch_bounds__(256) embed_##NAME(const __grid_constant__ EmbedParams p) { embed<TYPE>(p); }
KERNELS(q4_0, Q4_0)
KERNELS(q8_0, Q8_0)
KERNELS(f16, F16)
KERNELS(q4_k, Q4_K)
KERNELS(q6_k, Q6_K)
KERNELS(q4_1, Q4_1)
KERNELS(q5_k, Q5_K)
KERNELS(mxfp4, MXFP4)
