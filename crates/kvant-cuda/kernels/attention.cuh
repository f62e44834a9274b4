// Decode attention: one query token per sequence, any number of sequences of any lengths in one launch.
//
// Work is a list of *items* that the host writes once per step for all layers of one window: (sequence, pages begin..end, slot).
// Every item is done for every kv head and every tile of 8 query heads by one CTA, which writes one partial; the exact rows of a
// sequence (sinks, recent pages, open page) are its last item, the one with begin == end. Which pages an item has depends on its
// sequence's own length alone, which warp takes which page on WARPS alone, and partials are merged in the order of slots, so a
// result has the same bits in any batch, on any grid, in a graph or not.
#pragma once
#include "pages.cuh"

constexpr int HEADS = 8;          // columns of the mma tile: query heads of a kv head, padded with zeros
constexpr int WARPS = 4;          // of a CTA; part of the contract, for the order of sums depends on it
constexpr int MAX_PARTS = 33;     // partials of a sequence: 32 splits and the exact rows
constexpr float LAZY_SUM = 64.f;  // the running maximum moves only when a lane's weights of one page sum to more than this

struct Item {              // one run of closed pages of a sequence, or its exact rows (begin == end)
    int4 run;              // row, first page, end page, slot of the partial
    int4 seen;             // closed pages: how many tokens of the first page are hidden (sliding window), 0, 0, 0
                           // exact rows: begin and end of the sinks' rows that are seen; of the rows of the exact pages after them
};
struct Slots {             // the partials of a sequence; the last one is the exact rows'
    int first, count;
};

struct AttentionParams {
    const u8* pages;             // page memory
    const PageEntry* table;      // (rows, kv_heads, table_stride): closed pages
    const PageEntry* exact;      // (rows, kv_heads, exact_stride): the sinks' page, then the exact pages in order
    const Item* items;           // (n_items)
    const Slots* slots;          // (rows)
    const u16* q;                // (rows, heads, D) f16
    const u16* q_sinks;          // the same, as they meet the sinks of a streaming window, or null
    float* part_o;               // (slots, kv_heads*tiles, HEADS, D): unnormalised, relative to 2^m
    float2* part_ml;             // (slots, kv_heads*tiles, HEADS): (m, l), log2 domain
    const float* signs;          // (D) sign / sqrt(D) of the values' SRHT, or null: closed pages are in the model's basis
    const float* sink_logits;    // (heads) or null
    u16* out;                    // (rows, heads, D) f16
    int n_items, rows, kv_heads, group, tile_bits;  // group: query heads per kv head, in 1 << tile_bits tiles of 8
    int table_stride, exact_stride;
    int step_items, step_columns;  // the grid as items and columns (kv heads * tiles): from one piece of work of a CTA to its next
    float scale;                 // scores to log2 units; with a soft cap c: 2 log2(e) / c times the softmax scale
    float cap;                   // c log2(e); read by the kernels with a soft cap alone
    int zero[4];                 // zeros that the compiler cannot see
};

// What one warp carries through its pages: 8 heads; this lane's heads are 2t and 2t+1.
template <int D>
struct State {
    float acc[D / 16][4];  // [16-channel tile]: sum w*code for (row g; heads 2t,2t+1), (row g+8; ...)
    float off[D / 32][4];  // [group of 32 channels]: sum w*offset, same rows; closed int4 pages only
    float m0, m1, l0, l1;

    DEVICE void clear() {
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < D / 16; i++) acc[i][j] = 0.f;
#pragma unroll
            for (int i = 0; i < D / 32; i++) off[i][j] = 0.f;
        }
        m0 = m1 = MINUS_INFINITY;
        l0 = l1 = 0.f;
    }
    DEVICE void rescale(float a0, float a1) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float a = j & 1 ? a1 : a0;
#pragma unroll
            for (int i = 0; i < D / 16; i++) acc[i][j] *= a;
#pragma unroll
            for (int i = 0; i < D / 32; i++) off[i][j] *= a;
        }
        l0 *= a0, l1 *= a1;
    }
    // The new maximum over all rows of both heads, and everything relative to it.
    DEVICE void raise(float x0, float x1) {
#pragma unroll
        for (int o = 4; o < 32; o *= 2) {
            x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, o));
            x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, o));
        }
        rescale(ex2(m0 - x0), ex2(m1 - x1));
        m0 = x0, m1 = x1;
    }
};

// cap * tanh(s): `u` is 2 log2(e) s. Exact to f32 rounding of the cap; tanh.approx would be off by cap / 2048.
DEVICE float soft_cap(float u, float cap) { return fmaf(-2.f * cap, reciprocal(1.f + ex2(u)), cap); }

// One tile of 16 exact rows, of which begin..end are seen, at least one. `keys` and `values` as pages.cuh has them, in shared
// memory or in what `Load` reads.
template <int D, bool CAP, class Load>
DEVICE void attend_exact(State<D>& st, Load keys, Load values, const u32 (&q)[D / 8], int begin, int end, int lane, float scale,
                         float cap) {
    const int g = lane / 4;
    float s[4] = {};
    uint4 k[D / 16], v[D / 16];
#pragma unroll
    for (int i = 0; i < D / 16; i++) k[i] = keys(i);
    if (Load::EAGER) {
#pragma unroll
        for (int i = 0; i < D / 16; i++) v[i] = values(i);
    }
#pragma unroll
    for (int ks = 0; ks < D / 16; ks++) mma16816(s, k[ks].x, k[ks].y, k[ks].z, k[ks].w, q[2 * ks], q[2 * ks + 1]);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int token = g + (j / 2) * 8;
        s[j] = CAP ? soft_cap(s[j] * scale, cap) : s[j] * scale;
        if (token < begin || token >= end) s[j] = MINUS_INFINITY;
    }
    const float x0 = fmaxf(st.m0, fmaxf(s[0], s[2])), x1 = fmaxf(st.m1, fmaxf(s[1], s[3]));
    if (__any_sync(~0u, x0 > st.m0 || x1 > st.m1)) st.raise(x0, x1);
    float e[4];
#pragma unroll
    for (int j = 0; j < 4; j++) e[j] = ex2(s[j] - (j & 1 ? st.m1 : st.m0));
    st.l0 += e[0] + e[2], st.l1 += e[1] + e[3];
    const u32 p0 = transpose8x8(pack_f16x2(e[0], e[1])), p1 = transpose8x8(pack_f16x2(e[2], e[3]));
#pragma unroll
    for (int mt = 0; mt < D / 16; mt++) {
        if (!Load::EAGER) v[mt] = values(mt);
        mma16816(st.acc[mt], v[mt].x, v[mt].y, v[mt].z, v[mt].w, p0, p1);
    }
}

struct FromGlobal {  // exact rows are few, and were just written; one trip to L2 instead of two
    static constexpr bool EAGER = true;
    const u8* at;
    DEVICE uint4 operator()(int i) const { return load_coherent(at + i * 512); }
};
struct FromShared {
    static constexpr bool EAGER = false;
    const u8* at;
    DEVICE uint4 operator()(int i) const { return load_shared(at + i * 512); }
};

// The query as B fragments: head g of the tile, channels 16ks + 2t (+8).
template <int D>
DEVICE void load_query(u32 (&q)[D / 8], const u16* from, const AttentionParams& p, int row, int head, int tile, int lane) {
    const int g = lane / 4, t = lane % 4, in_group = tile * HEADS + g;
    const u64 at = ((u64)row * p.kv_heads * p.group + head * p.group + in_group) * D;
    const u32* src = reinterpret_cast<const u32*>(from + at) + t;
#pragma unroll
    for (int i = 0; i < D / 8; i++) q[i] = in_group < p.group ? __ldcg(src + i * 4) : 0u;
}

// The item of sinks and exact pages: tiles of 16 rows, warp w takes tiles w, w+WARPS, … of sinks and tail together.
template <int D, bool CAP>
DEVICE void attend_exact_rows(State<D>& st, const AttentionParams& p, const u32 (&q)[D / 8], const int4& seen, int row, int head,
                              int tile, int warp, int lane) {
    using P = Exact<D>;
    const PageEntry* pages = p.exact + ((u64)row * p.kv_heads + head) * p.exact_stride;
    const int sinks = (seen.y + P::TOKENS - 1) / P::TOKENS, tail = (seen.w + P::TOKENS - 1) / P::TOKENS;
#pragma unroll 1
    for (int i = warp; i < sinks + tail; i += WARPS) {
        const bool sink = i < sinks;
        const int n = sink ? i : i - sinks;  // tile of its part
        const int begin = max((sink ? seen.x : seen.z) - n * P::TOKENS, 0);
        const int end = (sink ? seen.y : seen.w) - n * P::TOKENS;
        if (begin >= min(end, P::TOKENS)) continue;
        const PageEntry entry = __ldcg(pages + (sink ? 0 : 1 + n / 4));
        const int at = (sink ? n : n % 4) * P::TILE + lane * 16;
        const FromGlobal keys{half_page(p.pages, entry.x) + at}, values{half_page(p.pages, entry.y) + at};
        if (sink && p.q_sinks) {
            u32 turned[D / 8];
            load_query<D>(turned, p.q_sinks, p, row, head, tile, lane);
            attend_exact<D, CAP>(st, keys, values, turned, begin, end, lane, p.scale, p.cap);
        } else {
            attend_exact<D, CAP>(st, keys, values, q, begin, end, lane, p.scale, p.cap);
        }
    }
}

// Where the warps of a CTA meet at the end of an item. Of its own, beside the rings, so that copies go on meanwhile.
template <int D>
struct Meeting {
    static constexpr int ROW = D + 4;  // padded: conflict-free
    float o[WARPS][HEADS * ROW];
    float m[WARPS][HEADS], l[WARPS][HEADS];

    // This warp's sums; `coded`: rows g+8 hold codes of both rows, as mma_nibbles leaves them.
    DEVICE void put(State<D>& st, bool coded, int warp, int lane) {
        const int g = lane / 4, t = lane % 4;
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
            st.l0 += __shfl_xor_sync(~0u, st.l0, step);
            st.l1 += __shfl_xor_sync(~0u, st.l1, step);
        }
        float* mine = o[warp];
#pragma unroll
        for (int i = 0; i < D / 16; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float lo = st.acc[i][j], hi = st.acc[i][2 + j];
                if (coded) {
                    lo += st.off[i / 2][j], hi += st.off[i / 2][2 + j];
                    hi = (hi - lo) * ROW_HI, lo *= ROW_LO;
                }
                mine[(2 * t + j) * ROW + 16 * i + g] = lo;
                mine[(2 * t + j) * ROW + 16 * i + g + 8] = hi;
            }
        if (g == 0) {
            m[warp][2 * t] = st.m0, m[warp][2 * t + 1] = st.m1;
            l[warp][2 * t] = st.l0, l[warp][2 * t + 1] = st.l1;
        }
    }
    // Merges the warps in their order and writes the partial. Warps without pages have m = -inf and zeros.
    DEVICE void write(const AttentionParams& p, u64 part, int heads, int tid) {
        static_assert(HEADS * (D / 4) % (WARPS * 32) == 0, "every thread merges whole columns");
#pragma unroll
        for (int k = 0; k < HEADS * (D / 4) / (WARPS * 32); k++) {
            const int i = tid + k * WARPS * 32, h = i / (D / 4), c4 = i % (D / 4);
            float top = MINUS_INFINITY, mass = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, m[w][h]);
            float4 sum = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float f = m[w][h] == MINUS_INFINITY ? 0.f : ex2(m[w][h] - top);
                const float4 x = *reinterpret_cast<const float4*>(&o[w][h * ROW + 4 * c4]);
                mass += f * l[w][h];
                sum.x = fmaf(f, x.x, sum.x), sum.y = fmaf(f, x.y, sum.y), sum.z = fmaf(f, x.z, sum.z), sum.w = fmaf(f, x.w, sum.w);
            }
            if (h < heads) {
                __stcg(reinterpret_cast<float4*>(p.part_o) + (part * HEADS + h) * (D / 4) + c4, sum);
                if (c4 == 0) __stcg(&p.part_ml[part * HEADS + h], make_float2(top, mass));
            }
        }
    }
};
