// Entry points: attention over k8v4 pages, of one query token and of many. Where there is no `_cap` of a kernel, it has both.
#include "packed.cuh"
template <int D>
using K8V4Codec = PackedCodec<D, 8, 4>;
ATTEND(attend_k8v4_d128, 128, PLAIN, K8V4Codec<128>, 2, 1, false, 2, 2)
ATTEND(attend_k8v4_cap_d128, 128, CAPPED, K8V4Codec<128>, 2, 1, false, 2, 2)
ATTEND(attend_many_k8v4_d128, 128, EITHER, K8V4Codec<128>, 2, 2, true, 2, 1)
ATTEND(attend_k8v4_d64, 64, PLAIN, K8V4Codec<64>, 3, 1, false, 1, 2)
ATTEND(attend_k8v4_cap_d64, 64, CAPPED, K8V4Codec<64>, 3, 1, false, 1, 2)
ATTEND(attend_many_k8v4_d64, 64, EITHER, K8V4Codec<64>, 3, 2, true, 1, 2)
ATTEND(attend_many_k8v4_d256, 256, EITHER, K8V4Codec<256>, 2, 1, true, 4, 1)
