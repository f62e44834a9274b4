// Entry points: attention over heads of 512 channels, 128 of them to each warp of a CTA. One kernel for one query token and for many, with and
// without soft caps.
#include "packed.cuh"
using Int4Wide = PackedCodec<128, 4, 4, WARPS>;
using Int8Wide = PackedCodec<128, 8, 8, WARPS>;
using K8V4Wide = PackedCodec<128, 8, 4, WARPS>;
using ExactWide = ExactCodec<128, WARPS>;
#define ATTEND_WIDE(NAME, CODEC, STAGES, PER_SM) ATTEND(attend_many_##NAME##_d512, 128, EITHER, CODEC, STAGES, 1, true, 1, PER_SM)
ATTEND_WIDE(int4, Int4Wide, 2, 2)
ATTEND_WIDE(int8, Int8Wide, 1, 2)
ATTEND_WIDE(k8v4, K8V4Wide, 1, 2)
ATTEND_WIDE(f16, ExactWide, 2, 2)
