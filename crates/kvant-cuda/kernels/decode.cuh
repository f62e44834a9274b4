// The persistent loop of attention: any grid of CTAs of 4 warps, items dealt out round robin. Warp w takes units w, w+WARPS, … of an
// item (a unit is what a codec attends in one go), each from its own ring of copies, which runs on across items.
#pragma once
#include "attention.cuh"

// A codec gives: D channels of a warp and how many warps SHARE a head's channels (1, or all of them), UNITS of a page, STAGE bytes in shared memory, `copy` of one unit into a stage (whose keys may have another size for every
// kv head), `attend` over it, whether its sums are CODED (see Meeting::put), and whether its keys are in a PLANNED basis. STAGES and PARTS are chosen so that two CTAs fit into an SM where they can.
template <int D, class C, int STAGES, int N, bool MANY, int PARTS>
struct DecodeShared {
    u8 rings[WARPS][STAGES][C::STAGE];
    u8 query[Query<D, C::SHARE, N, MANY>::BYTES + (C::PLANNED ? WARPS * FOLDED_WORDS<D, N> * 4 : 0)];
    u8 sharing[Sharing<C::SHARE>::BYTES];
    Meeting<D, C::SHARE, N, PARTS> meeting;
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

// Which units a warp takes: all of them where warps share a head's channels.
template <class C>
constexpr int STEP = WARPS / C::SHARE;
template <class C>
DEVICE int first_of(int warp) { return C::SHARE > 1 ? 0 : warp; }

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
    u32 key_bytes;           // of a unit's keys, as the codec says it

    DEVICE Cursor(const AttentionParams& p, int warp, int lane) : p(p), warp(warp), lane(lane), place(p), unit(0), end(0), used(0) {
        ahead = __ldg(&p.items[place.item].run);
        settle();
    }
    DEVICE void settle() {
        while (unit >= end) {
            if (!place.in(p)) return;
            unit = ahead.y * C::UNITS + first_of<C>(warp), end = ahead.z * C::UNITS;
            const int kv = place.column >> p.tile_bits;
            if (C::PLANNED && ahead.x < 0) {
                pages = p.exact + ((u64)~ahead.x * p.kv_heads + kv + 1) * p.exact_stride - 1 - ahead.y, key_bytes = 0;
            } else {
                pages = p.table + ((u64)ahead.x * p.kv_heads + kv) * p.table_stride, key_bytes = C::key_bytes(p, kv);
            }
            used = WARP;
            place.step(p);
            if (place.in(p)) ahead = __ldg(&p.items[place.item].run);
        }
        if (used == WARP) {
            const int mine = unit + lane * STEP<C>;
            if (mine < end) entry = __ldg(pages + mine / C::UNITS);
            used = 0;
        }
    }
    template <int STAGES>
    DEVICE void fetch(Ring<STAGES>& ring, int stage, u8* into) {  // the next unit, if there is one
        if (unit < end) {
            const PageEntry next = make_uint2(__shfl_sync(~0u, entry.x, used), __shfl_sync(~0u, entry.y, used));
            ring.begin(stage, C::unit_bytes(key_bytes), lane);
            C::copy(ring, stage, into, p.pages, next, unit, key_bytes, warp, lane);
            unit += STEP<C>, used++;
            settle();
        }
        ring.end();
    }
};

DEVICE Item load_item(const AttentionParams& p, const Place& place) {
    const Item* at = p.items + place.item;
    return Item{__ldg(&at->run), __ldg(&at->seen), __ldg(&at->rows)};
}

template <int D, Cap CAP, class C, int STAGES, int N, bool MANY, int PARTS>
DEVICE void decode(const AttentionParams& p) {
    DYNAMIC_SHARED(memory);
    auto& shared = *reinterpret_cast<DecodeShared<D, C, STAGES, N, MANY, PARTS>*>(memory);
    const int tid = threadIdx.x ^ p.zero[0];  // kept in a register: ptxas would read the special register again for every page
    const int warp = tid / WARP, lane = tid % WARP;
    Ring<STAGES> ring;
    ring.init(shared.barriers[warp], lane);
    if (MANY) pdl_wait();  // a chunk reads pages that it has closed itself
    Cursor<C> cursor(p, warp, lane);
#pragma unroll 1
    for (int i = 0; i < STAGES; i++) cursor.fetch(ring, i, shared.rings[warp][i]);

    // In a decode step everything before the wait is independent of the kernel before: closed pages, tables and items were complete
    // before the step began (docs/device.md, "Who writes what").
    if (!MANY) pdl_wait();

    Query<D, C::SHARE, N, MANY> query(shared.query, warp, lane);
    Sharing<C::SHARE> sharing(shared.sharing, warp, lane);
    Place place(p);
    Item item = load_item(p, place);
    const Split<MANY> split(p.group);
    auto fetch = [&]() {
        const u16* from = C::PLANNED && item.in_basis() ? p.q_closed : p.q;
        query.fetch(from, p, split, item.rows, place.column >> p.tile_bits, place.column & ((1 << p.tile_bits) - 1), lane);
    };
    fetch();
    if (MANY) query.put(), __syncthreads();
    typename C::Constants constants(p);
    Columns<N, MANY> columns(split);
    while (true) {
        Place next = place;
        next.step(p);
        const bool more = next.in(p);
        Item next_item = item;
        if (!MANY && more) next_item = load_item(p, next);  // one trip less to wait for; many columns need the registers
        const int head = place.column >> p.tile_bits, tile = place.column & ((1 << p.tile_bits) - 1);
        columns.set(tile, item.rows, lane);
        if constexpr (C::PLANNED) constants.set(p, head, item, query, lane);
        State<D, N> st;
        st.clear();
        const bool closed = item.closed();
        if (p.floor != 0.f && closed) st.silence(split, tile, item.rows, lane);
        if (closed) {
            int hidden = item.seen.x - first_of<C>(warp) * (PAGE_TOKENS / C::UNITS);
#pragma unroll 1
            for (int unit = item.run.y * C::UNITS + first_of<C>(warp); unit < item.run.z * C::UNITS; unit += STEP<C>) {
                ring.wait();
                u8* stage = shared.rings[warp][ring.stage];
                C::template attend<CAP, N, MANY>(st, stage, query, constants, hidden, columns, sharing, lane, p);
                hidden -= STEP<C> * (PAGE_TOKENS / C::UNITS);
                __syncwarp();
                cursor.fetch(ring, ring.stage, stage);
                ring.advance();
            }
        } else {
            attend_exact_rows<D, CAP>(st, p, query, item, columns, split, sharing, head, tile, warp, lane);
        }
        const Item done = item;
        if (MANY && more) next_item = load_item(p, next);
        place = next, item = next_item;
        if (MANY || more) fetch();  // arrives behind the merge
        if (!more) pdl_trigger();  // not before: CTAs that only wait would take registers and issue slots from this kernel
        shared.meeting.put_masses(st, warp, lane);
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            if (part) __syncthreads();
            shared.meeting.put(st, closed && C::CODED, part, warp, lane);
            __syncthreads();
            if (part == PARTS - 1) query.put();
            shared.meeting.template write<MANY, C::PLANNED>(p, done, split, head, tile, part, tid);
        }
        if (!more) break;
        __syncthreads();
    }
}

// ---- f16 pages: a unit is a tile of 16 tokens ----
template <int D, int WARPS_OF_HEAD = 1>
struct ExactCodec {
    using P = Exact<D * WARPS_OF_HEAD>;
    static constexpr int SHARE = WARPS_OF_HEAD, UNITS = 4, OWN = P::TILE / SHARE, STAGE = 2 * OWN;
    static constexpr bool CODED = false, PLANNED = false;
    static DEVICE u32 key_bytes(const AttentionParams&, int) { return OWN; }
    static DEVICE u32 unit_bytes(u32) { return STAGE; }
    struct Constants {
        DEVICE explicit Constants(const AttentionParams&) {}
    };
    template <int STAGES>
    static DEVICE void copy(Ring<STAGES>& ring, int stage, u8* into, const u8* pages, PageEntry entry, int unit, u32, int warp, int lane) {
        const int at = unit % UNITS * P::TILE + (SHARE > 1 ? warp * OWN : 0);
        ring.copy(stage, into, half_page(pages, entry.x) + at, OWN, lane);
        ring.copy(stage, into + OWN, half_page(pages, entry.y) + at, OWN, lane);
    }
    template <Cap CAP, int N, bool MANY>
    static DEVICE void attend(State<D, N>& st, const u8* stage, const Query<D, SHARE, N, MANY>& query, const Constants&, int hidden,
                              const Columns<N, MANY>& columns, Sharing<SHARE>& sharing, int lane, const AttentionParams& p) {
        if (hidden >= P::TOKENS) return;  // the window begins in a later tile of this page
        const FromShared keys{stage + lane * 16}, values{stage + OWN + lane * 16};
        u32 q[N][D / 8];
        hold(q, query);
        attend_exact<D, CAP>(st, keys, values, q, Rows{hidden, P::TOKENS, MANY}, columns, sharing, lane, p.scale, p.cap, p.floor);
    }
};

#define ATTEND(NAME, D, CAP, CODEC, STAGES, N, MANY, PARTS, PER_SM)                                                    \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, PER_SM) NAME(const __grid_constant__ AttentionParams p) { \
        decode<D, CAP, CODEC, STAGES, N, MANY, PARTS>(p);                                                              \
    }                                                                                                                  \
    extern "C" __device__ const int NAME##_shared = sizeof(DecodeShared<D, CODEC, STAGES, N, MANY, PARTS>);
