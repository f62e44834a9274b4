// How pages of a trellis are made, bit for bit as kvant-codec does (its src/trellis). Sums are in its order, and nothing that it rounds twice is
// contracted to a fused multiply-add.
#pragma once
#include "form.cuh"

DEVICE float times(float a, float b) { return __fmul_rn(a, b); }
DEVICE float plus(float a, float b) { return __fadd_rn(a, b); }
DEVICE float minus(float a, float b) { return __fadd_rn(a, -b); }
DEVICE float over(float a, float b) { return __fdiv_rn(a, b); }

// The mean squared error of a Gaussian of variance one, by place: widths 0 to 6 and 8.
DEVICE float trellis_distortion(int place) {
    switch (place) {
        case 0: return 1.f;
        case 1: return 0.302f;
        case 2: return 0.0848f;
        case 3: return 0.0228f;
        case 4: return 0.0064f;
        case 5: return 0.0019f;
        case 6: return 0.0007f;
        default: return 0.000084f;
    }
}
constexpr int TRELLIS_PLACES = 8;
DEVICE int trellis_width(int place) { return place == 7 ? 8 : place; }
DEVICE int trellis_place(int bits) { return bits == 8 ? 7 : bits; }
// The largest level that there is on both sides of zero, by width.
DEVICE float trellis_reach(int bits) {
    switch (bits) {
        case 1: return 121.f;
        case 2: return 122.f;
        case 3: return 123.f;
        case 4: return 125.f;
        case 5: return 126.f;
        case 6: return 124.f;
        default: return 127.f;
    }
}

// floor(16 log2 x) of a positive normal number; far below all that is stored for any other.
DEVICE int sixteenths(float x) {
    if (x < 1.17549435e-38f) return -3000;
    const u32 bits = __float_as_uint(x);
    const float fraction = __int_as_float((bits & 0x007fffffu) | 0x3f800000u);
    const float powers[15] = {1.0442738f, 1.0905077f, 1.1387886f, 1.1892071f, 1.2418578f, 1.2968396f, 1.3542556f, 1.4142135f,
                              1.4768261f, 1.5422108f, 1.6104903f, 1.6817929f, 1.7562522f, 1.8340081f, 1.9152066f};
    int above = 0;
#pragma unroll
    for (int i = 0; i < 15; i++) above += fraction >= powers[i];
    return 16 * ((int)(bits >> 23) - 127) + above;
}
// The exponent of the nearest stored scale; above 255 where it is too large.
DEVICE int scale_exponent(float x) { return max(128 + ((sixteenths(x) + 1) >> 1), 0); }
DEVICE int quarter_exponent(float x) { return min(max(8 + ((sixteenths(x) + 2) >> 2), 0), 15); }
DEVICE int half_exponent(float x) { return min(max(8 + ((sixteenths(x) + 4) >> 3), 0), 15); }
