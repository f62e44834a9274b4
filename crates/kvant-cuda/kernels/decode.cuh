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

// Which item a CTA works on, and for which column: kv head and tile of its query heads. Without divisions, which would cost as much
// as a page.
struct Place {
    int item, column;

    DEVICE explicit Place(const AttentionParams& p) {
        const int columns = p.kv_heads << p.tile_bits;
        item = blockIdx.x / columns, column = blockIdx.x - item * columns;
    }
    DEVICE void step(const AttentionParams& p) {
        item += p.step_items, column += p.step_columns;
        const int columns = p.kv_heads << p.tile_bits;
        if (column >= columns) column -= columns, item++;
    }
    DEVICE bool in(const AttentionParams& p) const { return item < p.n_items; }
};

// The units of one warp, in the order of the loop below but ahead of it. The lanes hold the page entries of the next 32 units, so that
// one trip to memory serves as many fetches.
template <class C>
struct Cursor {
    const AttentionParams& p;
    const int warp, lane;
    Place place;
    int unit, end;
    int4 ahead;              // the run of `place`
    const PageEntry* pages;
    PageEntry entry;         // of this lane's unit
    int used;                // of the lanes' entries

    DEVICE Cursor(const AttentionParams& p, int warp, int lane) : p(p), warp(warp), lane(lane), place(p), unit(0), end(0), used(0) {
        ahead = __ldg(&p.items[place.item].run);
        settle();
    }
    DEVICE void settle() {
        while (unit >= end) {
            if (!place.in(p)) return;
            unit = ahead.y * C::UNITS + warp, end = ahead.z * C::UNITS;
            pages = p.table + ((u64)ahead.x * p.kv_heads + (place.column >> p.tile_bits)) * p.table_stride;
            used = WARP;
            place.step(p);
            if (place.in(p)) ahead = __ldg(&p.items[place.item].run);
        }
        if (used == WARP) {
            const int mine = unit + lane * WARPS;
            if (mine < end) entry = __ldg(pages + mine / C::UNITS);
            used = 0;
        }
    }
    template <int STAGES>
    DEVICE void fetch(Ring<STAGES>& ring, int stage, u8* into) {  // the next unit, if there is one
        if (unit < end) {
            const PageEntry next = make_uint2(__shfl_sync(~0u, entry.x, used), __shfl_sync(~0u, entry.y, used));
            ring.begin(stage, C::STAGE, lane);
            C::copy(ring, stage, into, p.pages, next, unit % C::UNITS, lane);
            unit += WARPS, used++;
            settle();
        }
        ring.end();
    }
};

DEVICE Item load_item(const AttentionParams& p, const Place& place) {
    const Item* at = p.items + place.item;
    return Item{__ldg(&at->run), __ldg(&at->seen)};
}

template <int D, bool CAP, class C, int STAGES>
DEVICE void decode(const AttentionParams& p) {
    DYNAMIC_SHARED(memory);
    auto& shared = *reinterpret_cast<DecodeShared<D, C, STAGES>*>(memory);
    const int tid = threadIdx.x ^ p.zero[0];  // kept in a register: ptxas would read the special register again for every page
    const int warp = tid / WARP, lane = tid % WARP;
    Ring<STAGES> ring;
    ring.init(shared.barriers[warp], lane);
    Cursor<C> cursor(p, warp, lane);
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) cursor.fetch(ring, i, shared.rings[warp][i]);

    // Everything before the wait is independent of the kernel before: closed pages, tables and items were complete before the
    // step began (docs/device.md, "Who writes what").
    pdl_wait();

    u32 q[D / 8];
    Place place(p);
    Item item = load_item(p, place);
    auto load = [&]() { load_query<D>(q, p.q, p, item.run.x, place.column >> p.tile_bits, place.column & ((1 << p.tile_bits) - 1), lane); };
    load();
    const typename C::Constants constants(p);
    while (true) {
        Place next = place;
        next.step(p);
        const bool more = next.in(p);
        const Item next_item = more ? load_item(p, next) : item;
        const int head = place.column >> p.tile_bits, tile = place.column & ((1 << p.tile_bits) - 1);
        State<D> st;
        st.clear();
        const bool closed = item.run.y < item.run.z;
        if (closed) {
            int hidden = item.seen.x - warp * (PAGE_TOKENS / C::UNITS);
#pragma unroll 1
            for (int unit = item.run.y * C::UNITS + warp; unit < item.run.z * C::UNITS; unit += WARPS) {
                ring.wait();
                u8* stage = shared.rings[warp][ring.stage];
                C::template attend<CAP>(st, stage, q, constants, hidden, lane, p);
                hidden -= WARPS * (PAGE_TOKENS / C::UNITS);
                __syncwarp();
                cursor.fetch(ring, ring.stage, stage);
                ring.advance();
            }
        } else {
            attend_exact_rows<D, CAP>(st, p, q, item.seen, item.run.x, head, tile, warp, lane);
        }
        const u64 part = (u64)item.run.w * (p.kv_heads << p.tile_bits) + place.column;
        place = next, item = next_item;
        if (more) load();  // arrives behind the merge
        else pdl_trigger();  // not before: CTAs that only wait would take registers and issue slots from this kernel
        shared.meeting.put(st, closed && C::CODED, warp, lane);
        __syncthreads();
        shared.meeting.write(p, part, min(p.group - tile * HEADS, HEADS), tid);
        if (!more) break;
        __syncthreads();
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
