// Blocks of a model file, as they came from it, into the order of weights.cuh: what src/weights/pack.rs does on the host, a word of the result per
// thread and turn. Codes are moved, never rounded; f32 and bf16 become f16 over a power of two.
//
// A source says where a code of a row lies and what its scales are; a layout, which codes and scales a word of the device's block has.
#include "functions.cuh"
#include "weights.cuh"

namespace relaying {  // bench/host compiles all kernels as one

struct RelayParams {
    const u8* raw;   // (rows, row_bytes) of the file
    u8* out;         // (tiles of 16 rows, blocks)
    int* found;      // bits of the largest number there may be, as f32; 1 where a number is none, or beyond all
    u64 row_bytes;
    int rows, channels;
    float over;      // a power of two that all numbers are divided by
};

struct Rows {
    const u8* first;
    u64 stride;
    int count, channel;  // rows of the tile that there are; the block's first channel
    float over;
    int* found;
    // Row g + 8r of the tile; null past the last.
    DEVICE const u8* row(int row) const { return row < count ? first + row * stride : nullptr; }
};

DEVICE u32 half_in(const u8* p) { return p[0] | (u32)p[1] << 8; }
DEVICE u32 half_over(u32 bits, float over) { return over == 1.f ? bits : f32_to_f16(f16_to_f32((u16)bits) / over); }
DEVICE float size_of(u32 bits) { return fabsf(f16_to_f32((u16)bits)); }
// Of a block of 32 whose bytes hold channels i and i + 16.
DEVICE u32 nibble_in(const u8* codes, int channel) { return codes[channel % 16] >> (channel % 32 / 16 * 4) & 15; }

// ---- sources: `code` of a channel as the layout stores it, `scale` of a group as f16 bits, `reach` at least the largest number of a group ----
struct FromQ4_0 {
    static constexpr int GROUP = 32;
    static DEVICE u32 code(const u8* row, int c) { return nibble_in(row + c / 32 * 18 + 2, c); }
    static DEVICE u32 scale(const u8* row, int c, float over) { return half_over(half_in(row + c / 32 * 18), over); }
    static DEVICE float reach(const u8* row, int c) { return 8.f * size_of(half_in(row + c / 32 * 18)); }
};
struct FromQ8_0 {
    static constexpr int GROUP = 32;
    static DEVICE u32 code(const u8* row, int c) { return row[c / 32 * 34 + 2 + c % 32] ^ 128; }
    static DEVICE u32 scale(const u8* row, int c, float over) { return half_over(half_in(row + c / 32 * 34), over); }
    static DEVICE float reach(const u8* row, int c) { return 128.f * size_of(half_in(row + c / 32 * 34)); }
};
// Codes of 5 bits less 16, as bytes under the same scale.
struct FromQ5_0 {
    static constexpr int GROUP = 32;
    static DEVICE u32 code(const u8* row, int c) {
        const u8* p = row + c / 32 * 22;
        return nibble_in(p + 6, c) + ((p[2 + c % 32 / 8] >> (c % 8) & 1) << 4) + (128 - 16);
    }
    static DEVICE u32 scale(const u8* row, int c, float over) { return half_over(half_in(row + c / 32 * 22), over); }
    static DEVICE float reach(const u8* row, int c) { return 16.f * size_of(half_in(row + c / 32 * 22)); }
};
// Levels of a table, all of them bytes.
DEVICE u32 level(u32 code) {
    const u64 low = 0xf6eaddcfbfad9881ull, high = 0x7159453526190d01ull;
    return (u32)((code < 8 ? low : high) >> (code % 8 * 8) & 255) ^ 128;
}
struct FromIQ4_NL {
    static constexpr int GROUP = 32;
    static DEVICE u32 code(const u8* row, int c) { return level(nibble_in(row + c / 32 * 18 + 2, c)); }
    static DEVICE u32 scale(const u8* row, int c, float over) { return half_over(half_in(row + c / 32 * 18), over); }
    static DEVICE float reach(const u8* row, int c) { return 127.f * size_of(half_in(row + c / 32 * 18)); }
};
// d (s - 32) is rounded to f16 once, as products do with d s of Q6_K.
struct FromIQ4_XS {
    static constexpr int GROUP = 32;
    static DEVICE u32 code(const u8* row, int c) { return level(nibble_in(row + c / 256 * 136 + 8 + c % 256 / 32 * 16, c)); }
    static DEVICE float number(const u8* row, int c) {
        const u8* p = row + c / 256 * 136;
        const int g = c % 256 / 32;
        const int s = (p[4 + g / 2] >> (g % 2 * 4) & 15) | (half_in(p + 2) >> (2 * g) & 3) << 4;
        return f16_to_f32((u16)half_in(p)) * (float)(s - 32);
    }
    static DEVICE u32 scale(const u8* row, int c, float over) { return f32_to_f16(number(row, c) / over); }
    static DEVICE float reach(const u8* row, int c) { return 127.f * fabsf(number(row, c)); }
};
struct FromQ4_1 {
    static constexpr int GROUP = 32;
    static DEVICE u32 code(const u8* row, int c) { return nibble_in(row + c / 32 * 20 + 4, c); }
    static DEVICE float reach(const u8* row, int c) { return 15.f * size_of(half_in(row + c / 32 * 20)) + size_of(half_in(row + c / 32 * 20 + 2)); }
};
struct FromMXFP4 {
    static constexpr int GROUP = 32;
    static DEVICE u32 code(const u8* row, int c) { return nibble_in(row + c / 32 * 17 + 1, c); }
    // Products take exponents up to 128: one beyond is beyond f16.
    static DEVICE float reach(const u8* row, int c) { return 65504.f * exp2f((float)row[c / 32 * 17] - 128.f); }
};
template <bool FIFTH>
struct FromQ45_K {
    static constexpr int GROUP = 256, RAW = FIFTH ? 176 : 144;
    static DEVICE const u8* block(const u8* row, int c) { return row + c / 256 * RAW; }
    static DEVICE u32 code(const u8* row, int c) { return block(row, c)[(FIFTH ? 48 : 16) + c % 256 / 64 * 32 + c % 32] >> (c % 64 / 32 * 4) & 15; }
    static DEVICE u32 fifth(const u8* row, int c) { return block(row, c)[16 + c % 32] >> (c % 256 / 32) & 1; }
    // Six bits each of the scale and the minimum of 32 channels, in a byte each.
    static DEVICE u32 pair(const u8* row, int c) {
        const u8* s = block(row, c) + 4;
        const int b = c % 256 / 32;
        if (b < 4) return (s[b] & 63) | (s[b + 4] & 63) << 8;
        return ((s[b + 4] & 15) | s[b - 4] >> 6 << 4) | ((s[b + 4] >> 4) | s[b] >> 6 << 4) << 8;
    }
    static DEVICE float reach(const u8* row, int c) {
        return 63.f * (FIFTH ? 31.f : 15.f) * size_of(half_in(block(row, c))) + 63.f * size_of(half_in(block(row, c) + 2));
    }
};
struct FromQ6_K {
    static constexpr int GROUP = 256;
    static DEVICE const u8* block(const u8* row, int c) { return row + c / 256 * 210; }
    static DEVICE u32 code(const u8* row, int c) {
        const u8* p = block(row, c);
        const int half = c % 256 / 128, quarter = c % 128 / 32;
        return (p[64 * half + c % 64] >> (quarter / 2 * 4) & 15) | (p[128 + 32 * half + c % 32] >> (2 * quarter) & 3) << 4;
    }
    static DEVICE u32 small(const u8* row, int c) { return block(row, c)[192 + c % 256 / 16] ^ 128; }
    static DEVICE u32 scale(const u8* row, int c, float over) { return half_over(half_in(block(row, c) + 208), over); }
    static DEVICE float reach(const u8* row, int c) { return 128.f * 32.f * size_of(half_in(block(row, c) + 208)); }
};
// d (s - 32) (n - 4) of 16 channels: codes n + 28 of Q6_K under scales s - 32.
struct FromQ3_K {
    static constexpr int GROUP = 256;
    static DEVICE const u8* block(const u8* row, int c) { return row + c / 256 * 110; }
    static DEVICE u32 code(const u8* row, int c) {
        const u8* p = block(row, c);
        const int half = c % 256 / 128, run = c % 128 / 32;
        return (p[32 + 32 * half + c % 32] >> (2 * run) & 3) + ((p[c % 32] >> (4 * half + run) & 1) << 2) + 28;
    }
    static DEVICE u32 small(const u8* row, int c) {
        const u8* s = block(row, c) + 96;
        const int g = c % 256 / 16;
        return ((s[g % 8] >> (4 * (g / 8)) & 15) | (s[8 + g % 4] >> (2 * (g / 4)) & 3) << 4) + (128 - 32);
    }
    static DEVICE u32 scale(const u8* row, int c, float over) { return half_over(half_in(block(row, c) + 108), over); }
    static DEVICE float reach(const u8* row, int c) { return 32.f * 4.f * size_of(half_in(block(row, c) + 108)); }
};
struct FromF16 {
    static constexpr int GROUP = 1 << 30;
    static DEVICE u32 half(const Rows&, const u8* row, int c) { return half_in(row + 2 * c); }
};
// The nearest f16 to a number over the matrix's power of two, under which every number is below 2^15.
DEVICE u32 half_of(const Rows& rows, float x) {
    const float y = x / rows.over;
    if (!(fabsf(y) <= 65504.f)) atomicMax(rows.found + 1, 1);
    return f32_to_f16(y);
}
DEVICE float bf16_in(const u8* p) { return __int_as_float(half_in(p) << 16); }
DEVICE float f32_in(const u8* p) { return __int_as_float(half_in(p) | half_in(p + 2) << 16); }
struct FromBF16 {
    static constexpr int GROUP = 1 << 30;
    static DEVICE u32 half(const Rows& rows, const u8* row, int c) { return half_of(rows, bf16_in(row + 2 * c)); }
};
struct FromF32 {
    static constexpr int GROUP = 1 << 30;
    static DEVICE u32 half(const Rows& rows, const u8* row, int c) { return half_of(rows, f32_in(row + 4 * c)); }
};

// ---- layouts: word i of a block ----
// Codes of 4 bits, [lane][ks] words, of part `part` of 64 channels.
template <class From>
DEVICE u32 nibble_word(const Rows& rows, int part, int i) {
    const int lane = i / 4, channel = rows.channel + 64 * part + i % 4 * 16 + lane % 4 * 2;
    u32 word = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u8* row = rows.row(lane / 4 + 8 * r);
        if (!row) continue;
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int e = 0; e < 2; e++) word |= (From::code(row, channel + 8 * c + e) & 15) << (4 * r + 8 * c + 16 * e);
    }
    return word;
}
// d [g][block][r] f16.
template <class From>
DEVICE u32 scale_word(const Rows& rows, int i) {
    u32 word = 0;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const u8* row = rows.row(i / 2 + 8 * r);
        if (row) word |= From::scale(row, rows.channel + i % 2 * 32, rows.over) << 16 * r;
    }
    return word;
}
template <class F>
struct ToQ4_0 {
    typedef F From;
    static constexpr int CHANNELS = 64, BYTES = 576;
    static DEVICE u32 word(const Rows& rows, int i) { return i < 128 ? nibble_word<F>(rows, 0, i) : scale_word<F>(rows, i - 128); }
};
template <class F>
struct ToQ8_0 {
    typedef F From;
    static constexpr int CHANNELS = 64, BYTES = 1088;
    static DEVICE u32 word(const Rows& rows, int i) {
        if (i >= 256) return scale_word<F>(rows, i - 256);
        const int lane = i % 128 / 4, channel = rows.channel + (i / 128 * 2 + i % 4 / 2) * 16 + lane % 4 * 2 + i % 2 * 8;
        u32 word = 0;
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const u8* row = rows.row(lane / 4 + 8 * r);
            if (row) word |= F::code(row, channel) << 8 * r | F::code(row, channel + 1) << (16 + 8 * r);
        }
        return word;
    }
};
template <class F>
struct ToF16 {
    typedef F From;
    static constexpr int CHANNELS = 64, BYTES = 2048;
    static DEVICE u32 word(const Rows& rows, int i) {
        const int lane = i % 128 / 4, channel = rows.channel + i / 128 * 16 + lane % 4 * 2 + i % 4 / 2 * 8;
        const u8* row = rows.row(lane / 4 + i % 2 * 8);
        return row ? F::half(rows, row, channel) | F::half(rows, row, channel + 1) << 16 : 0;
    }
};
struct ToQ4_1 {
    typedef FromQ4_1 From;
    static constexpr int CHANNELS = 64, BYTES = 640;
    static DEVICE u32 word(const Rows& rows, int i) {
        if (i < 128) return nibble_word<From>(rows, 0, i);
        i -= 128;
        const u8* row = rows.row(i / 4 + i % 2 * 8);
        if (!row) return 0;
        row += (rows.channel / 32 + i / 2 % 2) * 20;
        return half_over(half_in(row), rows.over) | half_over(half_in(row + 2), rows.over) << 16;
    }
};
struct ToMXFP4 {
    typedef FromMXFP4 From;
    static constexpr int CHANNELS = 64, BYTES = 544;
    static DEVICE u32 word(const Rows& rows, int i) {
        if (i < 128) return nibble_word<From>(rows, 0, i);
        u32 word = 0;
        const int less = (int)(__float_as_uint(rows.over) >> 23) - 127;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u8* row = rows.row(i - 128 + k % 2 * 8);
            if (row) word |= (u32)max(row[(rows.channel / 32 + k / 2) * 17] - less, 0) << 8 * k;
        }
        return word;
    }
};
template <bool FIFTH>
struct ToQ45_K {
    typedef FromQ45_K<FIFTH> From;
    static constexpr int CHANNELS = 256, PART = FIFTH ? 704 : 576, BYTES = 4 * PART + 64;
    static DEVICE u32 word(const Rows& rows, int i) {
        const int part = i / (PART / 4), at = i % (PART / 4);
        if (part == 4) {
            const u8* row = rows.row(at / 2 + at % 2 * 8);
            if (!row) return 0;
            row = From::block(row, rows.channel);
            return half_over(half_in(row), rows.over) | half_over(half_in(row + 2), rows.over) << 16;
        }
        if (at < 128) return nibble_word<From>(rows, part, at);
        u32 word = 0;
        if (at < 144) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u8* row = rows.row((at - 128) / 2 + 8 * r);
                if (row) word |= From::pair(row, rows.channel + 64 * part + at % 2 * 32) << 16 * r;
            }
            return word;
        }
        const int lane = at - 144;
        for (int bit = 0; bit < 32; bit++) {
            const u8* row = rows.row(lane / 4 + bit % 2 * 8);
            const int channel = rows.channel + 64 * part + bit / 4 % 4 * 16 + lane % 4 * 2 + bit / 2 % 2 * 8 + bit / 16;
            if (row) word |= From::fifth(row, channel) << bit;
        }
        return word;
    }
};
template <class F>
struct ToQ6_K {
    typedef F From;
    static constexpr int CHANNELS = 256, PART = 832, BYTES = 4 * PART + 32;
    static DEVICE u32 word(const Rows& rows, int i) {
        const int part = i / (PART / 4), at = i % (PART / 4);
        u32 word = 0;
        if (part == 4) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const u8* row = rows.row(at + 8 * r);
                if (row) word |= F::scale(row, rows.channel, rows.over) << 16 * r;
            }
            return word;
        }
        if (at < 128) return nibble_word<F>(rows, part, at);
        if (at < 192) {
            const int lane = (at - 128) / 2, ks = at % 2 * 2;
            for (int k = 0; k < 16; k++) {  // r, c, ks % 2 and e
                const u8* row = rows.row(lane / 4 + k % 2 * 8);
                const int channel = rows.channel + 64 * part + (ks + k / 4 % 2) * 16 + lane % 4 * 2 + k / 2 % 2 * 8 + k / 8;
                if (row) word |= F::code(row, channel) >> 4 << (k % 8 * 2 + k / 8 * 16);
            }
            return word;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u8* row = rows.row((at - 192) / 2 + k % 2 * 8);
            if (row) word |= F::small(row, rows.channel + 64 * part + (at % 2 * 2 + k / 2) * 16) << 8 * k;
        }
        return word;
    }
};

// Keeps the largest number; what is no number says nothing.
DEVICE void note(int* found, float x) {
    const int bits = (int)__float_as_uint(x);
    if (x < __int_as_float(0x7f800000) && bits > __ldcg(found)) atomicMax(found, bits);
}

// Grid: (blocks of channels, tiles of rows).
template <class To>
DEVICE void relay(const RelayParams& p) {
    typedef typename To::From From;
    const int tile = blockIdx.y;
    const Rows rows = {p.raw + (u64)tile * 16 * p.row_bytes, p.row_bytes, min(16, p.rows - tile * 16), (int)blockIdx.x * To::CHANNELS, p.over, p.found};
    u32* const out = reinterpret_cast<u32*>(p.out + ((u64)tile * gridDim.x + blockIdx.x) * To::BYTES);
    for (int i = threadIdx.x; i < To::BYTES / 4; i += blockDim.x) out[i] = To::word(rows, i);
    if constexpr (From::GROUP <= To::CHANNELS) {
        const int row = threadIdx.x % 16, step = blockDim.x / 16;
        if (row >= rows.count) return;
        for (int group = threadIdx.x / 16; group < To::CHANNELS / From::GROUP; group += step)
            note(p.found, From::reach(rows.row(row), rows.channel + group * From::GROUP));
    }
}

// The largest number of rows that lie together, whatever is no number left out. Grid: (any).
template <class Read>
DEVICE void measure(const RelayParams& p, Read read) {
    const u64 count = (u64)p.rows * p.channels;
    float most = 0.f;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) most = fmaxf(most, fabsf(read(i)));
    most = over_warp(most, [](float a, float b) { return fmaxf(a, b); });
    if (threadIdx.x % WARP == 0 && most > 0.f) atomicMax(p.found, (int)__float_as_uint(most));
}

#define RELAY(NAME, TO) \
    extern "C" __global__ void __launch_bounds__(64) relay_##NAME(const __grid_constant__ RelayParams p) { relay<TO>(p); }
RELAY(q4_0, ToQ4_0<FromQ4_0>)
RELAY(q8_0, ToQ8_0<FromQ8_0>)
RELAY(q5_0, ToQ8_0<FromQ5_0>)
RELAY(iq4_nl, ToQ8_0<FromIQ4_NL>)
RELAY(iq4_xs, ToQ8_0<FromIQ4_XS>)
RELAY(q4_1, ToQ4_1)
RELAY(mxfp4, ToMXFP4)
RELAY(q4_k, ToQ45_K<false>)
RELAY(q5_k, ToQ45_K<true>)
RELAY(q6_k, ToQ6_K<FromQ6_K>)
RELAY(q3_k, ToQ6_K<FromQ3_K>)
RELAY(f16, ToF16<FromF16>)
RELAY(bf16, ToF16<FromBF16>)
RELAY(f32, ToF16<FromF32>)

#define MEASURE(NAME, READ, BYTES) \
    extern "C" __global__ void __launch_bounds__(256) measure_##NAME(const __grid_constant__ RelayParams p) { \
        measure(p, [&](u64 i) { return READ(p.raw + i * BYTES); }); \
    }
MEASURE(bf16, bf16_in, 2)
MEASURE(f32, f32_in, 4)
}
