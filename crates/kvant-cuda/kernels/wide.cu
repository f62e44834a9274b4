// Products of one matrix with many tokens: wide.cuh has how. What does not fill the last round may be cut into tiles of half as many tokens.
#include "wide.cuh"

struct WideParams {
    static constexpr bool EARLY = true;
    LinearParams p;
    int token_tiles;   // of N tokens
    int whole, tiles;  // tiles of N tokens, then those of N / 2, in all
    int apart;         // segments, where each is a tile of its own and y has (segments, tokens, rows), which add_segments adds up; else 0; N <= 64

#ifdef HAS_WIDE
    template <int N>
    DEVICE WidePlace place(int tile) const {
        int n = tile, segment = 0, first = 0, parts = p.channels / 64;
        if (N <= 64 && apart) {
            n = tile / apart, segment = tile - n * apart, first = segment * SEGMENT;
            parts = min(SEGMENT, parts - first);
        }
        const bool half = n >= whole;
        if (half) n = whole + (tile - whole) / 2;
        const int panel = n / token_tiles, token = (n - panel * token_tiles) * N;
        return {panel, token + (half ? (tile - whole) % 2 * (N / 2) : 0), p.tokens, panel * 8, segment, first, parts, half, true};
    }
#endif
};

#ifdef HAS_WIDE
#define WIDE(NAME, W, N, G)                                                                                                                                            \
    extern "C" __global__ void __launch_bounds__(384, 1) linear_##NAME##_w##N(const __grid_constant__ WideMaps maps, const __grid_constant__ WideParams p) {           \
        linear_wide<W, N, G>(maps, p);                                                                                                                                   \
    }                                                                                                                                                                  \
    extern "C" __device__ const int linear_##NAME##_w##N##_shared = WideShape<W, N>::SHARED;
#else
#define WIDE(NAME, W, N, G) extern "C" __device__ const int linear_##NAME##_w##N##_shared = WideShape<W, N>::SHARED;
#endif

#define KERNELS(NAME, W) \
    WIDE(NAME, W, 16, 4) \
    WIDE(NAME, W, 32, 4) \
    WIDE(NAME, W, 64, 4) \
    WIDE(NAME, W, 128, 2) \
    WIDE(NAME, W, 176, 2)
#include "weight_types.cuh"
