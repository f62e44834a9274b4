// Gated DeltaNets and Mamba-2 over whole chunks of a sequence, for prompts: recurrent.cuh has what is computed, and in which order.
//
// chunk_products takes all chunks and key heads side by side: lengths of queries and keys, products of keys with keys and with queries, decays.
// scan_chunks goes from chunk to chunk with a state in shared memory. In a chunk it multiplies the state with all keys and queries at once,
// solves for u in blocks of 16 tokens (each block's own 16 by a thread for each channel, what they add to later tokens by all threads), and adds
// the chunk to the state. What the next chunk needs is copied meanwhile. Tokens of a chunk that came in earlier passes are read from its rows:
// a chunk that is cut anywhere has the sums of a whole one.
#include "recurrent.cuh"

constexpr int CHUNK_NUMBERS = STATE_CHUNK * STATE_CHUNK;
constexpr int PRODUCT_ROW = STATE_CHUNK + KEY_PAD;  // of products in shared memory
constexpr int HEADS_AT_ONCE = 32;

// What chunk_products leaves of a piece: (key_heads, 2, 64, 64) products with keys and with queries, then of each head the sums of its log decays
// and the shares that DeltaNets correct or Mamba-2's steps, (heads, 2, 64).
DEVICE u64 piece_numbers(const StateParams& p) { return (u64)p.key_heads * 2 * CHUNK_NUMBERS + p.heads * 2 * STATE_CHUNK; }
DEVICE float* products_of(const StateParams& p, int piece, int key_head) { return p.products + piece * piece_numbers(p) + (u64)key_head * 2 * CHUNK_NUMBERS; }
DEVICE float* gains_of(const StateParams& p, int piece, int head) {
    return p.products + piece * piece_numbers(p) + (u64)p.key_heads * 2 * CHUNK_NUMBERS + head * 2 * STATE_CHUNK;
}
DEVICE float4& quad(float* p) { return *reinterpret_cast<float4*>(p); }
DEVICE float part(const float4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

template <bool DELTA>
DEVICE void chunk_products(const StateParams& p) {
    DYNAMIC_SHARED(memory);
    __shared__ float decays[STATE_CHUNK][HEADS_AT_ONCE];
    const int K = p.key_dim, KP = K + KEY_PAD, key_head = blockIdx.y, group = p.heads / p.key_heads;
    const int tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    float *keys = reinterpret_cast<float*>(memory), *queries = keys + STATE_CHUNK * KP;  // (64, K)
    pdl_wait();
    pdl_trigger();
    const Piece own = p.pieces[blockIdx.x];
    const int end = own.before + own.tokens;
    float* rows = own.rows == NO_PAGE ? nullptr : numbers(p.pages, own.rows);
    for (int t = warp; t < STATE_CHUNK; t += STATE_THREADS / WARP) {
        float* x = p.x + (u64)(own.row + t - own.before) * p.channels;
        float* row = rows + (u64)t * p.row_width + p.row_keys + key_head * K;
        const bool is_new = t >= own.before && t < end;
        float q[8], k[8], qq = 0.f, kk = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int c = i * WARP + lane;
            q[i] = k[i] = 0.f;
            if (c >= K) continue;
            if (is_new) q[i] = x[p.query_at + key_head * K + c], k[i] = x[p.key_at + key_head * K + c];
            else if (t < own.before) k[i] = row[c];
        }
        if (DELTA && is_new) {
            auto add = [](float a, float b) { return a + b; };
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (i * WARP < K) qq += over_warp(__fmul_rn(q[i], q[i]), add), kk += over_warp(__fmul_rn(k[i], k[i]), add);
            const float of_query = query_length(p, qq), of_key = key_length(p, kk);
#pragma unroll
            for (int i = 0; i < 8; i++) q[i] = __fmul_rn(q[i], of_query), k[i] = __fmul_rn(k[i], of_key);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int c = i * WARP + lane;
            if (c >= K) continue;
            queries[t * KP + c] = q[i], keys[t * KP + c] = k[i];
            if (!is_new) continue;
            if (DELTA) x[p.query_at + key_head * K + c] = q[i], x[p.key_at + key_head * K + c] = k[i];
            if (rows) row[c] = k[i];
        }
    }
    __syncthreads();

    // A thread has tokens ty + 16 i and, of those up to them, tx + 16 j.
    const int ty = tid / 16, tx = tid % 16;
    float with_keys[4][4], with_queries[4][4];
#pragma unroll 1
    for (int quarter = 0; quarter < QUARTERS; quarter++) {
        float a[4][4] = {}, b[4][4] = {};
#pragma unroll 1
        for (int c = quarter * (K / QUARTERS); c < (quarter + 1) * (K / QUARTERS); c += 4) {
            float4 k[4], q[4];
#pragma unroll
            for (int i = 0; i < 4; i++) k[i] = quad(keys + (ty + 16 * i) * KP + c), q[i] = quad(queries + (ty + 16 * i) * KP + c);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float4 other = quad(keys + (tx + 16 * j) * KP + c);
#pragma unroll
                for (int i = j; i < 4; i++) {
                    if (DELTA) a[i][j] = four(other, k[i], a[i][j]);
                    b[i][j] = four(other, q[i], b[i][j]);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j <= i; j++) {
                with_keys[i][j] = quarter ? __fadd_rn(with_keys[i][j], a[i][j]) : a[i][j];
                with_queries[i][j] = quarter ? __fadd_rn(with_queries[i][j], b[i][j]) : b[i][j];
            }
    }
    float* to = products_of(p, blockIdx.x, key_head);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j <= i; j++) {
            const int at = (ty + 16 * i) * STATE_CHUNK + tx + 16 * j;
            if (DELTA) to[at] = with_keys[i][j];
            to[CHUNK_NUMBERS + at] = with_queries[i][j];
        }

    for (int first = 0; first < group; first += HEADS_AT_ONCE) {
        auto head_of = [&](int n) { return p.tiled ? (first + n) * p.key_heads + key_head : key_head * group + first + n; };
        const int here = min(HEADS_AT_ONCE, group - first);
        for (int i = tid; i < STATE_CHUNK * HEADS_AT_ONCE; i += STATE_THREADS) {
            const int t = i / HEADS_AT_ONCE, n = i % HEADS_AT_ONCE, row = own.row + t - own.before;
            if (n >= here) continue;
            float step = 0.f, gain = 0.f;
            if (t >= own.before && t < end) step = step_of<DELTA>(p, row, head_of(n)), gain = DELTA ? beta_of(p, row, head_of(n)) : step;
            else if (t < own.before) step = rows[(u64)t * p.row_width + p.row_decay + head_of(n)];  // the sum up to it
            decays[t][n] = step, gains_of(p, blockIdx.x, head_of(n))[STATE_CHUNK + t] = gain;
        }
        __syncthreads();
        if (tid < here) {
            const float rate = __ldg(p.rates + head_of(tid));
            float sum = 0.f;
            for (int t = 0; t < end; t++) {
                sum = t < own.before ? decays[t][tid] : fmaf(rate, decays[t][tid], sum);
                decays[t][tid] = sum;
            }
        }
        __syncthreads();
        for (int i = tid; i < STATE_CHUNK * HEADS_AT_ONCE; i += STATE_THREADS) {
            const int t = i / HEADS_AT_ONCE, n = i % HEADS_AT_ONCE;
            if (n >= here) continue;
            const float sum = t < end ? decays[t][n] : 0.f;
            gains_of(p, blockIdx.x, head_of(n))[t] = sum;
            if (t < own.before || t >= end) continue;
            if (rows) rows[(u64)t * p.row_width + p.row_decay + head_of(n)] = sum;
            if (is_odd(sum)) atomicMax(p.refused, 1 + own.row + t - own.before);
        }
        __syncthreads();
    }
}
// Grid: (pieces, key heads).
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 1) chunk_products_delta(const __grid_constant__ StateParams p) { chunk_products<true>(p); }
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 1) chunk_products_mamba(const __grid_constant__ StateParams p) { chunk_products<false>(p); }

// What a CTA of scan_chunks has in shared memory.
template <bool DELTA>
struct ChunkMemory {
    float *S, *values, *with_queries, *with_keys, *query, *keys;  // (K, 64), (64, 64), (64, 64) twice, (64, K), (stages, 64, K)
    int key_numbers;
    DEVICE ChunkMemory(u8* memory, int K) {
        key_numbers = STATE_CHUNK * (K + KEY_PAD);
        S = reinterpret_cast<float*>(memory), values = S + K * STATE_TILE, with_queries = values + STATE_CHUNK * STATE_TILE;
        with_keys = with_queries + STATE_CHUNK * PRODUCT_ROW, query = with_keys + (DELTA ? STATE_CHUNK * PRODUCT_ROW : 0), keys = query + key_numbers;
    }
};

template <bool DELTA>
DEVICE void scan_chunks(const StateParams& p) {
    DYNAMIC_SHARED(memory);
    __shared__ float decays[STATE_CHUNK], left[STATE_CHUNK], gains[STATE_CHUNK];
    const HeadTile<DELTA> of(p);
    const int K = of.K, KP = K + KEY_PAD, head = of.head, tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    const int ty = tid / 16, tx = tid % 16, v = 4 * tx, value = head * of.V + of.first + v;  // tokens ty + 16 i, four channels of values
    const bool is_there = v < of.width;
    const ChunkMemory<DELTA> m(memory, K);
    const float skip = DELTA ? 0.f : __ldg(p.skip + head);
    pdl_wait();
    pdl_trigger();
    const int2 sequence = __ldg(p.sequences + blockIdx.y);
    // Rows of keys or queries of a piece, and zeros where it has no tokens.
    auto copy_rows = [&](float* to, const Piece& of_piece, int at, bool is_keys) {
        for (int t = warp; t < STATE_CHUNK; t += STATE_THREADS / WARP) {
            float* row = to + t * KP;
            if (t >= of_piece.before && t < of_piece.before + of_piece.tokens) {
                const float* x = p.x + (u64)(of_piece.row + t - of_piece.before) * p.channels + at + of.key_head * K;
                for (int c = 4 * lane; c < K; c += 4 * WARP) copy16(reinterpret_cast<u8*>(row + c), x + c);
            } else if (is_keys && t < of_piece.before) {
                const float* kept = numbers(p.pages, of_piece.rows) + (u64)t * p.row_width + p.row_keys + of.key_head * K;
                for (int c = lane; c < K; c += WARP) row[c] = kept[c];
            } else {
                for (int c = lane; c < K; c += WARP) row[c] = 0.f;
            }
        }
    };
    auto copy_products = [&](int piece) {
        const float* from = products_of(p, piece, of.key_head);
        for (int i = tid; i < CHUNK_NUMBERS / 4; i += STATE_THREADS) {
            const int t = i / (STATE_CHUNK / 4), j = i % (STATE_CHUNK / 4) * 4;
            if (DELTA) copy16(reinterpret_cast<u8*>(m.with_keys + t * PRODUCT_ROW + j), from + t * STATE_CHUNK + j);
            copy16(reinterpret_cast<u8*>(m.with_queries + t * PRODUCT_ROW + j), from + CHUNK_NUMBERS + t * STATE_CHUNK + j);
        }
    };
    Piece own = p.pieces[sequence.x];
    copy_rows(m.keys, own, p.key_at, true), copy_rows(m.query, own, p.query_at, false), copy_products(sequence.x);
    end_copies();
    of.load(p, own.state, m.S);
    float next_decay = 0.f, next_gain = 0.f;
    if (tid < STATE_CHUNK) next_decay = gains_of(p, sequence.x, head)[tid], next_gain = gains_of(p, sequence.x, head)[STATE_CHUNK + tid];

#pragma unroll 1
    for (int n = 0; n < sequence.y; n++) {
        const int piece = sequence.x + n, end = own.before + own.tokens;
        const bool has_next = n + 1 < sequence.y;
        const Piece next = has_next ? p.pieces[piece + 1] : own;
        float* const keys = m.keys + (p.stages > 1 ? n % 2 : 0) * m.key_numbers;
        float* const rows = own.rows == NO_PAGE ? nullptr : numbers(p.pages, own.rows);
        if (tid < STATE_CHUNK) decays[tid] = next_decay, gains[tid] = next_gain;
        wait_copies<0>();
        __syncthreads();
        if (has_next && p.stages > 1) copy_rows(m.keys + (n + 1) % 2 * m.key_numbers, next, p.key_at, true);
        end_copies();
        if (has_next && tid < STATE_CHUNK) next_decay = gains_of(p, piece + 1, head)[tid], next_gain = gains_of(p, piece + 1, head)[STATE_CHUNK + tid];
        float values[4][4];  // of the tokens; u of those that came before
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = ty + 16 * i;
            float4 x = {0.f, 0.f, 0.f, 0.f};
            if (is_there && t >= own.before && t < end) x = *reinterpret_cast<const float4*>(p.x + (u64)(own.row + t - own.before) * p.channels + p.value_at + value);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                values[i][e] = part(x, e);
                if (is_there && t < own.before) values[i][e] = rows[(u64)t * p.row_width + p.row_values + value + e];
            }
        }
        // Products under their decays; none with later tokens.
        if (tid < STATE_CHUNK) left[tid] = decay(decays[STATE_CHUNK - 1] - decays[tid]);
        for (int i = tid; i < CHUNK_NUMBERS; i += STATE_THREADS) {
            const int t = i / STATE_CHUNK, j = i % STATE_CHUNK, at = t * PRODUCT_ROW + j;
            const float by = decay(decays[t] - decays[j]);
            m.with_queries[at] = j <= t ? __fmul_rn(by, m.with_queries[at]) : 0.f;
            if (DELTA) m.with_keys[at] = j < t ? __fmul_rn(by, m.with_keys[at]) : 0.f;
        }
        // What the state gives to keys and queries.
        float a[4][4], b[4][4];
#pragma unroll 1
        for (int quarter = 0; quarter < QUARTERS; quarter++) {
            float of_keys[4][4] = {}, of_queries[4][4] = {};
#pragma unroll 1
            for (int c = quarter * (K / QUARTERS); c < (quarter + 1) * (K / QUARTERS); c += 4) {
                float4 k[4], q[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (DELTA) k[i] = quad(keys + (ty + 16 * i) * KP + c);
                    q[i] = quad(m.query + (ty + 16 * i) * KP + c);
                }
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float4 s = quad(m.S + (c + j) * STATE_TILE + v);
#pragma unroll
                    for (int i = 0; i < 4; i++)
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            if (DELTA) of_keys[i][e] = fmaf(part(s, e), part(k[i], j), of_keys[i][e]);
                            of_queries[i][e] = fmaf(part(s, e), part(q[i], j), of_queries[i][e]);
                        }
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (DELTA) a[i][e] = quarter ? __fadd_rn(a[i][e], of_keys[i][e]) : of_keys[i][e];
                    b[i][e] = quarter ? __fadd_rn(b[i][e], of_queries[i][e]) : of_queries[i][e];
                }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float now = decay(decays[ty + 16 * i]);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (DELTA) a[i][e] = __fmul_rn(now, a[i][e]);
                b[i][e] = __fmul_rn(now, b[i][e]);
            }
        }
        if (!DELTA) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int t = ty + 16 * i;
                const float step = gains[t];
                float4 u;
                if (t < own.before) u = {values[i][0], values[i][1], values[i][2], values[i][3]};
                else u = {__fmul_rn(step, values[i][0]), __fmul_rn(step, values[i][1]), __fmul_rn(step, values[i][2]), __fmul_rn(step, values[i][3])};
                quad(m.values + t * STATE_TILE + v) = u;
            }
        }
        __syncthreads();
        if (has_next) copy_rows(m.query, next, p.query_at, false);
        end_copies();
#pragma unroll
        for (int block = 0; block < 4; block++) {
            if constexpr (DELTA) {
                const int own_token = ty + 16 * block;
                float4 rest;
                if (own_token < own.before) rest = {values[block][0], values[block][1], values[block][2], values[block][3]};
                else rest = {less(values[block][0], a[block][0]), less(values[block][1], a[block][1]), less(values[block][2], a[block][2]), less(values[block][3], a[block][3])};
                quad(m.values + own_token * STATE_TILE + v) = rest;
                __syncthreads();
                if (tid < STATE_TILE) {
                    float u[STATE_BLOCK];
#pragma unroll
                    for (int i = 0; i < STATE_BLOCK; i++) u[i] = m.values[(16 * block + i) * STATE_TILE + tid];
#pragma unroll
                    for (int i = 0; i < STATE_BLOCK; i++) {
                        const int t = 16 * block + i;
                        float sum = 0.f;
#pragma unroll
                        for (int j = 0; j < i; j += 4) {
                            const float4 w = quad(m.with_keys + t * PRODUCT_ROW + 16 * block + j);
#pragma unroll
                            for (int e = 0; e < 4; e++)
                                if (j + e < i) sum = fmaf(part(w, e), u[j + e], sum);
                        }
                        if (t >= own.before) u[i] = t < end ? __fmul_rn(gains[t], less(u[i], sum)) : 0.f;
                    }
#pragma unroll
                    for (int i = 0; i < STATE_BLOCK; i++) m.values[(16 * block + i) * STATE_TILE + tid] = u[i];
                }
                __syncthreads();
            }
            // What the block adds to its own outputs and to all that come later.
            float of_keys[4][4] = {}, of_queries[4][4] = {};
#pragma unroll 1
            for (int j = 16 * block; j < 16 * block + 16; j += 4) {
                float4 u[4];
#pragma unroll
                for (int e = 0; e < 4; e++) u[e] = quad(m.values + (j + e) * STATE_TILE + v);
#pragma unroll
                for (int i = block; i < 4; i++) {
                    const int at = (ty + 16 * i) * PRODUCT_ROW + j;
                    const float4 q = quad(m.with_queries + at);
#pragma unroll
                    for (int f = 0; f < 4; f++)
#pragma unroll
                        for (int e = 0; e < 4; e++) of_queries[i][e] = fmaf(part(q, f), part(u[f], e), of_queries[i][e]);
                    if (!DELTA || i == block) continue;
                    const float4 k = quad(m.with_keys + at);
#pragma unroll
                    for (int f = 0; f < 4; f++)
#pragma unroll
                        for (int e = 0; e < 4; e++) of_keys[i][e] = fmaf(part(k, f), part(u[f], e), of_keys[i][e]);
                }
            }
#pragma unroll
            for (int i = block; i < 4; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    b[i][e] = __fadd_rn(b[i][e], of_queries[i][e]);
                    if (DELTA && i > block) a[i][e] = __fadd_rn(a[i][e], of_keys[i][e]);
                }
        }
        bool bad = false;
        int worst = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int t = ty + 16 * i, row = own.row + t - own.before;
            if (!is_there || t < own.before || t >= end) continue;
            const float4 u = quad(m.values + t * STATE_TILE + v);
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (!DELTA) b[i][e] = fmaf(skip, values[i][e], b[i][e]);
                if (is_odd(part(u, e))) worst = 1 + row;
                if (rows) rows[(u64)t * p.row_width + p.row_values + value + e] = part(u, e);
            }
            *reinterpret_cast<float4*>(p.y + (u64)row * p.heads * of.V + value) = float4{b[i][0], b[i][1], b[i][2], b[i][3]};
        }
        if (worst) atomicMax(p.refused, worst);
        if (end < STATE_CHUNK) break;
        __syncthreads();
        if (has_next) copy_products(piece + 1);
        end_copies();
        // The state at the chunk's end: a thread has channels c … c + 3 and those 64 on of the keys.
        const float whole = decay(decays[STATE_CHUNK - 1]);
#pragma unroll 1
        for (int c = 4 * ty; c < K; c += 128) {
            const int more = c + 64 < K ? 64 : 0;  // without a second half, the first once more
            float s[8][4];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const float4 old = quad(m.S + (c + i / 4 * more + i % 4) * STATE_TILE + v);
#pragma unroll
                for (int e = 0; e < 4; e++) s[i][e] = __fmul_rn(whole, part(old, e));
            }
#pragma unroll 2
            for (int j = 0; j < STATE_CHUNK; j++) {
                const float4 x = quad(m.values + j * STATE_TILE + v), k[2] = {quad(keys + j * KP + c), quad(keys + j * KP + c + more)};
                const float by = left[j], u[4] = {__fmul_rn(by, x.x), __fmul_rn(by, x.y), __fmul_rn(by, x.z), __fmul_rn(by, x.w)};
#pragma unroll
                for (int i = 0; i < 8; i++)
#pragma unroll
                    for (int e = 0; e < 4; e++) s[i][e] = fmaf(part(k[i / 4], i % 4), u[e], s[i][e]);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                quad(m.S + (c + i / 4 * more + i % 4) * STATE_TILE + v) = float4{s[i][0], s[i][1], s[i][2], s[i][3]};
#pragma unroll
                for (int e = 0; e < 4; e++) bad |= is_there && is_odd(s[i][e]);
            }
        }
        __syncthreads();
        bad |= of.close(p, own.next, m.S);
        if (bad) atomicMax(p.refused, own.row + own.tokens);
        if (has_next && p.stages == 1) copy_rows(m.keys, next, p.key_at, true);
        end_copies();
        own = next;
        __syncthreads();
    }
}
// Grid: (heads x tiles of 64 channels of values, sequences).
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 1) scan_chunks_delta(const __grid_constant__ StateParams p) { scan_chunks<true>(p); }
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 1) scan_chunks_mamba(const __grid_constant__ StateParams p) { scan_chunks<false>(p); }
