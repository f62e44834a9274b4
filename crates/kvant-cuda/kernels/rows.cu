// What is done to rows of activations between products: norms, rotation and append, gates, biases, the choice of rows and of a token; and to
// page tables and new pages before a pass. One CTA per row or head; sums go over lanes, then over warps, in a fixed order.
#include "functions.cuh"
#include "pages.cuh"

struct NormParams {
    const float* x;       // (rows, channels)
    const float* weight;  // (channels)
    u16* y;               // (rows, channels) f16
    int channels;
    float eps;
};
extern "C" __global__ void __launch_bounds__(512) rms_norm(const __grid_constant__ NormParams p) {
    __shared__ float scratch[16];
    pdl_wait();
    pdl_trigger();
    const float4* x = reinterpret_cast<const float4*>(p.x + (u64)blockIdx.x * p.channels);
    float sum = 0.f;
    for (int i = threadIdx.x; i < p.channels / 4; i += blockDim.x) {
        const float4 v = x[i];
        sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
    const float r = rsqrtf(over_cta(sum, scratch) / p.channels + p.eps);
    for (int i = threadIdx.x; i < p.channels / 4; i += blockDim.x) {
        const float4 v = x[i], w = __ldg(reinterpret_cast<const float4*>(p.weight) + i);
        reinterpret_cast<uint2*>(p.y)[(u64)blockIdx.x * (p.channels / 4) + i] =
            make_uint2(pack_f16x2(v.x * r * w.x, v.y * r * w.y), pack_f16x2(v.z * r * w.z, v.w * r * w.w));
    }
}

// x += norm(branch): a norm after a block. `y` is the stream, (rows, channels) f32.
struct NormAddParams {
    const float* x;       // (rows, channels)
    const float* weight;  // (channels)
    float* y;
    int channels;
    float eps;
};
extern "C" __global__ void __launch_bounds__(512) norm_add(const __grid_constant__ NormAddParams p) {
    __shared__ float scratch[16];
    pdl_wait();
    pdl_trigger();
    const float* x = p.x + (u64)blockIdx.x * p.channels;
    float sum = 0.f;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) sum = fmaf(x[i], x[i], sum);
    const float r = rsqrtf(over_cta(sum, scratch) / p.channels + p.eps);
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) p.y[(u64)blockIdx.x * p.channels + i] += x[i] * r * __ldg(p.weight + i);
}

struct ActivateParams {
    const float* inner;  // (rows, channels), or (rows, 2 * channels): gates, then ups
    u16* y;              // (rows, channels) f16
    int channels, activation, gated;
    float gate_scale;
    float limit, alpha;  // gpt-oss: bounds of gates and ups, and the multiplier inside the sigmoid; a limit of 0 for none
};
// Grid: (rows, any).
extern "C" __global__ void __launch_bounds__(256) activate_rows(const __grid_constant__ ActivateParams p) {
    pdl_wait();
    pdl_trigger();
    const float* gate = p.inner + (u64)blockIdx.x * (p.gated ? 2 : 1) * p.channels;
    u16* const out = p.y + (u64)blockIdx.x * p.channels;
    auto inner = [&](float gate, float up) {
        const float x = p.gate_scale * gate;
        if (!(p.limit > 0.f)) return activate(x, p.activation) * up;
        const float g = fminf(x, p.limit), u = fminf(fmaxf(up, -p.limit), p.limit);
        return g / (1.f + ex2(-p.alpha * g * LOG2_E)) * (u + 1.f);
    };
    const int first = blockIdx.y * blockDim.x + threadIdx.x, step = gridDim.y * blockDim.x;
    if (p.channels % 4) {
        for (int i = first; i < p.channels; i += step) out[i] = f32_to_f16(inner(gate[i], p.gated ? gate[p.channels + i] : 1.f));
        return;
    }
    for (int i = first; i < p.channels / 4; i += step) {
        const float4 x = reinterpret_cast<const float4*>(gate)[i];
        const float4 up = p.gated ? reinterpret_cast<const float4*>(gate + p.channels)[i] : make_float4(1.f, 1.f, 1.f, 1.f);
        reinterpret_cast<uint2*>(out)[i] =
            make_uint2(pack_f16x2(inner(x.x, up.x), inner(x.y, up.y)), pack_f16x2(inner(x.z, up.z), inner(x.w, up.w)));
    }
}

struct AppendParams {
    const float* qkv;        // (rows, stride): queries, keys and values of heads, by the places below
    const float2* turns;     // (rows, pairs): cos, sin of each rotated pair
    const float *q_norm, *k_norm, *v_norm;  // (D) RMS norms of heads, or null
    const float* gains;      // (rows) multipliers of queries, or null
    u16* q;                  // (rows, heads, D) f16
    u8* pages;               // page memory
    const PageEntry* exact;  // (rows of the table, kv_heads, exact_stride)
    const int4* targets;     // (rows): row of the table, which exact page, which token of it
    int* refused;            // the largest 1 + row whose numbers f16 does not hold
    int heads, kv_heads, exact_stride, pairs;
    int neighbours;          // pairs are channels 2i, 2i+1 instead of i, i + pairs
    int norm_last;           // queries and keys are normed after their rotation
    int stride, q_step, kv_step, k_at, v_at;  // numbers of a row; from a head to the next; where keys and values begin
    float q_eps, k_eps, v_eps, key_scale;
    int k_element, v_element;  // numbers of exact pages: 0 f16, 1 f32, 2 bf16
};
// A number of an exact page; whether it can be stored there.
DEVICE bool put_exact(u8* page, int at, float x, int element) {
    if (element == 1) {
        reinterpret_cast<float*>(page)[at] = x;
        return fabsf(x) <= 3.4028235e38f;
    }
    if (element == 2) {  // to nearest, ties to even
        const u32 bits = __float_as_uint(x);
        reinterpret_cast<u16*>(page)[at] = (u16)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        return fabsf(x) <= 3.38e38f;
    }
    const u16 y = f32_to_f16(x);
    reinterpret_cast<u16*>(page)[at] = y;
    return fabsf(f16_to_f32(y)) <= 65504.f;
}
// Where keys are of a plan: queries go into its basis too.
struct TurnParams {
    u16* y;              // (rows, heads, D) f16
    float* bias;         // (rows, heads): products with the keys' mean
    const float* bases;  // (kv_heads, D + 1, D): for every channel of the model what it adds to those of the basis; the mean
};
// PARTS * D threads share the channels of the model. A thread's part of the matrix is read before the queries are there.
template <int D, int PARTS>
struct Turn {
    static constexpr int OWN = D / PARTS;
    float m[OWN], mean;
    DEVICE Turn(const TurnParams& p, int kv, int part, int c) {
        const float* basis = p.bases + (u64)kv * (D + 1) * D;
#pragma unroll
        for (int j = 0; j < OWN; j++) m[j] = __ldg(basis + (part * OWN + j) * D + c);
        mean = __ldg(basis + D * D + c);
    }
    // `head`: the query, of all threads' making, by a barrier before.
    DEVICE void write(const TurnParams& p, const float* head, u64 at, int part, int c, int row, int* refused) const {
        __shared__ float sums[PARTS][D], means[D / WARP];
        float y = 0.f, bias = mean * head[c];
#pragma unroll
        for (int j = 0; j < OWN; j++) y = fmaf(m[j], head[part * OWN + j], y);
        sums[part][c] = y;
        if (part == 0) {
            bias = over_warp(bias, [](float a, float b) { return a + b; });
            if (c % WARP == 0) means[c / WARP] = bias;
        }
        __syncthreads();
        if (part) return;
#pragma unroll
        for (int i = 1; i < PARTS; i++) y += sums[i][c];
        const u16 half = f32_to_f16(y);
        if (!(fabsf(f16_to_f32(half)) <= 65504.f)) atomicMax(refused, 1 + row);
        p.y[at * D + c] = half;
        if (c == 0) {
            for (int w = 1; w < D / WARP; w++) bias += means[w];
            p.bias[at] = bias;
        }
    }
};

template <int D>
struct Turn<D, 1> {  // none
    DEVICE Turn(const TurnParams&, int, int, int) {}
};

// Of the sum of squares over a head.
template <int D>
DEVICE float inverse_rms(float squares, float eps) { return rsqrtf(__fadd_rn(__fdiv_rn(squares, D), eps)); }

// Grid: (rows, heads + 2 kv_heads); D threads, and as many more as make whole warps; PARTS times as many where queries are turned.
template <int D, int PARTS>
DEVICE void append(const AppendParams& p, const TurnParams& turning) {
    __shared__ float head[D], scratch[(D * PARTS + WARP - 1) / WARP];
    const int row = blockIdx.x, h = blockIdx.y, part = PARTS > 1 ? threadIdx.x / D : 0, c = threadIdx.x - part * D, kv = h - p.heads;
    const bool is_query = h < p.heads, is_value = kv >= p.kv_heads;
    const Turn<D, PARTS> turn(turning, is_query ? h / (p.heads / p.kv_heads) : 0, part, c);
    pdl_wait();
    pdl_trigger();
    const bool beyond = D % WARP && c >= D;
    const int at = is_query ? h * p.q_step : is_value ? p.v_at + (kv - p.kv_heads) * p.kv_step : p.k_at + kv * p.kv_step;
    float x = beyond ? 0.f : p.qkv[(u64)row * p.stride + at + c];
    if (!is_query && !is_value) x *= p.key_scale;
    const float* norm = is_query ? p.q_norm : is_value ? p.v_norm : p.k_norm;
    const float eps = is_query ? p.q_eps : is_value ? p.v_eps : p.k_eps;
    auto normed = [&](float x) { return x * inverse_rms<D>(over_cta(part ? 0.f : __fmul_rn(x, x), scratch), eps) * (beyond ? 0.f : __ldg(norm + c)); };
    if (norm && (is_value || !p.norm_last)) x = normed(x);
    if (!is_value && c < 2 * p.pairs && part == 0) {
        // Partners exchange numbers; all threads of the rotated part are here.
        head[c] = x;
    }
    __syncthreads();
    if (!is_value && c < 2 * p.pairs) {
        const int pair = p.neighbours ? c / 2 : c % p.pairs;
        const bool second = p.neighbours ? c % 2 : c >= p.pairs;
        const float other = head[p.neighbours ? c ^ 1 : second ? c - p.pairs : c + p.pairs];
        const float2 turn = __ldg(p.turns + (u64)row * p.pairs + pair);
        x = __fadd_rn(__fmul_rn(x, turn.x), __fmul_rn(other, second ? turn.y : -turn.y));
    }
    if (norm && !is_value && p.norm_last) x = normed(x);
    if (is_query && p.gains) x *= __ldg(p.gains + row);
    if (beyond) return;
    if (is_query) {
        const u16 y = f32_to_f16(x);
        if (!(fabsf(f16_to_f32(y)) <= 65504.f)) atomicMax(p.refused, 1 + row);
        const u64 at = (u64)row * p.heads + h;
        if (part == 0) p.q[at * D + c] = y;
        if constexpr (PARTS > 1) {
            __syncthreads();
            if (part == 0) head[c] = f16_to_f32(y);
            __syncthreads();
            turn.write(turning, head, at, part, c, row, p.refused);
        }
        return;
    }
    if (part) return;
    const int4 target = __ldg(p.targets + row);
    const PageEntry entry = __ldg(p.exact + ((u64)target.x * p.kv_heads + kv % p.kv_heads) * p.exact_stride + target.y);
    u8* page = p.pages + (u64)(is_value ? entry.y : entry.x) * UNIT;
    const int to = is_value ? Exact<D>::value_at(target.z, c) : Exact<D>::key_at(target.z, c);
    if (!put_exact(page, to, x, is_value ? p.v_element : p.k_element)) atomicMax(p.refused, 1 + row);
}
#define APPEND(D, THREADS) \
    extern "C" __global__ void __launch_bounds__(THREADS) append_d##D(const __grid_constant__ AppendParams p) { append<D, 1>(p, TurnParams{}); }
APPEND(64, 64)
APPEND(80, 96)
APPEND(96, 96)
APPEND(128, 128)
APPEND(192, 192)
APPEND(256, 256)
APPEND(512, 512)

// The same for many rows: a warp for a head, whose lanes have channels lane, lane + 32, …; squares are added up in the order of `over_cta`. Grid: (rows,
// heads + 2 kv_heads over the warps of a CTA).
constexpr int APPEND_WARPS = 8;  // at most
template <int D>
DEVICE void append_many(const AppendParams& p) {
    constexpr int OWN = D / WARP;
    __shared__ float heads[APPEND_WARPS][OWN * WARP];
    const int row = blockIdx.x, h = blockIdx.y * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP, kv = h - p.heads;
    const bool is_query = h < p.heads, is_value = kv >= p.kv_heads;
    float* const head = heads[threadIdx.x / WARP];
    pdl_wait();
    pdl_trigger();
    static_assert(D % WARP == 0, "as many channels for each lane");
    const int at = is_query ? h * p.q_step : is_value ? p.v_at + (kv - p.kv_heads) * p.kv_step : p.k_at + kv * p.kv_step;
    const float* from = p.qkv + (u64)row * p.stride + at + lane;
    float x[OWN];
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        x[i] = from[WARP * i];
        if (!is_query && !is_value) x[i] *= p.key_scale;
    }
    const float* norm = is_query ? p.q_norm : is_value ? p.v_norm : p.k_norm;
    const float eps = is_query ? p.q_eps : is_value ? p.v_eps : p.k_eps;
    auto normed = [&]() {
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < OWN; i++) sum += over_warp(__fmul_rn(x[i], x[i]), [](float a, float b) { return a + b; });
        const float r = inverse_rms<D>(sum, eps);
#pragma unroll
        for (int i = 0; i < OWN; i++) x[i] = x[i] * r * __ldg(norm + WARP * i + lane);
    };
    if (norm && (is_value || !p.norm_last)) normed();
    if (!is_value && p.pairs) {
#pragma unroll
        for (int i = 0; i < OWN; i++) head[WARP * i + lane] = x[i];
        __syncwarp();
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int c = WARP * i + lane, pair = p.neighbours ? c / 2 : c % p.pairs;
            if (c >= 2 * p.pairs) continue;
            const bool second = p.neighbours ? c % 2 : c >= p.pairs;
            const float other = head[p.neighbours ? c ^ 1 : second ? c - p.pairs : c + p.pairs];
            const float2 turn = __ldg(p.turns + (u64)row * p.pairs + pair);
            x[i] = __fadd_rn(__fmul_rn(x[i], turn.x), __fmul_rn(other, second ? turn.y : -turn.y));
        }
    }
    if (norm && !is_value && p.norm_last) normed();
    const float gain = is_query && p.gains ? __ldg(p.gains + row) : 1.f;
    PageEntry entry = {};
    int4 target = {};
    if (!is_query) {
        target = __ldg(p.targets + row);
        entry = __ldg(p.exact + ((u64)target.x * p.kv_heads + kv % p.kv_heads) * p.exact_stride + target.y);
    }
    u8* const page = p.pages + (u64)(is_value ? entry.y : entry.x) * UNIT;
    u16* const q = p.q + ((u64)row * p.heads + h) * D;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int c = WARP * i + lane;
        if (is_query && p.gains) x[i] *= gain;
        if (is_query) {
            q[c] = f32_to_f16(x[i]);
            bad |= !(fabsf(f16_to_f32(q[c])) <= 65504.f);
        } else {
            const int to = is_value ? Exact<D>::value_at(target.z, c) : Exact<D>::key_at(target.z, c);
            bad |= !put_exact(page, to, x[i], is_value ? p.v_element : p.k_element);
        }
    }
    if (bad) atomicMax(p.refused, 1 + row);
}
#define APPEND_MANY(D) \
    extern "C" __global__ void __launch_bounds__(WARP * APPEND_WARPS) append_many_d##D(const __grid_constant__ AppendParams p) { append_many<D>(p); }
APPEND_MANY(64)
APPEND_MANY(128)
APPEND_MANY(256)
struct AppendTurnParams {
    AppendParams append;
    TurnParams turn;
};
#define APPEND_KLT(D)                                                                                                      \
    extern "C" __global__ void __launch_bounds__(4 * D) append_klt_d##D(const __grid_constant__ AppendTurnParams p) {      \
        append<D, 4>(p.append, p.turn);                                                                                    \
    }
APPEND_KLT(64)
APPEND_KLT(128)

struct ArgmaxParams {
    const float* logits;  // (rows, vocabulary)
    int* ids;             // (rows)
    int vocabulary;
};
// The first of the largest logits; NaN is never chosen, and 0 where nothing can be. 1024 threads per row.
extern "C" __global__ void __launch_bounds__(1024) argmax(const __grid_constant__ ArgmaxParams p) {
    __shared__ u64 best[32];
    pdl_wait();
    pdl_trigger();
    const float* row = p.logits + (u64)blockIdx.x * p.vocabulary;
    u64 top = 0;  // the logit as an ordered integer, above the complement of its place
    for (int i = threadIdx.x; i < p.vocabulary; i += blockDim.x) {
        const float x = row[i];
        if (x != x) continue;
        const u32 bits = __float_as_uint(x == 0.f ? 0.f : x);
        const u64 key = (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | ~(u32)i;
        top = key > top ? key : top;
    }
    auto reduce = [&](u64 x) {
        for (int o = 16; o; o /= 2) {
            const u64 other = __shfl_xor_sync(~0u, x, o);
            x = other > x ? other : x;
        }
        return x;
    };
    top = reduce(top);
    if (threadIdx.x % WARP == 0) best[threadIdx.x / WARP] = top;
    __syncthreads();
    if (threadIdx.x < WARP) {
        top = reduce(best[threadIdx.x]);
        if (threadIdx.x == 0) p.ids[blockIdx.x] = top ? (int)~(u32)top : 0;
    }
}

struct BiasParams {
    float* y;           // (rows, width)
    const float* bias;  // (width)
    int width;
};
// Grid: (rows, any).
extern "C" __global__ void __launch_bounds__(256) add_bias(const __grid_constant__ BiasParams p) {
    pdl_wait();
    pdl_trigger();
    float* y = p.y + (u64)blockIdx.x * p.width;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.width; i += gridDim.y * blockDim.x) y[i] += __ldg(p.bias + i);
}

// Adds up the sums of segments of wide.cu, in ascending order. Grid: (any).
struct SegmentsParams {
    const float* sums;  // (segments, numbers)
    float* y;           // (numbers), whole fours
    int segments, numbers, accumulate;
    float scale;
};
extern "C" __global__ void __launch_bounds__(256) add_segments(const __grid_constant__ SegmentsParams p) {
    pdl_wait();
    pdl_trigger();
    const int fours = p.numbers / 4;
    float4* const y = reinterpret_cast<float4*>(p.y);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < fours; i += gridDim.x * blockDim.x) {
        const float4* from = reinterpret_cast<const float4*>(p.sums) + i;
        float4 before = {0.f, 0.f, 0.f, 0.f}, sum = before;
        if (p.accumulate) before = y[i];
#pragma unroll 8
        for (int s = 0; s < p.segments; s++) {
            const float4 x = __ldcg(from + (u64)s * fours);
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        auto put = [&](float sum, float before) { return p.accumulate ? fmaf(p.scale, sum, before) : p.scale * sum; };
        y[i] = {put(sum.x, before.x), put(sum.y, before.y), put(sum.z, before.z), put(sum.w, before.w)};
    }
}

struct ColumnsParams {
    const float* x;  // (rows, width)
    float* y;        // (rows, stride)
    int width, stride, at;  // columns at … at + width of y
};
// Products of matrices of different types side by side. Grid: (rows, any).
extern "C" __global__ void __launch_bounds__(256) put_columns(const __grid_constant__ ColumnsParams p) {
    pdl_wait();
    pdl_trigger();
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.width; i += gridDim.y * blockDim.x)
        p.y[(u64)blockIdx.x * p.stride + p.at + i] = p.x[(u64)blockIdx.x * p.width + i];
}

struct GatherParams {
    const float* x;   // (any, channels)
    const int* rows;  // (grid) which of them
    float* y;         // (grid, channels)
    int channels;
};
extern "C" __global__ void __launch_bounds__(256) gather_rows(const __grid_constant__ GatherParams p) {
    pdl_wait();
    pdl_trigger();
    const float* x = p.x + (u64)__ldg(p.rows + blockIdx.x) * p.channels;
    for (int i = threadIdx.x; i < p.channels; i += blockDim.x) p.y[(u64)blockIdx.x * p.channels + i] = x[i];
}

struct ClearParams {
    u8* pages;          // page memory
    const uint2* list;  // (grid): unit, units
};
// Pages that were given back and taken again.
extern "C" __global__ void __launch_bounds__(128) clear_pages(const __grid_constant__ ClearParams p) {
    const uint2 page = p.list[blockIdx.x];
    uint4* words = reinterpret_cast<uint4*>(p.pages + (u64)page.x * UNIT);
    for (u32 i = threadIdx.x; i < page.y * (UNIT / 16); i += blockDim.x) words[i] = uint4{0u, 0u, 0u, 0u};
}
