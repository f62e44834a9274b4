// Products of packed weights with many tokens: tiles of rows and tokens on the tensor cores, weights and activations staged in shared
// memory while the tile before is multiplied.
//
// The order of sums is that of linear.cu: what there is a warp's share, every eighth block of channels, is here a turn of the one loop
// over channels, and turns are added up in the order of warps. So a token has the same bits however many others come with it.
#include "weights.cuh"

// A CTA of WM x WN warps, each with MT tiles of 16 rows and NT tiles of 8 tokens. Parts of 64 channels are staged: activations
// (token, 64 channels), whose 32-byte k-steps are permuted by the token so that a warp's reads meet every bank once; then the parts
// of the tiles' weights. The sums of turns lie in shared memory too, where a thread has its own: two sets of accumulators would not leave
// enough registers for two CTAs on an SM.
template <class W, int MT, int NT, int WM, int WN, int STAGES>
struct Tiling {
    static constexpr int THREADS = WM * WN * WARP, TILES = WM * MT, TOKENS = WN * NT * 8;
    static constexpr int X_BYTES = TOKENS * 128, STAGE = X_BYTES + TILES * W::PART, SUMS = THREADS * MT * NT * 16, SHARED = SUMS + STAGES * STAGE;
    static_assert(TOKENS * 8 % THREADS == 0 && W::PART % 16 == 0, "copies are of 16 bytes");
};

// The activations of a warp's tiles of tokens in a stage.
struct TileActivations {
    const u8* step;  // this lane's of tile 0 and k-step 0
    int turn;        // permutation of its token's k-steps, in bytes
    DEVICE uint2 at(int nt, int ks) const { return load_shared_pair(step + nt * 1024 + (turn ^ ks * 32)); }
};

// The parts of all blocks in the order of sums.
template <class W>
struct Order {
    static constexpr int PARTS = W::CHANNELS / 64;
    int turn, part;
    DEVICE Order() : turn(0), part(0) {}
    // On to the next of so many; whether a turn has ended.
    DEVICE bool advance(int parts) {
        if (++part % PARTS) return false;
        part += (LINEAR_WARPS - 1) * PARTS;
        if (part < parts) return false;
        part = ++turn * PARTS;
        return true;
    }
};

template <class W, int MT, int NT, int WM, int WN, int STAGES>
DEVICE void linear_tile(const LinearParams& p, const Span& of) {
    typedef Tiling<W, MT, NT, WM, WN, STAGES> T;
    DYNAMIC_SHARED(sums);
    u8* const memory = sums + T::SUMS;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int parts = p.channels / 64, turns = min(parts / Order<W>::PARTS, LINEAR_WARPS);
    const int first_tile = blockIdx.y * T::TILES;
    const Fill constants = W::constants(p.zero);

    // What lies past the last tile or token is a copy of that, and is not written.
    constexpr int UNITS = W::PART / 16, X_COPIES = T::TOKENS * 8 / T::THREADS, W_COPIES = (T::TILES * UNITS + T::THREADS - 1) / T::THREADS;
    u32 x_at[X_COPIES], w_at[W_COPIES];  // in units of 16 bytes
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) {
        const int token = threadIdx.x / 8 + i * (T::THREADS / 8);
        x_at[i] = (u32)of.source(min(token, of.count - 1)) * (p.channels / 8) + threadIdx.x % 8;
    }
#pragma unroll
    for (int i = 0; i < W_COPIES; i++)
        w_at[i] = (u32)min(first_tile + (int)(threadIdx.x + i * T::THREADS) / UNITS, (p.rows + 15) / 16 - 1) * (p.channels / W::CHANNELS) * (W::BYTES / 16);
    auto copy_weights = [&](u8* stage, const Order<W>& at) {
#pragma unroll
        for (int i = 0; i < W_COPIES; i++) {
            const int n = threadIdx.x + i * T::THREADS;
            if (n >= T::TILES * UNITS) break;
            const u32 block = at.part / Order<W>::PARTS * W::BYTES, unit = W::source(n % UNITS * 16, at.part % Order<W>::PARTS);
            copy16(stage + T::X_BYTES + n * 16, of.weights + (u64)w_at[i] * 16 + block + unit);
        }
    };
    auto copy_activations = [&](u8* stage, const Order<W>& at) {
#pragma unroll
        for (int i = 0; i < X_COPIES; i++) {
            const int token = threadIdx.x / 8 + i * (T::THREADS / 8);
            copy16(stage + token * 128 + (threadIdx.x % 8 * 16 ^ token % 4 * 32), p.x + ((u64)x_at[i] + at.part * 8) * 8);
        }
    };
    Order<W> ahead, now;
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        if (ahead.turn < turns) copy_weights(memory + i * T::STAGE, ahead), ahead.advance(parts);
    pdl_wait();
    pdl_trigger();
    ahead = Order<W>();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (ahead.turn < turns) copy_activations(memory + i * T::STAGE, ahead), ahead.advance(parts);
        end_copies();
    }

    const int row_tile = warp % WM * MT, token_tile = warp / WM * NT;
    float total[MT][NT][4] = {};
    float4* const sum = reinterpret_cast<float4*>(sums) + threadIdx.x;  // (MT, NT, threads)
#pragma unroll
    for (int i = 0; i < MT * NT; i++) sum[i * T::THREADS] = make_float4(0.f, 0.f, 0.f, 0.f);
    int stage = 0;  // in bytes
#pragma unroll 1
    while (now.turn < turns) {
        wait_copies<STAGES - 2>();
        __syncthreads();  // this stage is there for all, and the one before has been read by all
        if (ahead.turn < turns) {
            u8* const before = memory + (stage ? stage : T::STAGE * STAGES) - T::STAGE;
            copy_weights(before, ahead), copy_activations(before, ahead);
            ahead.advance(parts);
        }
        end_copies();
        const u8* const here = memory + stage;
        typename W::Part w[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) w[mt] = W::staged(here + T::X_BYTES + (row_tile + mt) * W::PART, lane);
        const TileActivations x = {here + (token_tile * 8 + g) * 128 + t * 8, g % 4 * 32};
        W::template add<MT, NT>(total, w, x, 0, constants);
        if (now.advance(parts)) {
#pragma unroll
            for (int i = 0; i < MT * NT; i++) {
                float(&own)[4] = total[i / NT][i % NT];
                const float4 s = sum[i * T::THREADS];
                sum[i * T::THREADS] = make_float4(s.x + own[0], s.y + own[1], s.z + own[2], s.w + own[3]);
#pragma unroll
                for (int j = 0; j < 4; j++) own[j] = 0.f;
            }
        }
        stage = stage == T::STAGE * (STAGES - 1) ? 0 : stage + T::STAGE;
    }
#pragma unroll
    for (int i = 0; i < MT * NT; i++) {
        const float4 s = sum[i * T::THREADS];
        const float own[4] = {s.x, s.y, s.z, s.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = (first_tile + row_tile + i / NT) * 16 + g + j / 2 * 8, token = (token_tile + i % NT) * 8 + 2 * t + j % 2;
            if (row < p.rows && token < of.count) p.put((u64)(of.first + token) * p.rows + row, own[j]);
        }
    }
}

// Grid: (tiles of tokens, tiles of rows).
#define KERNEL(NAME, W, MT, NT, WM, WN, STAGES, CTAS)                                                               \
    extern "C" __global__ void __launch_bounds__(WM * WN * 32, CTAS) NAME(const __grid_constant__ LinearParams p) { \
        constexpr int TOKENS = WN * NT * 8;                                                                         \
        const int first = blockIdx.x * TOKENS;                                                                      \
        linear_tile<W, MT, NT, WM, WN, STAGES>(p, Span{p.weights, nullptr, first, min(TOKENS, p.tokens - first)});  \
    }                                                                                                               \
    extern "C" __device__ const int NAME##_shared = Tiling<W, MT, NT, WM, WN, STAGES>::SHARED;
// Grid: (groups of at most 64 pairs, tiles of rows).
#define GROUPED(NAME, W)                                                                               \
    extern "C" __global__ void __launch_bounds__(128, 3) NAME(const __grid_constant__ GroupedParams p) { \
        const Span of = group_span(p, blockIdx.x);                                                     \
        if (of.count) linear_tile<W, 2, 4, 2, 2, 3>(p.p, of);                                          \
    }                                                                                                  \
    extern "C" __device__ const int NAME##_shared = Tiling<W, 2, 4, 2, 2, 3>::SHARED;
// Three CTAs on an SM of 64 rows and 64 tokens each: on an H200 tiles of 128 rows are no faster. Below Hopper there are as little as 99 KB of
// shared memory for a CTA.
#define KERNELS(NAME, W)                           \
    KERNEL(linear_##NAME##_tile, W, 2, 4, 2, 2, 3, 3) \
    GROUPED(linear_##NAME##_group64, W)
KERNELS(q4_0, Q4_0)
KERNELS(q8_0, Q8_0)
KERNELS(f16, F16)
KERNELS(q4_k, Q4_K)
KERNELS(q6_k, Q6_K)
KERNELS(q4_1, Q4_1)
KERNELS(q5_k, Q5_K)
KERNELS(mxfp4, MXFP4)
