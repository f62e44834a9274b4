// Attention over pages: any number of sequences of any lengths in one launch, one query token of each or several.
//
// Work is a list of *items* that the host writes once per pass for all layers of one window: (pages begin..end of a seat, slots, query
// rows). Every item is done for every kv head and every tile of columns by one CTA, which writes one partial for each of its queries;
// the exact rows of a query (sinks, recent pages, open page) are its last item, the one with begin == end. Which pages an item has
// depends on its queries' own positions alone, which warp takes which page on WARPS alone, and partials are merged in the order of
// slots, so a result has the same bits in any batch, on any grid, in a graph or not.
//
// A *column* is a query head of a query token. In a decode step an item has one token, and a tile of columns is 8 query heads of a kv
// head, padded with zeros. Where a sequence brings several tokens (MANY), an item has as many as fit into one tile, all of which see
// the same pages, and every page is read once for all of them. Arithmetic is column by column in both, so a token gets the same bits.
#pragma once
#include "pages.cuh"

constexpr int HEADS = 8;          // columns of one mma tile; a warp has N of these
constexpr int WARPS = 4;          // of a CTA; part of the contract, for the order of sums depends on it
constexpr int MAX_PARTS = 34;     // partials of a sequence: 32 splits, a page of exact keys and coded values, the exact rows
constexpr int SHARED_SUMS = 18;   // numbers of a lane that warps add up at once, where they share the channels of a head
constexpr float LAZY_SUM = 64.f;  // a running maximum moves only when a lane's weights of one page sum to more than this

struct Item {              // one run of closed pages, or the exact rows (begin == end)
    int4 run;              // seat (row of the table), first page, end page, slot of the first query's partial. Below zero: -1 - row of `exact`,
                           // whose last entry is the one page: exact keys of 128 tokens that are not all there yet, coded values of the first 64
    int4 seen;             // by the first query. Closed pages: how many tokens of the first page are hidden (sliding window), 0, 0, 0
                           // exact rows: begin and end of the sinks' rows that are seen; of the rows of the exact pages after them
    int4 rows;             // first query row, query tokens, by how much hidden tokens grow from one to the next (0 or 1), slots of each

    DEVICE bool closed() const { return run.y < run.z; }
    DEVICE bool in_basis() const { return closed() && run.x >= 0; }  // keys of a plan are codes, which queries meet in its basis
};
struct Slots {             // the partials of a query; the last one is the exact rows'
    int first, count;
};

struct AttentionParams {
    const u8* pages;             // page memory
    const PageEntry* table;      // (seats, kv_heads, table_stride): closed pages
    const PageEntry* exact;      // (rows, kv_heads, exact_stride): the sinks' page, then the exact pages in order; last a page of exact keys and coded values
    const Item* items;           // (n_items)
    const Slots* slots;          // (rows)
    const u16* q;                // (rows, heads, D) f16
    const u16* q_sinks;          // the same, as they meet the sinks of a streaming window, or null
    float* part_o;               // (slots, heads, D): unnormalised, relative to 2^m
    float2* part_ml;             // (slots, heads): (m, l), log2 domain
    const float* signs;          // (D) sign / sqrt(D) of the values' SRHT, or null: closed pages are in the model's basis
    const float* sink_logits;    // (heads) or null
    u16* out;                    // (rows, heads, D) f16
    int n_items, rows, kv_heads, group, tile_bits;  // group: query heads per kv head; columns of an item: 1 << tile_bits tiles
    int table_stride, exact_stride;
    int step_items, step_columns;  // the grid as items and columns (kv heads * tiles): from one piece of work of a CTA to its next
    float scale;                 // scores to log2 units; with a soft cap c: 2 log2(e) / c times the softmax scale
    float cap;                   // c log2(e), or zero
    int zero[4];                 // zeros that the compiler cannot see
    float floor;                 // log2 of the weight below which a page's values are left out (--sparse-v); 0: none are
    // Keys in a basis of their own (klt), else null:
    const u16* q_closed;         // (rows, heads, D) f16: queries as they meet closed pages
    const float* q_bias;         // (rows, heads): their products with the mean of the closed keys
    const KeyWidths* widths;     // (kv_heads)
};

// Which query a column is of: token and head of a tile's column. Products with a rounded reciprocal: exact below 256 columns.
template <bool MANY>
struct Split {
    int group, inverse;
    DEVICE explicit Split(int group) : group(group), inverse(MANY ? (65536 + group - 1) / group : 0) {}
    DEVICE int token(int column) const { return MANY ? column * inverse >> 16 : 0; }
    DEVICE int head(int column) const { return column - token(column) * group; }
    DEVICE bool has(int column, int tokens) const { return MANY ? token(column) < tokens : column < group; }
};

// The tokens of the columns whose scores a lane has, 8n+2t and the next.
template <int N, bool MANY>
struct Columns {
    const Split<MANY>& split;
    int first, slide, last;
    DEVICE explicit Columns(const Split<MANY>& split) : split(split) {}
    DEVICE void set(int tile, const int4& rows, int lane) {
        if (MANY) first = tile * N * HEADS + lane % 4 * 2, slide = rows.z, last = rows.y - 1;
    }
    DEVICE int later(int n, int j) const { return MANY ? min(split.token(first + n * HEADS + j), last) : 0; }
    DEVICE int slid(int n, int j) const { return MANY ? slide * later(n, j) : 0; }
    DEVICE int most() const { return MANY ? slide * last : 0; }
    DEVICE int end() const { return MANY ? last : 0; }
};

// What one warp carries through its pages: N tiles of 8 columns; this lane's columns are 2t and 2t+1 of each.
template <int D, int N>
struct State {
    float acc[N][D / 16][4];  // [16-channel tile]: sum w*code for (row g; columns 2t,2t+1), (row g+8; ...)
    // Values of 4 bits: sum w*offset of every group of 32 channels. One tile of 16 rows does for 8 groups where registers are
    // scarce: row i (and i+8) is then the group's whose number ends in i. Otherwise all rows of a group's own tile are the same.
    static constexpr bool SHARED_OFFSETS = N > 1;
    static constexpr int GROUPS = (D + 31) / 32, OFFSETS = SHARED_OFFSETS ? (GROUPS + 7) / 8 : GROUPS;
    float off[N][OFFSETS][4];
    float m[N][2], l[N][2];

    DEVICE void clear() {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
#pragma unroll
                for (int i = 0; i < D / 16; i++) acc[n][i][j] = 0.f;
#pragma unroll
                for (int i = 0; i < OFFSETS; i++) off[n][i][j] = 0.f;
            }
            m[n][0] = m[n][1] = MINUS_INFINITY;
            l[n][0] = l[n][1] = 0.f;
        }
    }
    // Columns that are padding get a maximum that no score comes near, so that they need no values either.
    template <bool MANY>
    DEVICE void silence(const Split<MANY>& split, int tile, const int4& rows, int lane) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (!split.has(tile * N * HEADS + n * HEADS + lane % 4 * 2 + j, rows.y)) m[n][j] = 1e30f;
    }
    // The new maximum over all rows of both columns, and everything relative to it.
    DEVICE void raise(int n, float x0, float x1) {
#pragma unroll
        for (int o = 4; o < 32; o *= 2) {
            x0 = fmaxf(x0, __shfl_xor_sync(~0u, x0, o));
            x1 = fmaxf(x1, __shfl_xor_sync(~0u, x1, o));
        }
        // Without a token in view yet both are -inf, and there is nothing to scale.
        const float a[2] = {x0 == m[n][0] ? 1.f : ex2(m[n][0] - x0), x1 == m[n][1] ? 1.f : ex2(m[n][1] - x1)};
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int i = 0; i < D / 16; i++) acc[n][i][j] *= a[j & 1];
#pragma unroll
            for (int i = 0; i < OFFSETS; i++) off[n][i][j] *= a[j & 1];
        }
        l[n][0] *= a[0], l[n][1] *= a[1];
        m[n][0] = x0, m[n][1] = x1;
    }
    static DEVICE constexpr int offset_tile(int group) { return (SHARED_OFFSETS ? group / 8 : group) % OFFSETS; }
    // The offset of a group: that of rows g of column 2t+j%2, or of rows g+8 (j 2 and 3).
    DEVICE float offset(int n, int group, int j, int lane) const {
        return SHARED_OFFSETS ? __shfl_sync(~0u, off[n][offset_tile(group)][j], 4 * (group % 8) + lane % 4) : off[n][offset_tile(group)][j];
    }
};

// Which scores a kernel has: plain ones, those under a soft cap, or both, as the parameters say.
enum Cap { PLAIN, CAPPED, EITHER };
template <Cap CAP>
DEVICE bool is_capped(float cap) {
    return CAP == CAPPED || (CAP == EITHER && cap != 0.f);
}

// cap * tanh(s): `u` is 2 log2(e) s. Exact to f32 rounding of the cap; tanh.approx would be off by cap / 2048.
DEVICE float soft_cap(float u, float cap) { return fmaf(-2.f * cap, reciprocal(1.f + ex2(u)), cap); }

// Heads of more channels than a warp has registers for: the SHARE warps of a CTA have D channels each, of the same tokens, and add up their
// parts of every score. They do so in one order, so that all of them have the same bits and the same maxima.
template <int SHARE>
struct Sharing {
    static constexpr int BYTES = 16;  // of shared memory
    DEVICE Sharing(u8*, int, int) {}
    template <int M>
    DEVICE void add_up(float (&)[M]) {}
};
template <>
struct Sharing<WARPS> {
    static constexpr int BYTES = 2 * WARPS * SHARED_SUMS * WARP * 4;
    float* const sums;  // [turn][warp][number][lane]; a turn's are not written again before all warps have met in the next
    const int warp, lane;
    int turn;
    DEVICE Sharing(u8* shared, int warp, int lane) : sums(reinterpret_cast<float*>(shared)), warp(warp), lane(lane), turn(0) {}
    template <int M>
    DEVICE void add_up(float (&x)[M]) {
        static_assert(M <= SHARED_SUMS, "room for them");
        float* all = sums + turn * WARPS * SHARED_SUMS * WARP + lane;
#pragma unroll
        for (int i = 0; i < M; i++) all[(warp * SHARED_SUMS + i) * WARP] = x[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < M; i++) {
            x[i] = all[i * WARP];
#pragma unroll
            for (int w = 1; w < WARPS; w++) x[i] += all[(w * SHARED_SUMS + i) * WARP];
        }
        turn ^= 1;
    }
};

// Whether the values of a page, whose scores' largest in this lane's rows is `own`, are left out for a column: none of its tokens has 2^floor of the
// largest weight so far. All lanes of a column say the same.
DEVICE bool is_left_out(float own, float m, float floor) {
#pragma unroll
    for (int o = 4; o < 32; o *= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, o));
    return own - m < floor;
}

struct Rows {  // of 16 exact rows, as the first query sees them: begin..end, and by how much both move from query to query
    int begin, end;
    bool moving;
};

// One tile of 16 exact rows, of which some query sees some. `keys` and `values` as pages.cuh has them, in shared memory or in what
// `Load` reads; `q(n, i)` is word i of the queries of column tile n.
template <int D, Cap CAP, int SHARE, int N, bool MANY, class Load>
DEVICE void attend_exact(State<D, N>& st, Load keys, Load values, const u32 (&q)[N][D / 8], const Rows& rows, const Columns<N, MANY>& columns,
                         Sharing<SHARE>& sharing, int lane, float scale, float cap, float floor) {
    const int g = lane / 4;
    float s[N][4] = {};
    uint4 k[D / 16], v[D / 16];
#pragma unroll
    for (int i = 0; i < D / 16; i++) k[i] = keys(i);
    if (Load::EAGER) {
#pragma unroll
        for (int i = 0; i < D / 16; i++) v[i] = values(i);
    }
#pragma unroll
    for (int i = 0; i < D / 16; i++)
#pragma unroll
        for (int n = 0; n < N; n++) mma16816(s[n], k[i].x, k[i].y, k[i].z, k[i].w, q[n][2 * i], q[n][2 * i + 1]);
    if (SHARE > 1) sharing.add_up(s[0]);
    u32 p[N][2];
    bool left_out = floor != 0.f;
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int token = g + (j / 2) * 8;
            const int begin = rows.begin + (rows.moving ? columns.slid(n, j & 1) : 0);
            const int end = rows.end + (rows.moving ? columns.later(n, j & 1) : 0);
            s[n][j] = is_capped<CAP>(cap) ? soft_cap(s[n][j] * scale, cap) : s[n][j] * scale;
            if (token < begin || token >= end) s[n][j] = MINUS_INFINITY;
        }
        if (floor != 0.f) {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const bool out = is_left_out(fmaxf(s[n][j], s[n][2 + j]), st.m[n][j], floor);
                if (out) s[n][j] = s[n][2 + j] = MINUS_INFINITY;
                left_out &= out;
            }
        }
        const float x0 = fmaxf(st.m[n][0], fmaxf(s[n][0], s[n][2])), x1 = fmaxf(st.m[n][1], fmaxf(s[n][1], s[n][3]));
        if (__any_sync(~0u, x0 > st.m[n][0] || x1 > st.m[n][1])) st.raise(n, x0, x1);
        float e[4];
#pragma unroll
        for (int j = 0; j < 4; j++) e[j] = MANY && s[n][j] == MINUS_INFINITY ? 0.f : ex2(s[n][j] - st.m[n][j & 1]);
        st.l[n][0] += e[0] + e[2], st.l[n][1] += e[1] + e[3];
        p[n][0] = transpose8x8(pack_f16x2(e[0], e[1])), p[n][1] = transpose8x8(pack_f16x2(e[2], e[3]));
    }
    if (floor != 0.f && __ballot_sync(~0u, !left_out) == 0) return;
#pragma unroll
    for (int mt = 0; mt < D / 16; mt++) {
        if (!Load::EAGER) v[mt] = values(mt);
#pragma unroll
        for (int n = 0; n < N; n++) mma16816(st.acc[n][mt], v[mt].x, v[mt].y, v[mt].z, v[mt].w, p[n][0], p[n][1]);
    }
}

template <bool EAGERLY>
struct FromGlobal {  // exact rows are few, and were just written; one trip to L2 instead of two where registers allow it
    static constexpr bool EAGER = EAGERLY;
    const u8* at;
    DEVICE uint4 operator()(int i) const { return load_coherent(at + i * 512); }
};
struct FromShared {
    static constexpr bool EAGER = false;
    const u8* at;
    DEVICE uint4 operator()(int i) const { return load_shared(at + i * 512); }
};

// Where a lane's column g of tile n of the queries begins, as B fragments have it: word i is channels 8i + 2t and the next. Padding is
// told by a flag: as a null pointer, tested beside another condition, ptxas 12.8 has read it all the same (int8 of 80 channels on an H200).
struct QueryColumn {
    const u32* at;
    bool has;
    DEVICE u32 operator[](int i) const { return has ? __ldcg(at + i * 4) : 0u; }
};
template <int D, int SHARE, bool MANY>
DEVICE QueryColumn query_at(const u16* from, const AttentionParams& p, const Split<MANY>& split, const int4& rows, int kv, int tile, int lane, int warp) {
    const int column = tile * HEADS + lane / 4;
    const u32 at = (((rows.x + split.token(column)) * p.kv_heads + kv) * p.group + split.head(column)) * (D * SHARE) + (SHARE > 1 ? warp * D : 0);  // of at most 128 rows
    return {reinterpret_cast<const u32*>(from + at) + lane % 4, split.has(column, rows.y)};
}
template <int D, int SHARE, int N, bool MANY>
DEVICE void load_query(u32 (&q)[N][D / 8], const u16* from, const AttentionParams& p, const Split<MANY>& split, const int4& rows, int kv,
                       int tile, int lane, int warp) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const QueryColumn column = query_at<D, SHARE, MANY>(from, p, split, rows, kv, tile * N + n, lane, warp);
#pragma unroll
        for (int i = 0; i < D / 8; i++) q[n][i] = column[i];
    }
}

// Words that a warp has for queries of PLANNED keys, and for the steps of their planes.
constexpr int STEP_WORDS = 4 * WARP;
template <int D, int N>
constexpr int FOLDED_WORDS = N * (D / 8) * WARP + STEP_WORDS;

// The queries of an item: in a warp's registers, or, where there are many columns, in shared memory, once for all warps. `fetch` asks
// for those of the next item, `put` has them in place for a barrier after it.
template <int D, int SHARE, int N, bool MANY>
struct Query {
    static constexpr int BYTES = 16;  // of shared memory
    u8* const own;                    // after them, of its codec
    const int warp;
    u32 held[N][D / 8];
    DEVICE Query(u8* shared, int warp, int) : own(shared + BYTES), warp(warp) {}
    DEVICE u32* folded(int lane) const { return reinterpret_cast<u32*>(own) + warp * FOLDED_WORDS<D, N> + lane; }
    DEVICE uint2* steps(int lane) const { return reinterpret_cast<uint2*>(folded(lane) - lane + N * (D / 8) * WARP); }
    DEVICE void fetch(const u16* from, const AttentionParams& p, const Split<MANY>& split, const int4& rows, int kv, int tile, int lane) {
        load_query<D, SHARE, N, MANY>(held, from, p, split, rows, kv, tile, lane, warp);
    }
    DEVICE void put() {}
    DEVICE u32 held_word(int n, int i) const { return i < D / 8 ? held[n][min(i, D / 8 - 1)] : 0u; }
    DEVICE uint4 four(int n, int j) const { return uint4{held_word(n, 4 * j), held_word(n, 4 * j + 1), held_word(n, 4 * j + 2), held_word(n, 4 * j + 3)}; }
};
template <int D, int N>
struct Query<D, 1, N, true> {
    static constexpr int EACH = (D + 31) / 32;  // loads of 16 bytes of a column tile
    static constexpr int FOURS = N * EACH, BYTES = FOURS * 512, OWN = (FOURS + WARPS - 1) / WARPS;
    u8* const at;
    const int warp;
    u32 next[OWN][4];
    DEVICE Query(u8* shared, int warp, int lane) : at(shared + lane * 16), warp(warp) {}
    DEVICE u32* folded(int lane) const { return reinterpret_cast<u32*>(at - lane * 16 + BYTES) + warp * FOLDED_WORDS<D, N> + lane; }
    DEVICE uint2* steps(int lane) const { return reinterpret_cast<uint2*>(folded(lane) - lane + N * (D / 8) * WARP); }
    DEVICE void fetch(const u16* from, const AttentionParams& p, const Split<true>& split, const int4& rows, int kv, int tile, int lane) {
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const int i = min(warp + k * WARPS, FOURS - 1);
            const QueryColumn column = query_at<D, 1, true>(from, p, split, rows, kv, tile * N + i / EACH, lane, warp);
            // Where no other test joins it a null pointer does for the flag, which would be one register too many.
            const u32* src = D % 32 || column.has ? column.at : nullptr;
            const bool has = D % 32 ? column.has : src != nullptr;
#pragma unroll
            for (int w = 0; w < 4; w++) next[k][w] = has && (D % 32 == 0 || i % EACH * 4 + w < D / 8) ? __ldcg(src + (i % EACH * 4 + w) * 4) : 0u;
        }
    }
    DEVICE void put() {
#pragma unroll
        for (int k = 0; k < OWN; k++)
            *reinterpret_cast<uint4*>(at + min(warp + k * WARPS, FOURS - 1) * 512) = uint4{next[k][0], next[k][1], next[k][2], next[k][3]};
    }
    DEVICE uint4 four(int n, int j) const { return load_shared(at + (n * EACH + j) * 512); }
};
// All of them in registers.
template <int D, int SHARE, int N, bool MANY>
DEVICE void hold(u32 (&q)[N][D / 8], const Query<D, SHARE, N, MANY>& query) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < D / 8; i++) q[n][i] = word(query.four(n, i / 4), i % 4);
}

// The item of sinks and exact pages: tiles of 16 rows, warp w takes tiles w, w+WARPS, … of sinks and tail together, or its channels of all of
// them. The last query reads the most pages, and the others begin with the same one.
template <int D, Cap CAP, int SHARE, int N, bool MANY>
DEVICE void attend_exact_rows(State<D, N>& st, const AttentionParams& p, const Query<D, SHARE, N, MANY>& query, const Item& item,
                              const Columns<N, MANY>& columns, const Split<MANY>& split, Sharing<SHARE>& sharing, int kv, int tile, int warp, int lane) {
    using P = Exact<D * SHARE>;
    using Load = FromGlobal<N * D <= 128 && SHARE == 1>;
    const int4 seen = item.seen;
    const PageEntry* pages = p.exact + ((u64)(item.rows.x + columns.end()) * p.kv_heads + kv) * p.exact_stride;
    const int sinks = (seen.y + P::TOKENS - 1) / P::TOKENS, tail = (seen.w + columns.end() + P::TOKENS - 1) / P::TOKENS;
    u32 q[N][D / 8];
    hold(q, query);
    bool turned = false;  // whether they are the queries that meet the sinks
#pragma unroll 1
    for (int i = SHARE > 1 ? 0 : warp; i < sinks + tail; i += WARPS / SHARE) {
        const bool sink = i < sinks;
        const int n = sink ? i : i - sinks;  // tile of its part
        const Rows rows = {(sink ? seen.x : seen.z) - n * P::TOKENS, (sink ? seen.y : seen.w) - n * P::TOKENS, !sink};
        if (max(rows.begin, 0) >= min(rows.end + (sink ? 0 : columns.end()), P::TOKENS)) continue;
        const PageEntry entry = __ldcg(pages + (sink ? 0 : 1 + n / 4));
        const int at = (sink ? n : n % 4) * P::TILE + (SHARE > 1 ? warp * (P::TILE / SHARE) : 0) + lane * 16;
        const Load keys{half_page(p.pages, entry.x) + at}, values{half_page(p.pages, entry.y) + at};
        if (p.q_sinks && turned != sink) load_query<D, SHARE, N, MANY>(q, sink ? p.q_sinks : p.q, p, split, item.rows, kv, tile, lane, warp), turned = sink;
        attend_exact<D, CAP>(st, keys, values, q, rows, columns, sharing, lane, p.scale, p.cap, 0.f);
    }
}

// Sums relative to 2^m that are merged one after another: by what those before are multiplied, and those that are added; `top` moves on.
struct Merge {
    float kept, added;
    DEVICE Merge() {}
    DEVICE Merge(float& top, float m) {
        const float next = fmaxf(top, m);
        kept = top == next ? 1.f : ex2(top - next), added = m == next ? 1.f : ex2(m - next);
        top = next;
    }
};

// Where the warps of a CTA meet at the end of an item, PARTS of the channels one after the other. Of its own, beside the rings, so
// that copies go on meanwhile.
template <int D, int SHARE, int N, int PARTS>
struct Meeting {
    static constexpr int WIDTH = D / PARTS, ROW = WIDTH + 4;  // padded: conflict-free
    float o[WARPS][N * HEADS * ROW];
    float m[WARPS][N * HEADS], l[WARPS][N * HEADS];

    // This warp's masses; once, before the sums.
    DEVICE void put_masses(State<D, N>& st, int warp, int lane) {
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
#pragma unroll
                for (int step = 4; step < 32; step *= 2) st.l[n][j] += __shfl_xor_sync(~0u, st.l[n][j], step);
                if (lane < 4) m[warp][n * HEADS + 2 * lane + j] = st.m[n][j], l[warp][n * HEADS + 2 * lane + j] = st.l[n][j];
            }
    }
    // This warp's sums; `coded`: rows g+8 hold codes of both rows, as `nibbles` leaves them.
    DEVICE void put(const State<D, N>& st, bool coded, int part, int warp, int lane) {
        const int g = lane / 4, t = lane % 4;
        float* mine = o[warp];
#pragma unroll
        for (int k = 0; k < WIDTH / 16; k++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int i = part * (WIDTH / 16) + k;
                    float lo = st.acc[n][i][j], hi = st.acc[n][i][2 + j];
                    if (coded) {
                        lo += st.offset(n, i / 2, j, lane), hi += st.offset(n, i / 2, 2 + j, lane);
                        hi = (hi - lo) * ROW_HI, lo *= ROW_LO;
                    }
                    mine[(n * HEADS + 2 * t + j) * ROW + 16 * k + g] = lo;
                    mine[(n * HEADS + 2 * t + j) * ROW + 16 * k + g + 8] = hi;
                }
    }
    // Merges the warps in their order and writes the partials. Warps without pages have m = -inf and zeros. What the mean of PLANNED keys
    // adds to a query's scores is the same for all closed pages, so that it moves their maximum and nothing else.
    template <bool MANY, bool PLANNED>
    DEVICE void write(const AttentionParams& p, const Item& item, const Split<MANY>& split, int kv, int tile, int part, int tid) {
        constexpr int C = WIDTH / 4, ROW_FOURS = C * SHARE, ALL = N * HEADS * ROW_FOURS, THREADS = WARPS * 32;
#pragma unroll
        for (int k = 0; k < (ALL + THREADS - 1) / THREADS; k++) {
            const int i = tid + k * THREADS, h = i / ROW_FOURS, own = i % ROW_FOURS / C, c4 = i % C, column = tile * N * HEADS + h;
            if (ALL % THREADS && i >= ALL) break;
            float top = MINUS_INFINITY, mass = 0.f;
            float4 sum = {0.f, 0.f, 0.f, 0.f};
            if constexpr (SHARE > 1) {  // a warp has its own channels of the same tokens
                top = m[own][h], mass = l[own][h], sum = *reinterpret_cast<const float4*>(&o[own][h * ROW + 4 * c4]);
            } else {
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    const Merge by(top, m[w][h]);
                    const float4 x = *reinterpret_cast<const float4*>(&o[w][h * ROW + 4 * c4]);
                    mass = fmaf(by.added, l[w][h], by.kept * mass);
                    sum.x = fmaf(by.added, x.x, by.kept * sum.x), sum.y = fmaf(by.added, x.y, by.kept * sum.y);
                    sum.z = fmaf(by.added, x.z, by.kept * sum.z), sum.w = fmaf(by.added, x.w, by.kept * sum.w);
                }
            }
            if (split.has(column, item.rows.y)) {
                const u64 slot = item.run.w + split.token(column) * item.rows.w;
                const u64 at = (slot * p.kv_heads + kv) * p.group + split.head(column);
                __stcg(reinterpret_cast<float4*>(p.part_o) + (at * SHARE + own) * (D / 4) + part * C + c4, sum);
                if (part == 0 && own == 0 && c4 == 0) {
                    if (PLANNED && item.in_basis())
                        top += p.scale * __ldcg(p.q_bias + ((u64)(item.rows.x + split.token(column)) * p.kv_heads + kv) * p.group + split.head(column));
                    __stcg(&p.part_ml[at], make_float2(top, mass));
                }
            }
        }
    }
};
