// int4 pages: a unit is a whole page. Tensor cores with keys and values as A, the query heads as columns of B; the page's scales
// are folded into the small operand. docs/results of the prototype have what each step is worth.
#pragma once
#include "decode.cuh"

template <int D>
struct Int4Codec {
    using P = Int4<D>;
    static constexpr int UNITS = 1, STAGE = P::BYTES;
    static constexpr bool CODED = true;

    // A fragment of the values' offset: -8 in rows g, -(8 + 16*8) in rows g+8. Were ptxas to see constants, or registers equal in
    // pairs, it would build the quad anew before every mma (64 moves a page), so the four registers are made different in its
    // eyes: `zero` is a run-time 0.
    struct Constants {
        u32 a0, a1, a2, a3;
        DEVICE explicit Constants(const AttentionParams& p)
            : a0(0x80088008u ^ p.zero[0]), a1(0x80888088u ^ p.zero[1]), a2(0x80088008u ^ p.zero[2]), a3(0x80888088u ^ p.zero[3]) {}
    };

    template <int STAGES>
    static DEVICE void copy(Ring<STAGES>& ring, int stage, u8* into, const u8* pages, PageEntry entry, int, int lane) {
        ring.copy(stage, into, half_page(pages, entry.x), P::HALF, lane);
        ring.copy(stage, into + P::HALF, half_page(pages, entry.y), P::HALF, lane);
    }

    // Scores (keys x folded query), online softmax, values. The page's first `hidden` tokens are not seen; some token is.
    template <bool CAP>
    static DEVICE void attend(State<D>& st, const u8* pg, const u32 (&q)[D / 8], const Constants& offset, int hidden, int lane,
                              const AttentionParams& params) {
        constexpr int H = D / 64;      // 16-byte loads that hold one lane's key codes of a 16-token tile
        constexpr int PAIRS = D / 64;  // pairs of 32-channel groups
        const int t = lane & 3;

        u32 qs[D / 8];  // the page's channel scales, folded into the query
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            const uint4 s = load_shared(pg + P::K_SCALE + j * 64 + t * 16);
            qs[4 * j + 0] = mul_f16x2(q[4 * j + 0], s.x);
            qs[4 * j + 1] = mul_f16x2(q[4 * j + 1], s.y);
            qs[4 * j + 2] = mul_f16x2(q[4 * j + 2], s.z);
            qs[4 * j + 3] = mul_f16x2(q[4 * j + 3], s.w);
        }
        // Scores, and q . zero: for the latter the query is A (head g in row g, the other half of its channels in row g+8) and
        // the zeros are B, the same in every column.
        float s[4][4] = {}, z1[4] = {}, z2[4] = {};  // s[16-token tile]: (row g; heads 2t,2t+1), (row g+8; ...)
#pragma unroll
        for (int h = 0; h < H; h++) {
            uint4 w[4];
#pragma unroll
            for (int mt = 0; mt < 4; mt++) w[mt] = load_shared(pg + P::K_CODES + (mt * H + h) * 512 + lane * 16);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int mt = 0; mt < 4; mt++) mma_nibbles(s[mt], word(w[mt], i), qs[8 * h + 2 * i], qs[8 * h + 2 * i + 1]);
#pragma unroll
            for (int j = 2 * h; j < 2 * h + 2; j++) {
                const uint4 z = load_shared(pg + P::K_ZERO + j * 64 + t * 16);
                mma16816(z1, q[4 * j + 0], q[4 * j + 1], q[4 * j + 2], q[4 * j + 3], z.x, z.y);  // row g counts
                mma16816(z2, q[4 * j + 0], q[4 * j + 1], q[4 * j + 2], q[4 * j + 3], z.z, z.w);  // row g+8 counts
            }
        }
        const float qz = (z1[0] + z2[2]) * params.scale;  // of head g
        float b0 = __shfl_sync(~0u, qz, 8 * t), b1 = __shfl_sync(~0u, qz, 8 * t + 4);
        float lo = params.scale * ROW_LO, hi = params.scale * ROW_HI;
#pragma unroll
        for (int mt = 0; mt < 4; mt++) s[mt][2] -= s[mt][0], s[mt][3] -= s[mt][1];
        if (CAP) {
#pragma unroll
            for (int mt = 0; mt < 4; mt++) {
                s[mt][0] = soft_cap(fmaf(s[mt][0], lo, b0), params.cap), s[mt][1] = soft_cap(fmaf(s[mt][1], lo, b1), params.cap);
                s[mt][2] = soft_cap(fmaf(s[mt][2], hi, b0), params.cap), s[mt][3] = soft_cap(fmaf(s[mt][3], hi, b1), params.cap);
            }
            lo = hi = 1.f, b0 = b1 = 0.f;
        }
        if (hidden > 0) {  // the first page of a sliding window
            const int g = lane >> 2;
#pragma unroll
            for (int mt = 0; mt < 4; mt++) {
                if (16 * mt + g < hidden) s[mt][0] = s[mt][1] = MINUS_INFINITY;
                if (16 * mt + 8 + g < hidden) s[mt][2] = s[mt][3] = MINUS_INFINITY;
            }
        }

        // Value codes and scales of the first pair of groups: asked for here, to arrive behind the softmax.
        uint4 vw[4], vs[4];
        auto load_values = [&](int pair) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                vw[i] = load_shared(pg + P::V_CODES + (4 * pair + i) * 512 + lane * 16);
                vs[i] = load_shared(pg + P::V_SCALE + (4 * pair + i) * 64 + t * 16);
            }
        };
        load_values(0);

        // Weights 2^(score - m). The maximum m is lazy: it moves only when the weights of this page get large, so the common
        // path has no maxima and no shuffles. The first page, with m = -inf, takes the slow path: weights are infinite or NaN.
        float e[4][4], l0, l1;
        auto weights = [&]() {
            const float n0 = b0 - st.m0, n1 = b1 - st.m1;
            l0 = l1 = 0.f;
#pragma unroll
            for (int mt = 0; mt < 4; mt++) {
                e[mt][0] = ex2(fmaf(s[mt][0], lo, n0));
                e[mt][1] = ex2(fmaf(s[mt][1], lo, n1));
                e[mt][2] = ex2(fmaf(s[mt][2], hi, n0));
                e[mt][3] = ex2(fmaf(s[mt][3], hi, n1));
                l0 += e[mt][0] + e[mt][2];
                l1 += e[mt][1] + e[mt][3];
            }
        };
        weights();
        if (__any_sync(~0u, !(fmaxf(l0, l1) <= LAZY_SUM) || l0 != l0 || l1 != l1)) {
            float x0 = st.m0, x1 = st.m1;
#pragma unroll
            for (int mt = 0; mt < 4; mt++) {
                x0 = fmaxf(x0, fmaxf(fmaf(s[mt][0], lo, b0), fmaf(s[mt][2], hi, b0)));
                x1 = fmaxf(x1, fmaxf(fmaf(s[mt][1], lo, b1), fmaf(s[mt][3], hi, b1)));
            }
            st.raise(x0, x1);
            weights();
        }
        st.l0 += l0, st.l1 += l1;
        u32 p[8];  // B fragments of the value product, [2*(16-token tile) + half]: (tokens 2t,2t+1; head g)
#pragma unroll
        for (int mt = 0; mt < 4; mt++) {
            p[2 * mt + 0] = transpose8x8(pack_f16x2(e[mt][0], e[mt][1]));
            p[2 * mt + 1] = transpose8x8(pack_f16x2(e[mt][2], e[mt][3]));
        }

        // Values: fold the token scales into the weights, per group of 32 channels; then four 16-channel tiles side by side.
#pragma unroll
        for (int pair = 0; pair < PAIRS; pair++) {
            u32 b[2][8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                b[0][i] = mul_f16x2(p[i], word(vs[i / 4], i % 4));
                b[1][i] = mul_f16x2(p[i], word(vs[2 + i / 4], i % 4));
            }
            const uint4 w[4] = {vw[0], vw[1], vw[2], vw[3]};
            if (pair + 1 < PAIRS) load_values(pair + 1);
#pragma unroll
            for (int ks = 0; ks < 4; ks++) {
#pragma unroll
                for (int j = 0; j < 2; j++)
                    mma16816(st.off[2 * pair + j], offset.a0, offset.a1, offset.a2, offset.a3, b[j][2 * ks], b[j][2 * ks + 1]);
#pragma unroll
                for (int i = 0; i < 4; i++) mma_nibbles(st.acc[4 * pair + i], word(w[i], ks), b[i / 2][2 * ks], b[i / 2][2 * ks + 1]);
            }
        }
    }
};
