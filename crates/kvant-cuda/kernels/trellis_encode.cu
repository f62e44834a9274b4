// Entry points: pages of a trellis. Widths, leaks, scales and zeros of keys; the leak and the factors of values; then the search for codes.
#include "general_encode.cuh"

constexpr int TRELLIS_QUADS = ENCODED_DIM / 4;

// Everything of a page of keys before its codes. Grid: (jobs).
extern "C" __global__ void __launch_bounds__(ENCODING_THREADS, 1) trellis_keys(const __grid_constant__ GeneralEncodeParams p) {
    __shared__ float mean[ENCODED_DIM], square[ENCODED_DIM], innovation[ENCODED_DIM], largest[ENCODED_DIM], first[ENCODED_DIM], product[ENCODED_DIM];
    __shared__ float quad_square[TRELLIS_QUADS], quad_innovation[TRELLIS_QUADS], weight[TRELLIS_QUADS], gain[TRELLIS_QUADS];
    __shared__ int leak[TRELLIS_QUADS], place[TRELLIS_QUADS];
    const int tid = threadIdx.x, lane = tid % WARP;
    pdl_wait();
    pdl_trigger();
    const EncodeJob job(p, blockIdx.x, 0);
    if (job.number < 0 || job.form->part[0].kind != TRELLIS_PART) return;
    const PageForm& form = *job.form;
    const PagePart& own = form.part[0];
    const EncodeRoom room(job.room, form);
    u8* page = p.pages + (u64)job.job.y * UNIT;
    const int quads = own.rows, tokens = form.tokens, channels = 4 * quads;
    bool bad = false;
    for (int i = tid; i < own.bytes; i += ENCODING_THREADS) page[i] = 0;
    for (int c = tid; c < channels; c += ENCODING_THREADS) {
        auto x = [&](int t) { return c < form.dim ? room.rows[t * room.stride + c] : 0.f; };
        float sum = 0.f, squares = 0.f, products = 0.f;
        for (int t = 0; t < tokens; t++) {
            sum = plus(sum, x(t));
            bad |= !(fabsf(x(t)) <= 3.4e38f);
        }
        const float m = times(sum, 1.f / 128.f);
        float before = m;
        for (int t = 0; t < tokens; t++) {
            const float y = minus(x(t), m);
            squares = plus(squares, times(y, y));
            products = plus(products, times(y, minus(before, m)));
            before = x(t);
        }
        mean[c] = m, square[c] = squares, product[c] = products, first[c] = fabsf(minus(x(0), m));
    }
    __syncthreads();
    for (int q = tid; q < quads; q += ENCODING_THREADS) {
        float squares = 0.f, products = 0.f;
        for (int c = 4 * q; c < 4 * q + 4; c++) squares = plus(squares, square[c]), products = plus(products, product[c]);
        const float ratio = squares > 0.f ? over(times(256.f, products), squares) : 0.f;
        int best = 0;
        float nearest = fabsf(minus(0.f, ratio));
#pragma unroll
        for (int i = 1; i < 5; i++) {
            const int l = i == 4 ? 224 : 64 * i;
            const float away = fabsf(minus((float)l, ratio));
            if (away < nearest) best = l, nearest = away;
        }
        leak[q] = best, quad_square[q] = squares;
        weight[q] = own.planned || squares <= 0.f ? 1.f : over(1.f, __fsqrt_rn(__fsqrt_rn(squares)));
        place[q] = 0;
    }
    __syncthreads();
    for (int c = tid; c < channels; c += ENCODING_THREADS) {
        auto x = [&](int t) { return c < form.dim ? room.rows[t * room.stride + c] : 0.f; };
        const float rho = over((float)leak[c / 4], 256.f), offset = times(minus(1.f, rho), mean[c]);
        float squares = 0.f, top = 0.f;
        for (int t = 1; t < tokens; t++) {
            const float e = minus(minus(x(t), times(rho, x(t - 1))), offset);
            squares = plus(squares, times(e, e)), top = fmaxf(top, fabsf(e));
        }
        innovation[c] = squares, largest[c] = top;
    }
    __syncthreads();
    // Bits one after another to where they help most; of equals the first. Lanes have quads lane, lane + 32, …
    auto error = [&](int q, int at) {
        const float rho = over((float)leak[q], 256.f), d = trellis_distortion(at);
        const float coded = over(times(quad_innovation[q], d), minus(1.f, times(times(rho, rho), d)));
        return times(weight[q], at ? coded : quad_square[q]);
    };
    auto cost_at = [&](int at) { return at + 1 < TRELLIS_PLACES ? trellis_width(at + 1) - trellis_width(at) : 1 << 20; };
    auto gain_at = [&](int q, int at) {
        return at + 1 < TRELLIS_PLACES ? over(minus(error(q, at), error(q, at + 1)), (float)cost_at(at)) : 0.f;
    };
    for (int q = tid; q < quads; q += ENCODING_THREADS) {
        float innovations = 0.f;
        for (int c = 4 * q; c < 4 * q + 4; c++) innovations = plus(innovations, innovation[c]);
        quad_innovation[q] = innovations;
        gain[q] = gain_at(q, 0);
    }
    __syncthreads();
    if (tid < WARP) {
        int left = own.bits;
        while (left > 0) {
            int best = -1;
            float most = 0.f;
            for (int q = lane; q < quads; q += WARP)
                if (cost_at(place[q]) <= left && (best < 0 || gain[q] > most)) best = q, most = gain[q];
#pragma unroll
            for (int o = 16; o; o /= 2) {
                const int other = __shfl_xor_sync(~0u, best, o);
                const float of_other = __shfl_xor_sync(~0u, most, o);
                if (other >= 0 && (best < 0 || of_other > most || (of_other == most && other < best))) best = other, most = of_other;
            }
            if (best < 0) break;
            left -= cost_at(place[best]);
            __syncwarp();
            if (best % WARP == lane) place[best]++, gain[best] = gain_at(best, place[best]);
            __syncwarp();
        }
    }
    __syncthreads();
    for (int q = tid; q < quads; q += ENCODING_THREADS) page[q] = (u8)(leak[q] | trellis_width(place[q]));
    for (int c = tid; c < form.dim; c += ENCODING_THREADS) {
        const int at = place[c / 4], bits = trellis_width(at), l = leak[c / 4];
        const float rho = over((float)l, 256.f), for_mean = over(fabsf(mean[c]), 63.f);
        float wanted = for_mean;
        if (bits) {
            const float top = times(__ldg(&p.tables->unit[bits]), trellis_reach(bits));
            const float deviation = __fsqrt_rn(over(innovation[c], (float)(tokens - 1)));
            const float coded = over(deviation, __fsqrt_rn(minus(1.f, times(times(rho, rho), trellis_distortion(at)))));
            const float start = over(first[c], times(__ldg(&p.tables->first[l][0]), top));
            wanted = fmaxf(fmaxf(fmaxf(coded, over(largest[c], top)), start), for_mean);
        }
        const int exponent = scale_exponent(wanted);
        bad |= exponent > 255;
        const float scale = __ldg(&p.tables->scale[exponent & 255]);
        const float steps = scale > 0.f ? over(times(2.f, mean[c]), scale) : 0.f;
        page[own.scales + c] = (u8)exponent;
        page[own.scales + channels + c] = (u8)(signed char)(int)fminf(fmaxf(rintf(steps), -127.f), 127.f);
    }
    if (bad) atomicMax(p.refused, 1 + job.number);
}

// The leak and the factors of a page of values. Grid: (jobs).
extern "C" __global__ void __launch_bounds__(ENCODING_THREADS, 1) trellis_values(const __grid_constant__ GeneralEncodeParams p) {
    __shared__ float token[ENCODED_TOKENS], channel[ENCODED_DIM], inverse[ENCODED_DIM], square[ENCODED_DIM], product[ENCODED_DIM];
    __shared__ int shared_leak, shared_exponent;
    const int tid = threadIdx.x;
    pdl_wait();
    pdl_trigger();
    const EncodeJob job(p, blockIdx.x, 1);
    if (job.number < 0 || job.form->part[0].kind != TRELLIS_PART) return;
    const PageForm& form = *job.form;
    const PagePart& own = form.part[0];
    const EncodeRoom room(job.room, form);
    u8* page = p.pages + (u64)job.job.y * UNIT;
    const int tokens = form.tokens, stride = room.stride;
    bool bad = false;
    for (int i = tid; i < own.bytes; i += ENCODING_THREADS) page[i] = 0;
    for (int c = tid; c < stride; c += ENCODING_THREADS) {
        float squares = 0.f, products = 0.f;
        for (int t = 1; t < tokens; t++) {
            const float x = room.rows[t * stride + c], before = room.rows[(t - 1) * stride + c];
            squares = plus(squares, times(x, x)), products = plus(products, times(x, before));
            bad |= !(fabsf(x) <= 3.4e38f && fabsf(before) <= 3.4e38f);
        }
        square[c] = squares, product[c] = products;
    }
    __syncthreads();
    if (tid == 0) {
        float squares = 0.f, products = 0.f;
        for (int c = 0; c < stride; c++) squares = plus(squares, square[c]), products = plus(products, product[c]);
        const float ratio = squares > 0.f ? over(products, squares) : 0.f;
        shared_leak = (int)fminf(fmaxf(rintf(times(256.f, ratio)), 0.f), 240.f);
    }
    for (int t = tid; t < tokens; t += ENCODING_THREADS) token[t] = 1.f;
    __syncthreads();
    const float rho = over((float)shared_leak, 256.f);
    auto rest = [&](int t, int c) { return minus(room.rows[t * stride + c], times(rho, room.rows[(t - 1) * stride + c])); };
    auto fit_channels = [&]() {
        for (int c = tid; c < stride; c += ENCODING_THREADS) {
            float sum = 0.f;
            for (int t = 1; t < tokens; t++) {
                const float x = rest(t, c);
                sum = plus(sum, times(times(x, x), over(1.f, times(token[t], token[t]))));
            }
            const float x = __fsqrt_rn(over(sum, (float)(tokens - 1)));
            channel[c] = x, inverse[c] = x > 0.f ? over(1.f, times(x, x)) : 0.f;
        }
        __syncthreads();
    };
#pragma unroll 1
    for (int round = 0; round < 4; round++) {
        fit_channels();
        for (int t = 1 + tid; t < tokens; t += ENCODING_THREADS) {
            float sum = 0.f;
            for (int c = 0; c < stride; c++) {
                const float x = rest(t, c);
                sum = plus(sum, times(times(x, x), inverse[c]));
            }
            token[t] = fmaxf(__fsqrt_rn(over(sum, (float)form.dim)), 0.02f);
        }
        __syncthreads();
    }
    for (int i = tid; i < tokens / 2; i += ENCODING_THREADS) {
        const int low = half_exponent(token[2 * i]), high = half_exponent(token[2 * i + 1]);
        page[2 + i] = (u8)(low | high << 4);
        token[2 * i] = __ldg(&p.tables->scale[128 + 4 * (low - 8)]), token[2 * i + 1] = __ldg(&p.tables->scale[128 + 4 * (high - 8)]);
    }
    __syncthreads();
    fit_channels();
    if (tid == 0) {
        float sum = 0.f;
        for (int c = 0; c < form.dim; c++) sum = plus(sum, times(channel[c], channel[c]));
        const int exponent = scale_exponent(__fsqrt_rn(over(sum, (float)form.dim)));
        bad |= exponent > 255;
        shared_exponent = exponent & 255;
        page[0] = (u8)exponent, page[1] = (u8)shared_leak;
    }
    __syncthreads();
    const float whole = __ldg(&p.tables->scale[shared_exponent]);
    for (int i = tid; i < (form.dim + 1) / 2; i += ENCODING_THREADS) {
        const int low = quarter_exponent(over(channel[2 * i], whole)), high = 2 * i + 1 < form.dim ? quarter_exponent(over(channel[2 * i + 1], whole)) : 0;
        page[own.scales + i] = (u8)(low | high << 4);
    }
    if (bad) atomicMax(p.refused, 1 + job.number);
}

// The best codes of a channel: Viterbi's search over windows. What matters of the codes so far are the 8 - b bits that the next window keeps, a state; of
// all codes that lead to one only the cheapest can be part of the best. A warp for a channel, lanes have states lane, lane + 32, …
constexpr int SEARCH_WARPS = 4, SEARCH_STATES = 128;
struct TrellisSearch {
    float costs[2][SEARCH_STATES], predicted[SEARCH_STATES], left[SEARCH_STATES];
    u8 back[ENCODED_TOKENS][SEARCH_STATES];
    u8 codes[ENCODED_TOKENS];
};
// Grid: (jobs times fours of channels, sides).
extern "C" __global__ void __launch_bounds__(SEARCH_WARPS * WARP) trellis_search(const __grid_constant__ GeneralEncodeParams p) {
    DYNAMIC_SHARED(memory);
    const int side = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    TrellisSearch& s = reinterpret_cast<TrellisSearch*>(memory)[warp];
    pdl_wait();
    pdl_trigger();
    const int fours = (p.forms[side].dim + 3) / 4;
    const EncodeJob job(p, blockIdx.x / fours, side);
    if (job.number < 0 || job.form->part[0].kind != TRELLIS_PART) return;
    const PageForm& form = *job.form;
    const PagePart& own = form.part[0];
    const int c = blockIdx.x % fours * 4 + warp, tokens = form.tokens;
    if (c >= form.dim) return;
    const EncodeRoom room(job.room, form);
    u8* page = p.pages + (u64)job.job.y * UNIT;
    const TrellisTables& tables = *p.tables;
    const TrellisChannel x = trellis_channel(own, tables, page, c);
    if (!x.bits) return;
    // Numbers in units of the table.
    float scale, zero = 0.f;
    if (own.is_key) {
        scale = __ldg(&tables.scale[byte_at(page + own.scales + c)]);
        zero = times(0.5f * (float)(signed char)byte_at(page + own.scales + 4 * own.rows + c), scale);
    } else {
        const int n = (int)(byte_at(page + own.scales + c / 2) >> 4 * (c % 2) & 15u);
        scale = times(__ldg(&tables.scale[byte_at(page)]), __ldg(&tables.scale[128 + 2 * (n - 8)]));
    }
    const float inverse = scale > 0.f ? over(1.f, times(scale, __ldg(&tables.unit[x.bits]))) : 0.f, leak = over((float)x.leak, 256.f);
    auto number = [&](int t) {
        const float y = room.rows[t * room.stride + c];
        return times(own.is_key ? minus(y, zero) : y, inverse);
    };
    auto step_of = [&](int t) { return t < 3 ? __ldg(&tables.first[x.leak][t]) : 1.f; };
    auto factor_of = [&](int t) { return own.is_key ? 1.f : trellis_token(tables, page, t); };
    u8* codes = const_cast<u8*>(x.codes);
    if (x.bits == 8) {  // a window is a code, and levels are the whole numbers: nothing has to be searched
        if (lane) return;
        float y = 0.f;
        for (int t = 0; t < tokens; t++) {
            const float factor = factor_of(t), step = step_of(t), left = times(minus(number(t), times(leak, y)), over(1.f, factor));
            const float level = fminf(fmaxf(rintf(over(left, step)), -128.f), 127.f);
            y = plus(times(leak, y), times(times(factor, step), level));
            codes[x.place(t / 8, t % 8)] = (u8)((int)level + 128);
        }
        return;
    }
    const int bits = x.bits, states = 256 >> bits, branches = 1 << bits, start = __ldg(&tables.start[bits]) % states;
    const signed char* levels = tables.level[bits];
    for (int state = lane; state < states; state += WARP) s.costs[0][state] = state == start ? 0.f : 1e30f, s.predicted[state] = 0.f;
    __syncwarp();
    for (int t = 0; t < tokens; t++) {
        const float y = number(t), factor = factor_of(t), reciprocal = over(1.f, factor), step = step_of(t);
        const float* before = s.costs[t % 2];
        float* after = s.costs[(t + 1) % 2];
        for (int state = lane; state < states; state += WARP) s.left[state] = times(fmaf(-leak, s.predicted[state], y), reciprocal);
        __syncwarp();
        for (int state = lane; state < states; state += WARP) {
            float best = 0.f, error = 0.f;
            int survivor = 0;
            for (int branch = 0; branch < branches; branch++) {
                const int window = branch * states + state, from = window >> bits;
                const float d = fmaf(-step, (float)__ldg(levels + window), s.left[from]), cost = fmaf(d, d, before[from]);
                if (branch == 0) best = cost, error = d;
                else if (best > cost) best = cost, error = d, survivor = branch;
            }
            after[state] = best, s.back[t][state] = (u8)survivor;
            s.predicted[state] = fmaf(-error, factor, y);
        }
        __syncwarp();
    }
    if (lane == 0) {
        const float* costs = s.costs[tokens % 2];
        int state = 0;
        for (int other = 1; other < states; other++)
            if (costs[other] < costs[state]) state = other;
        for (int t = tokens - 1; t >= 0; t--) {
            const int window = (int)s.back[t][state] * states + state;
            s.codes[t] = (u8)(window & (branches - 1)), state = window >> bits;
        }
    }
    __syncwarp();
    for (int n = lane; n < tokens / 8; n += WARP) {
        u64 word = 0;
#pragma unroll
        for (int k = 0; k < 8; k++) word = word << bits | s.codes[8 * n + k];
        for (int j = 0; j < bits; j++) codes[x.place(n, j)] = (u8)(word >> 8 * (bits - 1 - j));
    }
}
extern "C" __device__ const int trellis_search_shared = SEARCH_WARPS * sizeof(TrellisSearch);
