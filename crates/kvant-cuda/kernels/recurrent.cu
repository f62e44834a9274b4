// Mixers with recurrent state: causal convolutions, gated DeltaNets and Mamba-2.
//
// A token is computed from the state at the start of its chunk of 64 and the chunk's rows up to its own, in one order: so its bits depend on
// its place in its chunk alone, and not on how tokens came. State and rows lie in pages, canonical (description::mixer of kvant-model
// says what they hold): rows as f32, state as f32, bf16 or bytes under scales (recurrent/stored.rs of kvant-cache). A state is rounded once, at its
// chunk's end, and whoever reads it from then on reads that, this pass too. A pass cuts a sequence into pieces of one chunk each; the state at a later piece's start is what the one before it
// ended with, and pages are written only where somebody may go back to them.
#include "functions.cuh"
#include "pages.cuh"

constexpr int STATE_CHUNK = 64;
constexpr u32 NO_PAGE = ~0u;

struct Piece {
    u32 state, rows, next;  // pages by unit, or NO_PAGE: the state at the first piece's start, the chunk's rows, the state at its end
    int row, tokens;        // of the pass: the piece's first row, and how many
    int before;             // tokens of the chunk before it
    int first;              // the sequence's first piece
    int zero;
};
DEVICE float* numbers(u8* pages, u32 unit) { return reinterpret_cast<float*>(pages + (u64)unit * UNIT); }
DEVICE bool is_odd(float x) { return !(fabsf(x) <= 3.4028234e38f); }

// How a state's numbers are stored.
enum StateType { STATE_F32, STATE_BF16, STATE_INT8 };
constexpr int STATE_GROUP = 64;  // numbers that share a scale
// The codes of a state of `count` numbers, after its scales.
DEVICE u8* codes_of(u8* page, int count) { return page + (count + STATE_GROUP - 1) / STATE_GROUP * 4; }
DEVICE float state_number(u8* pages, u32 unit, int type, int count, u64 i) {
    u8* page = pages + (u64)unit * UNIT;
    if (type == STATE_F32) return reinterpret_cast<const float*>(page)[i];
    if (type == STATE_BF16) return __int_as_float((u32)reinterpret_cast<const u16*>(page)[i] << 16);
    return reinterpret_cast<const float*>(page)[i / STATE_GROUP] * (float)(signed char)codes_of(page, count)[i];
}
// To nearest, ties to even.
DEVICE u16 upper_half(float x) {
    const u32 bits = __float_as_uint(x);
    return (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
// A number of a group whose largest is `top`, as it is stored: its code, and the scale of all.
struct Rounded {
    float number, scale;
    int code;
};
DEVICE Rounded round_state(float x, float top, int type) {
    if (type == STATE_BF16) {
        const u16 half = upper_half(x);
        return {__int_as_float((u32)half << 16), 0.f, half};
    }
    const bool counts = top > 1e-30f;  // below it a reciprocal could overflow
    const float scale = counts ? __fdiv_rn(top, 127.f) : 0.f, inverse = counts ? __fdiv_rn(127.f, top) : 0.f;
    const int code = __float2int_rn(__fmul_rn(x, inverse));
    return {scale * (float)code, scale, code};
}
DEVICE void store_state(u8* pages, u32 unit, int type, int count, u64 i, const Rounded& x) {
    u8* page = pages + (u64)unit * UNIT;
    if (type == STATE_BF16) {
        reinterpret_cast<u16*>(page)[i] = (u16)x.code;
        return;
    }
    codes_of(page, count)[i] = (u8)x.code;
    if (i % STATE_GROUP == 0) reinterpret_cast<float*>(page)[i / STATE_GROUP] = x.scale;
}

struct ConvParams {
    const float* x;       // (rows, stride): the inputs are its columns from `at` on, times those from `times_at` on
    const float* taps;    // (kernel, channels)
    const float* bias;    // (channels) or null
    float* y;             // (rows, channels), or null
    u16* gated;           // (rows, channels) f16: what comes out times the columns from `gate_at` on; or null
    u8* pages;
    const Piece* pieces;
    const int* piece_of;  // (rows)
    int* refused;         // the largest 1 + row whose numbers are not finite
    int channels, kernel, stride, at, times_at, gate_at, row_width, activation;  // times_at and activation: below 0 for none
    int state_type, state_count;  // of other types than f32, channels are whole groups
};
// The largest magnitude of a group of 64 threads' numbers. All threads of the CTA call it.
DEVICE float over_group(float x, float* tops) {
    x = over_warp(fabsf(x), [](float a, float b) { return fmaxf(a, b); });
    __syncthreads();
    if (threadIdx.x % WARP == 0) tops[threadIdx.x / WARP] = x;
    __syncthreads();
    return fmaxf(tops[threadIdx.x / WARP & ~1], tops[threadIdx.x / WARP | 1]);
}
// Grid: (rows, channels / 256).
extern "C" __global__ void __launch_bounds__(256) convolve(const __grid_constant__ ConvParams p) {
    const int row = blockIdx.x, c = blockIdx.y * blockDim.x + threadIdx.x;
    __shared__ float tops[8];
    pdl_wait();
    pdl_trigger();
    const bool is_there = c < p.channels, narrow = p.state_type != STATE_F32;
    if (!is_there && !narrow) return;
    const Piece own = p.pieces[__ldg(p.piece_of + row)], first = p.pieces[own.first];
    const int token = row - first.row, index = own.before + row - own.row;
    auto input = [&](int back) {  // of the token so many before
        if (back <= token) {
            const float* x = p.x + (u64)(row - back) * p.stride;
            return p.times_at < 0 ? x[p.at + c] : __fmul_rn(x[p.times_at + c], x[p.at + c]);
        }
        const int at = first.before + token - back;
        if (at >= 0) return numbers(p.pages, first.rows)[(u64)at * p.row_width + c];
        if (first.state == NO_PAGE) return 0.f;
        return state_number(p.pages, first.state, p.state_type, p.state_count, (u64)(p.kernel - 1 + at) * p.channels + c);
    };
    const bool closes = index == STATE_CHUNK - 1 && own.next != NO_PAGE;
    float y = is_there && p.bias ? __ldg(p.bias + c) : 0.f, last = 0.f;
    bool overflows = false;
    for (int tap = 0; tap < p.kernel; tap++) {
        const int back = p.kernel - 1 - tap;
        last = is_there ? input(back) : 0.f;
        // What lies before the chunk is read as it is stored, also where this pass has it better.
        const bool from_state = first.before + token - back < 0;
        if (narrow && back > index && !from_state) last = round_state(last, over_group(last, tops), p.state_type).number;
        if (is_there) y = fmaf(__ldg(p.taps + (u64)tap * p.channels + c), last, y);
        if (!closes || tap == 0) continue;
        const u64 at = (u64)(tap - 1) * p.channels + c;
        if (narrow) {
            const Rounded stored = round_state(last, over_group(last, tops), p.state_type);
            overflows |= is_odd(stored.number);
            if (is_there) store_state(p.pages, own.next, p.state_type, p.state_count, at, stored);
        } else {
            numbers(p.pages, own.next)[at] = last;
        }
    }
    if (!is_there) return;
    if (overflows) atomicMax(p.refused, 1 + row);
    if (is_odd(last)) atomicMax(p.refused, 1 + row);
    if (own.rows != NO_PAGE) numbers(p.pages, own.rows)[(u64)index * p.row_width + c] = last;
    if (p.activation >= 0) y = activate(y, p.activation);
    if (p.y) p.y[(u64)row * p.channels + c] = y;
    if (p.gated) p.gated[(u64)row * p.channels + c] = f32_to_f16(y * p.x[(u64)row * p.stride + p.gate_at + c]);
}

struct StateParams {
    const float* x;         // (rows, channels): what the convolution gave
    const float* steps;     // (rows, stride): a number of every head that decays follow from
    const float* betas;     // the same of DeltaNets: logits of what is corrected; else null
    const float* rates;     // (heads): A < 0
    const float* dt_bias;   // (heads)
    const float* skip;      // (heads): D of Mamba-2; else null
    float* y;               // (rows, heads, value_dim)
    u8* pages;
    const Piece* pieces;
    const int2* sequences;  // (grid y): first piece, pieces
    int* refused;
    int heads, key_heads, tiled;  // heads of values; of keys, which head h reads h % key_heads (tiled) or h / (heads / key_heads) of
    int key_dim, value_dim, channels, stride;
    int query_at, key_at, value_at;                // columns of x
    int row_width, row_keys, row_values, row_decay;  // where a row of a page has them
    int state_at;                                  // where a state has its matrices
    float qk_eps, least, most;                     // DeltaNets; bounds of steps
    int state_type, state_count;                   // of other types than f32, matrices are whole groups
};
DEVICE float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }
DEVICE float decay(float x) { return ex2(x * LOG2_E); }

constexpr int STATE_THREADS = 256;

// Four numbers of a dot product.
DEVICE float four(const float4& a, const float4& b, float sum) { return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum)))); }

// A CTA has a head of a sequence, and goes through its tokens one by one. A thread has a channel of the values and a part of the sums over
// channels of keys and over rows; parts are added in order.
// DeltaNets: u = beta (v - exp(G) S'k - sum_{j<t} exp(G - G_j) (k_j k) u_j), o = exp(G) S'q + sum_{j<=t} exp(G - G_j) (k_j q) u_j.
// Mamba-2, with B as keys, C as queries and dt x as values: y = exp(L) S C + sum_{j<=t} exp(L - L_j) (B_j C) (dt x)_j + D x.
template <bool DELTA>
DEVICE void scan(const StateParams& p) {
    DYNAMIC_SHARED(memory);
    __shared__ float decays[STATE_CHUNK], of_keys[STATE_CHUNK], of_queries[STATE_CHUNK], sums[2][STATE_THREADS], scratch[2][STATE_THREADS / WARP], step;
    const int K = p.key_dim, V = p.value_dim, head = blockIdx.x, tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    const int parts = STATE_THREADS / V, part = tid / V, v = tid % V, group = p.heads / p.key_heads;
    const int key_head = p.tiled ? head % p.key_heads : head / group;
    const bool is_first = p.tiled ? head < p.key_heads : head % group == 0;  // of those that read a key head
    float* S = reinterpret_cast<float*>(memory);  // (K, V)
    float *keys = S + K * V, *values = keys + STATE_CHUNK * K, *query = values + STATE_CHUNK * V;
    const int begin = part * (K / parts), end = begin + K / parts;
    const float rate = __ldg(p.rates + head), bias = __ldg(p.dt_bias + head), skip = DELTA ? 0.f : __ldg(p.skip + head);
    pdl_wait();
    pdl_trigger();
    const int2 sequence = __ldg(p.sequences + blockIdx.y);
    // DeltaNets keep (K, V), Mamba-2 (V, K).
    auto place = [&](int i) { return DELTA ? i : i % K * V + i / K; };
    const Piece first = p.pieces[sequence.x];
    const u64 matrix = p.state_at + (u64)head * K * V;
    for (int i = tid; i < K * V; i += STATE_THREADS) S[place(i)] = first.state == NO_PAGE ? 0.f : state_number(p.pages, first.state, p.state_type, p.state_count, matrix + i);
    if (first.before) {
        const float* rows = numbers(p.pages, first.rows);
        for (int i = tid; i < first.before * K; i += STATE_THREADS) keys[i] = rows[(u64)(i / K) * p.row_width + p.row_keys + key_head * K + i % K];
        for (int i = tid; i < first.before * V; i += STATE_THREADS) values[i] = rows[(u64)(i / V) * p.row_width + p.row_values + head * V + i % V];
        if (tid < first.before) decays[tid] = rows[(u64)tid * p.row_width + p.row_decay + head];
    }
    __syncthreads();
    bool bad = false;
    int row = first.row;
    for (int n = 0; n < sequence.y; n++) {
        const Piece own = p.pieces[sequence.x + n];
        float* rows = own.rows == NO_PAGE ? nullptr : numbers(p.pages, own.rows);
        for (int t = own.before; t < own.before + own.tokens; t++, row++) {
            const float* x = p.x + (u64)row * p.channels;
            float* to = rows ? rows + (u64)t * p.row_width : nullptr;
            // Keys and queries, in DeltaNets of length 1; decays up to here.
            float q = 0.f, k = 0.f;
            if (tid < K) q = x[p.query_at + key_head * K + tid], k = x[p.key_at + key_head * K + tid];
            if constexpr (DELTA) {
                const float qq = over_cta(q * q, scratch[0]), kk = over_cta(k * k, scratch[1]);
                q *= rsqrtf((float)K) / sqrtf(qq + p.qk_eps), k *= 1.f / sqrtf(kk + p.qk_eps);
            }
            if (tid < K) {
                query[tid] = q, keys[t * K + tid] = k;
                if (to && is_first) to[p.row_keys + key_head * K + tid] = k;
            }
            if (tid == 0) {
                float dt = softplus(p.steps[(u64)row * p.stride + head] + bias);
                if (!DELTA) dt = fminf(fmaxf(dt, p.least), p.most);
                const float sum = (t ? decays[t - 1] : 0.f) + rate * dt;
                decays[t] = sum, step = dt, bad |= is_odd(sum);
                if (to) to[p.row_decay + head] = sum;
            }
            __syncthreads();
            const float now = decays[t];
            for (int j = warp; j <= t; j += STATE_THREADS / WARP) {
                float with_key = 0.f, with_query = 0.f;
                for (int c = 4 * lane; c < K; c += 4 * WARP) {
                    const float4 other = *reinterpret_cast<const float4*>(keys + j * K + c);
                    with_query = four(other, *reinterpret_cast<const float4*>(query + c), with_query);
                    if (DELTA) with_key = four(other, *reinterpret_cast<const float4*>(keys + t * K + c), with_key);
                }
                auto add = [](float a, float b) { return a + b; };
                with_query = over_warp(with_query, add);
                if (DELTA) with_key = over_warp(with_key, add);
                if (lane == 0) {
                    const float left = decay(now - decays[j]);
                    of_queries[j] = left * with_query, of_keys[j] = left * with_key;
                }
            }
            // What the state at the chunk's start gives.
            float a = 0.f, b = 0.f;
            for (int c = begin; c < end; c++) {
                const float s = S[c * V + v];
                b = fmaf(s, query[c], b);
                if (DELTA) a = fmaf(s, keys[t * K + c], a);
            }
            a *= decay(now), b *= decay(now);
            __syncthreads();
            for (int j = part; j < t; j += parts) {
                const float u = values[j * V + v];
                b = fmaf(of_queries[j], u, b);
                if (DELTA) a = fmaf(of_keys[j], u, a);
            }
            sums[0][tid] = a, sums[1][tid] = b;
            __syncthreads();
            if (part == 0) {
                for (int i = 1; i < parts; i++) a += sums[0][i * V + v], b += sums[1][i * V + v];
                const float own_value = x[p.value_at + head * V + v];
                float u;
                if constexpr (DELTA) {
                    const float beta = 1.f / (1.f + ex2(-p.betas[(u64)row * p.stride + head] * LOG2_E));
                    u = beta * (own_value - a);
                } else {
                    u = step * own_value;
                }
                b = fmaf(of_queries[t], u, b);
                if (!DELTA) b = fmaf(skip, own_value, b);
                values[t * V + v] = u, bad |= is_odd(u);
                if (to) to[p.row_values + head * V + v] = u;
                p.y[((u64)row * p.heads + head) * V + v] = b;
            }
            if (bad) atomicMax(p.refused, 1 + row);
            __syncthreads();
        }
        if (own.before + own.tokens < STATE_CHUNK) break;
        // The state at the chunk's end.
        if (tid < STATE_CHUNK) of_keys[tid] = decay(decays[STATE_CHUNK - 1] - decays[tid]);
        __syncthreads();
        const float whole = decay(decays[STATE_CHUNK - 1]);
        for (int c = begin; c < end; c += 4) {
            float s[4];
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] = whole * S[(c + i) * V + v];
            for (int j = 0; j < STATE_CHUNK; j++) {
                const float4 k = *reinterpret_cast<const float4*>(keys + j * K + c);
                const float u = of_keys[j] * values[j * V + v];
                s[0] = fmaf(k.x, u, s[0]), s[1] = fmaf(k.y, u, s[1]), s[2] = fmaf(k.z, u, s[2]), s[3] = fmaf(k.w, u, s[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) S[(c + i) * V + v] = s[i], bad |= is_odd(s[i]);
        }
        __syncthreads();
        if (p.state_type != STATE_F32) {
            for (int at = warp * STATE_GROUP; at < K * V; at += STATE_THREADS / WARP * STATE_GROUP) {
                float x[2] = {S[place(at + lane)], S[place(at + WARP + lane)]};
                const float top = over_warp(fmaxf(fabsf(x[0]), fabsf(x[1])), [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const Rounded stored = round_state(x[i], top, p.state_type);
                    S[place(at + i * WARP + lane)] = stored.number, bad |= is_odd(stored.number);
                    if (own.next != NO_PAGE) store_state(p.pages, own.next, p.state_type, p.state_count, matrix + at + i * WARP + lane, stored);
                }
            }
        }
        if (bad) atomicMax(p.refused, row);
        if (own.next != NO_PAGE && p.state_type == STATE_F32)
            for (int i = tid; i < K * V; i += STATE_THREADS) numbers(p.pages, own.next)[matrix + i] = S[place(i)];
    }
}
// Grid: (heads, sequences).
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 1) scan_delta(const __grid_constant__ StateParams p) { scan<true>(p); }
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 1) scan_mamba(const __grid_constant__ StateParams p) { scan<false>(p); }

struct GateNormParams {
    const float* x;       // (rows, groups, width)
    const float* gates;   // (rows, stride)
    const float* weight;  // (groups, width) of an RMS norm of every group, or null
    u16* y;               // (rows, groups, width) f16
    int width, stride, gate_first;
    float eps;
};
// norm(x) silu(gate), or norm(x silu(gate)). Grid: (rows, groups).
extern "C" __global__ void __launch_bounds__(256) gate_norm(const __grid_constant__ GateNormParams p) {
    __shared__ float scratch[8];
    pdl_wait();
    pdl_trigger();
    const u64 groups = gridDim.y, at = ((u64)blockIdx.x * groups + blockIdx.y) * p.width;
    const float* gates = p.gates + (u64)blockIdx.x * p.stride + (u64)blockIdx.y * p.width;
    auto value = [&](int i) { return p.gate_first ? p.x[at + i] * activate(gates[i], SILU) : p.x[at + i]; };
    float r = 1.f;
    if (p.weight) {
        float sum = 0.f;
        for (int i = threadIdx.x; i < p.width; i += blockDim.x) sum = fmaf(value(i), value(i), sum);
        r = rsqrtf(over_cta(sum, scratch) / p.width + p.eps);
    }
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) {
        float y = value(i) * r;
        if (p.weight) y *= __ldg(p.weight + (u64)blockIdx.y * p.width + i);
        if (!p.gate_first) y *= activate(gates[i], SILU);
        p.y[at + i] = f32_to_f16(y);
    }
}
