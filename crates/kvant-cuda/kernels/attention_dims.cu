// Entry points: attention over heads of 80, 96 and 192 channels. All of these kernels have soft caps too, and heads of 192
// channels one kernel for one query token and for many.
#include "packed.cuh"
#define ATTEND_SMALL(D, CODEC, NAME, STAGES, PER_SM)                                   \
    ATTEND(attend_##NAME##_d##D, D, EITHER, CODEC, STAGES, 1, false, 1, PER_SM)         \
    ATTEND(attend_many_##NAME##_d##D, D, EITHER, CODEC, STAGES, 2, true, 1, PER_SM)
template <int D> using Int4Codec = PackedCodec<D, 4, 4>;
template <int D> using Int8Codec = PackedCodec<D, 8, 8>;
template <int D> using K8V4Codec = PackedCodec<D, 8, 4>;
ATTEND_SMALL(80, Int4Codec<80>, int4, 3, 2)
ATTEND_SMALL(80, Int8Codec<80>, int8, 2, 2)
ATTEND_SMALL(80, K8V4Codec<80>, k8v4, 2, 2)
ATTEND_SMALL(80, ExactCodec<80>, f16, 3, 2)
ATTEND_SMALL(96, Int4Codec<96>, int4, 2, 2)
ATTEND_SMALL(96, Int8Codec<96>, int8, 1, 2)
ATTEND_SMALL(96, K8V4Codec<96>, k8v4, 2, 2)
ATTEND_SMALL(96, ExactCodec<96>, f16, 2, 2)
ATTEND(attend_many_int4_d192, 192, EITHER, Int4Codec<192>, 1, 1, true, 1, 2)
ATTEND(attend_many_int8_d192, 192, EITHER, Int8Codec<192>, 2, 1, true, 3, 1)
ATTEND(attend_many_k8v4_d192, 192, EITHER, K8V4Codec<192>, 1, 1, true, 3, 2)
ATTEND(attend_many_f16_d192, 192, EITHER, ExactCodec<192>, 2, 1, true, 3, 2)
