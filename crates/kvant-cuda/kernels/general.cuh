// Attention over pages of any codec: a tile of 64 tokens of both sides is made of a page's bytes in shared memory, as f16 in the codec's basis, once for
// all columns that read it; then tensor cores multiply as over latents (latent.cuh). A pass of many tokens makes all tiles of its sequence first, once for all
// items (general_tiles): the same numbers, in memory of the pass. Queries are in the basis of the keys, sums in that of the values,
// and the reduce turns them back.
//
// Pages lie as their formats say (form.cuh), exact ones as everywhere. A page has 32, 64 or 128 tokens, keys and values as they like; tables count in
// units of the fewer of both. Tokens whose keys are coded and whose values are not, or the other way, are an item of their own.
//
// A CTA of 8 warps attends for 16 MT columns, a column being a query head of a query token. Scores: queries are A, tokens columns of the mma, a warp has
// 8 of the 64. Softmax: a warp has rows w, w+8, … Sums: weights are A, and a warp has an eighth of the channels.
//
// **Invariant:** arithmetic is column by column, and tiles of an item are met in their order: a query has the same bits with any MT, batch and grid.
#pragma once
#include "attention.cuh"
#include "form.cuh"

constexpr int GENERAL_WARPS = 8, GENERAL_THREADS = GENERAL_WARPS * WARP;
constexpr int GENERAL_WIDTH = 512;  // the most channels of all parts of a side
constexpr int GENERAL_PAD = 8;      // halves after a row: an odd number of 16-byte units, so that rows begin in different banks

struct GeneralParams {
    const u8* pages;             // page memory
    const PageEntry* table;      // (seats, kv_heads, table_stride): pages of closed units
    const PageEntry* exact;      // (rows, kv_heads, exact_stride): the sinks' page, exact units in order; last the units of which one side is coded
    const Item* items;           // (n_items)
    const Slots* slots;          // (rows)
    const u16* q;                // (rows, heads, dim) f16
    const u16* q_closed;         // (rows, heads, key_width) f16: in the basis of coded keys
    const float* q_bias;         // (rows, heads): their products with the keys' mean
    float* part_o;               // (slots, heads, value_width): unnormalised, relative to 2^m
    float2* part_ml;             // (slots, heads): (m, l), log2 domain; l below zero where the sum is in the model's basis
    const PageForm* forms;       // (kv_heads, keys and values)
    const PageForm* exact_forms; // (keys and values)
    const TrellisTables* tables;
    const float* sink_logits;    // (heads) or null
    u16* out;                    // (rows, heads, dim) f16
    const u16* tiles_of;         // (kv_heads, tile_units): tiles of coded units, keys (unit, key_width + pad), then values; null: they are made where they are read
    int heads, kv_heads, dim, key_width, value_width;  // widths: in whole 64s
    int table_stride, exact_stride, tiles;             // tiles of columns of an item and kv head
    int unit, key_pages, value_pages;                  // tokens of a unit; units of a page
    int tile_units;
    float scale, cap;                                  // as AttentionParams has them
    float floor;                                       // log2 of the weight below which a tile's values are left out (--sparse-v); 0: none are
};

template <int MT>
struct GeneralShared {
    float carry[2][GENERAL_WIDTH];  // what the next tile's numbers follow from
    float scores[16 * MT][PAGE_TOKENS + 4];
    u16 weights[16 * MT][PAGE_TOKENS + 8];
    float factor[16 * MT], bias[16 * MT];
    // After it: queries (16 MT, width + pad), keys (64, key width + pad), values (64, value width + pad).
};

// One side of a tile: rows `first` … first + count of a page as f16, (64, stride).
struct GeneralTile {
    u16* rows;
    int stride;
    DEVICE void put(int token, int channel, float x) const { rows[token * stride + channel] = f32_to_f16(x); }
};

DEVICE void exact_tile(const PagePart& p, const u8* page, int first, int count, const GeneralTile& to, int tid) {
    for (int i = tid; i < count * p.dim; i += GENERAL_THREADS) {
        const int t = i / p.dim, c = i % p.dim;
        to.put(t, c, exact_number(p, page, first + t, c));
    }
}
// `carried`: the tile before was the same page's, and ended where this one begins.
DEVICE void coded_tile(const PagePart& p, const TrellisTables& tables, const u8* page, int first, int count, int column, const GeneralTile& to, float* carry,
                       bool carried, int tid, int shift) {
    if (p.kind == EXACT_PART) return exact_tile(p, page, first, count, to, tid);
    if (p.kind == POLAR_PART) {
        for (int i = tid; i < count * p.dim; i += GENERAL_THREADS) to.put(i / p.dim, column + i % p.dim, polar_number(p, page, first + i / p.dim, i % p.dim));
        return;
    }
    if (p.kind == PACKED_PART && p.first_token < 0) {
        // Neighbouring threads have codes of neighbouring bytes.
        const int per = p.is_key ? 8 : 16, lanes = p.is_key ? 16 : 8;
        for (int i = tid; i < count * per * p.rows; i += GENERAL_THREADS) {
            int t, k;
            const int in = i % 128, at = i / 128 % (count / lanes), r = i / (count * per);
            if (p.is_key) k = in % 4 + in / 64 * 4, t = in / 4 % 16 + 16 * at;
            else t = in % 4 + in / 64 * 4 + 8 * at, k = in / 4 % 16;
            if (r * per + k < p.dim) to.put(t, column + r * per + k, packed_number(p, page, r, first + t, k));
        }
        return;
    }
    // Each number follows from the one before. Keys and values begin with other threads.
    for (int c = (tid + GENERAL_THREADS - shift) % GENERAL_THREADS; c < p.dim; c += GENERAL_THREADS) {
        float state = carried ? carry[column + c] : 0.f;
        auto put = [&](int t, float x) {
            if (t >= first) to.put(t - first, column + c, x);
        };
        const int from = carried ? first : 0;
        if (p.kind == TRELLIS_PART) trellis_numbers(trellis_channel(p, tables, page, c), tables, page, from, first + count, state, put);
        else difference_numbers(p, page, c, from, first + count, state, put);
        carry[column + c] = state;
    }
}
DEVICE void form_tile(const PageForm& form, const TrellisTables& tables, const u8* page, int first, int count, const GeneralTile& to, float* carry, bool carried,
                      int tid, int shift) {
#pragma unroll 1
    for (int part = 0; part < form.parts; part++)
        coded_tile(form.part[part], tables, page, first, count, part * form.dim, to, carry, carried, tid, shift);
}

DEVICE void copy_tile(const GeneralTile& to, const u16* from, int count, int tid) {
    for (int i = tid; i < count * to.stride / 8; i += GENERAL_THREADS) reinterpret_cast<uint4*>(to.rows)[i] = load_coherent(from + 8 * i);
}

template <int MT>
struct GeneralState {
    float acc[MT][GENERAL_WIDTH / 64][4];  // [columns 16mt+g, +8][8 channels of this warp's eighth: 2t, 2t+1]
    float m[2 * MT], l[2 * MT];            // of rows warp + 8i, at every lane

    DEVICE void clear() {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) m[i] = MINUS_INFINITY, l[i] = 0.f;
#pragma unroll
        for (int mt = 0; mt < MT; mt++)
#pragma unroll
            for (int nt = 0; nt < GENERAL_WIDTH / 64; nt++)
#pragma unroll
                for (int j = 0; j < 4; j++) acc[mt][nt][j] = 0.f;
    }

    // The tiles and the queries are complete. `seen(row)` says which tokens the query of a row sees: begin and end. `sparse`: values may be left out.
    template <class Seen>
    DEVICE void attend(GeneralShared<MT>& shared, const GeneralParams& p, const GeneralTile& q, const GeneralTile& keys, const GeneralTile& values, int key_width,
                       Seen seen, bool sparse, int warp, int lane) {
        const int g = lane / 4, t = lane % 4;
        {
            float s[MT][4] = {};
            const u16* tokens = keys.rows + (8 * warp + lane % 8) * keys.stride + lane / 8 * 8;
            const u16* queries = q.rows + lane % 16 * q.stride + lane / 16 * 8;
#pragma unroll 1
            for (int ks = 0; ks < key_width / 16; ks += 2) {
                const uint4 b = load_matrices(tokens + 16 * ks);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const uint4 a = load_matrices(queries + 16 * mt * q.stride + 16 * ks);
                    mma16816(s[mt], a.x, a.y, a.z, a.w, b.x, b.y);
                }
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    const uint4 a = load_matrices(queries + 16 * mt * q.stride + 16 * ks + 16);
                    mma16816(s[mt], a.x, a.y, a.z, a.w, b.z, b.w);
                }
            }
#pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                *reinterpret_cast<float2*>(&shared.scores[16 * mt + g][8 * warp + 2 * t]) = make_float2(s[mt][0], s[mt][1]);
                *reinterpret_cast<float2*>(&shared.scores[16 * mt + g + 8][8 * warp + 2 * t]) = make_float2(s[mt][2], s[mt][3]);
            }
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const int row = warp + GENERAL_WARPS * i;
            const int2 view = seen(row);
            float x[2], top = MINUS_INFINITY;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int token = lane + WARP * k;
                float score = (shared.scores[row][token] + shared.bias[row]) * p.scale;
                if (p.cap != 0.f) score = soft_cap(score, p.cap);
                x[k] = token >= view.x && token < view.y ? score : MINUS_INFINITY;
                top = fmaxf(top, x[k]);
            }
#pragma unroll
            for (int o = 16; o; o /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
            if (sparse && top - m[i] < p.floor) x[0] = x[1] = MINUS_INFINITY;
            top = fmaxf(top, m[i]);
            // Without a token in view yet both are -inf, and there is nothing to scale.
            const float factor = top == m[i] ? 1.f : ex2(m[i] - top);
            float mass = 0.f;
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float e = x[k] == MINUS_INFINITY ? 0.f : ex2(x[k] - top);
                shared.weights[row][lane + WARP * k] = f32_to_f16(e);
                mass += e;
            }
#pragma unroll
            for (int o = 16; o; o /= 2) mass += __shfl_xor_sync(~0u, mass, o);
            l[i] = fmaf(l[i], factor, mass), m[i] = top;
            if (lane == 0) shared.factor[row] = factor;
        }
        __syncthreads();
        float f[MT][2];
        bool moved = false;
#pragma unroll
        for (int mt = 0; mt < MT; mt++) {
            f[mt][0] = shared.factor[16 * mt + g], f[mt][1] = shared.factor[16 * mt + g + 8];
            moved |= f[mt][0] != 1.f || f[mt][1] != 1.f;
        }
        if (__any_sync(~0u, moved)) {
#pragma unroll
            for (int mt = 0; mt < MT; mt++)
#pragma unroll
                for (int nt = 0; nt < GENERAL_WIDTH / 64; nt++)
#pragma unroll
                    for (int j = 0; j < 4; j++) acc[mt][nt][j] *= f[mt][j / 2];
        }
        const int own = p.value_width / 64;  // tiles of 8 channels of a warp
        const u16* weights = &shared.weights[lane % 16][lane / 16 * 8];
        const u16* from = values.rows + lane % 16 * values.stride + 8 * own * warp + lane / 16 * 8;
#pragma unroll 1
        for (int ks = 0; ks < PAGE_TOKENS / 16; ks++) {
            uint4 a[MT];
#pragma unroll
            for (int mt = 0; mt < MT; mt++) a[mt] = load_matrices(weights + 16 * mt * (PAGE_TOKENS + 8) + 16 * ks);
#pragma unroll
            for (int nt = 0; nt < GENERAL_WIDTH / 64; nt += 2) {
                if (nt >= own) break;
                const uint4 b = load_matrices_turned(from + 16 * ks * values.stride + 8 * nt);
#pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    mma16816(acc[mt][nt], a[mt].x, a[mt].y, a[mt].z, a[mt].w, b.x, b.y);
                    if (nt + 1 < own) mma16816(acc[mt][nt + 1], a[mt].x, a[mt].y, a[mt].z, a[mt].w, b.z, b.w);
                }
            }
        }
        __syncthreads();  // the tiles may be filled again
    }
};

// Grid: items times kv heads times tiles of columns.
template <int MT>
DEVICE void attend_general(const GeneralParams& p) {
    DYNAMIC_SHARED(memory);
    auto& shared = *reinterpret_cast<GeneralShared<MT>*>(memory);
    const int tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    const int column = blockIdx.x / p.tiles, first = blockIdx.x % p.tiles * 16 * MT;
    const int index = column / p.kv_heads, kv = column % p.kv_heads, group = p.heads / p.kv_heads;
    const Item item{__ldg(&p.items[index].run), __ldg(&p.items[index].seen), __ldg(&p.items[index].rows)};
    const int tokens = item.rows.y, pages = max(p.key_pages, p.value_pages);
    const bool is_exact = item.run.y >= item.run.z, is_mixed = !is_exact && item.run.x < 0;
    const bool coded_keys = !is_exact && (!is_mixed || p.key_pages < p.value_pages);
    const bool coded_values = !is_exact && (!is_mixed || p.value_pages < p.key_pages);
    const PageForm& key_form = coded_keys ? p.forms[2 * kv] : p.exact_forms[0];
    const PageForm& value_form = coded_values ? p.forms[2 * kv + 1] : p.exact_forms[1];
    const int exact_width = (p.dim + 63) / 64 * 64, key_width = coded_keys ? p.key_width : exact_width;
    pdl_wait();
    pdl_trigger();

    u16* rows = reinterpret_cast<u16*>(memory + (sizeof(GeneralShared<MT>) + 127) / 128 * 128);
    const GeneralTile q{rows, p.key_width + GENERAL_PAD};
    rows += 16 * MT * q.stride;
    const GeneralTile keys{rows, p.key_width + GENERAL_PAD};
    rows += PAGE_TOKENS * keys.stride;
    const GeneralTile values{rows, p.value_width + GENERAL_PAD};
    // Channels that nothing is written to, and tokens after a short page, are zeros.
    const uint4 none = {0u, 0u, 0u, 0u};
    const int all = (16 * MT + PAGE_TOKENS) * q.stride + PAGE_TOKENS * values.stride;
    for (int i = tid; i < all / 8; i += GENERAL_THREADS) reinterpret_cast<uint4*>(q.rows)[i] = none;
    __syncthreads();
    const u16* queries = coded_keys ? p.q_closed : p.q;
    const int query_width = coded_keys ? p.key_width : p.dim;
    for (int i = tid; i < 16 * MT * (query_width / 8); i += GENERAL_THREADS) {
        const int row = i / (query_width / 8), c = i % (query_width / 8) * 8, token = (first + row) / group, head = kv * group + (first + row) % group;
        if (token < tokens)
            *reinterpret_cast<uint4*>(q.rows + row * q.stride + c) = load_coherent(queries + ((u64)(item.rows.x + token) * p.heads + head) * query_width + c);
    }
    for (int row = tid; row < 16 * MT; row += GENERAL_THREADS) {
        const int token = (first + row) / group, head = kv * group + (first + row) % group;
        shared.bias[row] = coded_keys && token < tokens ? __ldcg(p.q_bias + (u64)(item.rows.x + token) * p.heads + head) : 0.f;
    }
    GeneralState<MT> state;
    state.clear();
    auto later = [&](int row) { return min((first + row) / group, tokens - 1); };  // which token of the item
    // Tiles of coded units in their order, or of the sinks and of exact units. The rows of the table of exact units are the queries'; those of an item begin
    // with the same one, and the last one's has all of them.
    const int step = min(p.unit, PAGE_TOKENS), per_unit = p.unit / step;
    const PageEntry* entries;
    int tiles, sinks = 0;  // how many
    if (is_mixed) entries = p.exact + ((u64)(-1 - item.run.x) * p.kv_heads + kv) * p.exact_stride + p.exact_stride - (pages - 1);
    else if (is_exact) entries = p.exact + ((u64)(item.rows.x + tokens - 1) * p.kv_heads + kv) * p.exact_stride;
    else entries = p.table + ((u64)item.run.x * p.kv_heads + kv) * p.table_stride;
    if (is_exact) sinks = item.seen.x < item.seen.y, tiles = sinks + max(item.seen.w + tokens - 1 + step - 1, 0) / step;
    else tiles = (item.run.z - item.run.y) * per_unit;
#pragma unroll 1
    for (int i = 0; i < tiles; i++) {
        int unit = 0, at, count = step, begin, end = step, slide = item.rows.z, grow = 0;  // at: the tile's first token within its unit
        PageEntry entry;
        if (!is_exact) {
            unit = item.run.y + i / per_unit, at = i % per_unit * step, begin = item.seen.x - i * step;
            entry = __ldg(entries + (is_mixed ? unit % pages : unit));
        } else if (i < sinks) {
            at = 0, count = min((item.seen.y + 15) / 16 * 16, PAGE_TOKENS), begin = item.seen.x, end = item.seen.y, slide = 0;
            entry = __ldg(entries);
        } else {
            const int token = (i - sinks) * step;
            at = token % p.unit, begin = item.seen.z - token, end = item.seen.w - token, grow = 1;
            entry = __ldg(entries + 1 + token / p.unit);
        }
        const u8 *key_page = half_page(p.pages, entry.x), *value_page = half_page(p.pages, entry.y);
        const int key_first = (coded_keys ? unit % p.key_pages * p.unit : 0) + at, value_first = (coded_values ? unit % p.value_pages * p.unit : 0) + at;
        if (p.tiles_of && !is_exact && !is_mixed) {
            const u16* from = p.tiles_of + ((u64)kv * p.tile_units + unit) * p.unit * (keys.stride + values.stride);
            copy_tile(keys, from + at * keys.stride, count, tid);
            copy_tile(values, from + p.unit * keys.stride + at * values.stride, count, tid);
        } else {
            // A tile that does not begin its page goes on from the one before.
#pragma unroll 1
            for (int side = 0; side < 2; side++) {
                const int from = side ? value_first : key_first;
                const GeneralTile to{side ? values.rows : keys.rows, side ? values.stride : keys.stride};  // by value: no memory of the thread's own
                form_tile(side ? value_form : key_form, *p.tables, side ? value_page : key_page, from, count, to, shared.carry[side], i > 0 && from > 0, tid,
                          side * (GENERAL_THREADS / 2));
            }
        }
        __syncthreads();
        auto seen = [&](int row) {
            const int n = later(row);
            return make_int2(begin + slide * n, min(end + grow * n, count));
        };
        state.attend(shared, p, q, keys, values, key_width, seen, p.floor != 0.f && !is_exact, warp, lane);
    }
    const int g = lane / 4, t = lane % 4, own = p.value_width / 64;
    auto slot = [&](int row) {
        return (u64)(item.run.w + (first + row) / group * item.rows.w) * p.heads + kv * group + (first + row) % group;
    };
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const int row = warp + GENERAL_WARPS * i;
        if (lane == 0 && (first + row) / group < tokens) p.part_ml[slot(row)] = make_float2(state.m[i], coded_values ? state.l[i] : -state.l[i]);
    }
#pragma unroll
    for (int mt = 0; mt < MT; mt++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int row = 16 * mt + 8 * r + g;
            if ((first + row) / group >= tokens) continue;
            float* out = p.part_o + slot(row) * p.value_width + 8 * own * warp + 2 * t;
#pragma unroll
            for (int nt = 0; nt < GENERAL_WIDTH / 64; nt++)
                if (nt < own) *reinterpret_cast<float2*>(out + 8 * nt) = make_float2(state.acc[mt][nt][2 * r], state.acc[mt][nt][2 * r + 1]);
        }
}
