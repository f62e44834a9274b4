// Keys of a plan (`klt`) beside values of 4 bits. A page's channels have widths of their own, row by row of 8, so its codes are bit planes: a
// plane of two rows is a product with the rows' queries times the plane's weight, and scores are the sum of them all. Which rows a plane has is
// known at run time alone, so folded queries lie in shared memory, beside a list of the rows and weights of all steps of two rows.
#pragma once
#include "packed.cuh"

// This lane's codes of a plane, 8 channels of a row and 64 tokens: tokens 16mt+g in `lo`, those with 16 times the ones 8 after them on top in
// `both` (see mma_nibbles).
struct Plane {
    u32 lo[4], both[4];
};
DEVICE Plane nibble_plane(const uint2& w) {
    const u32 x = __byte_perm(w.x, 0, 0x4341), y = __byte_perm(w.y, 0, 0x4341);
    return {{w.x & 0x000f000fu, x & 0x000f000fu, w.y & 0x000f000fu, y & 0x000f000fu}, {w.x & 0x00ff00ffu, x, w.y & 0x00ff00ffu, y}};
}
DEVICE Plane crumb_plane(u32 w) {
    Plane plane;
    const u32 words[4] = {w, w >> 2, __byte_perm(w, 0, 0x4341), __byte_perm(w, 0, 0x4341) >> 2};
#pragma unroll
    for (int mt = 0; mt < 4; mt++) plane.lo[mt] = words[mt] & 0x00030003u, plane.both[mt] = words[mt] & 0x00330033u;
    return plane;
}
DEVICE Plane bit_plane(u32 half) {
    Plane plane;
    const u32 w = __byte_perm(half, 0, 0x4140);
#pragma unroll
    for (int mt = 0; mt < 4; mt++) plane.lo[mt] = w >> mt & 0x00010001u, plane.both[mt] = w >> mt & 0x00110011u;
    return plane;
}

constexpr u32 ONE = 0x3c003c00u, FOUR = 0x44004400u, SIXTEEN = 0x4c004c00u;  // f16, twice

// Rows of a kv head that have a plane, by planes as they lie in a page; a plane of an odd number has one more that counts nothing.
struct PlaneRows {
    int n8, n6, n5, n3, n2, n1, wide;  // rows of so many bits; of 4 and more
    DEVICE explicit PlaneRows(const uint2& counts) {
        auto of = [&](int bits) { return (int)((bits > 4 ? counts.y : counts.x) >> (bits - 1) % 4 * 8 & 0xff); };
        n8 = of(8), n6 = of(6), n5 = of(5), n3 = of(3), n2 = of(2), n1 = of(1), wide = n8 + n6 + n5 + of(4);
    }
    DEVICE int crumbs() const { return n6 + n3 + n2; }
    DEVICE int bits() const { return n5 + n3 + n1; }
    // Row and weight (what a code of 1 counts) of entry i of the list: low nibbles where they are LISTED, upper ones, crumbs, bits.
    template <bool LISTED>
    DEVICE uint2 entry(int i) const {
        auto even = [](int n) { return n + 1 & ~1; };
        if (LISTED) {
            if (i < wide) return make_uint2(i, ONE);
            i -= even(wide);
        }
        if (i >= 0 && i < n8) return make_uint2(i, SIXTEEN);
        i -= even(n8);
        if (i >= 0 && i < crumbs()) return i < n6 ? make_uint2(n8 + i, SIXTEEN) : make_uint2(wide + i - n6, ONE);
        i -= even(crumbs());
        if (i >= 0 && i < bits())
            return i < n5 ? make_uint2(n8 + n6 + i, SIXTEEN) : i < n5 + n3 ? make_uint2(wide + i - n5, FOUR) : make_uint2(wide + n2 + i - n5, ONE);
        return make_uint2(0, 0);
    }
};

template <int D>
struct PlannedCodec {
    using K = PlannedKeyPage<D>;
    using V = Values<D, 4>;
    static constexpr int SHARE = 1, UNITS = 1, STAGE = K::BYTES + V::HALF;
    static constexpr bool CODED = true, PLANNED = true;
    // Bytes of scales, of codes of 64 tokens, and whether two such share scales; zero where keys are not copied.
    static DEVICE u32 key_bytes(const AttentionParams& p, int kv) {
        const KeyWidths& of = p.widths[kv];
        return K::codes(__ldg(&of.rows)) | __ldg(&of.codes) << 12 | (__ldg(&of.halves) - 1) << 31;
    }
    static DEVICE u32 scale_bytes(u32 keys) { return keys & 0xfff; }
    static DEVICE u32 code_bytes(u32 keys) { return keys << 1 >> 13; }
    static DEVICE u32 unit_bytes(u32 keys) { return scale_bytes(keys) + code_bytes(keys) + V::HALF; }

    // What is the same for all pages of an item: its kv head's widths, or where its keys are exact.
    struct Constants : ValueOffset {
        int rows;
        u32 planes;  // a byte each: rows of low nibbles, of upper ones, of crumbs, of bits
        const u8* exact;
        DEVICE explicit Constants(const AttentionParams& p) : ValueOffset(p) {}
        template <int N, bool MANY>
        DEVICE void set(const AttentionParams& p, int kv, const Item& item, const Query<D, 1, N, MANY>& query, int lane) {
            exact = nullptr;
            if (item.closed() && !item.in_basis())
                exact = half_page(p.pages, __ldg(&p.exact[((u64)item.rows.x * p.kv_heads + kv + 1) * p.exact_stride - 1].x));
            rows = __ldg(&p.widths[kv].rows);
            const PlaneRows of(__ldg(reinterpret_cast<const uint2*>(p.widths[kv].count)));
            planes = of.wide | of.n8 << 8 | of.crumbs() << 16 | of.bits() << 24;
#pragma unroll
            for (int i = lane; i < STEP_WORDS / 2; i += WARP) {
                const uint2 entry = of.template entry<(N > 1)>(i);
                query.steps(lane)[i] = make_uint2(entry.x * N * WARP, entry.y);
            }
            __syncwarp();
        }
        DEVICE int plane(int i) const { return planes >> 8 * i & 0xff; }
    };

    template <int STAGES>
    static DEVICE void copy(Ring<STAGES>& ring, int stage, u8* into, const u8* pages, PageEntry entry, int unit, u32 keys, int, int lane) {
        if (keys) {
            const u32 scales = scale_bytes(keys), codes = code_bytes(keys);
            const u8* from = half_page(pages, entry.x);
            ring.copy(stage, into, from, scales, lane);
            ring.copy(stage, into + scales, from + scales + (keys >> 31 ? unit % 2 * codes : 0), codes, lane);
        }
        ring.copy(stage, into + K::BYTES, half_page(pages, entry.y), V::HALF, lane);
    }

    // Scores of 64 exact keys.
    template <int N, bool MANY>
    static DEVICE void exact_scores(PageScores<N>& scores, const Query<D, 1, N, MANY>& query, const u8* keys, int lane, float scale) {
        constexpr int AT_ONCE = N == 1 ? 4 : 2;  // loads on their way
        const FromGlobal<false> load{keys + lane * 16};
#pragma unroll
        for (int first = 0; first < D / 4; first += AT_ONCE) {
            uint4 k[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) k[i] = load(first + i);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const int mt = (first + i) / (D / 16), ks = (first + i) % (D / 16);
                    const uint4 q = query.four(n, ks / 2);
                    mma16816(scores.s[n][mt], k[i].x, k[i].y, k[i].z, k[i].w, ks % 2 ? q.z : q.x, ks % 2 ? q.w : q.y);
                }
        }
        scores.lo = scores.hi = scale;
    }
    // Scores of 64 keys that are codes.
    template <int N, bool MANY>
    static DEVICE void plane_scores(PageScores<N>& scores, const Query<D, 1, N, MANY>& query, const u8* pg, const Constants& constants, int lane, float scale) {
        const int t = lane & 3;
        auto& s = scores.s;
        float z1[N][4] = {}, z2[N][4] = {};
        u32* folded = query.folded(lane);  // this lane's queries times the page's scales: [row][n], a word each
        // Scales and zeros of all rows of a batch before the first of its stores, which loads would wait behind.
        constexpr int BATCH = N == 1 ? D / 8 : 4;
#pragma unroll
        for (int first = 0; first < D / 8; first += BATCH) {
            u32 scale[BATCH], zero[BATCH];  // of no meaning beyond the last row
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                const int row = first + i;
                scale[i] = *reinterpret_cast<const u32*>(pg + K::scale(row) + 4 * t);
                zero[i] = *reinterpret_cast<const u32*>(pg + K::zero(row, constants.rows) + 4 * t);
            }
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
#pragma unroll
                for (int n = 0; n < N; n++) folded[((first + i) * N + n) * WARP] = mul_f16x2(word(query.four(n, (first + i) / 4), i % 4), scale[i]);
                if (first + i >= constants.rows) zero[i] = 0u;
            }
#pragma unroll
            for (int i = 0; i < BATCH; i += 4)
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const uint4 q = query.four(n, (first + i) / 4);
                    mma16816(z1[n], q.x, q.y, q.z, q.w, zero[i], zero[i + 2]);      // row g counts
                    mma16816(z2[n], q.x, q.y, q.z, q.w, zero[i + 1], zero[i + 3]);  // row g+8 counts
                }
        }
        // The planes of one width, two rows at a time. Queries are asked for a step ahead and the list two, across planes too; codes are asked for
        // a step ahead, and those that follow the last row's meet queries of zero.
        const u8* codes = pg + K::codes(constants.rows);
        const uint4* steps = reinterpret_cast<const uint4*>(query.steps(lane));
        uint4 coming = *steps++;
        u32 q0[N], q1[N], weight0, weight1;
        auto ask = [&]() {
#pragma unroll
            for (int n = 0; n < N; n++) q0[n] = folded[coming.x + n * WARP], q1[n] = folded[coming.z + n * WARP];
            weight0 = coming.y, weight1 = coming.w;
            coming = *steps++;
        };
        auto planes = [&](int rows, auto load, auto plane, int bytes) {
            auto next = load(codes), after = load(codes + bytes);
#pragma unroll(N == 1 ? 2 : 1)
            for (int i = rows; i > 0; i -= 2) {
                const Plane a = plane(next), b = plane(after);
                u32 w0[N], w1[N];
#pragma unroll
                for (int n = 0; n < N; n++) w0[n] = mul_f16x2(q0[n], weight0), w1[n] = mul_f16x2(q1[n], weight1);
                codes += 2 * bytes;
                next = load(codes), after = load(codes + bytes);
                ask();
#pragma unroll
                for (int mt = 0; mt < 4; mt++)
#pragma unroll
                    for (int n = 0; n < N; n++) mma16816(s[n][mt], a.lo[mt], a.both[mt], b.lo[mt], b.both[mt], w0[n], w1[n]);
            }
            codes -= rows & 1 ? bytes : 0;
        };
        auto nibbles_at = [&](const u8* at) { return load_shared_pair(at + 8 * lane); };
        auto crumbs_at = [&](const u8* at) { return *reinterpret_cast<const u32*>(at + 4 * lane); };
        auto bits_at = [&](const u8* at) { return (u32)*reinterpret_cast<const u16*>(at + 2 * lane); };
        ask();
        // Low nibbles. With registers for it all rows are known here, and those of narrower ones meet queries of zero: the same sums.
        if constexpr (N == 1) {
            const int wide = constants.plane(0), has = (1 << wide) - 1;
#pragma unroll
            for (int row = 0; row < D / 8; row += 2) {
                const Plane a = nibble_plane(nibbles_at(codes + row * 256)), b = nibble_plane(nibbles_at(codes + row * 256 + 256));
                auto own = [&](int row) { return folded[row * WARP] & (u32)(has << (31 - row) >> 31); };
#pragma unroll
                for (int mt = 0; mt < 4; mt++) mma16816(s[0][mt], a.lo[mt], a.both[mt], b.lo[mt], b.both[mt], own(row), own(row + 1));
            }
            codes += wide * 256;
        } else {
            planes(constants.plane(0), nibbles_at, nibble_plane, 256);
        }
        planes(constants.plane(1), nibbles_at, nibble_plane, 256);
        planes(constants.plane(2), crumbs_at, crumb_plane, 128);
        planes(constants.plane(3), bits_at, bit_plane, 64);
        scores.lo = scale * ROW_LO, scores.hi = scale * ROW_HI;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float qz = (z1[n][0] + z2[n][2]) * scale;  // of head g
            scores.b[n][0] = __shfl_sync(~0u, qz, 8 * t), scores.b[n][1] = __shfl_sync(~0u, qz, 8 * t + 4);
#pragma unroll
            for (int mt = 0; mt < 4; mt++) s[n][mt][2] -= s[n][mt][0], s[n][mt][3] -= s[n][mt][1];
        }
    }

    template <Cap CAP, int N, bool MANY>
    static DEVICE void attend(State<D, N>& st, const u8* pg, const Query<D, 1, N, MANY>& query, const Constants& constants, int hidden,
                              const Columns<N, MANY>& columns, Sharing<1>&, int lane, const AttentionParams& params) {
        static_assert(CAP == PLAIN, "what the mean adds to scores joins after them");
        PageScores<N> scores = {};
        if (constants.exact) exact_scores(scores, query, constants.exact, lane, params.scale);
        else plane_scores(scores, query, pg, constants, lane, params.scale);
        scores.template hide<MANY>(hidden, columns, lane);
        ValueSums<D, 4>::attend(st, scores, pg + K::BYTES, constants, lane, params.floor);
    }
};
