// Entry points: rows into a codec's basis, differences, scales and codes, polar angles.
#include "general_encode.cuh"

// ---- into the basis ----

// The Hadamard blocks of a row, by the lanes of a warp; `other` is room for as many numbers.
DEVICE void hadamard_row(const PagePart& p, float* x, float* other, int lane) {
    __syncwarp();
    if (p.odd > 1) {
        for (int i = lane; i < p.dim; i += WARP) {
            const int first = i / p.odd * p.odd;
            float y = 0.f;
            for (int j = 0; j < p.odd; j++) y = fmaf(x[first + j], __ldg(p.hartley + i % p.odd * p.odd + j), y);
            other[i] = y;
        }
        __syncwarp();
        for (int i = lane; i < p.dim; i += WARP) x[i] = other[i];
        __syncwarp();
    }
    const int width = p.power * p.odd;
    for (int h = p.odd; h < width; h *= 2) {
        for (int i = lane; i < p.dim / 2; i += WARP) {
            const int low = i / h * 2 * h + i % h;
            const float a = x[low], b = x[low + h];
            x[low] = plus(a, b), x[low + h] = minus(a, b);
        }
        __syncwarp();
    }
}
// A matrix whose columns lie one after another times a row, into `to`.
DEVICE void product_row(const float* matrix, const float* x, float* to, int dim, int lane) {
    __syncwarp();
    for (int i = lane; i < dim; i += WARP) {
        float y = 0.f;
        for (int j = 0; j < dim; j++) y = fmaf(x[j], __ldg(matrix + (u64)j * dim + i), y);
        to[i] = y;
    }
    __syncwarp();
}

// Exact rows in the basis of a part; of the second part what the first leaves over. A warp for a token. Grid: (jobs, sides).
extern "C" __global__ void __launch_bounds__(ENCODING_THREADS) general_rows(const __grid_constant__ GeneralEncodeParams p) {
    __shared__ float rows[ENCODING_WARPS][2][ENCODED_DIM];
    const int side = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    pdl_wait();
    pdl_trigger();
    const EncodeJob job(p, blockIdx.x, side);
    if (job.number < 0 || p.part >= job.form->parts || job.form->part[0].kind == EXACT_PART) return;
    const PageForm& form = *job.form;
    const PagePart &own = form.part[p.part], &exact = p.exact_forms[side].part[0];
    const EncodeRoom room(job.room, form);
    const u8 *from = half_page(p.pages, job.job.x), *page = half_page(p.pages, job.job.y);
    float *x = rows[warp][0], *other = rows[warp][1];
    for (int t = warp; t < form.tokens; t += ENCODING_WARPS) {
        if (p.part) {
            const PagePart& coarse = form.part[0];
            const int per = coarse.is_key ? 8 : 16;
            for (int c = lane; c < form.dim; c += WARP) x[c] = packed_number(coarse, page, c / per, t, c % per);
            if (coarse.basis == HADAMARD_BASIS) {
                hadamard_row(coarse, x, other, lane);
                for (int c = lane; c < form.dim; c += WARP) x[c] = times(x[c], __ldg(coarse.signs + c));
            } else if (coarse.basis == DENSE_BASIS) {
                product_row(coarse.backward, x, other, form.dim, lane);
                for (int c = lane; c < form.dim; c += WARP) x[c] = other[c];
            }
            for (int c = lane; c < form.dim; c += WARP) x[c] = minus(exact_number(exact, from, t, c), x[c]);
        } else {
            for (int c = lane; c < form.dim; c += WARP) {
                const float y = exact_number(exact, from, t, c);
                x[c] = own.mean ? minus(y, __ldg(own.mean + c)) : y;
            }
        }
        if (own.basis == HADAMARD_BASIS) {
            for (int c = lane; c < form.dim; c += WARP) x[c] = times(x[c], __ldg(own.signs + c));
            hadamard_row(own, x, other, lane);
        } else if (own.basis == DENSE_BASIS) {
            product_row(own.forward, x, other, form.dim, lane);
            for (int c = lane; c < form.dim; c += WARP) x[c] = other[c];
        }
        for (int c = lane; c < room.stride; c += WARP) {
            float y = c < form.dim ? x[c] : 0.f;
            if (own.inverse_lambda && c < form.dim) y = times(y, __ldg(own.inverse_lambda + c));
            room.rows[t * room.stride + c] = y;
        }
        __syncwarp();
    }
}

// ---- differences ----

// Rows to differences from what the token before was decoded to, and the first token into the page. A warp for a group. Grid: (jobs, sides).
extern "C" __global__ void __launch_bounds__(ENCODING_THREADS) general_differences(const __grid_constant__ GeneralEncodeParams p) {
    __shared__ float decoded[ENCODED_DIM];
    const int side = blockIdx.y, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    pdl_wait();
    pdl_trigger();
    const EncodeJob job(p, blockIdx.x, side);
    if (job.number < 0 || job.form->part[0].kind != PACKED_PART || job.form->part[0].first_token < 0) return;
    const PageForm& form = *job.form;
    const PagePart& own = form.part[0];
    const EncodeRoom room(job.room, form);
    u8* page = p.pages + (u64)job.job.y * UNIT;
    const int bits = own.row[0].bits, per = own.group;
    const float centre = (float)(1 << (bits - 1)), top = (float)((1 << bits) - 1);
    bool bad = false;
    for (int first = warp * per; first < form.dim; first += ENCODING_WARPS * per) {
        const int end = min(first + per, form.dim);
        for (int c = first + lane; c < end; c += WARP) {
            const float x = room.rows[c];
            bad |= !stores(x, own.scale_bytes);
            store_number(page + own.first_token, c, own.scale_bytes, x);
            decoded[c] = rounded_as(x, own.scale_bytes);
        }
        for (int t = 0; t < form.tokens; t++) {
            float* row = room.rows + t * room.stride;
            float low = -MINUS_INFINITY, high = MINUS_INFINITY;
            for (int c = first + lane; c < end; c += WARP) {
                const float x = minus(row[c], decoded[c]);
                row[c] = x, low = fminf(low, x), high = fmaxf(high, x);
            }
#pragma unroll
            for (int o = 16; o; o /= 2) low = fminf(low, __shfl_xor_sync(~0u, low, o)), high = fmaxf(high, __shfl_xor_sync(~0u, high, o));
            const float scale = rounded_as(over(-low > high ? low : high, -centre), own.scale_bytes), inverse = reciprocal_of(scale);
            for (int c = first + lane; c < end; c += WARP) {
                const float code = rintf(fminf(fmaxf(fmaf(row[c], inverse, centre), 0.f), top));
                decoded[c] = plus(decoded[c], times(minus(code, centre), scale));
            }
        }
    }
    if (bad) atomicMax(p.refused, 1 + job.number);
}

// ---- scales ----

enum Rule { SYMMETRIC, SIGNED_MAX, ASYMMETRIC, FITTED_MAX, FITTED_RANGE, LLOYD_MAX, BINS, NORMAL_FLOAT, NON_LINEAR, SKETCH };
DEVICE bool is_by_power(int rule) { return rule == LLOYD_MAX || rule == SKETCH; }
DEVICE bool is_fitted(int rule, int bits) { return (rule == FITTED_MAX || rule == FITTED_RANGE) && bits < 6; }

struct CodeScale {
    float scale, zero;
};
// What the extent of evenly spaced levels is divided by.
DEVICE float divisor_of(int rule, int bits) {
    switch (rule) {
        case SYMMETRIC: return (float)((1 << (bits - 1)) - 1);
        case SIGNED_MAX:
        case FITTED_MAX: return -(float)(1 << (bits - 1));
        case ASYMMETRIC:
        case FITTED_RANGE: return (float)((1 << bits) - 1);
        case BINS: return (float)(1 << bits);
        case NON_LINEAR: return -127.f;
        default: return 127.f;
    }
}
// Rounds as scales are stored, towards direction * infinity.
DEVICE float rounded_outward(float x, float direction, int bytes) {
    const float near = rounded_as(x, bytes);
    const float nudge = fmaxf(times(fabsf(x), 1.f / 2048.f), 3.0e-8f);
    const float far = rounded_as(fmaf(nudge, direction, x), bytes);
    return direction > 0.f ? (x > near ? far : near) : (near > x ? far : near);
}
// Of the extremes, or of the root mean square as `high`.
DEVICE CodeScale plain_scale(const PagePart& p, int bits, float low, float high) {
    const int bytes = p.scale_bytes;
    const float divisor = divisor_of(p.rule, bits);
    float scale, base = 0.f;
    switch (p.rule) {
        case SYMMETRIC:
        case NORMAL_FLOAT: scale = rounded_as(over(fmaxf(high, minus(0.f, low)), divisor), bytes); break;
        case SIGNED_MAX:
        case FITTED_MAX: scale = rounded_as(over(-low > high ? low : high, divisor), bytes); break;
        case NON_LINEAR: scale = over(-low > high ? low : high, divisor); break;  // codes are made under it; what is stored comes later
        case ASYMMETRIC:
        case FITTED_RANGE:
            base = rounded_outward(low, -1.f, bytes);
            scale = rounded_outward(over(minus(high, base), divisor), 1.f, bytes);
            break;
        case BINS:
            scale = rounded_as(over(minus(high, low), divisor), bytes);
            base = rounded_as(fmaf(scale, 0.5f, low), bytes);
            break;
        default: scale = rounded_as(times(high, p.unit), bytes);
    }
    return {plus(scale, 0.f), plus(base, 0.f)};
}

// A scale and a zero, and what takes numbers to steps under them: above the grid, where f32 has steps of 2^-9 (fit.cuh has the same for f16 alone).
struct RangeTrial {
    static constexpr float GRID = 24576.f;
    float scale, zero, inverse, offset;
    DEVICE RangeTrial(float s, float z) : scale(s), zero(z), inverse(reciprocal_of(s)), offset(fmaf(-z, reciprocal_of(s), GRID)) {}
    DEVICE float steps(float x) const { return fmaf(x, inverse, offset); }
};
template <class X>
DEVICE CodeScale fitted_range(X x, int count, float low, float high, CodeScale plain, float top, int bytes) {
    constexpr float CUTS[3][2] = {{0.2f, 0.2f}, {0.4f, 0.f}, {0.f, 0.4f}}, END_WEIGHT = 4.f;
    const float step = times(minus(high, low), over(1.f, top));
    RangeTrial best(plain.scale, plain.zero);
    float least = -MINUS_INFINITY;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const float a = CUTS[k][0], b = CUTS[k][1];
        const RangeTrial trial(plus(rounded_as(times(step, minus(1.f, over(plus(a, b), top))), bytes), 0.f),
                               plus(rounded_as(fmaf(step, a, low), bytes), 0.f));
        const float of_low = trial.steps(low), of_high = trial.steps(high);
        const float off_low = minus(of_low, rintf(of_low)), off_high = minus(of_high, rintf(of_high));
        float squares = 0.f;
        for (int i = 0; i < count; i++) {
            const float steps = trial.steps(x(i)), off = minus(steps, rintf(steps));
            squares = fmaf(off, off, squares);
        }
        squares = fmaf(fmaf(off_low, off_low, times(off_high, off_high)), END_WEIGHT, squares);
        const float cost = times(times(trial.scale, trial.scale), squares);
        const float beyond = fmaxf(minus(RangeTrial::GRID, of_low), minus(of_high, plus(RangeTrial::GRID, top)));
        if (!(beyond > 0.5f) && trial.inverse > 0.f && cost < least) best = trial, least = cost;
    }
    float offs = 0.f, codes = 0.f, along = 0.f, power = 0.f;
    auto join = [&](float x, float weight) {
        const float steps = best.steps(x), off = minus(steps, rintf(steps)), code = minus(minus(steps, off), RangeTrial::GRID), weighted = times(code, weight);
        offs = fmaf(off, weight, offs), codes = plus(codes, weighted);
        along = fmaf(off, weighted, along), power = fmaf(code, weighted, power);
    };
    for (int i = 0; i < count; i++) join(x(i), 1.f);
    join(low, END_WEIGHT), join(high, END_WEIGHT);
    const float all = (float)count + 2.f * END_WEIGHT, part = over(1.f, all), mean = minus(0.f, times(codes, part));
    const float spread = fmaf(mean, codes, power);
    float more = spread > 0.5f ? over(fmaf(mean, offs, along), spread) : 0.f;
    const float scale = rounded_as(fmaf(best.scale, more, best.scale), bytes);
    more = fmaf(scale, best.inverse, -1.f);
    const float zero = rounded_as(fmaf(best.scale, times(fmaf(minus(0.f, more), codes, offs), part), best.zero), bytes);
    const float shift = times(minus(zero, best.zero), best.inverse);
    const float of_shift = fmaf(fmaf(more, codes, times(shift, all)), -0.5f, offs);
    const float of_more = fmaf(fmaf(more, power, times(shift, codes)), -0.5f, along);
    const bool better = fmaf(shift, of_shift, times(more, of_more)) > 0.f;
    return {plus(better ? scale : best.scale, 0.f), plus(better ? zero : best.zero, 0.f)};
}
template <class X>
DEVICE float fitted_max(X x, int count, float plain, int bits, int bytes) {
    constexpr float GRID = 3072.f;
    const float bottom = (float)(1 << (bits - 1)), last = minus(bottom, 1.f), inverse = reciprocal_of(plain);
    float best = 0.f, most = -1.f;
#pragma unroll 1
    for (int k = 0; k < 3; k++) {
        const float part = k == 1 ? 1.01f : k == 2 ? plus(1.f, over(0.96f, bottom)) : bits < 3 ? 0.81f : minus(1.f, over(0.4f, bottom));
        const float of_part = times(inverse, over(1.f, part));
        float along = 0.f, power = 0.f;
        for (int i = 0; i < count; i++) {
            const float steps = minus(fmaf(x(i), of_part, GRID), GRID), code = fminf(rintf(steps), last);
            along = fmaf(steps, code, along), power = fmaf(code, code, power);
        }
        const float ratio = power > 0.f ? over(along, power) : 1.f;
        const float taken = times(times(ratio, along), times(part, part));
        if (taken > most) best = times(times(plain, part), ratio), most = taken;
    }
    return plus(rounded_as(best, bytes), 0.f);
}
// The scale of least sum x^2 (x - s level)^2 for the codes under `scale`.
template <class X>
DEVICE float refitted(const PagePart& p, X x, int count, int bits, float scale) {
    const float inverse = reciprocal_of(scale);
    float along = 0.f, power = 0.f;
    for (int c = 0; c < count; c++) {
        const float y = times(x(c), inverse);
        float level = __ldg(&p.table[0]);
        for (int i = 0; i < (1 << bits) - 1; i++)
            if (y > __ldg(&p.boundaries[i])) level = __ldg(&p.table[i + 1]);
        const float weighted = times(times(y, y), level);
        along = fmaf(weighted, y, along), power = fmaf(weighted, level, power);
    }
    return rounded_as(times(scale, power > 0.f ? over(along, power) : 1.f), p.scale_bytes);
}
template <class X>
DEVICE CodeScale fitted_scale(const PagePart& p, X x, int count, int bits, float low, float high, CodeScale plain) {
    if (!is_fitted(p.rule, bits)) return plain;
    if (p.rule == FITTED_MAX) return {fitted_max(x, count, plain.scale, bits, p.scale_bytes), plain.zero};
    return fitted_range(x, count, low, high, plain, divisor_of(p.rule, bits), p.scale_bytes);
}

DEVICE int code_under(const PagePart& p, int bits, float x, float inverse, float zero) {
    if (p.meaning == TABLE_CODES) {
        const float y = times(x, inverse);
        int code = 0;
        for (int i = 0; i < (1 << bits) - 1; i++) code += y > __ldg(&p.boundaries[i]);
        return code;
    }
    const float top = (float)((1 << bits) - 1), bottom = p.rule == SYMMETRIC ? 1.f : 0.f;
    const float level = p.meaning == CODES_WITH_ZERO ? times(minus(x, zero), inverse) : fmaf(x, inverse, (float)(1 << (bits - 1)));
    return __float2int_rn(fminf(fmaxf(level, bottom), top));
}

// Scales, zeros and codes of a packed part. Grid: (jobs, sides).
extern "C" __global__ void __launch_bounds__(ENCODING_THREADS) general_codes(const __grid_constant__ GeneralEncodeParams p) {
    const int side = blockIdx.y, tid = threadIdx.x;
    pdl_wait();
    pdl_trigger();
    const EncodeJob job(p, blockIdx.x, side);
    if (job.number < 0 || p.part >= job.form->parts || job.form->part[p.part].kind != PACKED_PART) return;
    const PageForm& form = *job.form;
    const PagePart& own = form.part[p.part];
    const EncodeRoom room(job.room, form);
    u8* page = p.pages + (u64)job.job.y * UNIT + own.at;
    const int per = own.is_key ? 8 : 16, tokens = form.tokens, stride = room.stride, bytes = own.scale_bytes;
    const bool by_token = own.token_scale >= 0;
    bool bad = false;
    if (own.channel_scale >= 0) {
        for (int c = tid; c < own.coded; c += ENCODING_THREADS) {
            auto x = [&](int t) { return c < form.dim ? room.rows[t * stride + c] : 0.f; };
            const int bits = own.row[c / per].bits;
            float low = x(0), high = low;
            for (int t = 0; t < tokens; t++) {
                const float y = x(t);
                bad |= !(fabsf(y) <= 3.4e38f);
                low = fminf(low, y), high = fmaxf(high, y);
            }
            CodeScale s;
            if (by_token) {
                s = {rounded_as(fmaxf(high, minus(0.f, low)), bytes), 0.f};
            } else {
                if (is_by_power(own.rule)) {
                    // Sums of sixteen lanes, added up in their order.
                    float all = 0.f;
                    for (int lane = 0; lane < 16; lane++) {
                        float sum = 0.f;
                        for (int t = lane; t < tokens; t += 16) sum = fmaf(x(t), x(t), sum);
                        all = plus(all, sum);
                    }
                    high = __fsqrt_rn(over(all, (float)tokens));
                }
                s = fitted_scale(own, x, tokens, bits, low, high, plain_scale(own, bits, low, high));
            }
            bad |= !stores(s.scale, bytes) || !stores(s.zero, bytes);
            store_number(page + own.channel_scale, c, bytes, s.scale);
            if (own.channel_zero >= 0) store_number(page + own.channel_zero, c, bytes, s.zero);
            const float inverse = reciprocal_of(s.scale);
            room.channel_inverse[c] = inverse, room.channel_zero[c] = s.zero;
            if (by_token && c < form.dim)
                for (int t = 0; t < tokens; t++) room.rows[t * stride + c] = times(room.rows[t * stride + c], inverse);
        }
        __syncthreads();
    }
    if (by_token) {
        for (int i = tid; i < tokens * own.groups; i += ENCODING_THREADS) {
            const int group = i / tokens, t = i % tokens, first = group * own.group, count = min(own.group, form.dim - first);
            if (first >= own.coded) continue;
            const float* row = room.rows + t * stride + first;
            auto x = [&](int c) { return row[c]; };
            const int bits = own.row[first / per].bits;
            float low = x(0), high = low;
            if (is_by_power(own.rule)) {
                float squares[4] = {};
                const int whole = count / 4 * 4;
                for (int c = 0; c < whole; c += 4) {
#pragma unroll
                    for (int j = 0; j < 4; j++) squares[j] = fmaf(x(c + j), x(c + j), squares[j]);
                }
                for (int c = whole; c < count; c++) squares[0] = fmaf(x(c), x(c), squares[0]);
                const float sum = plus(plus(squares[0], squares[1]), plus(squares[2], squares[3]));
                high = __fsqrt_rn(times(sum, over(1.f, (float)count)));
                bad |= !(sum <= 3.4e38f);
            } else {
                for (int c = 0; c < count; c++) {
                    const float y = x(c);
                    bad |= !(fabsf(y) <= 3.4e38f);
                    low = fminf(low, y), high = fmaxf(high, y);
                }
            }
            CodeScale s = fitted_scale(own, x, count, bits, low, high, plain_scale(own, bits, low, high));
            room.inverse[i] = reciprocal_of(s.scale), room.zero[i] = s.zero;
            if (own.rule == NON_LINEAR) s.scale = refitted(own, x, count, bits, s.scale);
            bad |= !stores(s.scale, bytes) || !stores(s.zero, bytes);
            store_number(page + own.token_scale, i, bytes, s.scale);
            if (own.token_zero >= 0) store_number(page + own.token_zero, i, bytes, s.zero);
        }
        __syncthreads();
    }
    const int coded = own.rows * per;
    for (int i = tid; i < tokens * coded; i += ENCODING_THREADS) {
        const int t = i / coded, c = i % coded, of_token = own.row[c / per].group * tokens + t;
        const float x = c < form.dim ? room.rows[t * stride + c] : 0.f;
        const float inverse = by_token ? room.inverse[of_token] : room.channel_inverse[c];
        const float zero = by_token ? room.zero[of_token] : room.channel_zero[c];
        room.codes[t * stride + c] = (u8)code_under(own, own.row[c / per].bits, x, inverse, zero);
    }
    __syncthreads();
    // Units of 128 codes: byte `at` of one, plane by plane.
    for (int r = 0; r < own.rows; r++) {
        const int bits = own.row[r].bits, unit_bytes = 16 * bits;
        u8* units = page + own.row[r].codes;
        for (int i = tid; i < tokens * per / 128 * unit_bytes; i += ENCODING_THREADS) {
            const int unit = i / unit_bytes;
            int at = i % unit_bytes, shift = 0;
            auto code = [&](int h, int n) {
                const int t = own.is_key ? 16 * unit + n / 4 : 8 * unit + 4 * h + n % 4, k = own.is_key ? 4 * h + n % 4 : n / 4;
                return (u32)room.codes[t * stride + per * r + k];
            };
            u32 byte = 0;
            if (bits == 8) {
                byte = code(at / 64, at % 64);
            } else {
                bool found = false;
                if (bits & 4) {
                    if (at < 64) byte = (code(0, at) & 15u) | (code(1, at) & 15u) << 4, found = true;
                    at -= 64, shift = 4;
                }
                if (!found && bits & 2) {
                    if (at < 32) {
                        for (int j = 0; j < 4; j++) byte |= (code(at / 16, at % 16 + 16 * j) >> shift & 3u) << 2 * j;
                        found = true;
                    }
                    at -= 32, shift += 2;
                }
                if (!found)
                    for (int j = 0; j < 8; j++) byte |= (code(at / 8, 8 * (at % 8) + j) >> shift & 1u) << j;
            }
            units[i] = (u8)byte;
        }
    }
    if (bad) atomicMax(p.refused, 1 + job.number);
}

// ---- polar angles ----

// Grid: (jobs, sides).
extern "C" __global__ void __launch_bounds__(ENCODING_THREADS) general_angles(const __grid_constant__ GeneralEncodeParams p) {
    const int side = blockIdx.y, tid = threadIdx.x;
    pdl_wait();
    pdl_trigger();
    const EncodeJob job(p, blockIdx.x, side);
    if (job.number < 0 || job.form->part[0].kind != POLAR_PART) return;
    const PageForm& form = *job.form;
    const PagePart& own = form.part[0];
    const EncodeRoom room(job.room, form);
    u8* page = p.pages + (u64)job.job.y * UNIT;
    u64* words = reinterpret_cast<u64*>(room.codes);
    const int blocks = (form.dim + 15) / 16, low = own.bits - 2, all = 8 * own.bits + 7 * low;
    bool bad = false;
    for (int i = tid; i < form.tokens * blocks; i += ENCODING_THREADS) {
        const float* row = room.rows + i / blocks * room.stride + i % blocks * 16;
        double radii[16];
#pragma unroll
        for (int k = 0; k < 16; k++) radii[k] = (double)row[k];
        u64 word = 0;
        int at = 0;
#pragma unroll
        for (int level = 0; level < 4; level++) {
            const int width = level ? low : own.bits;
#pragma unroll
            for (int pair = 0; pair < 8 >> level; pair++) {
                const double x = radii[2 * pair], y = radii[2 * pair + 1];
                int best = 0;
                double furthest = 0.;
                for (int code = 0; code < 1 << width; code++) {
                    const float2 way = __ldg(own.angles + 32 * level + code);
                    const double along = __dadd_rn(__dmul_rn(x, (double)way.x), __dmul_rn(y, (double)way.y));
                    if (code == 0 || along > furthest) best = code, furthest = along;
                }
                word |= (u64)best << at, at += width;
                radii[pair] = sqrt(__dadd_rn(__dmul_rn(x, x), __dmul_rn(y, y)));
            }
        }
        const float radius = (float)radii[0];
        bad |= !stores(radius, own.scale_bytes);
        store_number(page, i, own.scale_bytes, radius);
        words[i] = word;
    }
    __syncthreads();
    for (int i = tid; i < form.tokens * blocks * all / 8; i += ENCODING_THREADS) {
        const int n = 8 * i / all, bit = 8 * i % all;
        u64 byte = words[n] >> bit;
        if (bit + 8 > all) byte |= words[n + 1] << (all - bit);
        page[own.codes + i] = (u8)byte;
    }
    if (bad) atomicMax(p.refused, 1 + job.number);
}
