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

template <int D>
struct PlannedCodec {
    using K = PlannedKeyPage<D>;
    using V = Values<D, 4>;
    static constexpr int UNITS = 1, STAGE = K::BYTES + V::HALF;
    static constexpr bool CODED = true, PLANNED = true;
    static DEVICE u32 key_bytes(const AttentionParams& p, int kv) { return __ldg(&p.widths[kv].bytes); }
    static DEVICE u32 unit_bytes(u32 keys) { return keys + V::HALF; }

    // What is the same for all pages of a kv head: its widths.
    struct Constants : ValueOffset {
        int rows;
        u32 count[2];  // a byte for each width
        DEVICE explicit Constants(const AttentionParams& p) : ValueOffset(p) {}
        DEVICE void set(const AttentionParams& p, int kv) {
            rows = __ldg(&p.widths[kv].rows);
            const uint2 counts = __ldg(reinterpret_cast<const uint2*>(p.widths[kv].count));
            count[0] = counts.x, count[1] = counts.y;
        }
        DEVICE int of(int bits) const { return count[(bits - 1) / 4] >> (bits - 1) % 4 * 8 & 0xff; }
    };

    template <int STAGES>
    static DEVICE void copy(Ring<STAGES>& ring, int stage, u8* into, const u8* pages, PageEntry entry, int, u32 keys, int lane) {
        ring.copy(stage, into, half_page(pages, entry.x), keys, lane);
        ring.copy(stage, into + K::BYTES, half_page(pages, entry.y), V::HALF, lane);
    }

    template <Cap CAP, int N, bool MANY>
    static DEVICE void attend(State<D, N>& st, const u8* pg, const Query<D, N, MANY>& query, const Constants& constants, int hidden,
                              const Columns<N, MANY>& columns, int lane, const AttentionParams& params) {
        const int t = lane & 3;
        PageScores<N> scores = {};
        auto& s = scores.s;
        float z1[N][4] = {}, z2[N][4] = {};
        u32* folded = query.folded(lane);  // this lane's queries times the page's scales: [row][n], a word each
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            u32 z[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int row = 4 * j + i;
                const u32 scale = *reinterpret_cast<const u32*>(pg + K::scale(row) + 4 * t);  // of no meaning beyond the last row, and not used there
                z[i] = row < constants.rows ? *reinterpret_cast<const u32*>(pg + K::zero(row, constants.rows) + 4 * t) : 0u;
#pragma unroll
                for (int n = 0; n < N; n++) folded[(row * N + n) * WARP] = mul_f16x2(word(query.four(n, j), i), scale);
            }
#pragma unroll
            for (int n = 0; n < N; n++) {
                const uint4 q = query.four(n, j);
                mma16816(z1[n], q.x, q.y, q.z, q.w, z[0], z[2]);  // row g counts
                mma16816(z2[n], q.x, q.y, q.z, q.w, z[1], z[3]);  // row g+8 counts
            }
        }
        // A plane of rows first … first + rows - 1, two at a time. The codes that follow the last row's meet queries of zero.
        const u8* codes = pg + 2 * K::zero(0, constants.rows);
        auto planes = [&](int first, int rows, u32 weight, auto load, auto plane, int bytes) {
            auto next = load(codes), after = load(codes + bytes);
#pragma unroll 1
            for (int row = 0; row < rows; row += 2) {
                const Plane a = plane(next), b = plane(after);
                codes += 2 * bytes;
                next = load(codes), after = load(codes + bytes);
                u32 q0[N], q1[N];
#pragma unroll
                for (int n = 0; n < N; n++) {
                    q0[n] = mul_f16x2(folded[((first + row) * N + n) * WARP], weight);
                    q1[n] = row + 1 < rows ? mul_f16x2(folded[((first + row + 1) * N + n) * WARP], weight) : 0u;
                }
#pragma unroll
                for (int mt = 0; mt < 4; mt++)
#pragma unroll
                    for (int n = 0; n < N; n++) mma16816(s[n][mt], a.lo[mt], a.both[mt], b.lo[mt], b.both[mt], q0[n], q1[n]);
            }
            codes -= rows & 1 ? bytes : 0;
        };
        constexpr u32 ONE = 0x3c003c00u, FOUR = 0x44004400u, SIXTEEN = 0x4c004c00u;
        auto nibbles_at = [&](const u8* at) { return load_shared_pair(at + 8 * lane); };
        auto crumbs_at = [&](const u8* at) { return *reinterpret_cast<const u32*>(at + 4 * lane); };
        auto bits_at = [&](const u8* at) { return (u32)*reinterpret_cast<const u16*>(at + 2 * lane); };
        const int n8 = constants.of(8), n6 = constants.of(6), n5 = constants.of(5), n3 = constants.of(3), wide = n8 + n6 + n5 + constants.of(4);
        const int n2 = constants.of(2), n1 = constants.of(1);
        planes(0, wide, ONE, nibbles_at, nibble_plane, 256);
        if (n8) planes(0, n8, SIXTEEN, nibbles_at, nibble_plane, 256);
        if (n6) planes(n8, n6, SIXTEEN, crumbs_at, crumb_plane, 128);
        if (n3 + n2) planes(wide, n3 + n2, ONE, crumbs_at, crumb_plane, 128);
        if (n5) planes(n8 + n6, n5, SIXTEEN, bits_at, bit_plane, 64);
        if (n3) planes(wide, n3, FOUR, bits_at, bit_plane, 64);
        if (n1) planes(wide + n3 + n2, n1, ONE, bits_at, bit_plane, 64);
        scores.lo = params.scale * ROW_LO, scores.hi = params.scale * ROW_HI;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float qz = (z1[n][0] + z2[n][2]) * params.scale;  // of head g
            scores.b[n][0] = __shfl_sync(~0u, qz, 8 * t), scores.b[n][1] = __shfl_sync(~0u, qz, 8 * t + 4);
#pragma unroll
            for (int mt = 0; mt < 4; mt++) s[n][mt][2] -= s[n][mt][0], s[n][mt][3] -= s[n][mt][1];
        }
        static_assert(CAP == PLAIN, "what the mean adds to scores joins after them");
        scores.template hide<MANY>(hidden, columns, lane);
        ValueSums<D, 4>::attend(st, scores, pg + K::BYTES, constants, lane);
    }
};
