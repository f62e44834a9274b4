// Attention of a prompt over closed pages by wgmma: Hopper alone, so only the cubin has these kernels.
//
// A CTA has a tile of 128 rows, a row being a query head of a query token that reads the item's pages, and two warpgroups of 64 rows. A page
// is unpacked once for all rows: its codes become the f16 numbers of packed.cuh in shared memory, swizzled as wgmma's right operand. Queries
// and weights are the left operand in registers. While wgmma multiplies, the same threads unpack what comes next: values of this page while
// scores are made, keys of the next page while values are summed up.
//
// **Invariant:** a row has the bits that decode.cuh gives its column. That is: the same products in the same k-steps (wgmma sums as mma.sync does,
// whichever operand is left), the same folded queries and weights, the lazy maximum of ValueSums, masses by token mod 8, and four *chains*: pages w,
// w+4, … of an item, each with maximum, mass and sums of its own, merged as Meeting merges the four warps. Chains go one after another here: the
// sums of two wait in shared memory, those of the third mostly in registers.
#include "packed.cuh"

constexpr int TILE_ROWS = 128, TILE_THREADS = 256;

// Shared memory. Rows of matrices have 128 bytes: 64 channels of a key, 64 tokens of a channel of values.
template <int D, int KEY_BITS, int VALUE_BITS>
struct TileShape {
    static constexpr int GROUPS = D / 32;  // of channels that share a token's scale of values
    // A group's channels; of 4 bits 8 rows more, the offsets of even and odd rows of ValueOffset in turns.
    static constexpr int GROUP_ROWS = VALUE_BITS == 4 ? 40 : 32;
    static constexpr int KEYS = 128 * D, VALUES = GROUPS * GROUP_ROWS * 128, KEY_SCALES = 4 * D, VALUE_SCALES = GROUPS * 128;
    static constexpr int QUERIES = 2 * D * TILE_ROWS, CHAIN = 4 * D * TILE_ROWS, MASSES = 3 * TILE_ROWS * 8, CURSOR = 64, PLACES = TILE_THREADS / WARP * 8;
    static constexpr int HELD = 5 * D / 16;  // sums of the third chain that stay in registers, of D / 2
    static constexpr int CHAINS = 2 * CHAIN + 3 * CHAIN / 8, SCALES = KEY_SCALES + VALUE_SCALES;
    static constexpr int BYTES = KEYS + VALUES + 2 * SCALES + QUERIES + CHAINS + MASSES + CURSOR + PLACES + 1024;
    // 16-byte loads of codes, in all and of a thread.
    static constexpr int KEY_LOADS = KEY_BITS * D / 2, VALUE_LOADS = VALUE_BITS * D / 2;
    static constexpr int OWN_KEYS = (KEY_LOADS + TILE_THREADS - 1) / TILE_THREADS, OWN_VALUES = (VALUE_LOADS + TILE_THREADS - 1) / TILE_THREADS;
};

#if defined(KVANT_HOST) || __CUDA_ARCH__ >= 900
#include "wgmma.cuh"

// The pages of a CTA in the order of its work: items, their chains, a chain's pages. In shared memory: registers are scarce.
struct TileCursor {
    Place place;
    int4 run;
    int chain, page, more;  // more: whether there is a page
    PageEntry entry;        // of that page

    DEVICE void enter(const AttentionParams& p) { run = __ldg(&p.items[place.item].run), chain = 0, page = run.y; }
    DEVICE void look_up(const AttentionParams& p) { entry = __ldg(p.table + ((u64)run.x * p.kv_heads + place.column) * p.table_stride + page); }
    DEVICE void start(const AttentionParams& p) { place = Place(p), more = 1, enter(p), look_up(p); }
    DEVICE void step(const AttentionParams& p) {
        page += WARPS;
        while (page >= run.z) {
            if (++chain < WARPS) {
                page = run.y + chain;
            } else {
                place.step(p);
                more = place.in(p);
                if (!more) return;
                enter(p);
            }
        }
        look_up(p);
    }
};

// This thread's part of a page that is on its way.
template <class S>
struct RawPage {
    uint4 keys[S::OWN_KEYS], values[S::OWN_VALUES];
};

template <int D, int KEY_BITS, int VALUE_BITS>
struct TileAttention {
    using S = TileShape<D, KEY_BITS, VALUE_BITS>;
    using K = KeyPage<D, KEY_BITS>;
    using V = ValuePage<D, VALUE_BITS>;
    static constexpr int SUMS = S::GROUP_ROWS / 2;  // a thread's of a group of channels
    const AttentionParams& p;
    u8 *const keys, *const values, *const scales, *const queries, *const chains, *const masses;
    TileCursor& cursor;
    const int tid, lane, g, t;
    int turn;  // which scales are this page's: those of the next one come beside them
    RawPage<S> raw;
    // Of this thread's rows, g and g+8 of the warp's 16.
    float acc[S::GROUPS][SUMS];  // [8 channels or offsets][row][channel 2t, 2t+1]
    float m[2], l[2][2];         // masses of tokens 2t and 2t+1 mod 8
    u32 weights[4][4];           // of a page, as A fragments

    DEVICE TileAttention(const AttentionParams& p, u8* shared)
        : p(p), keys(shared), values(keys + S::KEYS), scales(values + S::VALUES), queries(scales + 2 * S::SCALES),
          chains(queries + S::QUERIES), masses(chains + S::CHAINS),
          cursor(*reinterpret_cast<TileCursor*>(masses + S::MASSES)), tid(threadIdx.x), lane(tid % WARP),
          g(lane / 4), t(lane % 4), turn(0) {}

    DEVICE u8* key_scales() const { return scales + turn * S::SCALES; }
    DEVICE u8* value_scales() const { return key_scales() + S::KEY_SCALES; }
    // Asks for the cursor's page, if there is one: codes to registers, scales to the other turn's place.
    DEVICE bool fetch() {
        if (!cursor.more) return false;
        const u8 *key = half_page(p.pages, cursor.entry.x), *value = half_page(p.pages, cursor.entry.y);
#pragma unroll
        for (int i = 0; i < S::OWN_KEYS; i++)
            if (S::KEY_LOADS >= TILE_THREADS || tid < S::KEY_LOADS) raw.keys[i] = load_coherent(key + K::CODES + (tid + i * TILE_THREADS) * 16);
#pragma unroll
        for (int i = 0; i < S::OWN_VALUES; i++)
            if (S::VALUE_LOADS >= TILE_THREADS || tid < S::VALUE_LOADS) raw.values[i] = load_coherent(value + V::CODES + (tid + i * TILE_THREADS) * 16);
        constexpr int MORE = S::KEY_SCALES / 16, ALL = S::SCALES / 16;
        if (tid < ALL) copy16(scales + (turn ^ 1) * S::SCALES + tid * 16, tid < MORE ? key + tid * 16 : value + V::SCALE + (tid - MORE) * 16);
        return true;
    }
    // A fragment's words, at rows `row` and the one 8 after it, 16 bytes `chunk` and the next: no two lanes meet in a bank.
    DEVICE void put(u8* matrix, int row, int chunk, const Fragment& of) const {
        u8* at = matrix + (row + g) * 128 + 4 * t;
        u32 *first = reinterpret_cast<u32*>(at + ((chunk ^ g) << 4)), *second = reinterpret_cast<u32*>(at + ((chunk + 1 ^ g) << 4));
        first[0] = of.a0, first[256] = of.a1, second[0] = of.a2, second[256] = of.a3;
    }
    DEVICE void unpack_keys() const {
        constexpr int STEPS = KEY_BITS == 4 ? 4 : 2;  // along k in a load
#pragma unroll
        for (int i = 0; i < S::OWN_KEYS; i++) {
            const int load = tid / WARP + i * (TILE_THREADS / WARP), mt = load / (D / 16 / STEPS), first = load % (D / 16 / STEPS) * STEPS;
            if (S::KEY_LOADS < TILE_THREADS && tid >= S::KEY_LOADS) break;
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                const int ks = first + j;
                put(keys + ks / 4 * 8192, 16 * mt, 2 * (ks % 4), Keys<D, KEY_BITS>::fragment(raw.keys[i], j));
            }
        }
    }
    DEVICE void unpack_values() const {
        constexpr int STEPS = VALUE_BITS == 4 ? 4 : 2;
#pragma unroll
        for (int i = 0; i < S::OWN_VALUES; i++) {
            const int load = tid / WARP + i * (TILE_THREADS / WARP), mt = load / (4 / STEPS), first = load % (4 / STEPS) * STEPS;
            if (S::VALUE_LOADS < TILE_THREADS && tid >= S::VALUE_LOADS) break;
#pragma unroll
            for (int j = 0; j < STEPS; j++) {
                const uint4& w = raw.values[i];
                const Fragment of = VALUE_BITS == 4 ? nibbles(word(w, j)) : levels(word(w, 2 * j % 4), word(w, (2 * j + 1) % 4));
                put(values, mt / 2 * S::GROUP_ROWS + mt % 2 * 16, 2 * (first + j), of);
            }
        }
    }
    // The rows of offsets, which stay.
    DEVICE void put_offsets() const {
        constexpr int ALL = VALUE_BITS == 4 ? S::GROUPS * 256 : 0;
        for (int i = tid; i < ALL; i += TILE_THREADS) {
            const int row = i / 32 % 8;
            reinterpret_cast<u32*>(values + (i / 256 * S::GROUP_ROWS + 32 + row) * 128)[i % 32] = row % 2 ? 0x80888088u : 0x80088008u;
        }
    }

    // This thread's rows of the tile.
    DEVICE int row_of(int i) const { return tid / WARP * 16 + g + 8 * i; }
    // Rows as wgmma's left operand has them, in the place of the thread that reads them: [k-step][thread].
    DEVICE uint4 query(int ks) const { return load_shared(queries + (ks * TILE_THREADS + tid) * 16); }
    DEVICE void put_queries(const Item& item, const Split<true>& split, int kv) {
        const QueryColumn of[2] = {query_at(item, split, kv, row_of(0)), query_at(item, split, kv, row_of(1))};
#pragma unroll
        for (int ks = 0; ks < D / 16; ks++)
            reinterpret_cast<uint4*>(queries)[ks * TILE_THREADS + tid] = uint4{of[0][2 * ks], of[1][2 * ks], of[0][2 * ks + 1], of[1][2 * ks + 1]};
    }
    DEVICE QueryColumn query_at(const Item& item, const Split<true>& split, int kv, int row) const {
        const u64 at = ((u64)(item.rows.x + split.token(row)) * p.kv_heads + kv) * p.group + split.head(row);
        return {reinterpret_cast<const u32*>(p.q + at * D) + t, split.has(row, item.rows.y)};
    }

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < S::GROUPS * SUMS; i++) acc[i / SUMS][i % SUMS] = 0.f;
        m[0] = m[1] = MINUS_INFINITY;
        l[0][0] = l[0][1] = l[1][0] = l[1][1] = 0.f;
    }
    // Starts s (row, token) = queries under the page's scales x keys: [8 tokens][row][token 2t, 2t+1].
    DEVICE void start_scores(float (&s)[32]) const {
        u32 a[2][8];
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            const uint4 q0 = query(2 * j), q1 = query(2 * j + 1), by = load_shared(key_scales() + K::SCALE + j * 64 + t * 16);
            if (j > 1) wgmma_wait<1>();
            u32(&f)[8] = a[j % 2];
            f[0] = mul_f16x2(q0.x, by.x), f[1] = mul_f16x2(q0.y, by.x), f[2] = mul_f16x2(q0.z, by.y), f[3] = mul_f16x2(q0.w, by.y);
            f[4] = mul_f16x2(q1.x, by.z), f[5] = mul_f16x2(q1.y, by.z), f[6] = mul_f16x2(q1.z, by.w), f[7] = mul_f16x2(q1.w, by.w);
            const u64 b = matrix_at(keys + j / 2 * 8192) + MATRIX_STEP * (2 * j % 4);
            wgmma_fence();
            Wgmma<64>::add(s, f, b, j > 0), Wgmma<64>::add(s, f + 4, b + MATRIX_STEP, 1);
            wgmma_commit();
        }
    }
    // Queries x the page's zeros, of both rows, as PackedCodec::zeros adds them up.
    DEVICE void zeros(float (&b)[2]) const {
        float z1[4] = {}, z2[4] = {};
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            const uint4 q0 = query(2 * j), q1 = query(2 * j + 1), z = load_shared(key_scales() + K::ZERO + j * 64 + t * 16);
            mma16816(z1, q0.x, q0.y, q1.x, q1.y, z.x, z.y);
            mma16816(z2, q0.z, q0.w, q1.z, q1.w, z.z, z.w);
        }
        b[0] = (z1[0] + z2[0]) * p.scale, b[1] = (z1[2] + z2[2]) * p.scale;
    }
    // The new maximum of a row's scores, and everything relative to it.
    DEVICE void raise(int row, float x) {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
        const float a = x == m[row] ? 1.f : ex2(m[row] - x);
#pragma unroll
        for (int i = 0; i < S::GROUPS; i++)
#pragma unroll
            for (int j = 0; j < SUMS; j++)
                if (j / 2 % 2 == row) acc[i][j] *= a;
        l[row][0] *= a, l[row][1] *= a;
        m[row] = x;
    }
    // The softmax of a page's scores, s * lo + b, and s * hi + b of the tokens 8 after them.
    DEVICE void soften(const float (&s)[32], const float (&b)[2], float lo, float hi) {
        float sum[2][2];
        auto weigh = [&]() {
            bool over = false;
#pragma unroll
            for (int row = 0; row < 2; row++) {
                const float n = b[row] - m[row];
                sum[row][0] = sum[row][1] = 0.f;
#pragma unroll
                for (int mt = 0; mt < 4; mt++) {
                    const float *x = s + 8 * mt + 2 * row, *y = x + 4;
                    const float e0 = ex2(fmaf(x[0], lo, n)), e1 = ex2(fmaf(x[1], lo, n)), e2 = ex2(fmaf(y[0], hi, n)), e3 = ex2(fmaf(y[1], hi, n));
                    sum[row][0] += e0 + e2, sum[row][1] += e1 + e3;
                    weights[mt][row] = pack_f16x2(e0, e1), weights[mt][2 + row] = pack_f16x2(e2, e3);
                }
                over |= !(sum[row][0] <= LAZY_SUM) || !(sum[row][1] <= LAZY_SUM);
            }
            return over;
        };
        if (__any_sync(~0u, weigh())) {
#pragma unroll
            for (int row = 0; row < 2; row++) {
                float x = m[row];
                if (__ballot_sync(~0u, !(sum[row][0] <= LAZY_SUM) || !(sum[row][1] <= LAZY_SUM)) & 15u << 4 * g) {  // some token of this row
#pragma unroll
                    for (int i = 0; i < 16; i++) {
                        const int at = i / 2 * 4 + 2 * row + i % 2;
                        x = fmaxf(x, fmaf(s[at], i / 2 % 2 ? hi : lo, b[row]));
                    }
                }
                raise(row, x);
            }
            weigh();
        }
#pragma unroll
        for (int i = 0; i < 4; i++) l[i / 2][i % 2] += sum[i / 2][i % 2];
    }
    // Starts acc += weights under the tokens' scales x values.
    DEVICE void start_sums() {
        u32 a[2][8];
#pragma unroll
        for (int i = 0; i < 2 * S::GROUPS; i++) {
            const uint4 by = load_shared(value_scales() + i * 64 + t * 16);
            if (i > 1) wgmma_wait<1>();
            u32(&f)[8] = a[i % 2];
#pragma unroll
            for (int j = 0; j < 8; j++) f[j] = mul_f16x2(weights[i % 2 * 2 + j / 4][j % 4], word(by, j / 2));
            const u64 b = matrix_at(values + i / 2 * S::GROUP_ROWS * 128) + MATRIX_STEP * (i % 2 * 2);
            wgmma_fence();
            Wgmma<S::GROUP_ROWS>::add(acc[i / 2], f, b, 1), Wgmma<S::GROUP_ROWS>::add(acc[i / 2], f + 4, b + MATRIX_STEP, 1);
            wgmma_commit();
        }
    }
    // Scores, softmax and sums of the page whose keys are unpacked and whose values are on their way, while the next one comes.
    DEVICE void attend(int hidden, int moved) {
        float s[32], b[2];
        start_scores(s);
        unpack_values();
        const bool more = fetch();
        zeros(b);
        wgmma_wait<0>();
        fence_async();
        __syncthreads();
        float lo = p.scale * ROW_LO, hi = KEY_BITS == 4 ? p.scale * ROW_HI : lo;
        if (KEY_BITS == 4) {
#pragma unroll
            for (int i = 0; i < 16; i++) s[i / 4 * 8 + 4 + i % 4] -= s[i / 4 * 8 + i % 4];
        }
        if (p.cap != 0.f) {
#pragma unroll
            for (int i = 0; i < 32; i++) s[i] = soft_cap(fmaf(s[i], i / 4 % 2 ? hi : lo, b[i / 2 % 2]), p.cap);
            b[0] = b[1] = 0.f, lo = hi = 1.f;
        }
        if (hidden + (moved >> 16) > 0) {  // the later row's is not less than the other's
#pragma unroll
            for (int i = 0; i < 32; i++)
                if (i / 4 * 8 + 2 * t + i % 2 < hidden + (moved >> i / 2 % 2 * 16 & 0xffff)) s[i] = MINUS_INFINITY;
        }
        soften(s, b, lo, hi);
        start_sums();
        if (more) unpack_keys();
        if (more && tid == 0) cursor.step(p);
        wgmma_wait<0>();
        meet();
        turn ^= 1;
    }
    // What was unpacked and copied is there for all.
    DEVICE void meet() const {
        end_copies();
        wait_copies<0>();
        fence_async();
        __syncthreads();
    }

    // Sum i of a chain's end: [8 channels][row][channel 2t, 2t+1].
    DEVICE float sum(int i) const {
        const int group = i / 16, j = i % 16, row = j / 2 % 2;
        if (VALUE_BITS != 4) return acc[group][j];
        const float lo = acc[group][j / 8 * 8 + j % 4] + acc[group][16 % SUMS + 2 * row];
        if (j / 4 % 2 == 0) return lo * ROW_LO;
        const float hi = acc[group][j] + acc[group][17 % SUMS + 2 * row];
        return (hi - lo) * ROW_HI;
    }
    DEVICE float4 four(int i) const { return make_float4(sum(i), sum(i + 1), sum(i + 2), sum(i + 3)); }
    static DEVICE float4 four(const float* x, int i) { return make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]); }
    DEVICE float4* chain(int i) const { return reinterpret_cast<float4*>(chains + i * S::CHAIN) + tid; }
    // Maximum and mass of a chain and of rows of this thread, where the four lanes of a row find them.
    DEVICE float2* mass(int i, int row) const { return reinterpret_cast<float2*>(masses) + i * TILE_ROWS + row_of(row); }
    // A row's maximum and mass; tokens in the order of Meeting::put_masses.
    DEVICE float2 own_mass(int row) const {
        float sum = l[row][0] + l[row][1];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        return make_float2(m[row], sum);
    }
    // The last chain with the three before it, to the partials of the item.
    DEVICE void merge(const Place& place, const float (&held)[S::HELD]) {
        const Split<true> split(p.group);
        // Read again, not kept for so long.
        const uint4 run = load_coherent(&p.items[place.item].run), rows = load_coherent(&p.items[place.item].rows);
        float f[WARPS][2];
        float* to[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const float2 of[WARPS] = {*mass(0, row), *mass(1, row), *mass(2, row), own_mass(row)};
            float top = MINUS_INFINITY, sum_of = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, of[w].x);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                f[w][row] = of[w].x == MINUS_INFINITY ? 0.f : ex2(of[w].x - top);
                sum_of += f[w][row] * of[w].y;
            }
            const int column = row_of(row);
            to[row] = nullptr;
            if (!split.has(column, rows.y)) continue;
            const u64 slot = run.w + split.token(column) * rows.w, at = (slot * p.kv_heads + place.column) * p.group + split.head(column);
            to[row] = p.part_o + at * D + 2 * t;
            if (t == 0) __stcg(&p.part_ml[at], make_float2(top, sum_of));
        }
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const float4 a = chain(0)[i * TILE_THREADS], b = chain(1)[i * TILE_THREADS];
            const float4 c = 4 * i < S::HELD ? four(held, 4 * i % S::HELD) : chain(2)[(i - S::HELD / 4) * TILE_THREADS], d = four(4 * i);
            const float x[4][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}, {c.x, c.y, c.z, c.w}, {d.x, d.y, d.z, d.w}};
            float y[4] = {};
#pragma unroll
            for (int w = 0; w < WARPS; w++)
#pragma unroll
                for (int j = 0; j < 4; j++) y[j] = fmaf(f[w][j / 2], x[w][j], y[j]);
#pragma unroll
            for (int row = 0; row < 2; row++)
                if (to[row]) __stcg(reinterpret_cast<float2*>(to[row] + 8 * i), make_float2(y[2 * row], y[2 * row + 1]));
        }
    }

    DEVICE void run() {
        put_offsets();
        if (tid == 0) cursor.start(p);
        __syncthreads();
        fetch();
        unpack_keys();
        meet();
        turn ^= 1;
        if (tid == 0) cursor.step(p);
        __syncthreads();
        Place& own = *(reinterpret_cast<Place*>(masses + S::MASSES + S::CURSOR) + tid / WARP);  // this warp's: all lanes write the same
#pragma unroll 1
        for (Place place(p); place.in(p); place = own, place.step(p), __syncwarp()) {
            own = place;
            __syncwarp();
            const Item item = load_item(p, place);
            const Split<true> split(p.group);
            put_queries(item, split, place.column);
            const int last = item.rows.y - 1;
            auto slid = [&](int row) { return item.rows.z * min(split.token(row_of(row)), last); };
            const int moved = slid(0) | slid(1) << 16;  // by how much the window's begin has moved for both rows, in one register
            float held[S::HELD];
#pragma unroll 1
            for (int w = 0; w < WARPS; w++) {
                clear();
                const uint4 of = load_coherent(&p.items[own.item].run), seen = load_coherent(&p.items[own.item].seen);  // as `merge` does
                int hidden = (int)seen.x - w * PAGE_TOKENS;
#pragma unroll 1
                for (int left = ((int)(of.z - of.y) - w + WARPS - 1) / WARPS; left > 0; left--, hidden -= WARPS * PAGE_TOKENS) attend(hidden, moved);
                if (w == WARPS - 1) break;
#pragma unroll
                for (int row = 0; row < 2; row++) *mass(w, row) = own_mass(row);  // the same from all four lanes
                if (w == 2) {
#pragma unroll
                    for (int i = 0; i < S::HELD; i++) held[i] = sum(i);
#pragma unroll
                    for (int i = S::HELD / 4; i < D / 8; i++) chain(2)[(i - S::HELD / 4) * TILE_THREADS] = four(4 * i);
                } else {
#pragma unroll
                    for (int i = 0; i < D / 8; i++) chain(w)[i * TILE_THREADS] = four(4 * i);
                }
            }
            merge(own, held);
        }
    }
};

#define TILE(NAME, D, KEY_BITS, VALUE_BITS)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 1) NAME(const __grid_constant__ AttentionParams p) {                         \
        DYNAMIC_SHARED(memory);                                                                                                             \
        pdl_wait();                                                                                                                         \
        TileAttention<D, KEY_BITS, VALUE_BITS>(p, memory + (1024 - (shared_address(memory) & 1023)) % 1024).run();                          \
        pdl_trigger();                                                                                                                      \
    }                                                                                                                                       \
    extern "C" __device__ const int NAME##_shared = TileShape<D, KEY_BITS, VALUE_BITS>::BYTES;
#else
#define TILE(NAME, D, KEY_BITS, VALUE_BITS) extern "C" __device__ const int NAME##_shared = TileShape<D, KEY_BITS, VALUE_BITS>::BYTES;
#endif
TILE(attend_tile_int4_d128, 128, 4, 4)
TILE(attend_tile_int8_d128, 128, 8, 8)
TILE(attend_tile_k8v4_d128, 128, 8, 4)
