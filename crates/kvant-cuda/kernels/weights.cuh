// Packed weights as the tensor cores read them: tiles of 16 rows, in blocks of 64 or 256 channels that lie one after the other.
// src/weights packs them from the files' formats; no number is rounded on the way.
//
// Within 16 channels, lane 4g+t of an A fragment has rows g, g+8 (r) and channels 2t+8c+e of the k-step ks: the order of mma.sync and of wgmma,
// so activations lie as they are. Orders go from the slowest index to the fastest. DEPTH: parts of 64 channels that a warp of linear_few has
// on their way, which divides a segment.
//
// **Invariant:** one arithmetic for all products. A weight is the f16 number W16 that the type's `fragment` makes of it, activations are f16,
// sums are f32 on the tensor cores, 16 channels a step in ascending order within a segment of 1,024 channels; a segment begins at 0, and segments
// are added in ascending order, from 0. So every kernel gives a token the same bits.
//
// What `fragment` rounds: Q4_0, Q8_0 and MXFP4 their product with the scale, once; Q4_1 d n + m, once; Q4_K and Q5_K the scale d s and the
// minimum m z, then (d s) n - (m z); Q6_K the scale d s, then its product.
#pragma once
#include "functions.cuh"

// Parts of 64 channels that are summed in one chain: it is part of the order of sums.
constexpr int SEGMENT = 16;

struct LinearParams {
    const u8* weights;   // (tiles of 16 rows, blocks of channels)
    const u16* x;        // (tokens, channels) f16; with a norm f32
    float* y;            // (tokens, rows)
    int rows, channels, tokens;
    int accumulate;      // y += instead of y =
    float scale;         // of the product
    int gated;           // rows are gates and ups in turns, eight of each, and y is SiLU(gate) * up, (tokens, rows / 2) f16
    float gate_scale;
    float eps;
    const float* norm;   // (channels) of an RMS norm that activations go through first, or null; linear_one alone has it
    DEVICE void put(u64 at, float sum) const { y[at] = accumulate ? fmaf(scale, sum, y[at]) : scale * sum; }
    // `row` of the inner values of a token, from the sums of its gate and its up: what activate_rows makes of both.
    DEVICE void put_gated(int token, int row, float gate, float up) const {
        reinterpret_cast<u16*>(y)[(u64)token * (rows / 2) + row] = f32_to_f16(silu(gate_scale * (scale * gate)) * (scale * up));
    }
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

// Scales of both rows, twice each.
DEVICE u32 both_low(u32 x) { return __byte_perm(x, 0, 0x1010); }
DEVICE u32 both_high(u32 x) { return __byte_perm(x, 0, 0x3232); }

// 0x6400 | n is the f16 number 1024 + n, so codes become numbers without a conversion; those 4 bits up are sixteen times as far.
constexpr u32 THOUSAND = 0x64006400u;
// Codes of 4 bits less OFFSET: those of rows g in a[0] and a[2], of rows g+8 in a[1] and a[3]. All exact.
template <int OFFSET>
DEVICE void nibbles(u32 (&a)[4], u32 w) {
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const u32 x = w >> 8 * c;
        a[2 * c] = add_f16x2((x & 0x000f000fu) | THOUSAND, OFFSET ? 0xe408e408u : 0xe400e400u);                              // 1024 + n - 1024 - 8
        a[2 * c + 1] = fma_f16x2((x & 0x00f000f0u) | THOUSAND, 0x2c002c00u, OFFSET ? 0xd480d480u : 0xd400d400u);  // (1024 + 16 n) / 16 - 64 - 8
    }
}
// Bytes under 0x64, less 1024 + 128.
DEVICE u32 signed_bytes(u32 w, u32 pick) { return add_f16x2(__byte_perm(w, 0x64646464u, pick), 0xe480e480u); }

// Bits of the nibble of row r and channel 2t+8c+e of a k-step in its word.
DEVICE int nibble_shift(int r, int channel) { return 4 * r + 8 * (channel / 8 % 2) + 16 * (channel % 2); }
DEVICE int lane_of(int row, int channel) { return 4 * (row % 8) + channel / 2 % 4; }
DEVICE u32 word_at(const u8* p, int i) { return __ldg(reinterpret_cast<const u32*>(p) + i); }
DEVICE u16 bits_at(const u8* p, int i) { return __ldg(reinterpret_cast<const u16*>(p) + i); }
DEVICE float half_at(const u8* p, int i) { return f16_to_f32(bits_at(p, i)); }
// The low half of a b + c, rounded once.
DEVICE float fma_half(u16 a, u16 b, u16 c) { return f16_to_f32((u16)fma_f16x2(a, b, c)); }
DEVICE float round_half(float x) { return f16_to_f32(f32_to_f16(x)); }

// Types of 64 channels: a block is a part. `load` reads part i from a block on. STAGED: bytes of a part in shared memory; `source` finds them in the block.
template <int B>
struct Plain {
    static constexpr int CHANNELS = 64, BYTES = B, PART = B, SUPERS = 0, STAGED = B;
    static constexpr bool IS_HALF = B == 2048;
    static DEVICE int source(int at, int) { return at; }
};

// Q4_0, w = d (n - 8) per 32 channels.  576 bytes of 64 channels: codes [lane][ks] words, then d [g][block][r] f16.
struct Q4_0 : Plain<576> {
    static constexpr int DEPTH = 4;
    struct Part {
        uint4 codes;
        uint2 scales;
    };
    static DEVICE Part load(const u8* block, int i, int lane) {
        const u8* p = block + i * BYTES;
        return {load_stream(p + lane * 16), __ldg(reinterpret_cast<const uint2*>(p + 512) + lane / 4)};
    }
    static DEVICE Part staged(const u8* p, const u8*, int lane) { return {load_shared(p + lane * 16), load_shared_pair(p + 512 + lane / 4 * 8)}; }
    static DEVICE void fragment(u32 (&a)[4], const Part& w, int ks) {
        const u32 s = ks < 2 ? w.scales.x : w.scales.y, low = both_low(s), high = both_high(s);
        nibbles<8>(a, word(w.codes, ks));
        a[0] = mul_f16x2(a[0], low), a[1] = mul_f16x2(a[1], high), a[2] = mul_f16x2(a[2], low), a[3] = mul_f16x2(a[3], high);
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int n = (word_at(p, lane_of(row, channel) * 4 + channel / 16) >> nibble_shift(row / 8, channel)) & 15;
        return round_half(half_at(p + 512, row % 8 * 4 + channel / 32 * 2 + row / 8) * (n - 8));
    }
};

// Q8_0, w = d n per 32 channels, stored as n + 128.  1088 bytes of 64 channels: codes [ks/2][lane][ks%2][c] words of bytes
// (e0 r0, e0 r1, e1 r0, e1 r1), then d as Q4_0 has it.
struct Q8_0 : Plain<1088> {
    static constexpr int DEPTH = 2;
    struct Part {
        uint4 codes[2];
        uint2 scales;
    };
    static DEVICE Part load(const u8* block, int i, int lane) {
        const u8* p = block + i * BYTES;
        return {{load_stream(p + lane * 16), load_stream(p + 512 + lane * 16)}, __ldg(reinterpret_cast<const uint2*>(p + 1024) + lane / 4)};
    }
    static DEVICE Part staged(const u8* p, const u8*, int lane) {
        return {{load_shared(p + lane * 16), load_shared(p + 512 + lane * 16)}, load_shared_pair(p + 1024 + lane / 4 * 8)};
    }
    static DEVICE void fragment(u32 (&a)[4], const Part& w, int ks) {
        const u32 s = ks < 2 ? w.scales.x : w.scales.y, low = both_low(s), high = both_high(s);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const u32 x = word(w.codes[ks / 2], ks % 2 * 2 + c);
            a[2 * c] = mul_f16x2(signed_bytes(x, 0x4240), low), a[2 * c + 1] = mul_f16x2(signed_bytes(x, 0x4341), high);
        }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int ks = channel / 16;
        const u32 w = word_at(p, ks / 2 * 128 + lane_of(row, channel) * 4 + ks % 2 * 2 + channel / 8 % 2);
        const int n = (w >> (16 * (channel % 2) + 8 * (row / 8))) & 255;
        return round_half(half_at(p + 1024, row % 8 * 4 + channel / 32 * 2 + row / 8) * (n - 128));
    }
};

// F16.  2048 bytes of 64 channels: [ks][lane][c][r] words of two channels.
struct F16 : Plain<2048> {
    static constexpr int DEPTH = 1;
    struct Part {
        uint4 rows[4];
    };
    static DEVICE Part load(const u8* block, int i, int lane) {
        const u8* p = block + i * BYTES;
        Part w;
#pragma unroll
        for (int ks = 0; ks < 4; ks++) w.rows[ks] = load_stream(p + ks * 512 + lane * 16);
        return w;
    }
    static DEVICE Part staged(const u8* p, const u8*, int lane) {
        Part w;
#pragma unroll
        for (int ks = 0; ks < 4; ks++) w.rows[ks] = load_shared(p + ks * 512 + lane * 16);
        return w;
    }
    static DEVICE void fragment(u32 (&a)[4], const Part& w, int ks) {
        a[0] = w.rows[ks].x, a[1] = w.rows[ks].y, a[2] = w.rows[ks].z, a[3] = w.rows[ks].w;
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        return half_at(p, channel / 16 * 256 + lane_of(row, channel) * 8 + channel / 8 % 2 * 4 + row / 8 * 2 + channel % 2);
    }
};

// Q4_1, w = d n + m per 32 channels.  640 bytes of 64 channels: codes as Q4_0 has them, then (d, m) [g][block][r] f16 pairs.
struct Q4_1 : Plain<640> {
    static constexpr int DEPTH = 2;
    struct Part {
        uint4 codes, scales;
    };
    static DEVICE Part load(const u8* block, int i, int lane) {
        const u8* p = block + i * BYTES;
        return {load_stream(p + lane * 16), __ldg(reinterpret_cast<const uint4*>(p + 512) + lane / 4)};
    }
    static DEVICE Part staged(const u8* p, const u8*, int lane) { return {load_shared(p + lane * 16), load_shared(p + 512 + lane / 4 * 16)}; }
    static DEVICE void fragment(u32 (&a)[4], const Part& w, int ks) {
        const u32 low = word(w.scales, ks / 2 * 2), high = word(w.scales, ks / 2 * 2 + 1);
        nibbles<0>(a, word(w.codes, ks));
#pragma unroll
        for (int c = 0; c < 2; c++) {
            a[2 * c] = fma_f16x2(a[2 * c], both_low(low), both_high(low));
            a[2 * c + 1] = fma_f16x2(a[2 * c + 1], both_low(high), both_high(high));
        }
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const int n = (word_at(p, lane_of(row, channel) * 4 + channel / 16) >> nibble_shift(row / 8, channel)) & 15;
        const int pair = row % 8 * 8 + channel / 32 * 4 + row / 8 * 2;
        return fma_half(f32_to_f16(n), bits_at(p + 512, pair), bits_at(p + 512, pair + 1));
    }
};

// MXFP4, w = 2^(e - 127) f per 32 channels, f of one sign, two exponent and one fraction bit.  544 bytes of 64 channels: codes as Q4_0 has
// them, then e [g][block][r] bytes, at most 128: a matrix with larger ones carries a power of two.
struct MXFP4 : Plain<544> {
    static constexpr int DEPTH = 4;
    struct Part {
        uint4 codes;
        u32 scales;
    };
    static DEVICE Part load(const u8* block, int i, int lane) {
        const u8* p = block + i * BYTES;
        return {load_stream(p + lane * 16), word_at(p + 512, lane / 4)};
    }
    static DEVICE Part staged(const u8* p, const u8*, int lane) { return {load_shared(p + lane * 16), *reinterpret_cast<const u32*>(p + 512 + lane / 4 * 4)}; }
    // The bits of f at their places in an f16, whose exponents are 14 larger: subnormals and all are f / 2^14.
    static DEVICE u32 floats(u32 w, int shift) {
        const u32 sign = 12 - shift >= 0 ? w << (12 - shift) : w >> (shift - 12), rest = 9 - shift >= 0 ? w << (9 - shift) : w >> (shift - 9);
        return (sign & 0x80008000u) | (rest & 0x0e000e00u);
    }
    // 2^(e - 113) as f16, twice: a subnormal below e = 99, none below 89.
    static DEVICE u32 scale_of(u32 e) {
        const int n = min((int)e, 128) - 98;
        const u32 x = n > 0 ? (u32)n << 10 : n > -10 ? 512u >> -n : 0u;
        return x | x << 16;
    }
    static DEVICE void fragment(u32 (&a)[4], const Part& w, int ks) {
        const u32 s = w.scales >> 16 * (ks / 2), x = word(w.codes, ks), low = scale_of(s & 255), high = scale_of(s >> 8 & 255);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = mul_f16x2(floats(x, 4 * i), i % 2 ? high : low);
    }
    static DEVICE float at(const u8* p, int row, int channel) {
        const u32 n = word_at(p, lane_of(row, channel) * 4 + channel / 16) >> nibble_shift(row / 8, channel) & 15;
        const u32 e = p[512 + row % 8 * 4 + channel / 32 * 2 + row / 8];
        return f16_to_f32((u16)mul_f16x2((n & 8) << 12 | (n & 7) << 9, scale_of(e)));
    }
};

#include "weights_k.cuh"
