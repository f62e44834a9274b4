// Keys of a plan (`klt`) beside values of 4 bits. A page's channels have widths of their own, row by row of 8, so its codes are bit planes: a
// plane of two rows is a product with the rows' queries times the plane's weight, and scores are the sum of them all. Widths do not rise, so
// the rows of a plane are at most a few runs; which rows is known at run time alone, so folded queries lie in shared memory.
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

// Which row of channels a row of a plane is of, and what a code of 1 there counts.
struct Row {
    int row;
    u32 weight;  // f16, twice
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
        u32 count[2];  // a byte for each width
        const u8* exact;
        DEVICE explicit Constants(const AttentionParams& p) : ValueOffset(p) {}
        DEVICE void set(const AttentionParams& p, int kv, const Item& item) {
            exact = nullptr;
            if (item.closed() && !item.in_basis())
                exact = half_page(p.pages, __ldg(&p.exact[((u64)item.rows.x * p.kv_heads + kv + 1) * p.exact_stride - 1].x));
            rows = __ldg(&p.widths[kv].rows);
            const uint2 counts = __ldg(reinterpret_cast<const uint2*>(p.widths[kv].count));
            count[0] = counts.x, count[1] = counts.y;
        }
        DEVICE int of(int bits) const { return count[(bits - 1) / 4] >> (bits - 1) % 4 * 8 & 0xff; }
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
        constexpr int AT_ONCE = N == 1 ? D / 16 : 2;  // loads on their way
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
        // The planes of one width, two rows at a time; `of` says which row the i-th is of and its weight. Codes and queries are asked for a step
        // ahead; the codes that follow the last row's meet queries of zero.
        const u8* codes = pg + K::codes(constants.rows);
        auto planes = [&](int rows, auto of, auto load, auto plane, int bytes) {
            auto next = load(codes), after = load(codes + bytes);
            u32 q0[N], q1[N];
            auto ask = [&](int i) {
                const u32 *first = folded + of(i).row * N * WARP, *second = folded + of(i + 1).row * N * WARP;
#pragma unroll
                for (int n = 0; n < N; n++) q0[n] = first[n * WARP], q1[n] = second[n * WARP];
            };
            ask(0);
#pragma unroll 1
            for (int i = 0; i < rows; i += 2) {
                const Plane a = plane(next), b = plane(after);
                u32 w0[N], w1[N];
#pragma unroll
                for (int n = 0; n < N; n++) w0[n] = mul_f16x2(q0[n], of(i).weight), w1[n] = i + 1 < rows ? mul_f16x2(q1[n], of(i + 1).weight) : 0u;
                codes += 2 * bytes;
                next = load(codes), after = load(codes + bytes);
                ask(i + 2);
#pragma unroll
                for (int mt = 0; mt < 4; mt++)
#pragma unroll
                    for (int n = 0; n < N; n++) mma16816(s[n][mt], a.lo[mt], a.both[mt], b.lo[mt], b.both[mt], w0[n], w1[n]);
            }
            codes -= rows & 1 ? bytes : 0;
        };
        constexpr u32 ONE = 0x3c003c00u, FOUR = 0x44004400u, SIXTEEN = 0x4c004c00u;
        auto nibbles_at = [&](const u8* at) { return load_shared_pair(at + 8 * lane); };
        auto crumbs_at = [&](const u8* at) { return *reinterpret_cast<const u32*>(at + 4 * lane); };
        auto bits_at = [&](const u8* at) { return (u32)*reinterpret_cast<const u16*>(at + 2 * lane); };
        const int n8 = constants.of(8), n6 = constants.of(6), n5 = constants.of(5), n3 = constants.of(3), wide = n8 + n6 + n5 + constants.of(4);
        const int n2 = constants.of(2), n1 = constants.of(1);
        // Low nibbles. With registers for it all rows are known here, and those of narrower ones meet queries of zero: the same sums.
        if constexpr (N == 1) {
#pragma unroll
            for (int row = 0; row < D / 8; row += 2) {
                const Plane a = nibble_plane(nibbles_at(codes + row * 256)), b = nibble_plane(nibbles_at(codes + row * 256 + 256));
                const u32 w0 = row < wide ? folded[row * WARP] : 0u, w1 = row + 1 < wide ? folded[(row + 1) * WARP] : 0u;
#pragma unroll
                for (int mt = 0; mt < 4; mt++) mma16816(s[0][mt], a.lo[mt], a.both[mt], b.lo[mt], b.both[mt], w0, w1);
            }
            codes += wide * 256;
        } else {
            planes(wide, [=](int i) { return Row{i, ONE}; }, nibbles_at, nibble_plane, 256);
        }
        planes(n8, [=](int i) { return Row{i, SIXTEEN}; }, nibbles_at, nibble_plane, 256);
        planes(n6 + n3 + n2, [=](int i) { return i < n6 ? Row{n8 + i, SIXTEEN} : Row{wide + i - n6, ONE}; }, crumbs_at, crumb_plane, 128);
        planes(n5 + n3 + n1, [=](int i) { return i < n5 ? Row{n8 + n6 + i, SIXTEEN} : i < n5 + n3 ? Row{wide + i - n5, FOUR} : Row{wide + n2 + i - n5, ONE}; },
               bits_at, bit_plane, 64);
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
        ValueSums<D, 4>::attend(st, scores, pg + K::BYTES, constants, lane);
    }
};
