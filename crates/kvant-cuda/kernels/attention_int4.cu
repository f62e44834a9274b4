// Entry points: attention over int4 pages, of one query token and of many. Where there is no `_cap` of a kernel, it has both.
#include "packed.cuh"
template <int D>
using Int4Codec = PackedCodec<D, 4, 4>;
ATTEND(attend_int4_d128, 128, PLAIN, Int4Codec<128>, 2, 1, false, 1, 2)
ATTEND(attend_int4_cap_d128, 128, CAPPED, Int4Codec<128>, 2, 1, false, 1, 2)
ATTEND(attend_many_int4_d128, 128, PLAIN, Int4Codec<128>, 2, 2, true, 2, 2)
ATTEND(attend_many_int4_cap_d128, 128, CAPPED, Int4Codec<128>, 2, 2, true, 2, 2)
ATTEND(attend_int4_d64, 64, PLAIN, Int4Codec<64>, 4, 1, false, 1, 2)
ATTEND(attend_int4_cap_d64, 64, CAPPED, Int4Codec<64>, 4, 1, false, 1, 2)
ATTEND(attend_many_int4_d64, 64, EITHER, Int4Codec<64>, 4, 2, true, 1, 2)
ATTEND(attend_many_int4_d256, 256, EITHER, Int4Codec<256>, 2, 1, true, 1, 1)
