// Pages of any codec, as their format says (docs/page-format.md of kvant-codec): what a page is made of, as data, and its numbers in the codec's basis.
// src/general/form.rs makes the structs.
//
// A page has one part, or two whose numbers lie in bases of their own and are added: then a vector has as many channels twice, and so has a query.
#pragma once
#include "pages.cuh"

enum PartKind { EXACT_PART, PACKED_PART, TRELLIS_PART, POLAR_PART };
enum CodeMeaning { SHIFTED_CODES, CODES_WITH_ZERO, TABLE_CODES };
enum BasisKind { MODEL_BASIS, HADAMARD_BASIS, DENSE_BASIS };

struct PartRow {  // 8 channels of a packed key, 16 of a packed value, 16 of a trellis' value
    int codes;    // from the part's start
    int bits, group, unused;
};
struct PagePart {
    int kind, is_key, at, tokens;         // at: bytes from the page's start
    int dim, coded, rows, groups;         // coded: channels that have codes; groups: rows of the token arrays
    int group, scale_bytes, meaning, bits;  // group: channels of a token's scale. bits: of a polar angle of the first level; of all quads of a trellis' key
    int channel_scale, channel_zero, token_scale, token_zero;  // from the part's start; below zero: none
    int first_token;                      // of differences, from the page's start: the token before the first; below zero: no differences
    int scales, codes, element;           // of a trellis; of a polar code: radii at 0, angles at codes; of exact pages 0 f16, 1 f32, 2 bf16
    int rule, basis, power, odd;          // how the encoder chooses scales; which basis: Hadamard blocks of power * odd channels
    float unit;                           // of tables whose scale is by power
    int planned, bytes, unused;
    const float *mean, *signs, *hartley;  // (dim), (dim), (odd, odd), or null
    const float* forward;                 // (dim, dim): what channel j of the model adds to channels of the basis, or null
    const float* inverse_lambda;          // (dim), or null
    const float* backward;                // (dim, dim): what channel j of the basis adds to channels of the model, or null
    const float2* angles;                 // (4, 32): directions of polar codes
    PartRow row[64];
    float table[32], boundaries[32];
};
struct PageForm {
    int tokens, dim, parts, width;  // width: channels of all parts, in whole 64s
    const float* turn;              // keys (dim, width): what channel c of a query adds to its channels here; values (width, dim): what these add to sums
    const float* mean;              // (dim), or null
    PagePart part[2];
};
// Levels and steps of trellis codes by their width.
struct TrellisTables {
    float unit[16];
    int start[16];
    float scale[256];     // what a stored scale stands for
    float first[256][4];  // steps of the first three tokens by the leak
    signed char level[16][256];
};

// ---- numbers of a page ----

DEVICE u32 byte_at(const u8* p) { return __ldg(p); }
DEVICE float bf16_to_f32(u16 x) { return __int_as_float((u32)x << 16); }
DEVICE float stored(const u8* p, int i, int bytes) {
    if (bytes == 2) return f16_to_f32((u16)(byte_at(p + 2 * i) | byte_at(p + 2 * i + 1) << 8));
    p += 4 * i;
    return __int_as_float(byte_at(p) | byte_at(p + 1) << 8 | byte_at(p + 2) << 16 | byte_at(p + 3) << 24);
}

// A code of a unit of 128: code i of vector h.
DEVICE u32 unit_code(const u8* unit, int bits, int h, int i) {
    if (bits == 8) return byte_at(unit + 64 * h + i);
    u32 code = 0;
    int at = 0, shift = 0;
    if (bits & 4) code = byte_at(unit + i) >> 4 * h & 15u, at = 64, shift = 4;
    if (bits & 2) code |= (byte_at(unit + at + 16 * h + i % 16) >> 2 * (i / 16) & 3u) << shift, at += 32, shift += 2;
    if (bits & 1) code |= (byte_at(unit + at + 8 * h + i / 8) >> i % 8 & 1u) << shift;
    return code;
}
// The code of a token and of channel k of a row.
DEVICE u32 packed_code(const PagePart& p, const u8* page, const PartRow& row, int t, int k) {
    const u8* codes = page + p.at + row.codes;
    if (p.is_key) return unit_code(codes + t / 16 * 16 * row.bits, row.bits, k / 4, 4 * (t % 16) + k % 4);
    return unit_code(codes + t / 8 * 16 * row.bits, row.bits, t % 8 / 4, 4 * k + t % 4);
}
DEVICE float level_of(const PagePart& p, u32 code, int bits) {
    if (p.meaning == TABLE_CODES) return __ldg(&p.table[code]);
    return p.meaning == SHIFTED_CODES ? (float)((int)code - (1 << (bits - 1))) : (float)code;
}
// A number of a packed part: a token, and channel k of a row.
DEVICE float packed_number(const PagePart& p, const u8* page, int r, int t, int k) {
    const PartRow& row = p.row[r];
    const u8* own = page + p.at;
    const int c = (p.is_key ? 8 : 16) * r + k, of_token = row.group * p.tokens + t;
    float y = level_of(p, packed_code(p, page, row, t, k), row.bits);
    if (p.token_scale >= 0) {
        const float zero = p.token_zero >= 0 ? stored(own + p.token_zero, of_token, p.scale_bytes) : 0.f;
        y = fmaf(y, stored(own + p.token_scale, of_token, p.scale_bytes), zero);
    }
    if (p.channel_scale >= 0) {
        const float zero = p.channel_zero >= 0 ? stored(own + p.channel_zero, c, p.scale_bytes) : 0.f;
        y = fmaf(y, stored(own + p.channel_scale, c, p.scale_bytes), zero);
    }
    return y;
}

// A number of a polar part: the radius of its sixteen channels, and a direction of every level on the way down.
DEVICE float polar_number(const PagePart& p, const u8* page, int t, int c) {
    const int blocks = (p.dim + 15) / 16, n = t * blocks + c / 16, low = p.bits - 2, all = 8 * p.bits + 7 * low;
    const u8* angles = page + p.codes;
    float x = stored(page, n, p.scale_bytes);
    int end = all;
#pragma unroll 1
    for (int level = 3; level >= 0; level--) {
        const int width = level ? low : p.bits, pair = c % 16 >> (level + 1);
        end -= (8 >> level) * width;
        const int at = n * all + end + pair * width;
        const u32 two = byte_at(angles + at / 8) | (at % 8 + width > 8 ? byte_at(angles + at / 8 + 1) << 8 : 0u);
        const float2 way = __ldg(p.angles + 32 * level + (two >> at % 8 & ((1u << width) - 1)));
        x *= c >> level & 1 ? way.y : way.x;
    }
    return x;
}

// The bytes of a trellis' channel: eight tokens are `bits` bytes, byte j of run n at `place(n, j)`.
struct TrellisChannel {
    const u8* codes;
    int bits, leak, is_key, k;
    float scale, zero;  // the unit of the width included
    DEVICE int place(int n, int j) const { return is_key ? 64 * j + 4 * n + k : 64 * (n % 4 * bits + j) + 4 * k + n / 4; }
};
DEVICE int trellis_bits(u32 head) { return (head & 15u) <= 6u || (head & 15u) == 8u ? (int)(head & 15u) : 0; }
DEVICE TrellisChannel trellis_channel(const PagePart& p, const TrellisTables& tables, const u8* page, int c) {
    TrellisChannel x;
    x.is_key = p.is_key;
    if (p.is_key) {
        const int q = c / 4;
        int codes = p.codes, bits = 0;
        for (int i = 0; i <= q; i++) {
            bits = trellis_bits(byte_at(page + i));
            if (codes + 64 * bits > p.bytes) bits = 0;  // codes that would lie beyond the page are none
            if (i < q) codes += 64 * bits;
        }
        const float scale = __ldg(&tables.scale[byte_at(page + p.scales + c)]);
        x.codes = page + codes, x.bits = bits, x.leak = (int)(byte_at(page + q) & 0xf0u), x.k = c % 4;
        x.scale = scale * (bits ? __ldg(&tables.unit[bits]) : 1.f);
        x.zero = 0.5f * (float)(signed char)byte_at(page + p.scales + 4 * p.rows + c) * scale;
    } else {
        const PartRow& row = p.row[c / 16];
        const int n = (int)(byte_at(page + p.scales + c / 2) >> 4 * (c % 2) & 15u);
        const float factor = __ldg(&tables.scale[128 + 2 * (n - 8)]);
        x.codes = page + row.codes, x.bits = row.bits, x.leak = (int)byte_at(page + 1), x.k = c % 16;
        x.scale = __ldg(&tables.scale[byte_at(page)]) * factor * (row.bits ? __ldg(&tables.unit[row.bits]) : 1.f);
        x.zero = 0.f;
    }
    return x;
}
// The factor of a token of a trellis' values.
DEVICE float trellis_token(const TrellisTables& tables, const u8* page, int t) {
    return __ldg(&tables.scale[128 + 4 * ((int)(byte_at(page + 2 + t / 2) >> 4 * (t % 2) & 15u) - 8)]);
}

// Numbers of one channel of a part in which each follows from the one before, tokens `from` … `to`: `put(token, number)`. `state` is what a token is made
// from: of a trellis y, of differences the number; it is the channel's own at `from`, and at `to` when all is done.
template <class Put>
DEVICE void trellis_numbers(const TrellisChannel& x, const TrellisTables& tables, const u8* page, int from, int to, float& state, Put put) {
    const float leak = (float)x.leak * (1.f / 256.f);
    if (!x.bits) {
        for (int t = from; t < to; t++) put(t, x.zero);
        return;
    }
    const signed char* levels = tables.level[x.bits];
    float y = state;
    u32 before = from ? byte_at(x.codes + x.place(from / 8 - 1, x.bits - 1)) : (u32)__ldg(&tables.start[x.bits]);
    for (int n = from / 8; n < to / 8; n++) {
        u64 word = before;
        for (int j = 0; j < x.bits; j++) word = word << 8 | byte_at(x.codes + x.place(n, j));
        before = (u32)word & 255u;
#pragma unroll 2
        for (int k = 0; k < 8; k++) {
            const int t = 8 * n + k;
            // Eight bits a code: the window is the byte, and the word has no room for all of them.
            const u32 window = x.bits == 8 ? byte_at(x.codes + x.place(n, k)) : (u32)(word >> x.bits * (7 - k)) & 255u;
            float step = x.is_key ? 1.f : trellis_token(tables, page, t);
            if (t < 3) step *= __ldg(&tables.first[x.leak][t]);
            y = fmaf(y, leak, step * (float)__ldg(levels + window));
            put(t, fmaf(y, x.scale, x.zero));
        }
    }
    state = y;
}
template <class Put>
DEVICE void difference_numbers(const PagePart& p, const u8* page, int c, int from, int to, float& state, Put put) {
    const int per = p.is_key ? 8 : 16;
    float y = from ? state : stored(page + p.first_token, c, p.scale_bytes);
    for (int t = from; t < to; t++) {
        y = __fadd_rn(y, packed_number(p, page, c / per, t, c % per));
        put(t, y);
    }
    state = y;
}

// Where a number of an exact page lies, in numbers (Exact of pages.cuh, for any head).
DEVICE int exact_at(int dim, int is_key, int token, int channel) {
    const int row = is_key ? token : channel, k = is_key ? channel : token;
    const int ks = is_key ? k / 16 : row / 16, r = row / 8 % 2, g = row % 8, c = k / 8 % 2, t = k / 2 % 4, e = k % 2;
    return token / 16 * 16 * dim + ks * 256 + (4 * g + t) * 8 + (2 * c + r) * 2 + e;
}
DEVICE float exact_number(const PagePart& p, const u8* page, int t, int c) {
    const int at = exact_at(p.dim, p.is_key, t, c);
    if (p.element == 1) return __ldcg(reinterpret_cast<const float*>(page) + at);
    const u16 x = __ldcg(reinterpret_cast<const u16*>(page) + at);
    return p.element == 2 ? bf16_to_f32(x) : f16_to_f32(x);
}
