// Entry points: attention over pages of `klt` keys and values of 4 bits, without soft caps.
#include "planned.cuh"
ATTEND(attend_klt_d64, 64, PLAIN, PlannedCodec<64>, 4, 1, false, 1, 2)
ATTEND(attend_many_klt_d64, 64, PLAIN, PlannedCodec<64>, 3, 2, true, 1, 2)
ATTEND(attend_klt_d128, 128, PLAIN, PlannedCodec<128>, 2, 1, false, 1, 2)
ATTEND(attend_many_klt_d128, 128, PLAIN, PlannedCodec<128>, 2, 2, true, 2, 1)
