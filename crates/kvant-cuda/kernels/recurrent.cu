// Mixers with recurrent state: causal convolutions, and gated DeltaNets and Mamba-2 token by token. recurrent.cuh has what they compute and in which
// order; recurrent_chunks.cu has the same sums of whole chunks.
//
// A token is computed from the state at the start of its chunk of 64 and the chunk's rows up to its own, in one order: so its bits depend on
// its place in its chunk alone, and not on how tokens came.
#include "recurrent.cuh"

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
    int rows;
    DEVICE float input(int row, int c) const {
        const float* own = x + (u64)row * stride;
        return times_at < 0 ? own[at + c] : __fmul_rn(own[times_at + c], own[at + c]);
    }
    // Of a token `at` after the start of its sequence's first chunk in the pass, from before the pass.
    DEVICE float earlier(const Piece& first, int token, int c) const {
        if (token >= 0) return numbers(pages, first.rows)[(u64)token * row_width + c];
        if (first.state == NO_PAGE) return 0.f;
        return state_number(pages, first.state, state_type, state_count, (u64)(kernel - 1 + token) * channels + c);
    }
    DEVICE void put(int row, int c, float sum) const {
        if (activation >= 0) sum = activate(sum, activation);
        if (y) y[(u64)row * channels + c] = sum;
        if (gated) gated[(u64)row * channels + c] = f32_to_f16(sum * x[(u64)row * stride + gate_at + c]);
    }
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
        return back <= token ? p.input(row - back, c) : p.earlier(first, first.before + token - back, c);
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
    p.put(row, c, y);
}
constexpr int CONVOLVED_ROWS = 8, MOST_TAPS = 4;
// The same of many rows with state in f32 and at most four taps: a thread goes through 8 rows. Grid: (rows / 8, channels / 256).
extern "C" __global__ void __launch_bounds__(256) convolve_many(const __grid_constant__ ConvParams p) {
    const int begin = blockIdx.x * CONVOLVED_ROWS, c = blockIdx.y * blockDim.x + threadIdx.x, unused = MOST_TAPS - p.kernel;
    pdl_wait();
    pdl_trigger();
    if (c >= p.channels) return;
    float taps[MOST_TAPS], inputs[MOST_TAPS - 1 + CONVOLVED_ROWS];  // of rows from three before the first on
#pragma unroll
    for (int i = 0; i < MOST_TAPS; i++) taps[i] = i < unused ? 0.f : __ldg(p.taps + (u64)(i - unused) * p.channels + c);
#pragma unroll
    for (int i = 0; i < MOST_TAPS - 1 + CONVOLVED_ROWS; i++) {
        const int row = begin + i - (MOST_TAPS - 1);
        inputs[i] = row >= 0 && row < p.rows ? p.input(row, c) : 0.f;
    }
    const float bias = p.bias ? __ldg(p.bias + c) : 0.f;
    Piece own = {}, first = {};
    int worst = 0;
#pragma unroll
    for (int i = 0; i < CONVOLVED_ROWS; i++) {
        const int row = begin + i;
        if (row >= p.rows) break;
        if (i == 0 || row >= own.row + own.tokens) own = p.pieces[__ldg(p.piece_of + row)], first = p.pieces[own.first];
        const int token = row - first.row, index = own.before + row - own.row;
        const bool closes = index == STATE_CHUNK - 1 && own.next != NO_PAGE;
        float sum = bias, last = 0.f;
#pragma unroll
        for (int tap = 0; tap < MOST_TAPS; tap++) {
            if (tap < unused) continue;
            const int back = MOST_TAPS - 1 - tap;
            last = back <= token ? inputs[i + tap] : p.earlier(first, first.before + token - back, c);
            sum = fmaf(taps[tap], last, sum);
            if (closes && tap > unused) numbers(p.pages, own.next)[(u64)(tap - unused - 1) * p.channels + c] = last;
        }
        if (is_odd(last)) worst = 1 + row;
        if (own.rows != NO_PAGE) numbers(p.pages, own.rows)[(u64)index * p.row_width + c] = last;
        p.put(row, c, sum);
    }
    if (worst) atomicMax(p.refused, worst);
}

// The sum of quarters that threads i, i + 64, ... left.
DEVICE float quarters(const float* sums, int i) { return __fadd_rn(__fadd_rn(__fadd_rn(sums[i], sums[64 + i]), sums[128 + i]), sums[192 + i]); }

// A CTA goes through the tokens of a sequence one by one. A thread has a channel of the values and a quarter of the sums over channels of keys,
// or a block of those over tokens; for products of keys, a token and a quarter.
template <bool DELTA>
DEVICE void scan(const StateParams& p) {
    DYNAMIC_SHARED(memory);
    __shared__ float decays[STATE_CHUNK], of_keys[STATE_CHUNK], of_queries[STATE_CHUNK], dots[2][STATE_THREADS], sums[2][STATE_THREADS], scratch[2][STATE_THREADS / WARP], step;
    const HeadTile<DELTA> of(p);
    const int K = of.K, KP = K + KEY_PAD, W = of.width, head = of.head, key_head = of.key_head, tid = threadIdx.x, warp = tid / WARP, lane = tid % WARP;
    const int part = tid / STATE_TILE, v = tid % STATE_TILE;
    const bool is_there = v < W;
    const bool is_first = of.tile == 0 && (p.tiled ? head < p.key_heads : head % (p.heads / p.key_heads) == 0);  // of those that read a key head
    float* S = reinterpret_cast<float*>(memory);  // (K, 64)
    float *values = S + K * STATE_TILE, *query = values + STATE_CHUNK * STATE_TILE, *keys = query + K;
    const int begin = part * (K / QUARTERS), end = begin + K / QUARTERS;
    const float rate = __ldg(p.rates + head), skip = DELTA ? 0.f : __ldg(p.skip + head);
    pdl_wait();
    pdl_trigger();
    const int2 sequence = __ldg(p.sequences + blockIdx.y);
    const Piece first = p.pieces[sequence.x];
    of.load(p, first.state, S);
    if (first.before) {
        const float* rows = numbers(p.pages, first.rows);
        for (int j = warp; j < first.before; j += STATE_THREADS / WARP) {
            const float* row = rows + (u64)j * p.row_width;
            for (int c = lane; c < K; c += WARP) keys[j * KP + c] = row[p.row_keys + key_head * K + c];
            for (int c = lane; c < W; c += WARP) values[j * STATE_TILE + c] = row[p.row_values + head * of.V + of.first + c];
        }
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
                const float qq = over_cta(__fmul_rn(q, q), scratch[0]), kk = over_cta(__fmul_rn(k, k), scratch[1]);
                q = __fmul_rn(q, query_length(p, qq)), k = __fmul_rn(k, key_length(p, kk));
            }
            if (tid < K) {
                query[tid] = q, keys[t * KP + tid] = k;
                if (to && is_first) to[p.row_keys + key_head * K + tid] = k;
            }
            if (tid == 0) {
                step = step_of<DELTA>(p, row, head);
                const float sum = fmaf(rate, step, t ? decays[t - 1] : 0.f);
                decays[t] = sum, bad |= is_odd(sum);
                if (to && of.tile == 0) to[p.row_decay + head] = sum;
            }
            __syncthreads();
            const float now = decays[t];
            float with_key = 0.f, with_query = 0.f;
            if (v <= t)
                for (int c = begin; c < end; c += 4) {
                    const float4 other = *reinterpret_cast<const float4*>(keys + v * KP + c);
                    with_query = four(other, *reinterpret_cast<const float4*>(query + c), with_query);
                    if (DELTA) with_key = four(other, *reinterpret_cast<const float4*>(keys + t * KP + c), with_key);
                }
            dots[0][tid] = with_key, dots[1][tid] = with_query;
            // What the state at the chunk's start gives.
            float a = 0.f, b = 0.f;
            if (is_there)
#pragma unroll 8
                for (int c = begin; c < end; c++) {
                    const float s = S[c * STATE_TILE + v];
                    b = fmaf(s, query[c], b);
                    if (DELTA) a = fmaf(s, keys[t * KP + c], a);
                }
            sums[0][tid] = a, sums[1][tid] = b;
            __syncthreads();
            if (tid <= t) {
                const float left = decay(now - decays[tid]);
                of_queries[tid] = __fmul_rn(left, quarters(dots[1], tid));
                if (DELTA) of_keys[tid] = __fmul_rn(left, quarters(dots[0], tid));
            }
            const float given[2] = {__fmul_rn(decay(now), quarters(sums[0], v)), __fmul_rn(decay(now), quarters(sums[1], v))};
            __syncthreads();
            a = b = 0.f;
            for (int j = part * STATE_BLOCK; j < min(t, (part + 1) * STATE_BLOCK); j++) {
                const float u = values[j * STATE_TILE + v];
                b = fmaf(of_queries[j], u, b);
                if (DELTA) a = fmaf(of_keys[j], u, a);
            }
            sums[0][tid] = a, sums[1][tid] = b;
            __syncthreads();
            if (part == 0 && is_there) {
                const int block = t / STATE_BLOCK;
                a = given[0], b = given[1];
                for (int i = 0; i < block; i++) {
                    a = __fadd_rn(a, sums[0][i * STATE_TILE + v]);
                    b = __fadd_rn(b, sums[1][i * STATE_TILE + v]);
                }
                const float own_value = x[p.value_at + head * of.V + of.first + v];
                float u;
                if constexpr (DELTA) u = __fmul_rn(beta_of(p, row, head), less(less(own_value, a), sums[0][block * STATE_TILE + v]));
                else u = __fmul_rn(step, own_value);
                b = __fadd_rn(b, fmaf(of_queries[t], u, sums[1][block * STATE_TILE + v]));
                if (!DELTA) b = fmaf(skip, own_value, b);
                values[t * STATE_TILE + v] = u, bad |= is_odd(u);
                if (to) to[p.row_values + head * of.V + of.first + v] = u;
                p.y[((u64)row * p.heads + head) * of.V + of.first + v] = b;
            }
            if (bad) atomicMax(p.refused, 1 + row);
            __syncthreads();
        }
        if (own.before + own.tokens < STATE_CHUNK) break;
        // The state at the chunk's end.
        if (tid < STATE_CHUNK) of_keys[tid] = decay(decays[STATE_CHUNK - 1] - decays[tid]);
        __syncthreads();
        const float whole = decay(decays[STATE_CHUNK - 1]);
        for (int c = begin; is_there && c < end; c += 4) {
            float s[4];
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] = __fmul_rn(whole, S[(c + i) * STATE_TILE + v]);
            for (int j = 0; j < STATE_CHUNK; j++) {
                const float4 k = *reinterpret_cast<const float4*>(keys + j * KP + c);
                const float u = __fmul_rn(of_keys[j], values[j * STATE_TILE + v]);
                s[0] = fmaf(k.x, u, s[0]), s[1] = fmaf(k.y, u, s[1]), s[2] = fmaf(k.z, u, s[2]), s[3] = fmaf(k.w, u, s[3]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) S[(c + i) * STATE_TILE + v] = s[i], bad |= is_odd(s[i]);
        }
        __syncthreads();
        bad |= of.close(p, own.next, S);
        if (bad) atomicMax(p.refused, row);
        __syncthreads();
    }
}
// Grid: (heads x tiles of 64 channels of values, sequences).
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 1) scan_delta(const __grid_constant__ StateParams p) { scan<true>(p); }
extern "C" __global__ void __launch_bounds__(STATE_THREADS, 1) scan_mamba(const __grid_constant__ StateParams p) { scan<false>(p); }

struct GateNormParams {
    const float* x;       // (rows, groups, width)
    const float* gates;   // (rows, stride)
    const float* weight;  // (groups, width) of an RMS norm of every group, or null
    u16* y;               // (rows, groups, width) f16
    int width, stride, gate_first;
    float eps;
    int groups;
};
constexpr int NARROW_GROUP = 512;
// norm(x) silu(gate), or norm(x silu(gate)): a CTA for every group, or a warp where groups have at most 512 numbers. Grid: (rows, groups or eighths of them).
extern "C" __global__ void __launch_bounds__(256) gate_norm(const __grid_constant__ GateNormParams p) {
    __shared__ float scratch[8];
    pdl_wait();
    pdl_trigger();
    const bool narrow = p.width <= NARROW_GROUP;
    const int group = narrow ? blockIdx.y * 8 + threadIdx.x / WARP : blockIdx.y, lane = threadIdx.x % WARP;
    if (group >= p.groups) return;
    const u64 at = ((u64)blockIdx.x * p.groups + group) * p.width;
    const float *x = p.x + at, *gates = p.gates + (u64)blockIdx.x * p.stride + (u64)group * p.width, *weight = p.weight ? p.weight + (u64)group * p.width : nullptr;
    auto value = [&](float own, float gate) { return p.gate_first ? own * activate(gate, SILU) : own; };
    auto put = [&](int i, float y, float gate) {
        if (weight) y *= __ldg(weight + i);
        if (!p.gate_first) y *= activate(gate, SILU);
        p.y[at + i] = f32_to_f16(y);
    };
    if (!narrow) {
        float r = 1.f, sum = 0.f;
        if (weight) {
            for (int i = threadIdx.x; i < p.width; i += blockDim.x) sum = fmaf(value(x[i], gates[i]), value(x[i], gates[i]), sum);
            r = rsqrtf(over_cta(sum, scratch) / p.width + p.eps);
        }
        for (int i = threadIdx.x; i < p.width; i += blockDim.x) put(i, value(x[i], gates[i]) * r, gates[i]);
        return;
    }
    float own[NARROW_GROUP / WARP], gate[NARROW_GROUP / WARP], sum = 0.f;
#pragma unroll
    for (int i = 0; i < NARROW_GROUP / WARP; i++) {
        const int n = i * WARP + lane;
        own[i] = gate[i] = 0.f;
        if (n < p.width) own[i] = x[n], gate[i] = gates[n];
    }
#pragma unroll
    for (int i = 0; i < NARROW_GROUP / WARP; i++) {
        if (i * WARP >= p.width) continue;
        own[i] = value(own[i], gate[i]);
        sum = fmaf(own[i], own[i], sum);
    }
    const float r = weight ? rsqrtf(over_warp(sum, [](float a, float b) { return a + b; }) / p.width + p.eps) : 1.f;
#pragma unroll
    for (int i = 0; i < NARROW_GROUP / WARP; i++)
        if (i * WARP + lane < p.width) put(i * WARP + lane, own[i] * r, gate[i]);
}
