// Entry points: decode attention over f16 pages, and the reduce that all codecs share.
#include "decode.cuh"
#include "reduce.cuh"
#undef KERNEL
#define KERNEL(NAME, D, CAP, STAGES)                                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) NAME(const __grid_constant__ AttentionParams p) {      \
        decode<D, CAP, ExactCodec<D>, STAGES>(p);                                                                      \
    }                                                                                                                  \
    extern "C" __device__ const int NAME##_shared = sizeof(DecodeShared<D, ExactCodec<D>, STAGES>);
KERNEL(attend_f16_d128, 128, false, 2)
KERNEL(attend_f16_d64, 64, false, 4)
KERNEL(attend_f16_cap_d128, 128, true, 2)
KERNEL(attend_f16_cap_d64, 64, true, 4)
#define REDUCE(NAME, D) \
    extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) NAME(const __grid_constant__ AttentionParams p) { reduce<D>(p); }
REDUCE(reduce_d128, 128)
REDUCE(reduce_d64, 64)
