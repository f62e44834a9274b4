// Attention over latents: one vector of a token serves scores and sums, beside a rotated part that scores alone read. MLA has one such vector for all
// heads, Gemma 4's global layers one for every kv head: a CTA attends for the query heads of one kv head.
//
// Half pages are canonical (docs/page-format.md of kvant-codec), for a page is turned into f16 in shared memory once and then read by many
// columns, in both directions: `key` halves have the rotated part, `value` halves the latent. A row of the tile is a token: latent, then
// rotated part. It never leaves shared memory.
//
// A CTA of 8 warps attends for 16 MT columns, a column being a query head of a query token. Scores: queries are A, tokens are columns of the
// mma, and a warp has 8 tokens of the 64. Softmax: a warp has rows w, w+8, … Sums: weights are A, and a warp has an eighth of the channels.
//
// **Invariant:** arithmetic is column by column, pages of an item are met in their order, and partials are merged in the order of slots: so a query
// has the same bits with any MT, batch and grid.
#pragma once
#include "attention.cuh"

constexpr int LATENT_WARPS = 8, LATENT_THREADS = LATENT_WARPS * WARP;
constexpr int LATENT = 512, ROTATED = 128;  // the most channels of the two parts
constexpr int TILE_WIDTH = LATENT + ROTATED + 8;  // halves of a row: an odd number of 16-byte units, so that rows begin in different banks

struct LatentParams {
    const u8* pages;         // page memory
    const PageEntry* table;  // (seats, kv_heads, table_stride): closed pages
    const PageEntry* exact;  // (rows, kv_heads, exact_stride): the sinks' page, then the exact pages in order
    const Item* items;       // (n_items)
    const Slots* slots;      // (rows)
    const u16* q;            // (rows, heads, latent + rotated) f16
    const u16* q_closed;     // the same, the latent part in the basis of closed pages
    float* part_o;           // (slots, heads, latent): unnormalised, relative to 2^m
    float2* part_ml;         // (slots, heads): (m, l), log2 domain
    const float* signs;      // (latent) sign / sqrt(latent) of the SRHT of closed pages, or null
    u16* out;                // (rows, heads, latent) f16
    int n_items, heads, latent, rotated;  // latent: a multiple of 64; rotated: of 16
    int table_stride, exact_stride;
    int key_bits, value_bits;  // of closed pages: 4 or 8; 0 for f16
    int sink_tokens;           // of the sinks' page
    int tiles;                 // tiles of columns of an item and kv head
    int kv_heads;              // which divide the heads
    float scale;               // scores to log2 units
    float floor;               // log2 of the weight below which a page's values are left out (--sparse-v); 0: none are
};

template <int MT>
struct LatentShared {
    u16 q[16 * MT][TILE_WIDTH];
    u16 tile[PAGE_TOKENS][TILE_WIDTH];
    float scores[16 * MT][PAGE_TOKENS + 4];
    u16 weights[16 * MT][PAGE_TOKENS + 8];
    float factor[16 * MT];
};

// ---- half pages to rows of the tile ----

// f16 rows of the latent.
DEVICE void exact_latents(u16 (*tile)[TILE_WIDTH], const u8* page, int tokens, int latent, int tid) {
    for (int i = tid; i < tokens * latent / 8; i += LATENT_THREADS) {
        const int token = i / (latent / 8), c = i % (latent / 8) * 8;
        *reinterpret_cast<uint4*>(&tile[token][c]) = load_coherent(page + 16 * i);
    }
}
// f16 columns of the rotated part: eight tokens of a channel.
DEVICE void exact_rotated(u16 (*tile)[TILE_WIDTH], const u8* page, int tokens, int latent, int rotated, int tid) {
    for (int i = tid; i < rotated * tokens / 8; i += LATENT_THREADS) {
        const int c = i / (tokens / 8), token = i % (tokens / 8) * 8;
        const uint4 v = load_coherent(page + 16 * i);
#pragma unroll
        for (int k = 0; k < 8; k++) tile[token + k][latent + c] = (u16)(word(v, k / 2) >> 16 * (k % 2));
    }
}

// Codes as f16 integers: 0x6400 | n is 1024 + n. Two bytes of a word become two halves.
template <int FIRST>
DEVICE u32 two_codes(u32 bytes, u32 minus) {
    return add_f16x2(__byte_perm(bytes, 0x64646464u, FIRST ? 0x4342 : 0x4140), minus);
}
DEVICE u32 twice(u32 half) { return (half & 0xffffu) * 0x00010001u; }

// Four channels of four tokens, a byte each: word k is a channel, its bytes are tokens. `scales` has two tokens to a word.
DEVICE void put_latents(u16 (*tile)[TILE_WIDTH], int token, int c, const u32 (&w)[4], u32 minus, uint2 scales) {
#pragma unroll
    for (int b = 0; b < 4; b++) {
        const u32 pick = (u32)(b | (4 + b) << 4);
        const u32 s = twice((b < 2 ? scales.x : scales.y) >> 16 * (b % 2));
        const u32 lo = mul_f16x2(two_codes<0>(__byte_perm(w[0], w[1], pick), minus), s);
        const u32 hi = mul_f16x2(two_codes<0>(__byte_perm(w[2], w[3], pick), minus), s);
        *reinterpret_cast<uint2*>(&tile[token + b][c]) = make_uint2(lo, hi);
    }
}
// Latents of codes: scales (groups, 64) f16, then codes in rows of 16 channels. Lanes have four channels each of four rows (so that what a half
// warp writes meets every bank once), and two neighbouring runs of tokens.
template <int BITS>
DEVICE void coded_latents(u16 (*tile)[TILE_WIDTH], const u8* page, int latent, int warp, int lane) {
    constexpr u32 MINUS = BITS == 8 ? 0xe480e480u : 0xe408e408u;  // -1152, -1032
    constexpr int RUNS = BITS == 8 ? PAGE_TOKENS / 8 : PAGE_TOKENS / 16;
    const u8* codes = page + latent * 4;
    const int j = lane % 4, below = lane / 4 % 4, half = lane / 16;
#pragma unroll 1
    for (int i = warp; i < RUNS * (latent / 64); i += LATENT_WARPS) {
        const int run = i % RUNS, row = i / RUNS * 4 + below, c = 16 * row + 4 * j;
        if constexpr (BITS == 8) {  // `half`: the four tokens of an eight
            const int token = 8 * run + 4 * half;
            const uint4 v = load_coherent(codes + 1024 * row + 128 * run + 64 * half + 16 * j);
            const uint2 s = __ldcg(reinterpret_cast<const uint2*>(page + 2 * (64 * (c / 32) + token)));
            const u32 w[4] = {v.x, v.y, v.z, v.w};
            put_latents(tile, token, c, w, MINUS, s);
        } else {  // `half`: which eight of sixteen tokens; the second four are in the upper nibbles
            const int token = 16 * run + 8 * half;
            const uint4 v = load_coherent(codes + 512 * row + 8 * token + 16 * j);
            const uint4 s = load_coherent(page + 2 * (64 * (c / 32) + token));
            const u32 lo[4] = {v.x & 0x0f0f0f0fu, v.y & 0x0f0f0f0fu, v.z & 0x0f0f0f0fu, v.w & 0x0f0f0f0fu};
            const u32 hi[4] = {v.x >> 4 & 0x0f0f0f0fu, v.y >> 4 & 0x0f0f0f0fu, v.z >> 4 & 0x0f0f0f0fu, v.w >> 4 & 0x0f0f0f0fu};
            put_latents(tile, token, c, lo, MINUS, make_uint2(s.x, s.y));
            put_latents(tile, token + 4, c, hi, MINUS, make_uint2(s.z, s.w));
        }
    }
}

// The rotated part of codes: scales and zeros of every channel, then codes in rows of 8 channels; a word is four channels of a token.
template <int BITS>
DEVICE void coded_rotated(u16 (*tile)[TILE_WIDTH], const u8* page, int latent, int rotated, int tid) {
    constexpr u32 MINUS = 0xe400e400u;  // -1024
    const u8* codes = page + 4 * rotated;
    auto put = [&](int token, int c, u32 four) {  // channels c … c+3
        const uint2 s = __ldcg(reinterpret_cast<const uint2*>(page + 2 * c)), z = __ldcg(reinterpret_cast<const uint2*>(page + 2 * (rotated + c)));
        *reinterpret_cast<uint2*>(&tile[token][latent + c]) =
            make_uint2(fma_f16x2(two_codes<0>(four, MINUS), s.x, z.x), fma_f16x2(two_codes<1>(four, MINUS), s.y, z.y));
    };
    for (int i = tid; i < rotated * BITS / 2; i += LATENT_THREADS) {  // of 16 bytes
        const uint4 v = load_coherent(codes + 16 * i);
        const int row = i / (4 * BITS), part = i % (4 * BITS);  // a row of 8 channels has 64 BITS bytes
        const int token = (BITS == 8 ? part / 8 : part / 4) * 16 + part % 4 * 4, c = 8 * row + (BITS == 8 ? part / 4 % 2 * 4 : 0);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const u32 w = word(v, k);
            if constexpr (BITS == 8) {
                put(token + k, c, w);
            } else {
                put(token + k, c, w & 0x0f0f0f0fu);
                put(token + k, c + 4, w >> 4 & 0x0f0f0f0fu);
            }
        }
    }
}

DEVICE void closed_page(u16 (*tile)[TILE_WIDTH], const LatentParams& p, PageEntry entry, int tid) {
    const u8 *keys = half_page(p.pages, entry.x), *values = half_page(p.pages, entry.y);
    const int warp = tid / WARP, lane = tid % WARP;
    if (p.value_bits == 8) coded_latents<8>(tile, values, p.latent, warp, lane);
    else if (p.value_bits == 4) coded_latents<4>(tile, values, p.latent, warp, lane);
    else exact_latents(tile, values, PAGE_TOKENS, p.latent, tid);
    if (p.key_bits == 8) coded_rotated<8>(tile, keys, p.latent, p.rotated, tid);
    else if (p.key_bits == 4) coded_rotated<4>(tile, keys, p.latent, p.rotated, tid);
    else exact_rotated(tile, keys, PAGE_TOKENS, p.latent, p.rotated, tid);
}
// Asks for the next page while this one is attended.
DEVICE void announce_page(const LatentParams& p, PageEntry entry, int tid) {
    const u8 *keys = half_page(p.pages, entry.x), *values = half_page(p.pages, entry.y);
    const int of_values = (p.value_bits ? p.latent * (4 + 8 * p.value_bits) : 128 * p.latent) / UNIT;
    const int of_keys = (p.key_bits ? p.rotated * (4 + 8 * p.key_bits) : 128 * p.rotated) / UNIT;
    for (int i = tid; i < of_values + of_keys; i += LATENT_THREADS)
        prefetch_l2(i < of_values ? values + UNIT * i : keys + UNIT * (i - of_values));
}

// ---- one tile of 64 tokens ----
template <int MT>
struct LatentState {
    float acc[MT][LATENT / 64][4];  // [columns 16mt+g, +8][8 channels of this warp's eighth: 2t, 2t+1]
    float m[2 * MT], l[2 * MT];     // of rows warp + 8i, at every lane

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) m[i] = MINUS_INFINITY, l[i] = 0.f;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int nt = 0; nt < LATENT / 64; nt++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[mt][nt][j] = 0.f;
    }

    // The tile and the queries are complete. `seen(row)` says which tokens the query of a row sees: begin and end. `sparse`: values may be left out.
    template <class Seen>
    DEVICE void attend(LatentShared<MT>& shared, const LatentParams& p, Seen seen, bool sparse, int warp, int lane) {
        const int g = lane / 4, t = lane % 4, steps = (p.latent + p.rotated) / 16;
        {
            float s[MT][4] = {};
            const u16* tokens = &shared.tile[8 * warp + lane % 8][lane / 8 * 8];
            const u16* queries = &shared.q[lane % 16][lane / 16 * 8];
#pragma unroll(MT == 2 ? 2 : 1)
            for (int ks = 0; ks < steps; ks += 2) {
                const uint4 b = load_matrices(tokens + 16 * ks);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const uint4 a = load_matrices(queries + 16 * mt * TILE_WIDTH + 16 * ks);
                    mma16816(s[mt], a.x, a.y, a.z, a.w, b.x, b.y);
                }
                if (ks + 1 < steps) {
#pragma unroll
                    for (int mt = 0; mt < MT; mt++) {
                        const uint4 a = load_matrices(queries + 16 * mt * TILE_WIDTH + 16 * ks + 16);
                        mma16816(s[mt], a.x, a.y, a.z, a.w, b.z, b.w);
                    }
                }
            }
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                *reinterpret_cast<float2*>(&shared.scores[16 * mt + g][8 * warp + 2 * t]) = make_float2(s[mt][0], s[mt][1]);
                *reinterpret_cast<float2*>(&shared.scores[16 * mt + g + 8][8 * warp + 2 * t]) = make_float2(s[mt][2], s[mt][3]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = warp + LATENT_WARPS * i;
            const int2 view = seen(row);
            float x[2], top = MINUS_INFINITY;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int token = lane + WARP * k;
                x[k] = token >= view.x && token < view.y ? shared.scores[row][token] * p.scale : MINUS_INFINITY;
                top = fmaxf(top, x[k]);
            }
#pragma unroll
            for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
            if (sparse && top - m[i] < p.floor) x[0] = x[1] = MINUS_INFINITY;
            top = fmaxf(top, m[i]);
            // Without a token in view yet both are -inf, and there is nothing to scale.
            const float factor = top == m[i] ? 1.f : ex2(m[i] - top);
            float mass = 0.f;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float e = x[k] == MINUS_INFINITY ? 0.f : ex2(x[k] - top);
                shared.weights[row][lane + WARP * k] = f32_to_f16(e);
                mass += e;
            }
#pragma unroll
            for (int o = 16; o; o /= 2) mass += __shfl_xor_sync(~0u, mass, o);
            l[i] = fmaf(l[i], factor, mass), m[i] = top;
            if (lane == 0) shared.factor[row] = factor;
        }
        __syncthreads();
        float f[MT][2];
        bool moved = false;
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            f[mt][0] = shared.factor[16 * mt + g], f[mt][1] = shared.factor[16 * mt + g + 8];
            moved |= f[mt][0] != 1.f || f[mt][1] != 1.f;
        }
        if (__any_sync(~0u, moved)) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int nt = 0; nt < LATENT / 64; nt++)
#pragma unroll
                    for (int j = 0; j < 4; j++) acc[mt][nt][j] *= f[mt][j / 2];
        }
        const int own = p.latent / 64;  // tiles of 8 channels of a warp
        const u16* weights = &shared.weights[lane % 16][lane / 16 * 8];
        const u16* values = &shared.tile[lane % 16][8 * own * warp + lane / 16 * 8];
#pragma unroll 1
        for (int ks = 0; ks < PAGE_TOKENS / 16; ks++) {
            uint4 a[MT];
#pragma unroll
            for (int mt = 0; mt < MT; mt++) a[mt] = load_matrices(weights + 16 * mt * (PAGE_TOKENS + 8) + 16 * ks);
#pragma unroll
            for (int nt = 0; nt < LATENT / 64; nt += 2) {
                if (nt >= own) break;
                const uint4 b = load_matrices_turned(values + 16 * ks * TILE_WIDTH + 8 * nt);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    mma16816(acc[mt][nt], a[mt].x, a[mt].y, a[mt].z, a[mt].w, b.x, b.y);
                    if (nt + 1 < own) mma16816(acc[mt][nt + 1], a[mt].x, a[mt].y, a[mt].z, a[mt].w, b.z, b.w);
                }
            }
        }
        __syncthreads();  // the tile may be filled again
    }
};

// Grid: items times kv heads times tiles of columns.
template <int MT>
DEVICE void attend_latent(const LatentParams& p) {
    DYNAMIC_SHARED(memory);
    auto& shared = *reinterpret_cast<LatentShared<MT>*>(memory);
    const int tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    const int column = blockIdx.x / p.tiles, first = blockIdx.x % p.tiles * 16 * MT;
    const int index = column / p.kv_heads, kv = column % p.kv_heads, group = p.heads / p.kv_heads;
    const Item item{__ldg(&p.items[index].run), __ldg(&p.items[index].seen), __ldg(&p.items[index].rows)};
    const int tokens = item.rows.y, width = p.latent + p.rotated;
    const bool closed = item.run.y < item.run.z;
    pdl_wait();
    pdl_trigger();

    const u16* queries = closed ? p.q_closed : p.q;
    for (int i = tid; i < 16 * MT * (width / 8); i += LATENT_THREADS) {
        const int row = i / (width / 8), c = i % (width / 8) * 8, token = (first + row) / group, head = kv * group + (first + row) % group;
        uint4 v = {0u, 0u, 0u, 0u};
        if (token < tokens) v = load_coherent(queries + ((u64)(item.rows.x + token) * p.heads + head) * width + c);
        *reinterpret_cast<uint4*>(&shared.q[row][c]) = v;
    }
    LatentState<MT> state;
    state.clear();
    auto later = [&](int row) { return min((first + row) / group, tokens - 1); };  // which token of the item
    if (closed) {
        const PageEntry* pages = p.table + ((u64)item.run.x * p.kv_heads + kv) * p.table_stride;
        int hidden = item.seen.x;
#pragma unroll 1
        for (int page = item.run.y; page < item.run.z; page++, hidden -= PAGE_TOKENS) {
            closed_page(shared.tile, p, __ldg(pages + page), tid);
            if (page + 1 < item.run.z) announce_page(p, __ldg(pages + page + 1), tid);
            __syncthreads();
            state.attend(shared, p, [&](int row) { return make_int2(hidden + item.rows.z * later(row), PAGE_TOKENS); }, p.floor != 0.f, warp, lane);
        }
    } else {
        // The rows of the table of exact pages are the queries'. Those of an item begin with the same page, and the last one's has all of them.
        const PageEntry* pages = p.exact + ((u64)(item.rows.x + tokens - 1) * p.kv_heads + kv) * p.exact_stride;
        auto tile = [&](PageEntry entry, int count) {
            exact_latents(shared.tile, half_page(p.pages, entry.y), count, p.latent, tid);
            exact_rotated(shared.tile, half_page(p.pages, entry.x), count, p.latent, p.rotated, tid);
            const uint4 none = {0u, 0u, 0u, 0u};
            for (int i = tid; i < (PAGE_TOKENS - count) * (width / 8); i += LATENT_THREADS)
                *reinterpret_cast<uint4*>(&shared.tile[count + i / (width / 8)][i % (width / 8) * 8]) = none;
            __syncthreads();
        };
        if (item.seen.x < item.seen.y) {
            tile(__ldg(pages), p.sink_tokens);
            state.attend(shared, p, [&](int) { return make_int2(item.seen.x, item.seen.y); }, false, warp, lane);
        }
        const int last = item.seen.w + tokens - 1;  // the end that the last query sees
#pragma unroll 1
        for (int at = 0; at < last; at += PAGE_TOKENS) {
            tile(__ldg(pages + 1 + at / PAGE_TOKENS), PAGE_TOKENS);
            auto seen = [&](int row) {
                const int n = later(row);
                return make_int2(item.seen.z + item.rows.z * n - at, item.seen.w + n - at);
            };
            state.attend(shared, p, seen, false, warp, lane);
        }
    }
    const int g = lane / 4, t = lane % 4, own = p.latent / 64;
    auto slot = [&](int row) {
        return (u64)(item.run.w + (first + row) / group * item.rows.w) * p.heads + kv * group + (first + row) % group;
    };
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int row = warp + LATENT_WARPS * i;
        if (lane == 0 && (first + row) / group < tokens) p.part_ml[slot(row)] = make_float2(state.m[i], state.l[i]);
    }
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = 16 * mt + 8 * r + g;
            if ((first + row) / group >= tokens) continue;
            float* out = p.part_o + slot(row) * p.latent + 8 * own * warp + 2 * t;
#pragma unroll
            for (int nt = 0; nt < LATENT / 64; nt++)
                if (nt < own) *reinterpret_cast<float2*>(out + 8 * nt) = make_float2(state.acc[mt][nt][2 * r], state.acc[mt][nt][2 * r + 1]);
        }
}
