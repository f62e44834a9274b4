// Entry points: decode attention over int4 pages. Dynamic shared memory: sizeof(DecodeShared), see the manifest.
#include "int4.cuh"
#define KERNEL(NAME, D, CAP, STAGES)                                                                                   \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) NAME(const __grid_constant__ AttentionParams p) {      \
        decode<D, CAP, Int4Codec<D>, STAGES>(p);                                                                       \
    }                                                                                                                  \
    extern "C" __device__ const int NAME##_shared = sizeof(DecodeShared<D, Int4Codec<D>, STAGES>);
KERNEL(attend_int4_d128, 128, false, 2)
KERNEL(attend_int4_d64, 64, false, 4)
KERNEL(attend_int4_cap_d128, 128, true, 2)
KERNEL(attend_int4_cap_d64, 64, true, 4)
