// The types of 256 channels with scales of scales; see weights.cuh, which includes this file.
#pragma once

// Four parts of 64 channels, P bytes each, then S bytes for all of them.
template <int P, int S>
struct Super {
    static constexpr int CHANNELS = 256, BYTES = 4 * P + S, PART = P, SUPERS = S, STAGED = P + S;
    static constexpr bool IS_HALF = false;
    static DEVICE int source(int at, int i) { return at < P ? i * P + at : 3 * P + at; }
};

// Q4_K and Q5_K, w = d s n - m z per 32 channels, s and z of 6 bits.  A part: codes' low nibbles [lane][ks] words, then (s, z) [g][block][r] byte pairs;
// of Q5_K 128 bytes more, the fifth bits as [lane] words, those of (r, c, ks, e) r+2c+4ks+16e bits up. For all: (d, m) [g][r] f16 pairs.
template <bool FIFTH>
struct Q45_K : Super<FIFTH ? 704 : 576, 64> {
    using Base = Super<FIFTH ? 704 : 576, 64>;
    static constexpr int DEPTH = 2;
    struct Part {
        uint4 codes;
        uint2 supers, scales;  // (d, m) of rows g and g+8; (s, z) of both, by block
        u32 high;
    };
    static DEVICE Part load(const u8* block, int i, int lane) {
        const u8* p = block + i * Base::PART;
        return {load_stream(p + lane * 16), __ldg(reinterpret_cast<const uint2*>(block + 4 * Base::PART) + lane / 4),
                __ldg(reinterpret_cast<const uint2*>(p + 512) + lane / 4), FIFTH ? word_at(p + 576, lane) : 0};
    }
    static DEVICE Part staged(const u8* p, const u8* supers, int lane) {
        return {load_shared(p + lane * 16), load_shared_pair(supers + lane / 4 * 8), load_shared_pair(p + 512 + lane / 4 * 8),
                FIFTH ? *reinterpret_cast<const u32*>(p + 576 + lane * 4) : 0};
    }
    // (d s, -m z) of a row: `pair` its bytes s and z.
    static DEVICE u32 scale_of(u32 super, u32 pair, u32 pick) {
        return mul_f16x2(super ^ 0x80000000u, add_f16x2(__byte_perm(pair, 0x64646464u, pick), 0xe400e400u));  // 1024 + s - 1024
    }
    static DEVICE void fragment(u32 (&a)[4], const Part& w, int ks) {
        const u32 s = ks < 2 ? w.scales.x : w.scales.y, low = scale_of(w.supers.x, s, 0x4140), high = scale_of(w.supers.y, s, 0x4342);
        const u32 x = word(w.codes, ks);
        if constexpr (FIFTH) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int r = i % 2, c = i / 2, shift = r + 2 * c + 4 * ks - 4;
                const u32 top = shift < 0 ? w.high << -shift : w.high >> shift;
                a[i] = add_f16x2((x >> (4 * r + 8 * c) & 0x000f000fu) | (top & 0x00100010u) | THOUSAND, 0xe400e400u);  // 1024 + n - 1024
            }
        } else {
            nibbles<0>(a, x);
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            a[2 * c] = fma_f16x2(a[2 * c], both_low(low), both_high(low));
            a[2 * c + 1] = fma_f16x2(a[2 * c + 1], both_low(high), both_high(high));
        }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int g = row % 8, r = row / 8, ks = channel / 16 % 4, lane = lane_of(row, channel);
        const u8* part = p + channel / 64 * Base::PART;
        int n = (word_at(part, lane * 4 + ks) >> nibble_shift(r, channel)) & 15;
        if (FIFTH) n |= (word_at(part + 576, lane) >> (r + channel / 8 % 2 * 2 + 4 * ks + channel % 2 * 16) & 1) << 4;
        const u8* s = part + 512 + g * 8 + channel / 32 % 2 * 4 + r * 2;
        const u32 pair = scale_of(word_at(p + 4 * Base::PART, g * 2 + r), s[0] | s[1] << 8, 0x4140);
        return fma_half(f32_to_f16(n), (u16)pair, (u16)(pair >> 16));
    }
};
typedef Q45_K<false> Q4_K;
typedef Q45_K<true> Q5_K;

// Q6_K, w = d s (n - 32) per 16 channels, s of 8 bits with a sign, stored as s + 128.  A part: low nibbles as Q4_K has its codes; high bits
// [lane][ks/2] words, those of (r, c, e) 2r+4c+8(ks%2)+16e bits up; s [g][ks][r] bytes. For all: d [g][r] f16.
struct Q6_K : Super<832, 32> {
    static constexpr int DEPTH = 2;
    struct Part {
        uint4 low;
        uint2 high, scales;
        u32 supers;
    };
    static DEVICE Part load(const u8* block, int i, int lane) {
        const u8* p = block + i * PART;
        return {load_stream(p + lane * 16), __ldg(reinterpret_cast<const uint2*>(p + 512) + lane),
                __ldg(reinterpret_cast<const uint2*>(p + 768) + lane / 4), word_at(block + 4 * PART, lane / 4)};
    }
    static DEVICE Part staged(const u8* p, const u8* supers, int lane) {
        return {load_shared(p + lane * 16), load_shared_pair(p + 512 + lane * 8), load_shared_pair(p + 768 + lane / 4 * 8),
                *reinterpret_cast<const u32*>(supers + lane / 4 * 4)};
    }
    static DEVICE void fragment(u32 (&a)[4], const Part& w, int ks) {
        const u32 s = ks < 2 ? w.scales.x : w.scales.y, high = ks < 2 ? w.high.x : w.high.y;
        const u32 scale = mul_f16x2(w.supers, signed_bytes(s, ks % 2 ? 0x4342 : 0x4140));  // of rows g and g+8
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = i % 2, c = i / 2, shift = 2 * r + 4 * c + 8 * (ks % 2) - 4;
            const u32 top = shift < 0 ? high << -shift : high >> shift;
            const u32 n = (word(w.low, ks) >> (4 * r + 8 * c) & 0x000f000fu) | (top & 0x00300030u) | THOUSAND;
            a[i] = mul_f16x2(add_f16x2(n, 0xe420e420u), r ? both_high(scale) : both_low(scale));  // 1024 + n - 1056
        }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int ks = channel / 16 % 4, lane = lane_of(row, channel), g = row % 8, r = row / 8;
        const u8* part = p + channel / 64 * PART;
        const u32 low = word_at(part, lane * 4 + ks) >> nibble_shift(r, channel) & 15;
        const u32 high = word_at(part + 512, lane * 2 + ks / 2) >> (2 * r + 4 * (channel / 8 % 2) + 8 * (ks % 2) + 16 * (channel % 2)) & 3;
        const int s = part[768 + g * 8 + ks * 2 + r] - 128;
        return round_half(round_half(half_at(p + 4 * PART, g * 2 + r) * s) * ((int)(low | high << 4) - 32));
    }
};
