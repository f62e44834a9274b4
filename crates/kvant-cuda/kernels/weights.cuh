// Packed weights as the tensor cores read them: tiles of 16 rows, in blocks of 64 or 256 channels that lie one after the other.
// src/weights.rs packs them from the files' formats; no number is rounded on the way.
//
// Within 16 channels, lane 4g+t of an A fragment has rows g, g+8 (r) and channels 4t+2c+e of the k-step ks, so that a lane's share
// of the activations is 8 contiguous bytes. Orders go from the slowest index to the fastest. DEPTH: blocks that a warp of linear_few has
// on their way, the best of those tried on an H200.
#pragma once
#include "device.cuh"

// A fragment whose rows all hold one small integer; see Int4Codec::Constants for `zero`.
struct Fill {
    u32 a0, a1, a2, a3;
    DEVICE Fill(u32 low_rows, u32 high_rows, const int (&zero)[4])
        : a0(low_rows ^ zero[0]), a1(high_rows ^ zero[1]), a2(low_rows ^ zero[2]), a3(high_rows ^ zero[3]) {}
    DEVICE void mma(float (&d)[4], uint2 b) const { mma16816(d, a0, a1, a2, a3, b.x, b.y); }
};

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

// Q4_0, w = d (n - 8) per 32 channels.  576 bytes of 64 channels: codes [lane][ks] words, then d [g][block][r] f16.
struct Q4_0 {
    static constexpr int CHANNELS = 64, BYTES = 576, DEPTH = 8;
    struct Raw {
        uint4 codes;
        uint2 scales;
    };
    static DEVICE Raw load(const u8* p, int lane) {
        return {load_stream(p + lane * 16), __ldg(reinterpret_cast<const uint2*>(p + 512) + lane / 4)};
    }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0x80088008u, 0x80888088u, zero); }
    template <int NT, class X>
    static DEVICE void add(float (&total)[NT][4], const Raw& w, const X& x, const Fill& offset) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int block = 0; block < 2; block++) {
                float d[4] = {};
#pragma unroll
                for (int ks = 2 * block; ks < 2 * block + 2; ks++) {
                    const uint2 b = x.at(nt, ks);
                    mma_nibbles(d, word(w.codes, ks), b.x, b.y);
                    offset.mma(d, b);
                }
                const u32 s = block ? w.scales.y : w.scales.x;
                add_nibble_rows(total[nt], d, low_half(s), high_half(s));
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
    static constexpr int CHANNELS = 64, BYTES = 1088, DEPTH = 6;
    struct Raw {
        uint4 codes[2];
        uint2 scales;
    };
    static DEVICE Raw load(const u8* p, int lane) {
        return {{load_stream(p + lane * 16), load_stream(p + 512 + lane * 16)}, __ldg(reinterpret_cast<const uint2*>(p + 1024) + lane / 4)};
    }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0x80808080u, 0x80808080u, zero); }
    template <int NT, class X>
    static DEVICE void add(float (&total)[NT][4], const Raw& w, const X& x, const Fill& offset) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int block = 0; block < 2; block++) {
                float d[4] = {};
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const uint2 b = x.at(nt, 2 * block + k);
                    const u32 c0 = word(w.codes[block], 2 * k), c1 = word(w.codes[block], 2 * k + 1);
                    mma16816(d, c0 & 0x00ff00ffu, __byte_perm(c0, 0, 0x4341), c1 & 0x00ff00ffu, __byte_perm(c1, 0, 0x4341), b.x, b.y);
                    offset.mma(d, b);
                }
                const u32 s = block ? w.scales.y : w.scales.x;
                add_rows(total[nt], d, low_half(s) * ROW_LO, high_half(s) * ROW_LO);
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
    static constexpr int CHANNELS = 64, BYTES = 2048, DEPTH = 4;
    struct Raw {
        uint4 rows[4];
    };
    static DEVICE Raw load(const u8* p, int lane) {
        Raw w;
#pragma unroll
        for (int ks = 0; ks < 4; ks++) w.rows[ks] = load_stream(p + ks * 512 + lane * 16);
        return w;
    }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0, 0, zero); }
    template <int NT, class X>
    static DEVICE void add(float (&total)[NT][4], const Raw& w, const X& x, const Fill&) {
#pragma unroll
        for (int nt = 0; nt < NT; nt++)
#pragma unroll
            for (int ks = 0; ks < 4; ks++) {
                const uint2 b = x.at(nt, ks);
                mma16816(total[nt], w.rows[ks].x, w.rows[ks].y, w.rows[ks].z, w.rows[ks].w, b.x, b.y);
            }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        return half_at(p, channel / 16 * 256 + lane_of(row, channel) * 8 + channel / 2 % 2 * 4 + row / 8 * 2 + channel % 2);
    }
};

// Q4_K, w = d s n - m z per 32 channels, s and z of 6 bits.  2368 bytes of 256 channels: codes [64 channels][lane][ks] words, then
// (d, m) [g][r] f16 pairs, then (s, z) [64 channels][g][block][r] byte pairs.
struct Q4_K {
    static constexpr int CHANNELS = 256, BYTES = 2368, DEPTH = 2;
    struct Raw {
        uint4 codes[4];
        uint2 supers;    // (d, m) of rows g and g+8
        uint2 scales[4];
    };
    static DEVICE Raw load(const u8* p, int lane) {
        Raw w;
        w.supers = __ldg(reinterpret_cast<const uint2*>(p + 2048) + lane / 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w.codes[i] = load_stream(p + i * 512 + lane * 16);
            w.scales[i] = __ldg(reinterpret_cast<const uint2*>(p + 2112 + i * 64) + lane / 4);
        }
        return w;
    }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0x00010001u, 0x00010001u, zero); }
    template <int NT, class X>
    static DEVICE void add(float (&total)[NT][4], const Raw& w, const X& x, const Fill& one) {
        const float d0 = low_half(w.supers.x), m0 = high_half(w.supers.x), d1 = low_half(w.supers.y), m1 = high_half(w.supers.y);
#pragma unroll
        for (int block = 0; block < 8; block++) {
            const u32 s = block % 2 ? w.scales[block / 2].y : w.scales[block / 2].x;
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                float d[4] = {}, sum[4] = {};
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const uint2 b = x.at(nt, 2 * block + k);
                    mma_nibbles(d, word(w.codes[block / 2], block % 2 * 2 + k), b.x, b.y);
                    one.mma(sum, b);
                }
                add_nibble_rows(total[nt], d, d0 * (s & 255), d1 * (s >> 16 & 255));
                add_rows(total[nt], sum, -ROW_LO * m0 * (s >> 8 & 255), -ROW_LO * m1 * (s >> 24));
            }
        }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int chunk = channel / 64, g = row % 8, r = row / 8;
        const u32 w = word_at(p, chunk * 128 + lane_of(row, channel) * 4 + channel / 16 % 4);
        const int n = (w >> nibble_shift(r, channel)) & 15;
        const u8* s = p + 2112 + chunk * 64 + g * 8 + channel / 32 % 2 * 4 + r * 2;
        return half_at(p + 2048, g * 4 + r * 2) * s[0] * n - half_at(p + 2048, g * 4 + r * 2 + 1) * s[1];
    }
};

// Q6_K, w = d s (n - 32) per 16 channels, s of 8 bits with a sign.  3360 bytes of 256 channels: low nibbles as Q4_K has its codes; high
// bits [64 channels][lane][ks/2] words, those of (r, c, e) 2r+4c+8(ks%2)+16e bits up; s [64 channels][g][ks][r] bytes; d [g][r] f16.
struct Q6_K {
    static constexpr int CHANNELS = 256, BYTES = 3360, DEPTH = 2;
    struct Raw {
        uint4 low[4];
        uint2 high[4], scales[4];
        u32 supers;
    };
    static DEVICE Raw load(const u8* p, int lane) {
        Raw w;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w.low[i] = load_stream(p + i * 512 + lane * 16);
            w.high[i] = __ldg(reinterpret_cast<const uint2*>(p + 2048 + i * 256) + lane);
            w.scales[i] = __ldg(reinterpret_cast<const uint2*>(p + 3072 + i * 64) + lane / 4);
        }
        w.supers = word_at(p + 3328, lane / 4);
        return w;
    }
    static DEVICE Fill constants(const int (&zero)[4]) { return Fill(0x80208020u, 0x80208020u, zero); }
    static DEVICE u32 codes(u32 low, u32 high, int r, int c, int k) {  // both channels of a register
        const int shift = 2 * r + 4 * c + 8 * k - 4;
        const u32 top = shift < 0 ? high << -shift : high >> shift;
        return (low >> (4 * r + 8 * c) & 0x000f000fu) | (top & 0x00300030u);
    }
    static DEVICE float scale_of(uint2 s, int ks, int r) { return (float)(signed char)((ks < 2 ? s.x : s.y) >> (16 * (ks % 2) + 8 * r)); }
    template <int NT, class X>
    static DEVICE void add(float (&total)[NT][4], const Raw& w, const X& x, const Fill& offset) {
        const float d0 = low_half(w.supers) * ROW_LO, d1 = high_half(w.supers) * ROW_LO;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int ks = 0; ks < 4; ks++) {
                const u32 low = word(w.low[i], ks), high = ks < 2 ? w.high[i].x : w.high[i].y;
                const u32 a0 = codes(low, high, 0, 0, ks % 2), a1 = codes(low, high, 1, 0, ks % 2);
                const u32 a2 = codes(low, high, 0, 1, ks % 2), a3 = codes(low, high, 1, 1, ks % 2);
#pragma unroll
                for (int nt = 0; nt < NT; nt++) {
                    float d[4] = {};
                    const uint2 b = x.at(nt, 4 * i + ks);
                    mma16816(d, a0, a1, a2, a3, b.x, b.y);
                    offset.mma(d, b);
                    add_rows(total[nt], d, d0 * scale_of(w.scales[i], ks, 0), d1 * scale_of(w.scales[i], ks, 1));
                }
            }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int chunk = channel / 64, ks = channel / 16 % 4, lane = lane_of(row, channel), g = row % 8, r = row / 8;
        const u32 low = word_at(p, chunk * 128 + lane * 4 + ks) >> nibble_shift(r, channel) & 15;
        const u32 high = word_at(p + 2048, chunk * 64 + lane * 2 + ks / 2) >> (2 * r + 4 * (channel / 2 % 2) + 8 * (ks % 2) + 16 * (channel % 2)) & 3;
        const int s = (signed char)p[3072 + chunk * 64 + g * 8 + ks * 2 + r];
        return half_at(p + 3328, g * 2 + r) * s * ((int)(low | high << 4) - 32);
    }
};
