// What kernels of recurrent state share: how state and rows are stored, and the sums of gated DeltaNets and Mamba-2.
//
// State and rows lie in pages, canonical (description::mixer of kvant-model says what they hold): rows as f32, state as f32, bf16 or bytes under
// scales (recurrent/stored.rs of kvant-cache). A state is rounded once, at its chunk's end, and whoever reads it from then on reads that, this
// pass too. A pass cuts a sequence into pieces of one chunk each; the state at a later piece's start is what the one before it ended with, and
// pages are written only where somebody may go back to them.
//
// With S the state at the chunk's start and G the sums of a head's log decays, DeltaNets have
//   u = beta (v - exp(G) S'k - sum_{j<t} exp(G - G_j) (k_j k) u_j), o = exp(G) S'q + sum_{j<=t} exp(G - G_j) (k_j q) u_j,
// and Mamba-2, with B as keys, C as queries and dt x as u: y = exp(G) S C + sum_{j<=t} exp(G - G_j) (B_j C) u_j + D x.
//
// **Invariant:** one order of sums for recurrent.cu, which goes token by token, and recurrent_chunks.cu, which takes a chunk at once. Over channels of
// keys: a chain for each quarter, and quarters in order. Over a chunk's tokens: a chain for each block of 16 from 0, blocks in order after what
// the state gives; what u has of its own block is taken off last. The state at the end: a chain over all tokens that begins with the old one.
// Every product and sum says how it is rounded, so that no compiler fuses what another does not.
#pragma once
#include "functions.cuh"
#include "pages.cuh"

constexpr int STATE_CHUNK = 64;
constexpr u32 NO_PAGE = ~0u;

struct Piece {
    u32 state, rows, next;  // pages by unit, or NO_PAGE: the state at the first piece's start, the chunk's rows, the state at its end
    int row, tokens;        // of the pass: the piece's first row, and how many
    int before;             // tokens of the chunk before it
    int first;              // the sequence's first piece
    int zero;
};
DEVICE float* numbers(u8* pages, u32 unit) { return reinterpret_cast<float*>(pages + (u64)unit * UNIT); }
DEVICE bool is_odd(float x) { return !(fabsf(x) <= 3.4028234e38f); }

// How a state's numbers are stored.
enum StateType { STATE_F32, STATE_BF16, STATE_INT8 };
constexpr int STATE_GROUP = 64;  // numbers that share a scale
// The codes of a state of `count` numbers, after its scales.
DEVICE u8* codes_of(u8* page, int count) { return page + (count + STATE_GROUP - 1) / STATE_GROUP * 4; }
DEVICE float state_number(u8* pages, u32 unit, int type, int count, u64 i) {
    u8* page = pages + (u64)unit * UNIT;
    if (type == STATE_F32) return reinterpret_cast<const float*>(page)[i];
    if (type == STATE_BF16) return __int_as_float((u32)reinterpret_cast<const u16*>(page)[i] << 16);
    return reinterpret_cast<const float*>(page)[i / STATE_GROUP] * (float)(signed char)codes_of(page, count)[i];
}
// To nearest, ties to even.
DEVICE u16 upper_half(float x) {
    const u32 bits = __float_as_uint(x);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// A number of a group whose largest is `top`, as it is stored: its code, and the scale of all.
struct Rounded {
    float number, scale;
    int code;
};
DEVICE Rounded round_state(float x, float top, int type) {
    if (type == STATE_BF16) {
        const u16 half = upper_half(x);
        return {__int_as_float((u32)half << 16), 0.f, half};
    }
    const bool counts = top > 1e-30f;  // below it a reciprocal could overflow
    const float scale = counts ? __fdiv_rn(top, 127.f) : 0.f, inverse = counts ? __fdiv_rn(127.f, top) : 0.f;
    const int code = __float2int_rn(__fmul_rn(x, inverse));
    return {scale * (float)code, scale, code};
}
DEVICE void store_state(u8* pages, u32 unit, int type, int count, u64 i, const Rounded& x) {
    u8* page = pages + (u64)unit * UNIT;
    if (type == STATE_BF16) {
        reinterpret_cast<u16*>(page)[i] = (u16)x.code;
        return;
    }
    codes_of(page, count)[i] = (u8)x.code;
    if (i % STATE_GROUP == 0) reinterpret_cast<float*>(page)[i / STATE_GROUP] = x.scale;
}

struct StateParams {
    float* x;               // (rows, channels): what the convolution gave; chunk_products makes queries and keys as long as they are to be
    const float* steps;     // (rows, stride): a number of every head that decays follow from
    const float* betas;     // the same of DeltaNets: logits of what is corrected; else null
    const float* rates;     // (heads): A < 0
    const float* dt_bias;   // (heads)
    const float* skip;      // (heads): D of Mamba-2; else null
    float* y;               // (rows, heads, value_dim)
    u8* pages;
    const Piece* pieces;
    const int2* sequences;  // (grid y): first piece, pieces
    float* products;        // (pieces): what chunk_products leaves to scan_chunks; else null
    int* refused;
    int heads, key_heads, tiled;  // heads of values; of keys, which head h reads h % key_heads (tiled) or h / (heads / key_heads) of
    int key_dim, value_dim, channels, stride;
    int query_at, key_at, value_at;                // columns of x
    int row_width, row_keys, row_values, row_decay;  // where a row of a page has them
    int state_at;                                  // where a state has its matrices
    float qk_eps, least, most;                     // DeltaNets; bounds of steps
    int state_type, state_count;                   // of other types than f32, matrices are whole groups
    int stages;                                    // chunks of keys that scan_chunks has room for, 1 or 2
};
DEVICE float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }
DEVICE float decay(float x) { return ex2(x * LOG2_E); }


constexpr int STATE_THREADS = 256;
constexpr int QUARTERS = 4, STATE_BLOCK = 16;  // of the order of sums
constexpr int STATE_TILE = 64;                 // channels of values that a CTA has at most
constexpr int KEY_PAD = 4;                     // numbers after a key in shared memory, so that rows begin at other banks

// Four numbers of a dot product.
DEVICE float four(const float4& a, const float4& b, float sum) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum)))); }
DEVICE float less(float a, float b) { return __fadd_rn(a, -b); }
// What makes a query and a key of DeltaNets as long as they are to be, from the sum of their squares.
DEVICE float query_length(const StateParams& p, float squares) { return rsqrtf((float)p.key_dim) / sqrtf(squares + p.qk_eps); }
DEVICE float key_length(const StateParams& p, float squares) { return 1.f / sqrtf(squares + p.qk_eps); }
// The step of a row and head, and the logit of what DeltaNets correct as a share.
template <bool DELTA>
DEVICE float step_of(const StateParams& p, int row, int head) {
    const float dt = softplus(p.steps[(u64)row * p.stride + head] + __ldg(p.dt_bias + head));
    return DELTA ? dt : fminf(fmaxf(dt, p.least), p.most);
}
DEVICE float beta_of(const StateParams& p, int row, int head) { return 1.f / (1.f + ex2(-p.betas[(u64)row * p.stride + head] * LOG2_E)); }

// What a CTA has of a head: at most 64 channels of its values, and of its state (keys, 64) in shared memory.
template <bool DELTA>
struct HeadTile {
    int head, key_head, first, width, tile;
    int K, V;
    u64 matrix;  // of the head, in a state

    DEVICE explicit HeadTile(const StateParams& p) : K(p.key_dim), V(p.value_dim) {
        const int tiles = (V + STATE_TILE - 1) / STATE_TILE;
        head = blockIdx.x / tiles, tile = blockIdx.x % tiles, first = tile * STATE_TILE, width = min(STATE_TILE, V);
        key_head = p.tiled ? head % p.key_heads : head / (p.heads / p.key_heads);
        matrix = p.state_at + (u64)head * K * V;
    }
    // Number n of its part of a state: where it is in shared memory, and in the state. DeltaNets keep (K, V), Mamba-2 (V, K).
    DEVICE int place(int n) const { return DELTA ? n / width * STATE_TILE + n % width : n % K * STATE_TILE + n / K; }
    DEVICE u64 number(int n) const { return matrix + (DELTA ? n / width * V + first + n % width : first * K + n); }

    DEVICE void load(const StateParams& p, u32 unit, float* S) const {
        const bool plain = unit != NO_PAGE && p.state_type == STATE_F32 && DELTA && width == STATE_TILE && p.state_at % 4 == 0;
        if (plain) {
            const float* from = numbers(p.pages, unit) + matrix + first;
#pragma unroll 8
            for (int i = threadIdx.x; i < K * STATE_TILE / 4; i += STATE_THREADS)
                reinterpret_cast<float4*>(S)[i] = *reinterpret_cast<const float4*>(from + (u64)(i / (STATE_TILE / 4)) * V + i % (STATE_TILE / 4) * 4);
            return;
        }
#pragma unroll 4
        for (int n = threadIdx.x; n < K * width; n += STATE_THREADS) S[place(n)] = unit == NO_PAGE ? 0.f : state_number(p.pages, unit, p.state_type, p.state_count, number(n));
    }
    // Rounds the state as it is stored, and stores it where there is a page. After a barrier, and before one; says whether a number cannot be stored.
    DEVICE bool close(const StateParams& p, u32 unit, float* S) const {
        bool bad = false;
        if (p.state_type == STATE_F32) {
            if (unit != NO_PAGE)
#pragma unroll 4
                for (int n = threadIdx.x; n < K * width; n += STATE_THREADS) numbers(p.pages, unit)[number(n)] = S[place(n)];
            return bad;
        }
        const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
        for (int n = warp * STATE_GROUP; n < K * width; n += STATE_THREADS / WARP * STATE_GROUP) {
            float x[2] = {S[place(n + lane)], S[place(n + WARP + lane)]};
            const float top = over_warp(fmaxf(fabsf(x[0]), fabsf(x[1])), [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const Rounded stored = round_state(x[i], top, p.state_type);
                S[place(n + i * WARP + lane)] = stored.number, bad |= is_odd(stored.number);
                if (unit != NO_PAGE) store_state(p.pages, unit, p.state_type, p.state_count, number(n + i * WARP + lane), stored);
            }
        }
        return bad;
    }
};
