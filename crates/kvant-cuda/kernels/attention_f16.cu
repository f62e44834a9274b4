// Entry points: attention over f16 pages, and the reduce that all codecs share. Where there is no `_cap` of a kernel, it has both.
#include "decode.cuh"
#include "reduce.cuh"
ATTEND(attend_f16_d128, 128, PLAIN, ExactCodec<128>, 2, 1, false, 1, 2)
ATTEND(attend_f16_cap_d128, 128, CAPPED, ExactCodec<128>, 2, 1, false, 1, 2)
ATTEND(attend_many_f16_d128, 128, EITHER, ExactCodec<128>, 2, 2, true, 1, 2)
ATTEND(attend_f16_d64, 64, PLAIN, ExactCodec<64>, 4, 1, false, 1, 2)
ATTEND(attend_f16_cap_d64, 64, CAPPED, ExactCodec<64>, 4, 1, false, 1, 2)
ATTEND(attend_many_f16_d64, 64, EITHER, ExactCodec<64>, 4, 2, true, 1, 2)
ATTEND(attend_many_f16_d256, 256, EITHER, ExactCodec<256>, 2, 1, true, 1, 1)
#define REDUCE(NAME, D) \
    extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) NAME(const __grid_constant__ ReduceParams p) { reduce<D>(p); }
REDUCE(reduce_d64, 64)
REDUCE(reduce_d128, 128)
REDUCE(reduce_d256, 256)
REDUCE(reduce_d512, 512)
#define REDUCE_MANY(NAME, D) \
    extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) NAME(const __grid_constant__ ReduceParams p) { reduce_many<D>(p); }
REDUCE_MANY(reduce_many_d64, 64)
REDUCE_MANY(reduce_many_d128, 128)
#define REDUCE_ANY(NAME, D) \
    extern "C" __global__ void __launch_bounds__(REDUCE_THREADS) NAME(const __grid_constant__ ReduceParams p) { reduce_any<D>(p); }
REDUCE_ANY(reduce_d80, 80)
REDUCE_ANY(reduce_d96, 96)
REDUCE_ANY(reduce_d192, 192)
