// Packed weights as the tensor cores read them: tiles of 16 rows, in blocks of 64 or 256 channels that lie one after the other.
// src/weights.rs packs them from the files' formats; no number is rounded on the way.
//
// Within 16 channels, lane 4g+t of an A fragment has rows g, g+8 (r) and channels 4t+2c+e of the k-step ks, so that a lane's share
// of the activations is 8 contiguous bytes. Orders go from the slowest index to the fastest. DEPTH: blocks that a warp of linear_few has
// on their way, the best of those tried on an H200.
//
// Every kernel adds a block in parts of 64 channels by the type's `add`, which is the only place that has its arithmetic: a part of MT tiles
// of rows for NT tiles of tokens. So kernels that take the parts of a row in the same order give the same bits. The tile kernels stage a
// part in shared memory, PART bytes of a block that `source` finds.
#pragma once
#include "device.cuh"

// Warps that share the blocks of channels of a product, every eighth each: it is part of the order of sums.
constexpr int LINEAR_WARPS = 8;

struct LinearParams {
    const u8* weights;   // (tiles of 16 rows, blocks of channels)
    const u16* x;        // (tokens, channels) f16
    float* y;            // (tokens, rows)
    int rows, channels, tokens;
    int accumulate;      // y += instead of y =
    float scale;         // of the product
    int zero[4];         // zeros that the compiler cannot see
    DEVICE void put(u64 at, float sum) const { y[at] = accumulate ? fmaf(scale, sum, y[at]) : scale * sum; }
};

// A product of many matrices of one shape, experts, each with the tokens that chose it.
struct GroupedParams {
    LinearParams p;      // weights of expert 0; y (pairs, rows)
    const int4* groups;  // (grid): expert, first pair, pairs
    const int* sources;  // (pairs): row of x; null where a pair has its own
    u64 expert_bytes;
};

// The tokens of a CTA, rows first … first + count of y, and the matrix they meet.
struct Span {
    const u8* weights;
    const int* sources;
    int first, count;
    DEVICE int source(int token) const { return sources ? __ldcg(sources + first + token) : first + token; }
};
// What was written before is waited for: which expert it is decides which weights are read.
DEVICE Span group_span(const GroupedParams& p, int group) {
    pdl_wait();
    const int4 own = __ldcg(p.groups + group);
    return {p.p.weights + own.x * p.expert_bytes, p.sources, own.y, own.z};
}

// A fragment whose rows all hold one small integer; see Int4Codec::Constants for `zero`.
struct Fill {
    u32 a0, a1, a2, a3;
    DEVICE Fill(u32 low_rows, u32 high_rows, const int (&zero)[4])
        : a0(low_rows ^ zero[0]), a1(high_rows ^ zero[1]), a2(low_rows ^ zero[2]), a3(high_rows ^ zero[3]) {}
    DEVICE void mma(float (&d)[4], uint2 b) const { mma16816(d, a0, a1, a2, a3, b.x, b.y); }
};

// Activations of a k-step, as B operands: x.at(tile of tokens, k-step).
template <class W, int MT, int NT, class X>
DEVICE void add_block(float (&total)[MT][NT][4], const typename W::Raw* w, const X& x, const Fill& constants) {
#pragma unroll
    for (int i = 0; i < W::CHANNELS / 64; i++) {
        typename W::Part part[MT];
#pragma unroll
        for (int mt = 0; mt < MT; mt++) part[mt] = W::part(w[mt], i);
        W::template add<MT, NT>(total, part, x, 4 * i, constants);
    }
}

// Scales of rows g and g+8 as pairs of f16.
DEVICE float low_half(u32 x) { return f16_to_f32((u16)x); }
DEVICE float high_half(u32 x) { return f16_to_f32((u16)(x >> 16)); }

// total += scale(row) * d, for a fragment of plain rows.
DEVICE void add_rows(float (&total)[4], const float (&d)[4], float low, float high) {
    total[0] = fmaf(low, d[0], total[0]), total[1] = fmaf(low, d[1], total[1]);
    total[2] = fmaf(high, d[2], total[2]), total[3] = fmaf(high, d[3], total[3]);
}
// The same after mma_nibbles: rows g+8 hold both rows.
DEVICE void add_nibble_rows(float (&total)[4], const float (&d)[4], float low, float high) {
    low *= ROW_LO, high *= ROW_HI;
    total[0] = fmaf(low, d[0], total[0]), total[1] = fmaf(low, d[1], total[1]);
    total[2] = fmaf(high, d[2] - d[0], total[2]), total[3] = fmaf(high, d[3] - d[1], total[3]);
}

// Bits of the nibble of row r, and channel 4t+2c+e of a k-step, in its word.
DEVICE int nibble_shift(int r, int channel) { return 4 * r + 8 * (channel / 2 % 2) + 16 * (channel % 2); }
DEVICE int lane_of(int row, int channel) { return 4 * (row % 8) + channel / 4 % 4; }
DEVICE u32 word_at(const u8* p, int i) { return __ldg(reinterpret_cast<const u32*>(p) + i); }
DEVICE float half_at(const u8* p, int i) { return f16_to_f32(__ldg(reinterpret_cast<const u16*>(p) + i)); }

// The A fragment of a word of codes. 0x6400 | n is the f16 number 1024 + n, so codes become numbers without a conversion; those 4 bits up
// are sixteen times as far.
DEVICE void nibbles(u32 (&a)[4], u32 w) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const u32 x = w >> 8 * c;
        a[2 * c] = add_f16x2((x & 0x000f000fu) | 0x64006400u, 0xe400e400u);                     // 1024 + n - 1024
        a[2 * c + 1] = fma_f16x2((x & 0x00f000f0u) | 0x64006400u, 0x2c002c00u, 0xd400d400u);  // (1024 + 16 n) / 16 - 64
    }
}

// Q4_0, w = d (n - 8) per 32 channels.  576 bytes of 64 channels: codes [lane][ks] words, then d [g][block][r] f16.
struct Q4_0 {
    static constexpr int CHANNELS = 64, BYTES = 576, PART = 576, DEPTH = 8;
    struct Raw {
        uint4 codes;
        uint2 scales;
    };
    typedef Raw Part;
    static DEVICE Raw load(const u8* p, int lane) {
        return {load_stream(p + lane * 16), __ldg(reinterpret_cast<const uint2*>(p + 512) + lane / 4)};
    }
    static DEVICE Part part(const Raw& w, int) { return w; }
    static DEVICE int source(int at, int) { return at; }
    static DEVICE Part staged(const u8* p, int lane) { return {load_shared(p + lane * 16), load_shared_pair(p + 512 + lane / 4 * 8)}; }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0x80088008u, 0x80888088u, zero); }
    template <int MT, int NT, class X>
    static DEVICE void add(float (&total)[MT][NT][4], const Part (&w)[MT], const X& x, int first, const Fill& offset) {
#pragma unroll
        for (int block = 0; block < 2; block++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const uint2 b0 = x.at(nt, first + 2 * block), b1 = x.at(nt, first + 2 * block + 1);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    float d[4] = {};
                    mma_nibbles(d, word(w[mt].codes, 2 * block), b0.x, b0.y);
                    offset.mma(d, b0);
                    mma_nibbles(d, word(w[mt].codes, 2 * block + 1), b1.x, b1.y);
                    offset.mma(d, b1);
                    const u32 s = block ? w[mt].scales.y : w[mt].scales.x;
                    add_nibble_rows(total[mt][nt], d, low_half(s), high_half(s));
                }
            }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const u32 w = word_at(p, lane_of(row, channel) * 4 + channel / 16);
        const int n = (w >> nibble_shift(row / 8, channel)) & 15;
        return half_at(p + 512, row % 8 * 4 + channel / 32 * 2 + row / 8) * (n - 8);
    }
};

// Q8_0, w = d n per 32 channels, stored as n + 128.  1088 bytes of 64 channels: codes [ks/2][lane][ks%2][c] words of bytes
// (e0 r0, e0 r1, e1 r0, e1 r1), then d as Q4_0 has it.
struct Q8_0 {
    static constexpr int CHANNELS = 64, BYTES = 1088, PART = 1088, DEPTH = 6;
    struct Raw {
        uint4 codes[2];
        uint2 scales;
    };
    typedef Raw Part;
    static DEVICE Raw load(const u8* p, int lane) {
        return {{load_stream(p + lane * 16), load_stream(p + 512 + lane * 16)}, __ldg(reinterpret_cast<const uint2*>(p + 1024) + lane / 4)};
    }
    static DEVICE Part part(const Raw& w, int) { return w; }
    static DEVICE int source(int at, int) { return at; }
    static DEVICE Part staged(const u8* p, int lane) {
        return {{load_shared(p + lane * 16), load_shared(p + 512 + lane * 16)}, load_shared_pair(p + 1024 + lane / 4 * 8)};
    }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0x80808080u, 0x80808080u, zero); }
    template <int MT, int NT, class X>
    static DEVICE void add(float (&total)[MT][NT][4], const Part (&w)[MT], const X& x, int first, const Fill& offset) {
#pragma unroll
        for (int block = 0; block < 2; block++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const uint2 b[2] = {x.at(nt, first + 2 * block), x.at(nt, first + 2 * block + 1)};
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    float d[4] = {};
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const u32 c0 = word(w[mt].codes[block], 2 * k), c1 = word(w[mt].codes[block], 2 * k + 1);
                        mma16816(d, c0 & 0x00ff00ffu, __byte_perm(c0, 0, 0x4341), c1 & 0x00ff00ffu, __byte_perm(c1, 0, 0x4341), b[k].x, b[k].y);
                        offset.mma(d, b[k]);
                    }
                    const u32 s = block ? w[mt].scales.y : w[mt].scales.x;
                    add_rows(total[mt][nt], d, low_half(s) * ROW_LO, high_half(s) * ROW_LO);
                }
            }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int ks = channel / 16;
        const u32 w = word_at(p, ks / 2 * 128 + lane_of(row, channel) * 4 + ks % 2 * 2 + channel / 2 % 2);
        const int n = (w >> (16 * (channel % 2) + 8 * (row / 8))) & 255;
        return half_at(p + 1024, row % 8 * 4 + channel / 32 * 2 + row / 8) * (n - 128);
    }
};

// F16.  2048 bytes of 64 channels: [ks][lane][c][r] words of two channels.
struct F16 {
    static constexpr int CHANNELS = 64, BYTES = 2048, PART = 2048, DEPTH = 4;
    struct Raw {
        uint4 rows[4];
    };
    typedef Raw Part;
    static DEVICE Raw load(const u8* p, int lane) {
        Raw w;
#pragma unroll
        for (int ks = 0; ks < 4; ks++) w.rows[ks] = load_stream(p + ks * 512 + lane * 16);
        return w;
    }
    static DEVICE Part part(const Raw& w, int) { return w; }
    static DEVICE int source(int at, int) { return at; }
    static DEVICE Part staged(const u8* p, int lane) {
        Part w;
#pragma unroll
        for (int ks = 0; ks < 4; ks++) w.rows[ks] = load_shared(p + ks * 512 + lane * 16);
        return w;
    }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0, 0, zero); }
    template <int MT, int NT, class X>
    static DEVICE void add(float (&total)[MT][NT][4], const Part (&w)[MT], const X& x, int first, const Fill&) {
#pragma unroll
        for (int ks = 0; ks < 4; ks++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const uint2 b = x.at(nt, first + ks);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const uint4& a = w[mt].rows[ks];
                    mma16816(total[mt][nt], a.x, a.y, a.z, a.w, b.x, b.y);
                }
            }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        return half_at(p, channel / 16 * 256 + lane_of(row, channel) * 8 + channel / 2 % 2 * 4 + row / 8 * 2 + channel % 2);
    }
};

// Q4_1, w = d n + m per 32 channels.  640 bytes of 64 channels: codes as Q4_0 has them, then (d, m) [g][block][r] f16 pairs.
struct Q4_1 {
    static constexpr int CHANNELS = 64, BYTES = 640, PART = 640, DEPTH = 6;
    struct Raw {
        uint4 codes, scales;
    };
    typedef Raw Part;
    static DEVICE Raw load(const u8* p, int lane) { return {load_stream(p + lane * 16), __ldg(reinterpret_cast<const uint4*>(p + 512) + lane / 4)}; }
    static DEVICE Part part(const Raw& w, int) { return w; }
    static DEVICE int source(int at, int) { return at; }
    static DEVICE Part staged(const u8* p, int lane) { return {load_shared(p + lane * 16), load_shared(p + 512 + lane / 4 * 16)}; }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0x3c003c00u, 0x3c003c00u, zero); }  // ones
    template <int MT, int NT, class X>
    static DEVICE void add(float (&total)[MT][NT][4], const Part (&w)[MT], const X& x, int first, const Fill& one) {
#pragma unroll
        for (int block = 0; block < 2; block++) {
            u32 a[MT][2][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int k = 0; k < 2; k++) nibbles(a[mt][k], word(w[mt].codes, 2 * block + k));
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const uint2 b[2] = {x.at(nt, first + 2 * block), x.at(nt, first + 2 * block + 1)};
                float sum[4] = {};  // of activations, the same for all rows
                one.mma(sum, b[0]), one.mma(sum, b[1]);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const u32 low = word(w[mt].scales, 2 * block), high = word(w[mt].scales, 2 * block + 1);
                    float d[4] = {};
#pragma unroll
                    for (int k = 0; k < 2; k++) mma16816(d, a[mt][k][0], a[mt][k][1], a[mt][k][2], a[mt][k][3], b[k].x, b[k].y);
                    add_rows(total[mt][nt], d, low_half(low), low_half(high));
                    add_rows(total[mt][nt], sum, high_half(low), high_half(high));
                }
            }
        }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int n = (word_at(p, lane_of(row, channel) * 4 + channel / 16) >> nibble_shift(row / 8, channel)) & 15;
        const int pair = row % 8 * 8 + channel / 32 * 4 + row / 8 * 2;
        return half_at(p + 512, pair) * n + half_at(p + 512, pair + 1);
    }
};

// MXFP4, w = 2^(e - 127) f per 32 channels, f of one sign, two exponent and one fraction bit.  544 bytes of 64 channels: codes as Q4_0 has
// them, then e [g][block][r] bytes.
struct MXFP4 {
    static constexpr int CHANNELS = 64, BYTES = 544, PART = 544, DEPTH = 8;
    struct Raw {
        uint4 codes;
        u32 scales;
    };
    typedef Raw Part;
    static DEVICE Raw load(const u8* p, int lane) { return {load_stream(p + lane * 16), word_at(p + 512, lane / 4)}; }
    static DEVICE Part part(const Raw& w, int) { return w; }
    static DEVICE int source(int at, int) { return at; }
    static DEVICE Part staged(const u8* p, int lane) { return {load_shared(p + lane * 16), *reinterpret_cast<const u32*>(p + 512 + lane / 4 * 4)}; }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0, 0, zero); }
    // The bits of f at their places in an f16, whose exponents are 14 larger: subnormals and all are f / 2^14.
    static DEVICE u32 floats(u32 w, int shift) {
        const u32 sign = 12 - shift >= 0 ? w << (12 - shift) : w >> (shift - 12), rest = 9 - shift >= 0 ? w << (9 - shift) : w >> (shift - 9);
        return (sign & 0x80008000u) | (rest & 0x0e000e00u);
    }
    static DEVICE float scale_of(u32 scales, int i) { return __int_as_float((int)min((scales >> 8 * i & 255) + 14, 255u) << 23); }
    template <int MT, int NT, class X>
    static DEVICE void add(float (&total)[MT][NT][4], const Part (&w)[MT], const X& x, int first, const Fill&) {
#pragma unroll
        for (int block = 0; block < 2; block++) {
            u32 a[MT][2][4];
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int i = 0; i < 8; i++) a[mt][i / 4][i % 4] = floats(word(w[mt].codes, 2 * block + i / 4), 4 * (i % 4));  // r = i % 2, c = i / 2 % 2
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const uint2 b[2] = {x.at(nt, first + 2 * block), x.at(nt, first + 2 * block + 1)};
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    float d[4] = {};
#pragma unroll
                    for (int k = 0; k < 2; k++) mma16816(d, a[mt][k][0], a[mt][k][1], a[mt][k][2], a[mt][k][3], b[k].x, b[k].y);
                    add_rows(total[mt][nt], d, scale_of(w[mt].scales, 2 * block), scale_of(w[mt].scales, 2 * block + 1));
                }
            }
        }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const u32 n = word_at(p, lane_of(row, channel) * 4 + channel / 16) >> nibble_shift(row / 8, channel) & 15;
        return f16_to_f32((u16)((n & 8) << 12 | (n & 7) << 9)) * scale_of(p[512 + row % 8 * 4 + channel / 32 * 2 + row / 8], 0);
    }
};

#include "weights_k.cuh"
