// Pages of codes under scales: a unit is a whole page. Tensor cores with keys and values as A, the queries as columns of B; the
// page's scales are folded into the small operand. docs/results of the prototype have what each step is worth.
#pragma once
#include "decode.cuh"

struct Fragment {
    u32 a0, a1, a2, a3;
};
DEVICE void mma(float (&d)[4], const Fragment& a, u32 b0, u32 b1) { mma16816(d, a.a0, a.a1, a.a2, a.a3, b0, b1); }

// Codes of 4 bits as subnormals, rows g+8 with those of row g below them: see mma_nibbles.
DEVICE Fragment nibbles(u32 w) {
    const u32 x = __byte_perm(w, 0, 0x4341);
    return {w & 0x000f000fu, w & 0x00ff00ffu, x & 0x000f000fu, x};
}
// Codes of 8 bits as subnormals: n * 2^-24.
DEVICE Fragment bytes(u32 w0, u32 w1) {
    return {w0 & 0x00ff00ffu, __byte_perm(w0, 0, 0x4341), w1 & 0x00ff00ffu, __byte_perm(w1, 0, 0x4341)};
}
// Codes of 8 bits less 128. A byte below 0x64 is 1024 + n, so one subtraction is exact.
DEVICE Fragment levels(u32 w0, u32 w1) {
    auto level = [](u32 w, u32 pick) { return add_f16x2(__byte_perm(w, 0x64646464u, pick), 0xe480e480u); };
    return {level(w0, 0x4240), level(w0, 0x4341), level(w1, 0x4240), level(w1, 0x4341)};
}

template <int D, int BITS>
struct Keys : KeyPage<D, BITS> {
    static constexpr int PER = BITS == 4 ? 4 : 2;  // steps along k in a 16-byte load
    static DEVICE uint4 load(const u8* page, int mt, int h, int lane) {
        return load_shared(page + Keys::CODES + (mt * (D / 16 / PER) + h) * 512 + lane * 16);
    }
    static DEVICE Fragment fragment(const uint4& w, int i) {
        if (BITS == 4) return nibbles(word(w, i));
        return bytes(word(w, 2 * i), word(w, 2 * i + 1));
    }
    // One step along k of all four tiles of tokens, where pages lie so.
    static constexpr int STEP_LOADS = BITS / 4;
    static DEVICE uint4 load_step(const u8* page, int ks, int i, int lane) {
        return load_shared(page + Keys::CODES + (ks * STEP_LOADS + i) * 512 + lane * 16);
    }
    static DEVICE Fragment step_fragment(const uint4* w, int mt) {
        if (BITS == 4) return nibbles(word(w[0], mt));
        return bytes(word(w[0], mt), word(w[STEP_LOADS - 1], mt));
    }
    // Scales, or zeros, of 32 channels; zeros beyond the last channel.
    static DEVICE uint4 load_32(const u8* array, int j, int t) {
        if (D % 32 == 0 || j < D / 32) return load_shared(array + j * 64 + t * 16);
        const uint2 half = load_shared_pair(array + j * 64 + t * 8);
        return uint4{half.x, half.y, 0u, 0u};
    }
};

template <int D, int BITS>
struct Values : ValuePage<D, BITS> {
    static constexpr int LOADS = BITS / 4;  // 16-byte loads that hold one lane's codes of 16 channels
    static DEVICE uint4 load(const u8* values, int mt, int i, int lane) {
        return load_shared(values + Values::CODES + (mt * LOADS + i) * 512 + lane * 16);
    }
    static DEVICE Fragment fragment(const uint4* w, int ks) {
        if (BITS == 4) return nibbles(word(w[0], ks));
        return levels(word(w[ks / 2], ks % 2 * 2), word(w[ks / 2], ks % 2 * 2 + 1));
    }
};

// What a page's scores are before the softmax, this lane's: score = s * lo + b for rows g, s * hi + b for rows g+8.
template <int N>
struct PageScores {
    float s[N][4][4];  // [16-token tile]: (row g; columns 2t,2t+1), (row g+8; ...)
    float b[N][2], lo, hi;

    // The sums of all warps that share a head's channels.
    template <int SHARE>
    DEVICE void add_up(Sharing<SHARE>& sharing) {
        static_assert(N == 1, "one tile of columns");
        float all[18];
#pragma unroll
        for (int i = 0; i < 16; i++) all[i] = s[0][i / 4][i % 4];
        all[16] = b[0][0], all[17] = b[0][1];
        sharing.add_up(all);
#pragma unroll
        for (int i = 0; i < 16; i++) s[0][i / 4][i % 4] = all[i];
        b[0][0] = all[16], b[0][1] = all[17];
    }
    // Takes scores of columns whose values are left out from the softmax; whether all are.
    DEVICE bool leave_out(float floor, const float (&m)[N][2]) {
        bool all = true;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float own = MINUS_INFINITY;
#pragma unroll
                for (int mt = 0; mt < 4; mt++) own = fmaxf(own, fmaxf(fmaf(s[n][mt][j], lo, b[n][j]), fmaf(s[n][mt][2 + j], hi, b[n][j])));
                const bool out = is_left_out(own, m[n][j], floor);
                if (out) b[n][j] = MINUS_INFINITY;
                all &= out;
            }
        return __ballot_sync(~0u, !all) == 0;
    }
    // Under a soft cap they are what they are.
    template <Cap CAP>
    DEVICE void cap(float cap) {
        if (!is_capped<CAP>(cap)) return;
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int mt = 0; mt < 4; mt++)
#pragma unroll
                for (int j = 0; j < 4; j++) s[n][mt][j] = soft_cap(fmaf(s[n][mt][j], j < 2 ? lo : hi, b[n][j & 1]), cap);
            b[n][0] = b[n][1] = 0.f;
        }
        lo = hi = 1.f;
    }
    // The first page of a sliding window.
    template <bool MANY>
    DEVICE void hide(int hidden, const Columns<N, MANY>& columns, int lane) {
        if (hidden + columns.most() <= 0) return;
        const int g = lane >> 2;
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int mt = 0; mt < 4; mt++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    if (16 * mt + 8 * (j / 2) + g < hidden + columns.slid(n, j & 1)) s[n][mt][j] = MINUS_INFINITY;
    }
};

// A fragment of the offset of values of 4 bits: -8 in rows g, -(8 + 16*8) in rows g+8. Were ptxas to see constants, or registers
// equal in pairs, it would build the quad anew before every mma (64 moves a page), so the four registers are made different in
// its eyes: `zero` is a run-time 0.
struct ValueOffset {
    Fragment offset;
    DEVICE explicit ValueOffset(const AttentionParams& p)
        : offset{0x80088008u ^ p.zero[0], 0x80888088u ^ p.zero[1], 0x80088008u ^ p.zero[2], 0x80888088u ^ p.zero[3]} {}
};

// The online softmax of a page's scores, and its values under them.
template <int D, int BITS>
struct ValueSums {
    using V = Values<D, BITS>;
    template <int N>
    static DEVICE void attend(State<D, N>& st, PageScores<N>& scores, const u8* values, const ValueOffset& constants, int lane, float floor) {
        const int t = lane & 3;
        if (floor != 0.f && scores.leave_out(floor, st.m)) return;
        auto& s = scores.s;
        auto& b = scores.b;
        const float lo = scores.lo, hi = scores.hi;

        // Value codes and scales of the first groups: asked for before the softmax, to arrive behind it.
        constexpr int GROUPS = N == 1 && BITS == 4 && D % 64 == 0 && D <= 256 ? 2 : 1;  // of 32 channels that are worked on at once
        constexpr int TILES = 2 * GROUPS, BATCHES = ((D + 31) / 32) / GROUPS;
        uint4 vw[TILES][V::LOADS], vs[TILES];
        auto load_values = [&](int batch) {
#pragma unroll
            for (int i = 0; i < TILES; i++) {
#pragma unroll
                for (int k = 0; k < V::LOADS; k++)
                    if (TILES * batch + i < D / 16) vw[i][k] = V::load(values, TILES * batch + i, k, lane);
                vs[i] = load_shared(values + V::SCALE + (TILES * batch + i) * 64 + t * 16);
            }
        };
        load_values(0);

        // Weights 2^(score - m). The maximum m is lazy: a column's moves only when its weights of this page get large, so the common
        // path has no maxima and no shuffles. The first page, with m = -inf, takes the slow path: weights are infinite or NaN.
        float l[N][2];
        u32 p[N][8];  // weights as f16, [2*(16-token tile) + half]
        auto weights = [&]() {
            bool over = false;
#pragma unroll
            for (int n = 0; n < N; n++) {
                const float n0 = b[n][0] - st.m[n][0], n1 = b[n][1] - st.m[n][1];
                l[n][0] = l[n][1] = 0.f;
#pragma unroll
                for (int mt = 0; mt < 4; mt++) {
                    const float e0 = ex2(fmaf(s[n][mt][0], lo, n0)), e1 = ex2(fmaf(s[n][mt][1], lo, n1));
                    const float e2 = ex2(fmaf(s[n][mt][2], hi, n0)), e3 = ex2(fmaf(s[n][mt][3], hi, n1));
                    l[n][0] += e0 + e2, l[n][1] += e1 + e3;
                    p[n][2 * mt] = pack_f16x2(e0, e1), p[n][2 * mt + 1] = pack_f16x2(e2, e3);
                }
                over |= !(l[n][0] <= LAZY_SUM) || !(l[n][1] <= LAZY_SUM);
            }
            return over;
        };
        if (__any_sync(~0u, weights())) {
#pragma unroll
            for (int n = 0; n < N; n++) {
                float x[2];
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    x[j] = st.m[n][j];
                    if (__ballot_sync(~0u, !(l[n][j] <= LAZY_SUM)) & 0x11111111u << t) {  // some row of this column
#pragma unroll
                        for (int mt = 0; mt < 4; mt++)
                            x[j] = fmaxf(x[j], fmaxf(fmaf(s[n][mt][j], lo, b[n][j]), fmaf(s[n][mt][2 + j], hi, b[n][j])));
                    }
                }
                st.raise(n, x[0], x[1]);
            }
            weights();
        }
#pragma unroll
        for (int n = 0; n < N; n++) {
            st.l[n][0] += l[n][0], st.l[n][1] += l[n][1];
            // To B fragments of the value product: (tokens 2t,2t+1; column g).
#pragma unroll
            for (int i = 0; i < 8; i++) p[n][i] = transpose8x8(p[n][i]);
        }

        // Values: fold the token scales into the weights, per group of 32 channels; then its 16-channel tiles side by side.
#pragma unroll
        for (int batch = 0; batch < BATCHES; batch++) {
            u32 f[N][GROUPS][8];
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int j = 0; j < GROUPS; j++)
#pragma unroll
                    for (int i = 0; i < 8; i++) f[n][j][i] = mul_f16x2(p[n][i], word(vs[2 * j + i / 4], i % 4));
            uint4 w[TILES][V::LOADS];
#pragma unroll
            for (int i = 0; i < TILES; i++)
#pragma unroll
                for (int k = 0; k < V::LOADS; k++) w[i][k] = vw[i][k];
            if (batch + 1 < BATCHES) load_values(batch + 1);
            Fragment offset = constants.offset;
            if (State<D, N>::SHARED_OFFSETS && lane >> 2 != batch * GROUPS % 8) offset = Fragment{0, 0, 0, 0};
#pragma unroll
            for (int ks = 0; ks < 4; ks++) {
                if (BITS == 4) {
#pragma unroll
                    for (int n = 0; n < N; n++)
#pragma unroll
                        for (int j = 0; j < GROUPS; j++)
                            mma(st.off[n][State<D, N>::offset_tile(GROUPS * batch + j)], offset, f[n][j][2 * ks], f[n][j][2 * ks + 1]);
                }
#pragma unroll
                for (int i = 0; i < TILES; i++) {
                    if (TILES * batch + i >= D / 16) break;
                    const Fragment a = V::fragment(w[i], ks);
#pragma unroll
                    for (int n = 0; n < N; n++) mma(st.acc[n][TILES * batch + i], a, f[n][i / 2][2 * ks], f[n][i / 2][2 * ks + 1]);
                }
            }
        }
    }
};

template <int D, int KEY_BITS, int VALUE_BITS, int WARPS_OF_HEAD = 1>
struct PackedCodec {
    using K = Keys<D, KEY_BITS>;
    using V = Values<D, VALUE_BITS>;
    using Constants = ValueOffset;
    static constexpr int SHARE = WARPS_OF_HEAD, UNITS = 1, STAGE = K::HALF + V::HALF;
    static constexpr bool CODED = VALUE_BITS == 4, PLANNED = false;
    static DEVICE u32 key_bytes(const AttentionParams&, int) { return K::HALF; }
    static DEVICE u32 unit_bytes(u32) { return STAGE; }

    template <int STAGES>
    static DEVICE void copy(Ring<STAGES>& ring, int stage, u8* into, const u8* pages, PageEntry entry, int, u32, int warp, int lane) {
        const int part = SHARE > 1 ? warp : 0;
        ring.copy(stage, into, half_page(pages, entry.x) + part * K::HALF, K::HALF, lane);
        ring.copy(stage, into + K::HALF, half_page(pages, entry.y) + part * V::HALF, V::HALF, lane);
    }

    // q . zero of this lane's heads: the query is A (head g in row g, the other half of its channels in row g+8) and the zeros are
    // B, the same in every column. One step of 32 channels.
    static DEVICE void zeros(float (&z1)[4], float (&z2)[4], const u8* pg, const uint4& q, int j, int t) {
        uint4 z = K::load_32(pg + K::ZERO, j, t);
        if (D % 32 && j == D / 32) z = uint4{z.x, 0u, z.y, 0u};  // one step of 16: [c]
        mma16816(z1, q.x, q.y, q.z, q.w, z.x, z.y);  // row g counts
        mma16816(z2, q.x, q.y, q.z, q.w, z.z, z.w);  // row g+8 counts
    }

    // Scores (keys x folded query), online softmax, values. The page's first `hidden` tokens are not seen; some token is.
    template <Cap CAP, int N, bool MANY>
    static DEVICE void attend(State<D, N>& st, const u8* pg, const Query<D, SHARE, N, MANY>& query, const Constants& constants, int hidden,
                              const Columns<N, MANY>& columns, Sharing<SHARE>& sharing, int lane, const AttentionParams& params) {
        const int t = lane & 3;

        // All at once where there are registers for it, else what the next products need.
        constexpr bool AHEAD = N == 1 && D <= 128;
        u32 qs[N][(D + 31) / 32 * 4];  // the page's channel scales, folded into the query
        auto fold = [&](int begin, int end) {
#pragma unroll
            for (int j = begin; j < end; j++) {
                const uint4 s = K::load_32(pg + K::SCALE, j, t);
#pragma unroll
                for (int n = 0; n < N; n++) {
                    const uint4 q = query.four(n, j);
#pragma unroll
                    for (int i = 0; i < 4; i++) qs[n][4 * j + i] = mul_f16x2(word(q, i), word(s, i));
                }
            }
        };
        PageScores<N> scores = {};
        auto& s = scores.s;
        float z1[N][4] = {}, z2[N][4] = {};
        auto zeros_of = [&](int begin, int end) {
#pragma unroll
            for (int j = begin; j < end; j++)
#pragma unroll
                for (int n = 0; n < N; n++) zeros(z1[n], z2[n], pg, query.four(n, j), j, t);
        };
        if (AHEAD) fold(0, (D + 31) / 32);
        else zeros_of(0, (D + 31) / 32);
        if constexpr (K::BY_STEP) {
#pragma unroll
            for (int ks = 0; ks < D / 16; ks++) {
                if (!AHEAD && ks % 2 == 0) fold(ks / 2, ks / 2 + 1);
                uint4 w[K::STEP_LOADS];
#pragma unroll
                for (int i = 0; i < K::STEP_LOADS; i++) w[i] = K::load_step(pg, ks, i, lane);
#pragma unroll
                for (int mt = 0; mt < 4; mt++) {
                    const Fragment a = K::step_fragment(w, mt);
#pragma unroll
                    for (int n = 0; n < N; n++) mma(s[n][mt], a, qs[n][2 * ks], qs[n][2 * ks + 1]);
                }
                if (AHEAD && ks % 2 == 0) zeros_of(ks / 2, ks / 2 + 1);
            }
        } else {
#pragma unroll
            for (int h = 0; h < D / 16 / K::PER; h++) {
                if (!AHEAD) fold(h * K::PER / 2, (h + 1) * K::PER / 2);
                constexpr int WIDE = AHEAD ? 4 : SCARCE_TILES;  // tiles side by side
#pragma unroll
                for (int first = 0; first < 4; first += WIDE) {
                    uint4 w[WIDE];
#pragma unroll
                    for (int k = 0; k < WIDE; k++) w[k] = K::load(pg, first + k, h, lane);
#pragma unroll
                    for (int i = 0; i < K::PER; i++)
#pragma unroll
                        for (int k = 0; k < WIDE; k++) {
                            const Fragment a = K::fragment(w[k], i);
                            const int at = 2 * (K::PER * h + i);
#pragma unroll
                            for (int n = 0; n < N; n++) mma(s[n][first + k], a, qs[n][at], qs[n][at + 1]);
                        }
                }
                if (AHEAD) zeros_of(h * K::PER / 2, (h + 1) * K::PER / 2);
            }
        }
        scores.lo = params.scale * ROW_LO, scores.hi = KEY_BITS == 4 ? params.scale * ROW_HI : scores.lo;
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float qz = (z1[n][0] + z2[n][2]) * params.scale;  // of head g
            scores.b[n][0] = __shfl_sync(~0u, qz, 8 * t), scores.b[n][1] = __shfl_sync(~0u, qz, 8 * t + 4);
            if (KEY_BITS == 4) {
#pragma unroll
                for (int mt = 0; mt < 4; mt++) s[n][mt][2] -= s[n][mt][0], s[n][mt][3] -= s[n][mt][1];
            }
        }
        if constexpr (SHARE > 1) scores.add_up(sharing);
        scores.template cap<CAP>(params.cap);
        scores.template hide<MANY>(hidden, columns, lane);
        ValueSums<D, VALUE_BITS>::attend(st, scores, pg + K::HALF, constants, lane, params.floor);
    }
};
