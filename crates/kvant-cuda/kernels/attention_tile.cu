// Attention of a prompt over closed pages by wgmma: Hopper alone, so only the cubin has these kernels.
//
// A CTA has a tile of 128 rows, a row being a query head of a query token that reads the item's pages. Two warpgroups of 64 rows each multiply
// and weigh; a third unpacks pages ahead of them, once for all rows: codes become the f16 numbers of packed.cuh in shared memory, swizzled as
// wgmma's right operand. Queries and weights are the left operand in registers. Scores of a page are made beside the sums of the page before, and the
// two warpgroups take turns at it: one of them weighs while the other multiplies.
//
// **Invariant:** a row has the bits that decode.cuh gives its column. That is: the same products in the same k-steps (wgmma sums as mma.sync does,
// whichever operand is left), the same folded queries and weights, the lazy maximum of ValueSums, masses by token mod 8, and four *chains*: pages w,
// w+4, … of an item, each with maximum, mass and sums of its own, merged one after another as Meeting merges the four warps.
#include "packed.cuh"
#include "barrier.cuh"

constexpr int TILE_ROWS = 128, TILE_CONSUMERS = 256, TILE_PRODUCERS = 128;
// Registers of a thread: at the launch, then of either side. A CTA that asks for more than it was launched with waits for ever.
constexpr int TILE_LAUNCH_REGISTERS = 168, PRODUCER_REGISTERS = 40, CONSUMER_REGISTERS = 232;
static_assert(TILE_PRODUCERS * PRODUCER_REGISTERS + TILE_CONSUMERS * CONSUMER_REGISTERS <= (TILE_PRODUCERS + TILE_CONSUMERS) * TILE_LAUNCH_REGISTERS,
              "no more than there are");

// Shared memory. Rows of matrices have 128 bytes: 64 channels of a key, 64 tokens of a channel of values.
template <int D, int KEY_BITS, int VALUE_BITS>
struct TileShape {
    static constexpr int GROUPS = D / 32;  // of channels that share a token's scale of values
    // A group's channels; of 4 bits 8 rows more, the offsets of even and odd rows of ValueOffset in turns.
    static constexpr int GROUP_ROWS = VALUE_BITS == 4 ? 40 : 32;
    static constexpr int KEYS = 128 * D, VALUES = GROUPS * GROUP_ROWS * 128, PAGE = KEYS + VALUES, KEY_SCALES = 4 * D, VALUE_SCALES = GROUPS * 128;
    static constexpr int SCALES = KEY_SCALES + VALUE_SCALES, MERGED = 4 * D * TILE_ROWS, STAGES = 3;
    // 16-byte loads of codes of a page, in all and of a thread, and pages that are on their way as they are.
    static constexpr int KEY_LOADS = KEY_BITS * D / 2, VALUE_LOADS = VALUE_BITS * D / 2;
    static constexpr int OWN_KEYS = (KEY_LOADS + TILE_PRODUCERS - 1) / TILE_PRODUCERS, OWN_VALUES = (VALUE_LOADS + TILE_PRODUCERS - 1) / TILE_PRODUCERS;
    static constexpr int RAW = (OWN_KEYS + OWN_VALUES) * TILE_PRODUCERS * 16 + SCALES, AHEAD = KEY_BITS + VALUE_BITS > 12 ? 2 : 3;
    static constexpr int BYTES = STAGES * (PAGE + SCALES + 16) + MERGED + AHEAD * RAW + 16 + 1024;
};

#if defined(KVANT_HOST) || __CUDA_ARCH__ >= 900
#include "wgmma.cuh"

// What both sides of a CTA share.
template <int D, int KEY_BITS, int VALUE_BITS>
struct TileShared {
    using S = TileShape<D, KEY_BITS, VALUE_BITS>;
    u8 *const pages, *const scales, *const merged, *const raw;
    Barrier *const full, *const empty, *const turns;  // turns: of either warpgroup
    DEVICE explicit TileShared(u8* shared)
        : pages(shared), scales(pages + S::STAGES * S::PAGE), merged(scales + S::STAGES * S::SCALES), raw(merged + S::MERGED),
          full(reinterpret_cast<Barrier*>(raw + S::AHEAD * S::RAW)), empty(full + S::STAGES), turns(empty + S::STAGES) {}
};

// Which stage is next, and the parity of the phase in which it is filled.
template <int STAGES>
struct TileStage {
    int index;
    u32 parity;
    DEVICE void step() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// The pages of a CTA in the order of its work: items, their chains, a chain's pages.
struct TileCursor {
    Place place;
    int4 run;
    int chain, page;
    bool more;        // whether there is a page
    PageEntry entry;  // of that page

    DEVICE explicit TileCursor(const AttentionParams& p) : place(p), more(true) { enter(p), look_up(p); }
    DEVICE void enter(const AttentionParams& p) { run = __ldg(&p.items[place.item].run), chain = 0, page = run.y; }
    DEVICE void look_up(const AttentionParams& p) { entry = __ldg(p.table + ((u64)run.x * p.kv_heads + place.column) * p.table_stride + page); }
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

// The warpgroup that unpacks. Each of its threads copies what it will unpack itself.
template <int D, int KEY_BITS, int VALUE_BITS>
struct TileProducer {
    using S = TileShape<D, KEY_BITS, VALUE_BITS>;
    using K = KeyPage<D, KEY_BITS>;
    using V = ValuePage<D, VALUE_BITS>;
    const AttentionParams& p;
    const TileShared<D, KEY_BITS, VALUE_BITS> shared;
    const int tid, g, t;
    TileCursor cursor;
    TileStage<S::STAGES> stage;
    int pages, turn;  // that were asked for and are not unpacked; where the next of them is

    DEVICE TileProducer(const AttentionParams& p, u8* memory)
        : p(p), shared(memory), tid(threadIdx.x - TILE_CONSUMERS), g(tid % WARP / 4), t(tid % 4), cursor(p), stage{0, 1}, pages(0), turn(0) {}

    // This thread's place for load i of a page on its way.
    DEVICE u8* raw(int of, int i) const { return shared.raw + of * S::RAW + (i * TILE_PRODUCERS + tid) * 16; }
    // Asks for the cursor's page, if there is one.
    DEVICE void fetch(int to) {
        if (cursor.more) {
            const u8 *key = half_page(p.pages, cursor.entry.x), *value = half_page(p.pages, cursor.entry.y);
#pragma unroll
            for (int i = 0; i < S::OWN_KEYS; i++)
                if (S::KEY_LOADS >= TILE_PRODUCERS || tid < S::KEY_LOADS) copy16(raw(to, i), key + K::CODES + (tid + i * TILE_PRODUCERS) * 16);
#pragma unroll
            for (int i = 0; i < S::OWN_VALUES; i++)
                if (S::VALUE_LOADS >= TILE_PRODUCERS || tid < S::VALUE_LOADS) copy16(raw(to, S::OWN_KEYS + i), value + V::CODES + (tid + i * TILE_PRODUCERS) * 16);
            constexpr int MORE = S::KEY_SCALES / 16;
            if (tid < S::SCALES / 16) copy16(raw(to, S::OWN_KEYS + S::OWN_VALUES), tid < MORE ? key + tid * 16 : value + V::SCALE + (tid - MORE) * 16);
            cursor.step(p);
            pages++;
        }
        end_copies();
    }
    // A fragment's words, at rows `row` and the one 8 after it, 16 bytes `chunk` and the next: no two lanes meet in a bank.
    DEVICE void put(u8* matrix, int row, int chunk, int g, const Fragment& of) const {
        u8* at = matrix + (row + g) * 128 + 4 * t;
        u32 *first = reinterpret_cast<u32*>(at + ((chunk ^ g) << 4)), *second = reinterpret_cast<u32*>(at + ((chunk + 1 ^ g) << 4));
        first[0] = of.a0, first[256] = of.a1, second[0] = of.a2, second[256] = of.a3;
    }
    DEVICE void unpack(int from) const {
        u8 *keys = shared.pages + stage.index * S::PAGE, *values = keys + S::KEYS;
        int g = this->g;
        asm volatile("" : "+r"(g));  // else the places of fragments would stay in registers from page to page
        constexpr int KEY_STEPS = KEY_BITS == 4 ? 4 : 2, VALUE_STEPS = VALUE_BITS == 4 ? 4 : 2;  // along k in a load
#pragma unroll 1
        for (int i = 0; i < S::OWN_KEYS; i++) {
            const int load = tid / WARP + i * (TILE_PRODUCERS / WARP), mt = load / (D / 16 / KEY_STEPS), first = load % (D / 16 / KEY_STEPS) * KEY_STEPS;
            if (S::KEY_LOADS < TILE_PRODUCERS && tid >= S::KEY_LOADS) break;
            const uint4 w = load_shared(raw(from, i));
#pragma unroll
            for (int j = 0; j < KEY_STEPS; j++) {
                const int ks = first + j;
                put(keys + ks / 4 * 8192, 16 * mt, 2 * (ks % 4), g, Keys<D, KEY_BITS>::fragment(w, j));
            }
        }
#pragma unroll 1
        for (int i = 0; i < S::OWN_VALUES; i++) {
            const int load = tid / WARP + i * (TILE_PRODUCERS / WARP), mt = load / (4 / VALUE_STEPS), first = load % (4 / VALUE_STEPS) * VALUE_STEPS;
            if (S::VALUE_LOADS < TILE_PRODUCERS && tid >= S::VALUE_LOADS) break;
            const uint4 w = load_shared(raw(from, S::OWN_KEYS + i));
#pragma unroll
            for (int j = 0; j < VALUE_STEPS; j++) {
                const Fragment of = VALUE_BITS == 4 ? nibbles(word(w, j)) : levels(word(w, 2 * j % 4), word(w, (2 * j + 1) % 4));
                put(values, mt / 2 * S::GROUP_ROWS + mt % 2 * 16, 2 * (first + j), g, of);
            }
        }
        if (tid < S::SCALES / 16)
            reinterpret_cast<uint4*>(shared.scales + stage.index * S::SCALES)[tid] = load_shared(raw(from, S::OWN_KEYS + S::OWN_VALUES));
    }
    // The rows of offsets, which stay.
    DEVICE void put_offsets() const {
        constexpr int ALL = VALUE_BITS == 4 ? S::STAGES * S::GROUPS * 256 : 0;
        for (int i = tid; i < ALL; i += TILE_PRODUCERS) {
            const int row = i / 32 % 8, group = i / 256;
            u8* values = shared.pages + group / S::GROUPS * S::PAGE + S::KEYS + (group % S::GROUPS * S::GROUP_ROWS + 32 + row) * 128;
            reinterpret_cast<u32*>(values)[i % 32] = row % 2 ? 0x80888088u : 0x80088008u;
        }
    }
    DEVICE void run() {
#pragma unroll 1
        for (int i = 0; i < S::AHEAD; i++) fetch(i);
        put_offsets();
#pragma unroll 1
        for (; pages > 0; pages--) {
            wait_copies<S::AHEAD - 1>();
            shared.empty[stage.index].wait(stage.parity);
            unpack(turn);
            fetch(turn);
            if (++turn == S::AHEAD) turn = 0;
            fence_async();
            shared.full[stage.index].arrive();
            stage.step();
        }
    }
};

// A warpgroup that multiplies.
template <int D, int KEY_BITS, int VALUE_BITS>
struct TileConsumer {
    using S = TileShape<D, KEY_BITS, VALUE_BITS>;
    using K = KeyPage<D, KEY_BITS>;
    static constexpr int SUMS = S::GROUP_ROWS / 2;  // a thread's of a group of channels
    const AttentionParams& p;
    const TileShared<D, KEY_BITS, VALUE_BITS> shared;
    const int tid, g, t;
    TileStage<S::STAGES> stage;  // of the page whose scores are made next
    u32 turn;                    // the parity of this warpgroup's next one
    // Of this thread's rows, g and g+8 of the warp's 16.
    uint4 q[D / 16];             // as wgmma's left operand has them
    float acc[S::GROUPS][SUMS];  // [8 channels or offsets][row][channel 2t, 2t+1]
    float s[32], b[2];           // scores: [8 tokens][row][token 2t, 2t+1], and what is added to them
    float m[2], l[2][2];         // masses of tokens 2t and 2t+1 mod 8
    u32 weights[4][4];           // of a page, as A fragments
    u32 a[2][8];                 // left operands of two groups of products in turns

    DEVICE TileConsumer(const AttentionParams& p, u8* memory)
        : p(p), shared(memory), tid(threadIdx.x), g(tid % WARP / 4), t(tid % 4), stage{0, 0}, turn(tid < TILE_CONSUMERS / 2) {}

    // This thread's rows of the tile.
    DEVICE int row_of(int i) const { return tid / WARP * 16 + g + 8 * i; }
    DEVICE QueryColumn query_at(const Item& item, const Split<true>& split, int kv, int row) const {
        const u64 at = ((u64)(item.rows.x + split.token(row)) * p.kv_heads + kv) * p.group + split.head(row);
        return {reinterpret_cast<const u32*>(p.q + at * D) + t, split.has(row, item.rows.y)};
    }
    DEVICE void get_queries(const Item& item, const Split<true>& split, int kv) {
        const QueryColumn of[2] = {query_at(item, split, kv, row_of(0)), query_at(item, split, kv, row_of(1))};
#pragma unroll
        for (int ks = 0; ks < D / 16; ks++) q[ks] = uint4{of[0][2 * ks], of[1][2 * ks], of[0][2 * ks + 1], of[1][2 * ks + 1]};
    }

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < S::GROUPS * SUMS; i++) acc[i / SUMS][i % SUMS] = 0.f;
        m[0] = m[1] = MINUS_INFINITY;
        l[0][0] = l[0][1] = l[1][0] = l[1][1] = 0.f;
    }
    // Starts the scores (row, token) of the next page: queries under its scales x keys; beside them queries x zeros, of both rows, as
    // PackedCodec::zeros adds them up.
    DEVICE void start_scores() {
        shared.full[stage.index].wait(stage.parity);
        const u8 *keys = shared.pages + stage.index * S::PAGE, *scales = shared.scales + stage.index * S::SCALES;
        float z1[4] = {}, z2[4] = {};
#pragma unroll
        for (int j = 0; j < D / 32; j++) {
            const uint4 &q0 = q[2 * j], &q1 = q[2 * j + 1];
            const uint4 by = load_shared(scales + K::SCALE + j * 64 + t * 16), z = load_shared(scales + K::ZERO + j * 64 + t * 16);
            wgmma_wait<1>();  // what read this operand before
            u32(&f)[8] = a[j % 2];
            f[0] = mul_f16x2(q0.x, by.x), f[1] = mul_f16x2(q0.y, by.x), f[2] = mul_f16x2(q0.z, by.y), f[3] = mul_f16x2(q0.w, by.y);
            f[4] = mul_f16x2(q1.x, by.z), f[5] = mul_f16x2(q1.y, by.z), f[6] = mul_f16x2(q1.z, by.w), f[7] = mul_f16x2(q1.w, by.w);
            const u64 at = matrix_at(keys + j / 2 * 8192) + MATRIX_STEP * (2 * j % 4);
            wgmma_fence();
            Wgmma<64>::add(s, f, at, j > 0), Wgmma<64>::add(s, f + 4, at + MATRIX_STEP, 1);
            wgmma_commit();
            mma16816(z1, q0.x, q0.y, q1.x, q1.y, z.x, z.y);
            mma16816(z2, q0.z, q0.w, q1.z, q1.w, z.z, z.w);
        }
        b[0] = (z1[0] + z2[0]) * p.scale, b[1] = (z1[2] + z2[2]) * p.scale;
        stage.step();
    }
    // The new maximum of a row's scores, and everything relative to it.
    DEVICE void raise(int row, float x) {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
        const float by = x == m[row] ? 1.f : ex2(m[row] - x);
#pragma unroll
        for (int i = 0; i < S::GROUPS; i++)
#pragma unroll
            for (int j = 0; j < SUMS; j++)
                if (j / 2 % 2 == row) acc[i][j] *= by;
        l[row][0] *= by, l[row][1] *= by;
        m[row] = x;
    }
    // The softmax of a page's scores, s * lo + b, and s * hi + b of the tokens 8 after them.
    DEVICE void soften(float lo, float hi) {
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
    // The weights of a page's tokens, of which some are hidden.
    DEVICE void weigh(int hidden, int moved) {
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
        if (p.floor != 0.f) leave_out(lo, hi);
        soften(lo, hi);
    }
    // Takes scores of rows whose values are left out from the softmax, as PageScores does.
    DEVICE void leave_out(float lo, float hi) {
#pragma unroll
        for (int row = 0; row < 2; row++) {
            float x = MINUS_INFINITY;
#pragma unroll
            for (int i = 0; i < 16; i++) x = fmaxf(x, fmaf(s[i / 2 * 4 + 2 * row + i % 2], i / 2 % 2 ? hi : lo, b[row]));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
            x = fmaxf(x, __shfl_xor_sync(~0u, x, 2));
            if (x - m[row] < p.floor) b[row] = MINUS_INFINITY;
        }
    }
    // Starts acc += weights under the tokens' scales x values, of the page in this stage.
    DEVICE void start_sums(int of) {
        const u8 *values = shared.pages + of * S::PAGE + S::KEYS, *scales = shared.scales + of * S::SCALES + S::KEY_SCALES;
#pragma unroll
        for (int i = 0; i < 2 * S::GROUPS; i++) {
            const uint4 by = load_shared(scales + i * 64 + t * 16);
            wgmma_wait<1>();  // what read this operand before
            u32(&f)[8] = a[i % 2];
#pragma unroll
            for (int j = 0; j < 8; j++) f[j] = mul_f16x2(weights[i % 2 * 2 + j / 4][j % 4], word(by, j / 2));
            const u64 at = matrix_at(values + i / 2 * S::GROUP_ROWS * 128) + MATRIX_STEP * (i % 2 * 2);
            wgmma_fence();
            Wgmma<S::GROUP_ROWS>::add(acc[i / 2], f, at, 1), Wgmma<S::GROUP_ROWS>::add(acc[i / 2], f + 4, at + MATRIX_STEP, 1);
            wgmma_commit();
        }
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
    // A row's mass; tokens in the order of Meeting::put_masses.
    DEVICE float mass_of(int row) const {
        float sum = l[row][0] + l[row][1];
        sum += __shfl_xor_sync(~0u, sum, 1);
        return sum + __shfl_xor_sync(~0u, sum, 2);
    }
    // Where this thread's sums of the chains before wait: [8 channels][thread].
    DEVICE float4* waiting() const { return reinterpret_cast<float4*>(shared.merged) + tid; }
    // What the chains of an item have come to for both rows.
    struct Merged {
        float top[2], mass[2];
    };
    // Adds the chain that has ended. The last one goes on to `put(i, sums)`, others wait.
    template <class Put>
    DEVICE void merge(Merged& merged, bool first, Put put) const {
        Merge by[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            by[row] = Merge(merged.top[row], m[row]);
            merged.mass[row] = fmaf(by[row].added, mass_of(row), by[row].kept * merged.mass[row]);
        }
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const float4 before = first ? make_float4(0.f, 0.f, 0.f, 0.f) : waiting()[i * TILE_CONSUMERS];
            put(i, make_float4(fmaf(by[0].added, sum(4 * i), by[0].kept * before.x), fmaf(by[0].added, sum(4 * i + 1), by[0].kept * before.y),
                               fmaf(by[1].added, sum(4 * i + 2), by[1].kept * before.z), fmaf(by[1].added, sum(4 * i + 3), by[1].kept * before.w)));
        }
    }
    // The last chain, to the partials of the item.
    DEVICE void write(Merged& merged, const Place& place, const Item& item, const Split<true>& split) const {
        u64 at[2];
        bool has[2];
#pragma unroll
        for (int row = 0; row < 2; row++) {
            const int column = row_of(row);
            has[row] = split.has(column, item.rows.y);
            at[row] = ((u64)(item.run.w + split.token(column) * item.rows.w) * p.kv_heads + place.column) * p.group + split.head(column);
        }
        merge(merged, false, [&](int i, const float4& x) {
            if (has[0]) __stcg(reinterpret_cast<float2*>(p.part_o + at[0] * D + 2 * t + 8 * i), make_float2(x.x, x.y));
            if (has[1]) __stcg(reinterpret_cast<float2*>(p.part_o + at[1] * D + 2 * t + 8 * i), make_float2(x.z, x.w));
        });
#pragma unroll
        for (int row = 0; row < 2; row++)
            if (t == 0 && has[row]) __stcg(&p.part_ml[at[row]], make_float2(merged.top[row], merged.mass[row]));
    }

    DEVICE void run() {
#pragma unroll 1
        for (Place place(p); place.in(p); place.step(p)) {
            const Item item = load_item(p, place);
            const Split<true> split(p.group);
            get_queries(item, split, place.column);
            const int last = item.rows.y - 1;
            auto slid = [&](int row) { return item.rows.z * min(split.token(row_of(row)), last); };
            const int moved = slid(0) | slid(1) << 16;  // by how much the window's begin has moved for both rows, in one register
            int pages = item.run.z - item.run.y;        // whose scores are not made yet
            auto next = [&]() {
                if (pages-- > 0) start_scores();
            };
            Merged merged = {{MINUS_INFINITY, MINUS_INFINITY}, {0.f, 0.f}};
            next();
            wgmma_wait<0>();
#pragma unroll 1
            for (int w = 0; w < WARPS; w++) {
                clear();
                int hidden = item.seen.x - w * PAGE_TOKENS;
#pragma unroll 1
                for (int left = (item.run.z - item.run.y - w + WARPS - 1) / WARPS; left > 0; left--, hidden -= WARPS * PAGE_TOKENS) {
                    weigh(hidden, moved);
                    const int here = stage.index ? stage.index - 1 : S::STAGES - 1;
                    shared.turns[tid / (TILE_CONSUMERS / 2)].wait(turn);
                    turn ^= 1;
                    start_sums(here);
                    next();
                    if (tid % WARP == 0) shared.turns[tid / (TILE_CONSUMERS / 2) ^ 1].arrive();
                    wgmma_wait<0>();
                    __syncwarp();
                    if (tid % WARP == 0) shared.empty[here].arrive();
                }
                if (w == WARPS - 1) break;
                merge(merged, w == 0, [&](int i, const float4& x) { waiting()[i * TILE_CONSUMERS] = x; });
            }
            write(merged, place, item, split);
        }
    }
};

template <int D, int KEY_BITS, int VALUE_BITS>
DEVICE void attend_tile(const AttentionParams& p) {
    using S = TileShape<D, KEY_BITS, VALUE_BITS>;
    DYNAMIC_SHARED(dynamic);
    u8* const memory = dynamic + (1024 - (shared_address(dynamic) & 1023)) % 1024;
    if (threadIdx.x == 0) {
        const TileShared<D, KEY_BITS, VALUE_BITS> shared(memory);
        for (int i = 0; i < S::STAGES; i++) shared.full[i].init(TILE_PRODUCERS), shared.empty[i].init(TILE_CONSUMERS / WARP);
        for (int i = 0; i < 2; i++) shared.turns[i].init(TILE_CONSUMERS / 2 / WARP);
    }
    __syncthreads();
    pdl_wait();
    if (threadIdx.x >= TILE_CONSUMERS) {
        fewer_registers<PRODUCER_REGISTERS>();
        TileProducer<D, KEY_BITS, VALUE_BITS>(p, memory).run();
    } else {
        more_registers<CONSUMER_REGISTERS>();
        TileConsumer<D, KEY_BITS, VALUE_BITS>(p, memory).run();
    }
    pdl_trigger();
}

#define TILE(NAME, D, KEY_BITS, VALUE_BITS)                                                                                 \
    extern "C" __global__ void __launch_bounds__(TILE_CONSUMERS + TILE_PRODUCERS, 1) NAME(const __grid_constant__ AttentionParams p) {         \
        attend_tile<D, KEY_BITS, VALUE_BITS>(p);                                                                            \
    }                                                                                                                       \
    extern "C" __device__ const int NAME##_shared = TileShape<D, KEY_BITS, VALUE_BITS>::BYTES;
#else
#define TILE(NAME, D, KEY_BITS, VALUE_BITS) extern "C" __device__ const int NAME##_shared = TileShape<D, KEY_BITS, VALUE_BITS>::BYTES;
#endif
TILE(attend_tile_int4_d128, 128, 4, 4)
TILE(attend_tile_int8_d128, 128, 8, 8)
TILE(attend_tile_k8v4_d128, 128, 8, 4)
TILE(attend_tile_int4_d64, 64, 4, 4)
TILE(attend_tile_int8_d64, 64, 8, 8)
TILE(attend_tile_k8v4_d64, 64, 8, 4)
