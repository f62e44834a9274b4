// Products of packed weights with up to 8 tokens' activations, and rows of packed embeddings.
//
// A CTA's units of work, a segment of a tile of 16 rows, are dealt to its warps round robin. A warp has DEPTH parts of 64 channels on their
// way, across units; it leaves a segment's sums in shared memory and goes on. At the end all are added in ascending order: no warp waits for
// another until then. A column of the mma tile is a token, so up to 8 tokens cost what one does. tile.cu and wide.cu have more.
#include "weights.cuh"

constexpr int FEW_WARPS = 14;

// Activations in shared memory, (pairs of k-steps, tokens, t) of channels 2t, 2t+1, 2t+8, 2t+9 of both. Four lanes read 8 channels each of a pair and
// exchange them, so that both sides move 16 bytes.
template <int AHEAD>  // loads of a warp under way
DEVICE void stage_activations(uint4* to, const LinearParams& p, const Span& of, int count) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const bool odd = lane & 1, high = lane & 2;
    const int eights = p.channels / 8, total = (eights + WARP - 1) / WARP * count;
    for (int first = warp; first < total; first += AHEAD * FEW_WARPS) {
        uint4 v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int n = first + k * FEW_WARPS, i = n / count * WARP + lane;
            v[k] = {0u, 0u, 0u, 0u};
            if (n < total && i < eights) v[k] = __ldcg(reinterpret_cast<const uint4*>(p.x + (u64)of.source(n % count) * p.channels) + i);
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int n = first + k * FEW_WARPS, i = n / count * WARP + lane;
            const u32 r0 = __shfl_xor_sync(~0u, odd ? v[k].x : v[k].y, 1), r1 = __shfl_xor_sync(~0u, odd ? v[k].z : v[k].w, 1);
            const u32 x = odd ? r0 : v[k].x, y = odd ? v[k].y : r0, z = odd ? r1 : v[k].z, w = odd ? v[k].w : r1;
            const u32 r2 = __shfl_xor_sync(~0u, high ? x : z, 2), r3 = __shfl_xor_sync(~0u, high ? y : w, 2);
            if (n < total && i < eights) to[(i / 4 * count + n % count) * 4 + i % 4] = {high ? r2 : x, high ? r3 : y, high ? z : r2, high ? w : r3};
        }
    }
}

// The same of one row of f32 that goes through an RMS norm, with the sums of `rms_norm` (rows.cu): the warps of a CTA stand for its 16. The row and the
// weights of the norm, which are asked for before the row is there, wait in shared memory: (channels) f32 of each.
constexpr int NORM_WARPS = 16;
struct NormedRow {
    const LinearParams& p;
    u8* const memory;

    // Every four numbers of this thread, in order.
    template <class Use>
    DEVICE void each(Use use) const {
#pragma unroll 1
        for (int i = threadIdx.x; i < NORM_WARPS * WARP; i += FEW_WARPS * WARP)
#pragma unroll 1
            for (int k = i; k < p.channels / 4; k += NORM_WARPS * WARP) use(k);
    }
    DEVICE float4 four(int k) const { return *reinterpret_cast<const float4*>(memory + 16 * k); }
    DEVICE void copy(int at, const void* from) const {
        each([&](int k) { copy16(memory + 16 * (at + k), static_cast<const u8*>(from) + 16 * k); });
        end_copies();
    }
    DEVICE void ask_for_weights() const { copy(p.channels / 4, p.norm); }
    DEVICE void stage(u32* to, float* scratch) const {  // scratch: 16 numbers
        copy(0, p.x);
        wait_copies<0>();  // a thread reads what it has copied itself
#pragma unroll 1
        for (int i = threadIdx.x; i < NORM_WARPS * WARP; i += FEW_WARPS * WARP) {
            float sum = 0.f;
#pragma unroll 1
            for (int k = i; k < p.channels / 4; k += NORM_WARPS * WARP) {
                const float4 v = four(k);
                sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
            }
            sum = over_warp(sum, [](float a, float b) { return a + b; });
            if (threadIdx.x % WARP == 0) scratch[i / WARP] = sum;
        }
        __syncthreads();
        float sum = 0.f;
        for (int w = 0; w < NORM_WARPS; w++) sum += scratch[w];
        const float r = rsqrtf(sum / p.channels + p.eps);
        each([&](int k) {
            const float4 v = four(k), w = four(p.channels / 4 + k);
            u32* const at = to + (k / 8 * 4 + k % 2 * 2) * 4 + k % 8 / 2;  // of t and of t + 1
            at[0] = pack_f16x2(v.x * r * w.x, v.y * r * w.y), at[4] = pack_f16x2(v.z * r * w.z, v.w * r * w.w);
        });
    }
};

// A warp's walk over the pieces of its units.
struct Units {
    int tile, segment;  // of the CTA's tiles
    const u8* weights;  // of the piece, or of the block that it is half of
    int left;           // parts of the segment
};

// Tiles cta, cta + ctas, … of the matrix; COUNT tokens, or those of the span where it is 0. A segment is taken in pieces of DEPTH parts. Where channels are not
// whole pieces, weights after the last ones are read, which a matrix has (src/matrix.rs), under activations of zero: a branch there would have
// every load waited for.
template <class W, int COUNT>
DEVICE void linear_few(const LinearParams& p, const Span& of, int cta, int ctas) {
    constexpr int DEPTH = W::DEPTH;
    constexpr bool HALVES = DEPTH * 64 < W::CHANNELS;  // a piece is half a block
    static_assert(SEGMENT % DEPTH == 0 && (HALVES ? DEPTH == 2 : DEPTH * 64 % W::CHANNELS == 0), "segments are whole pieces but for the last one");
    DYNAMIC_SHARED(memory);
    const bool normed = COUNT == 1 && p.norm;
    uint4* const x = reinterpret_cast<uint4*>(memory + (normed ? 8 * p.channels : 0));
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4, count = COUNT ? COUNT : of.count;
    const int parts = p.channels / 64, segments = (parts + SEGMENT - 1) / SEGMENT, tile_bytes = p.channels / W::CHANNELS * W::BYTES;
    const int pair = count * 4, rest = (DEPTH - parts % DEPTH) % DEPTH;  // from a pair of k-steps to the next; parts of zeros
    float* const sums = reinterpret_cast<float*>(x + (parts + rest) * 2 * pair);  // [tile][segment][token][16]
    const int tiles = ((p.rows + 15) / 16 - cta + ctas - 1) / ctas, tile_step = FEW_WARPS / segments, segment_step = FEW_WARPS % segments;
    auto find = [&](Units& at) {
        at.weights = of.weights + (u64)(cta + at.tile * ctas) * tile_bytes + at.segment * (SEGMENT * 64 / W::CHANNELS * W::BYTES);
        at.left = min(SEGMENT, parts - at.segment * SEGMENT);
    };
    // On by a piece; whether the segment has ended.
    auto advance = [&](Units& at) {
        at.left -= DEPTH;
        if (!HALVES || at.left % 4 == 0) at.weights += HALVES ? W::BYTES : DEPTH * W::BYTES;
        if (at.left > 0) return false;
        at.tile += tile_step, at.segment += segment_step;
        if (at.segment >= segments) at.segment -= segments, at.tile++;
        find(at);
        return true;
    };
    Units ahead = {warp / segments, warp % segments};
    find(ahead);
    Units now = ahead;
    typename W::Part raw[DEPTH];
    if (ahead.tile < tiles) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) raw[i] = W::load(ahead.weights, i, lane);  // units begin with a whole block
        advance(ahead);
    }
    const NormedRow row = {p, memory};
    if (normed) row.ask_for_weights();
    pdl_wait();
    pdl_trigger();
    if (normed) row.stage(reinterpret_cast<u32*>(x), sums);
    else stage_activations<(sizeof(raw) > 120 ? 1 : 2)>(x, p, of, count);
    for (int i = threadIdx.x; i < rest * 2 * pair; i += FEW_WARPS * WARP) x[parts * 2 * pair + i] = {0u, 0u, 0u, 0u};
    __syncthreads();
    // Of one token: what this thread's first sum is added to, asked for long before.
    const int first_row = (cta + threadIdx.x / 16 * ctas) * 16 + threadIdx.x % 16;
    float before = 0.f;
    if (COUNT == 1 && p.accumulate && threadIdx.x < tiles * 16 && first_row < p.rows) before = p.y[(u64)of.first * p.rows + first_row];
    const uint4* const own = x + (COUNT == 1 ? 0 : min(g, count - 1) * 4) + t;
#pragma unroll 1
    while (now.tile < tiles) {
        float* const sum = sums + (now.tile * segments + now.segment) * 16 * count;
        const uint4* steps = own + now.segment * (SEGMENT * 2 * pair);
        float d[4] = {};
#pragma unroll 1
        for (bool ended = false; !ended; steps += DEPTH * 2 * pair) {
            const bool more = ahead.tile < tiles;
            const u8* const from = ahead.weights;
            const int half = HALVES && ahead.left % 4 == 2 ? 2 : 0;
#pragma unroll
            for (int i = 0; i < DEPTH; i++) {
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint4 b = steps[(2 * i + h) * pair];
                    u32 a[4];
                    W::fragment(a, raw[i], 2 * h);
                    mma16816(d, a[0], a[1], a[2], a[3], b.x, b.y);
                    W::fragment(a, raw[i], 2 * h + 1);
                    mma16816(d, a[0], a[1], a[2], a[3], b.z, b.w);
                }
                if (more) raw[i] = W::load(from, half + i, lane);
            }
            if (more) advance(ahead);
            ended = advance(now);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (2 * t + j % 2 < count) sum[(2 * t + j % 2) * 16 + g + j / 2 * 8] = d[j];
    }
    __syncthreads();
    if (p.gated) {
        for (int i = threadIdx.x; i < tiles * 8 * count; i += FEW_WARPS * WARP) {
            const int tile = i / (8 * count), token = i / 8 % count, row = (cta + tile * ctas) * 8 + i % 8;
            const float* s = sums + (tile * segments * count + token) * 16 + i % 8;
            float gate = 0.f, up = 0.f;
            for (int k = 0; k < segments; k++) gate += s[k * 16 * count], up += s[k * 16 * count + 8];
            if (2 * row < p.rows) p.put_gated(of.first + token, row, gate, up);
        }
        return;
    }
    for (int i = threadIdx.x; i < tiles * 16 * count; i += FEW_WARPS * WARP) {
        const int tile = i / (16 * count), at = i % (16 * count), row = (cta + tile * ctas) * 16 + at % 16;
        const float* s = sums + tile * segments * 16 * count + at;
        float sum = 0.f;
        for (int k = 0; k < segments; k++) sum += s[k * 16 * count];
        if (row >= p.rows) continue;
        const u64 to = (u64)(of.first + at / 16) * p.rows + row;
        if (COUNT == 1 && i == threadIdx.x) p.y[to] = p.accumulate ? fmaf(p.scale, sum, before) : p.scale * sum;
        else p.put(to, sum);
    }
}
// One token. Grid: (CTAs).
template <class W>
DEVICE void linear_one(const LinearParams& p) { linear_few<W, 1>(p, Span{p.weights, nullptr, 0, 1}, blockIdx.x, gridDim.x); }
// Grid: (CTAs, shares of the tokens).
template <class W>
DEVICE void linear_few(const LinearParams& p) {
    const int share = (p.tokens + gridDim.y - 1) / gridDim.y, first = blockIdx.y * share;
    linear_few<W, 0>(p, Span{p.weights, nullptr, first, min(share, p.tokens - first)}, blockIdx.x, gridDim.x);
}
// Grid: (groups of at most 8 pairs, CTAs).
template <class W>
DEVICE void linear_group(const GroupedParams& p) {
    const Span of = group_span(p, blockIdx.x);
    if (of.count) linear_few<W, 0>(p.p, of, blockIdx.y, gridDim.y);
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

#define KERNELS(NAME, TYPE)                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(FEW_WARPS * 32, 2) linear_##NAME##_one(const __grid_constant__ LinearParams p) { linear_one<TYPE>(p); } \
    extern "C" __global__ void __launch_bounds__(FEW_WARPS * 32, 2) linear_##NAME##_few(const __grid_constant__ LinearParams p) { linear_few<TYPE>(p); } \
    extern "C" __global__ void __launch_bounds__(FEW_WARPS * 32, 2) linear_##NAME##_group8(const __grid_constant__ GroupedParams p) { linear_group<TYPE>(p); } \
    extern "C" __global__ void __launch_bounds__(256) embed_##NAME(const __grid_constant__ EmbedParams p) { embed<TYPE>(p); }
#include "weight_types.cuh"
