// Products of experts with the pairs of token and expert that moe.cu has sorted by expert: the tiles of wide.cuh, of at most 128 pairs of one expert, or of
// 64 where a group has no more. Activations are those of pairs, one after another, so that the copy engine can bring them.
#include "wide.cuh"

struct WideGroupsParams {
    static constexpr bool EARLY = false;  // which expert it is decides which weights are read
    LinearParams p;      // rows of one expert; tokens are pairs
    const int4* groups;  // (most): expert, first pair, pairs; those that are not, the last ones, have none
    int panels, tiles;   // of 128 rows; of all groups that there can be

#ifdef HAS_WIDE
    template <int N>
    DEVICE WidePlace place(int tile) const {
        const int group = tile / panels, panel = tile - group * panels;
        const int4 own = __ldcg(groups + group);
        return {panel, own.y, own.y + own.z, own.x * (p.rows / 16) + panel * 8, 0, 0, p.channels / 64, own.z <= N / 2, own.z > 0};
    }
#endif
};

#ifdef HAS_WIDE
#define KERNELS(NAME, W)                                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(384, 1) linear_##NAME##_group128(const __grid_constant__ WideMaps maps, const __grid_constant__ WideGroupsParams p) { \
        linear_wide<W, 128, 2>(maps, p);                                                                                                                               \
    }                                                                                                                                                                  \
    extern "C" __device__ const int linear_##NAME##_group128_shared = WideShape<W, 128>::SHARED;
#else
#define KERNELS(NAME, W) extern "C" __device__ const int linear_##NAME##_group128_shared = WideShape<W, 128>::SHARED;
#endif
#include "weight_types.cuh"
