// Products of packed weights with many tokens by mma.sync: tiles of rows and tokens on the tensor cores, weights and activations staged in shared
// memory while the part before is multiplied. For cards below Hopper, and for experts. wide.cu has the same sums by wgmma.
#include "weights.cuh"

// A CTA of WM x WN warps, each with MT tiles of 16 rows and NT tiles of 8 tokens. Parts of 64 channels are staged: activations
// (token, 64 channels), whose 16-byte pieces are permuted by the token so that eight rows of a matrix meet every bank once; then the parts
// of the tiles' weights.
template <class W, int MT, int NT, int WM, int WN, int STAGES>
struct Tiling {
    static constexpr int THREADS = WM * WN * WARP, TILES = WM * MT, TOKENS = WN * NT * 8;
    static constexpr int X_BYTES = TOKENS * 128, STAGE = X_BYTES + TILES * W::STAGED, SHARED = STAGES * STAGE;
    static_assert(TOKENS * 8 % THREADS == 0 && W::STAGED % 16 == 0, "copies are of 16 bytes");
};

template <class W, int MT, int NT, int WM, int WN, int STAGES>
DEVICE void linear_tile(const LinearParams& p, const Span& of) {
    typedef Tiling<W, MT, NT, WM, WN, STAGES> T;
    DYNAMIC_SHARED(memory);
    constexpr int PARTS = W::CHANNELS / 64;
    const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, g = lane / 4, t = lane % 4;
    const int parts = p.channels / 64, first_tile = blockIdx.y * T::TILES;

    // What lies past the last tile or token is a copy of that, and is not written.
    constexpr int UNITS = W::STAGED / 16, X_COPIES = T::TOKENS * 8 / T::THREADS, W_COPIES = (T::TILES * UNITS + T::THREADS - 1) / T::THREADS;
    u32 x_at[X_COPIES], w_at[W_COPIES];  // in units of 16 bytes
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) {
        const int token = threadIdx.x / 8 + i * (T::THREADS / 8);
        x_at[i] = (u32)of.source(min(token, of.count - 1)) * (p.channels / 8) + threadIdx.x % 8;
    }
#pragma unroll
    for (int i = 0; i < W_COPIES; i++)
        w_at[i] = (u32)min(first_tile + (int)(threadIdx.x + i * T::THREADS) / UNITS, (p.rows + 15) / 16 - 1) * (p.channels / W::CHANNELS) * (W::BYTES / 16);
    auto copy_weights = [&](u8* stage, int part) {
#pragma unroll
        for (int i = 0; i < W_COPIES; i++) {
            const int n = threadIdx.x + i * T::THREADS;
            if (n >= T::TILES * UNITS) break;
            const u32 block = part / PARTS * W::BYTES, unit = W::source(n % UNITS * 16, part % PARTS);
            copy16(stage + T::X_BYTES + n * 16, of.weights + (u64)w_at[i] * 16 + block + unit);
        }
    };
    auto copy_activations = [&](u8* stage, int part) {
#pragma unroll
        for (int i = 0; i < X_COPIES; i++) {
            const int token = threadIdx.x / 8 + i * (T::THREADS / 8);
            copy16(stage + token * 128 + (threadIdx.x % 8 ^ token % 8) * 16, p.x + ((u64)x_at[i] + part * 8) * 8);
        }
    };
    int ahead = min(parts, STAGES - 1);  // the next part to copy
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        if (i < ahead) copy_weights(memory + i * T::STAGE, i);
    pdl_wait();
    pdl_trigger();
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < ahead) copy_activations(memory + i * T::STAGE, i);
        end_copies();
    }

    const int row_tile = warp % WM * MT, token_tile = warp / WM * NT;
    float total[MT][NT][4] = {}, sum[MT][NT][4] = {};
    int stage = 0;  // in bytes
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
        wait_copies<STAGES - 2>();
        __syncthreads();  // this stage is there for all, and the one before has been read by all
        if (ahead < parts) {
            u8* const before = memory + (stage ? stage : T::STAGE * STAGES) - T::STAGE;
            copy_weights(before, ahead), copy_activations(before, ahead);
            ahead++;
        }
        end_copies();
        const u8* const here = memory + stage;
        typename W::Part w[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            const u8* const own = here + T::X_BYTES + (row_tile + mt) * W::STAGED;
            w[mt] = W::staged(own, own + W::PART, lane);
        }
        const u8* const tokens = here + (token_tile * 8 + lane % 8) * 128;  // this lane's row of the matrices
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            u32 a[MT][2][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++) W::fragment(a[mt][0], w[mt], 2 * pair), W::fragment(a[mt][1], w[mt], 2 * pair + 1);
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const uint4 b = load_matrices(reinterpret_cast<const u16*>(tokens + nt * 1024 + ((4 * pair + lane / 8) ^ lane % 8) * 16));
#pragma unroll
                for (int k = 0; k < 2; k++)
#pragma unroll
                    for (int mt = 0; mt < MT; mt++)
                        mma16816(total[mt][nt], a[mt][k][0], a[mt][k][1], a[mt][k][2], a[mt][k][3], k ? b.z : b.x, k ? b.w : b.y);
            }
        }
        if ((part + 1) % SEGMENT == 0 || part + 1 == parts) {
#pragma unroll
            for (int i = 0; i < MT * NT * 4; i++) {
                sum[i / 4 / NT][i / 4 % NT][i % 4] += total[i / 4 / NT][i / 4 % NT][i % 4];
                total[i / 4 / NT][i / 4 % NT][i % 4] = 0.f;
            }
        }
        stage = stage == T::STAGE * (STAGES - 1) ? 0 : stage + T::STAGE;
    }
    if (p.gated) {
#pragma unroll
        for (int i = 0; i < MT * NT; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int row = (first_tile + row_tile + i / NT) * 8 + g, token = (token_tile + i % NT) * 8 + 2 * t + j;
                if (2 * row < p.rows && token < of.count) p.put_gated(of.first + token, row, sum[i / NT][i % NT][j], sum[i / NT][i % NT][2 + j]);
            }
        return;
    }
#pragma unroll
    for (int i = 0; i < MT * NT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int row = (first_tile + row_tile + i / NT) * 16 + g + j / 2 * 8, token = (token_tile + i % NT) * 8 + 2 * t + j % 2;
            if (row < p.rows && token < of.count) p.put((u64)(of.first + token) * p.rows + row, sum[i / NT][i % NT][j]);
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
// 64 rows and 64 tokens, three CTAs on an SM; 32 tokens where there are no more; 128 rows and 128 tokens for many. Below Hopper there are as little
// as 99 KB of shared memory for a CTA.
#define KERNELS(NAME, W)                             \
    KERNEL(linear_##NAME##_t32, W, 1, 4, 4, 1, 4, 3)   \
    KERNEL(linear_##NAME##_tile, W, 2, 4, 2, 2, 3, 3)  \
    KERNEL(linear_##NAME##_large, W, 2, 8, 4, 2, 3, 1) \
    GROUPED(linear_##NAME##_group64, W)
#include "weight_types.cuh"
