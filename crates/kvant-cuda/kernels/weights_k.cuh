// The types of 256 channels with scales of scales; see weights.cuh, which includes this file.
#pragma once

// Q4_K and Q5_K, w = d s n - m z per 32 channels, s and z of 6 bits.  2368 bytes of 256 channels: codes' low nibbles [64 channels][lane][ks]
// words, then (d, m) [g][r] f16 pairs, then (s, z) [64 channels][g][block][r] byte pairs; of Q5_K 512 bytes more: the fifth bits
// [64 channels][lane] words, those of (r, c, ks, e) r+2c+4ks+16e bits up.
template <bool FIFTH>
struct Q45_K {
    static constexpr int CHANNELS = 256, BYTES = FIFTH ? 2880 : 2368, PART = FIFTH ? 768 : 640, DEPTH = 2;
    struct Raw {
        uint4 codes[4];
        uint2 supers;    // (d, m) of rows g and g+8
        uint2 scales[4];
        u32 high[4];
    };
    struct Part {
        uint4 codes;
        uint2 supers, scales;
        u32 high;
    };
    static DEVICE Raw load(const u8* p, int lane) {
        Raw w;
        w.supers = __ldg(reinterpret_cast<const uint2*>(p + 2048) + lane / 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            w.codes[i] = load_stream(p + i * 512 + lane * 16);
            w.scales[i] = __ldg(reinterpret_cast<const uint2*>(p + 2112 + i * 64) + lane / 4);
            w.high[i] = FIFTH ? word_at(p + 2368 + i * 128, lane) : 0;
        }
        return w;
    }
    static DEVICE Part part(const Raw& w, int i) { return {w.codes[i], w.supers, w.scales[i], w.high[i]}; }
    static DEVICE int source(int at, int i) {
        return at < 512 ? i * 512 + at : at < 576 ? 2112 + i * 64 + at - 512 : at < 640 ? 2048 + at - 576 : 2368 + i * 128 + at - 640;
    }
    static DEVICE Part staged(const u8* p, int lane) {
        return {load_shared(p + lane * 16), load_shared_pair(p + 576 + lane / 4 * 8), load_shared_pair(p + 512 + lane / 4 * 8),
                FIFTH ? *reinterpret_cast<const u32*>(p + 640 + lane * 4) : 0};
    }
    // One: 2^-24 beside the nibbles of Q4_K, which are subnormals too.
    static DEVICE Fill constants(const int (&zero)[4]) { return FIFTH ? Fill(0x3c003c00u, 0x3c003c00u, zero) : Fill(0x00010001u, 0x00010001u, zero); }
    static DEVICE void codes(u32 (&a)[4], u32 low, u32 high, int ks) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i % 2, c = i / 2, shift = r + 2 * c + 4 * ks - 4;
            const u32 top = shift < 0 ? high << -shift : high >> shift;
            a[i] = add_f16x2((low >> (4 * r + 8 * c) & 0x000f000fu) | (top & 0x00100010u) | 0x64006400u, 0xe400e400u);  // 1024 + n - 1024
        }
    }
    template <int MT, int NT, class X>
    static DEVICE void add(float (&total)[MT][NT][4], const Part (&w)[MT], const X& x, int first, const Fill& one) {
        constexpr float ONE = FIFTH ? 1.f : ROW_LO;
#pragma unroll
        for (int block = 0; block < 2; block++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const uint2 b[2] = {x.at(nt, first + 2 * block), x.at(nt, first + 2 * block + 1)};
                float sum[4] = {};  // of activations, the same for all rows
                one.mma(sum, b[0]), one.mma(sum, b[1]);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const u32 s = block ? w[mt].scales.y : w[mt].scales.x;
                    const float d0 = low_half(w[mt].supers.x), m0 = high_half(w[mt].supers.x);
                    const float d1 = low_half(w[mt].supers.y), m1 = high_half(w[mt].supers.y);
                    float d[4] = {};
#pragma unroll
                    for (int k = 0; k < 2; k++) {
                        const u32 low = word(w[mt].codes, 2 * block + k);
                        if constexpr (FIFTH) {
                            u32 a[4];
                            codes(a, low, w[mt].high, 2 * block + k);
                            mma16816(d, a[0], a[1], a[2], a[3], b[k].x, b[k].y);
                        } else {
                            mma_nibbles(d, low, b[k].x, b[k].y);
                        }
                    }
                    if constexpr (FIFTH) add_rows(total[mt][nt], d, d0 * (s & 255), d1 * (s >> 16 & 255));
                    else add_nibble_rows(total[mt][nt], d, d0 * (s & 255), d1 * (s >> 16 & 255));
                    add_rows(total[mt][nt], sum, -ONE * m0 * (s >> 8 & 255), -ONE * m1 * (s >> 24));
                }
            }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int chunk = channel / 64, g = row % 8, r = row / 8, ks = channel / 16 % 4, lane = lane_of(row, channel);
        int n = (word_at(p, chunk * 128 + lane * 4 + ks) >> nibble_shift(r, channel)) & 15;
        if (FIFTH) n |= (word_at(p + 2368, chunk * 32 + lane) >> (r + channel / 2 % 2 * 2 + 4 * ks + channel % 2 * 16) & 1) << 4;
        const u8* s = p + 2112 + chunk * 64 + g * 8 + channel / 32 % 2 * 4 + r * 2;
        return half_at(p + 2048, g * 4 + r * 2) * s[0] * n - half_at(p + 2048, g * 4 + r * 2 + 1) * s[1];
    }
};
typedef Q45_K<false> Q4_K;
typedef Q45_K<true> Q5_K;

// Q6_K, w = d s (n - 32) per 16 channels, s of 8 bits with a sign.  3360 bytes of 256 channels: low nibbles as Q4_K has its codes; high
// bits [64 channels][lane][ks/2] words, those of (r, c, e) 2r+4c+8(ks%2)+16e bits up; s [64 channels][g][ks][r] bytes; d [g][r] f16.
struct Q6_K {
    static constexpr int CHANNELS = 256, BYTES = 3360, PART = 864, DEPTH = 2;
    struct Raw {
        uint4 low[4];
        uint2 high[4], scales[4];
        u32 supers;
    };
    struct Part {
        uint4 low;
        uint2 high, scales;
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
    static DEVICE Part part(const Raw& w, int i) { return {w.low[i], w.high[i], w.scales[i], w.supers}; }
    static DEVICE int source(int at, int i) {
        return at < 512 ? i * 512 + at : at < 768 ? 2048 + i * 256 + at - 512 : at < 832 ? 3072 + i * 64 + at - 768 : 3328 + at - 832;
    }
    static DEVICE Part staged(const u8* p, int lane) {
        return {load_shared(p + lane * 16), load_shared_pair(p + 512 + lane * 8), load_shared_pair(p + 768 + lane / 4 * 8),
                *reinterpret_cast<const u32*>(p + 832 + lane / 4 * 4)};
    }
    template <int MT, int NT, class X>
    static DEVICE void add(float (&total)[MT][NT][4], const Part (&w)[MT], const X& x, int first, const Fill& offset) {
#pragma unroll
        for (int ks = 0; ks < 4; ks++)
#pragma unroll
            for (int nt = 0; nt < NT; nt++) {
                const uint2 b = x.at(nt, first + ks);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const u32 low = word(w[mt].low, ks), high = ks < 2 ? w[mt].high.x : w[mt].high.y;
                    const float d0 = low_half(w[mt].supers) * ROW_LO, d1 = high_half(w[mt].supers) * ROW_LO;
                    float d[4] = {};
                    mma16816(d, codes(low, high, 0, 0, ks % 2), codes(low, high, 1, 0, ks % 2), codes(low, high, 0, 1, ks % 2),
                             codes(low, high, 1, 1, ks % 2), b.x, b.y);
                    offset.mma(d, b);
                    add_rows(total[mt][nt], d, d0 * scale_of(w[mt].scales, ks, 0), d1 * scale_of(w[mt].scales, ks, 1));
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
