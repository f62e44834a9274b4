// Entry points: attention over int8 pages, of one query token and of many. Where there is no `_cap` of a kernel, it has both.
#include "packed.cuh"
template <int D>
using Int8Codec = PackedCodec<D, 8, 8>;
ATTEND(attend_int8_d128, 128, PLAIN, Int8Codec<128>, 2, 1, false, 1, 1)
ATTEND(attend_int8_cap_d128, 128, CAPPED, Int8Codec<128>, 2, 1, false, 1, 1)
ATTEND(attend_many_int8_d128, 128, EITHER, Int8Codec<128>, 2, 2, true, 1, 1)
ATTEND(attend_int8_d64, 64, PLAIN, Int8Codec<64>, 2, 1, false, 1, 2)
ATTEND(attend_int8_cap_d64, 64, CAPPED, Int8Codec<64>, 2, 1, false, 1, 2)
ATTEND(attend_many_int8_d64, 64, EITHER, Int8Codec<64>, 2, 2, true, 1, 2)
ATTEND(attend_many_int8_d256, 256, EITHER, Int8Codec<256>, 1, 1, true, 1, 1)
