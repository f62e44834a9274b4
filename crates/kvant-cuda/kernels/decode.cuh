// The persistent loop of decode attention: any grid of CTAs of 4 warps, items dealt out round robin. Warp w takes units w,
// w+WARPS, … of an item (a unit is what a codec attends in one go), each from its own ring of copies, which runs on across items.
#pragma once
#include "attention.cuh"

// A codec gives: UNITS of a page, STAGE bytes in shared memory, `copy` of one unit into a stage, `attend` over it, and whether its
// sums are CODED (see Meeting::put).
template <int D, class C, int STAGES>
struct DecodeShared {
    u8 rings[WARPS][STAGES][C::STAGE];
    Meeting<D> meeting;
    u64 barriers[WARPS][STAGES];
};

// The units of one warp, in the order of the loop below but ahead of it. What a fetch needs was asked for one fetch earlier.
template <class C>
struct Cursor {
    const AttentionParams& p;
    const int warp, per_item, total;  // per_item: kv heads * tiles
    int id, unit, end;
    int4 ahead;                       // the item of `id`
    const PageEntry* pages;
    PageEntry entry;                  // of `unit`

    DEVICE Cursor(const AttentionParams& p, int warp)
        : p(p), warp(warp), per_item(p.kv_heads * p.tiles), total(p.n_items * per_item), id(blockIdx.x), unit(0), end(0) {
        ahead = __ldg(p.items + id / per_item);
        settle();
    }
    DEVICE void settle() {
        while (unit >= end) {
            if (id >= total) return;
            const int item = id / per_item, head = (id - item * per_item) / p.tiles;
            unit = ahead.y * C::UNITS + warp, end = ahead.z * C::UNITS;
            pages = p.table + ((u64)ahead.x * p.kv_heads + head) * p.table_stride;
            id += gridDim.x;
            if (id < total) ahead = __ldg(p.items + id / per_item);
        }
        entry = __ldg(pages + unit / C::UNITS);
    }
    template <int STAGES>
    DEVICE void fetch(Ring<STAGES>& ring, int stage, u8* into, int lane) {  // the next unit, if there is one
        if (unit < end) {
            ring.begin(stage, C::STAGE, lane);
            C::copy(ring, stage, into, p.pages, entry, unit % C::UNITS, lane);
            unit += WARPS;
            settle();
        }
        ring.end();
    }
};

template <int D, bool CAP, class C, int STAGES>
DEVICE void decode(const AttentionParams& p) {
    DYNAMIC_SHARED(memory);
    auto& shared = *reinterpret_cast<DecodeShared<D, C, STAGES>*>(memory);
    const int tid = threadIdx.x ^ p.zero[0];  // kept in a register: ptxas would read the special register again for every page
    const int warp = tid / WARP, lane = tid % WARP;
    Ring<STAGES> ring;
    ring.init(shared.barriers[warp], lane);
    Cursor<C> cursor(p, warp);
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) cursor.fetch(ring, i, shared.rings[warp][i], lane);

    // Everything before the wait is independent of the kernel before: closed pages, tables and items were complete before the
    // step began (docs/device.md, "Who writes what").
    pdl_wait();
    pdl_trigger();

    const int per_item = p.kv_heads * p.tiles, total = p.n_items * per_item;
    auto item_of = [&](int id) { return __ldg(p.items + id / per_item); };
    u32 q[D / 8];
    auto query_of = [&](int id, const int4& item) {
        const int ht = id % per_item;
        load_query<D>(q, p.q, p, item.x, ht / p.tiles, ht % p.tiles, lane);
    };
    int id = blockIdx.x;
    int4 item = item_of(id);
    query_of(id, item);
    const typename C::Constants constants(p);
    while (true) {
        const int next = id + gridDim.x;
        const bool more = next < total;
        const int4 next_item = more ? item_of(next) : item;
        const int ht = id % per_item, head = ht / p.tiles, tile = ht % p.tiles;
        State<D> st;
        st.clear();
        const bool closed = item.y < item.z;
        if (closed) {
            const int first = __ldg(&p.views[item.x].first);
#pragma unroll 1
            for (int unit = item.y * C::UNITS + warp; unit < item.z * C::UNITS; unit += WARPS) {
                ring.wait();
                u8* stage = shared.rings[warp][ring.stage];
                C::template attend<CAP>(st, stage, q, constants, first - unit * (PAGE_TOKENS / C::UNITS), lane, p);
                __syncwarp();
                cursor.fetch(ring, ring.stage, stage, lane);
                ring.advance();
            }
        } else {
            attend_exact_rows<D, CAP>(st, p, q, p.views[item.x], item.x, head, tile, warp, lane);
        }
        if (more) query_of(next, next_item);  // arrives behind the merge
        shared.meeting.put(st, closed && C::CODED, warp, lane);
        __syncthreads();
        shared.meeting.write(p, (u64)item.w * per_item + ht, min(p.group - tile * HEADS, HEADS), tid);
        if (!more) break;
        __syncthreads();
        id = next, item = next_item;
    }
}

// ---- f16 pages: a unit is a tile of 16 tokens ----
template <int D>
struct ExactCodec {
    using P = Exact<D>;
    static constexpr int UNITS = 4, STAGE = 2 * P::TILE;
    static constexpr bool CODED = false;
    struct Constants {
        DEVICE explicit Constants(const AttentionParams&) {}
    };
    template <int STAGES>
    static DEVICE void copy(Ring<STAGES>& ring, int stage, u8* into, const u8* pages, PageEntry entry, int tile, int lane) {
        ring.copy(stage, into, half_page(pages, entry.x) + tile * P::TILE, P::TILE, lane);
        ring.copy(stage, into + P::TILE, half_page(pages, entry.y) + tile * P::TILE, P::TILE, lane);
    }
    template <bool CAP>
    static DEVICE void attend(State<D>& st, const u8* stage, const u32 (&q)[D / 8], const Constants&, int hidden, int lane,
                              const AttentionParams& p) {
        if (hidden >= P::TOKENS) return;  // the window begins in a later tile of this page
        const FromShared keys{stage + lane * 16}, values{stage + P::TILE + lane * 16};
        attend_exact<D, CAP>(st, keys, values, q, hidden, P::TOKENS, lane, p.scale, p.cap);
    }
};
