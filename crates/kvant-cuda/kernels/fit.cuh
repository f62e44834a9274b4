// How scales and zeros are chosen, bit for bit as kvant-codec does; its docs/page-format.md has the rules step by step.
//
// Numbers in steps are multiples of 2^-9 or 2^-12, so that sums over what shares a scale are exact, in any order. Every product that is
// added to something is so by fmaf, so that nothing is left to contract.
#pragma once
#include "pages.cuh"

struct Scale {
    float scale, zero;  // as they will be stored
};

DEVICE float as_stored(float x) { return f16_to_f32(f32_to_f16(x)); }

// 1/s; codes under a scale of zero do not matter.
DEVICE float inverse_of(float scale) { return fabsf(scale) > 1.17549435e-38f ? __fdiv_rn(1.f, scale) : 0.f; }

// Rounds to f16 towards direction * infinity, so that a range only grows.
DEVICE float outward(float x, float direction) {
    const float near = as_stored(x);
    const float nudge = fmaxf(__fmul_rn(fabsf(x), 1.f / 2048.f), 3.0e-8f);  // half a step, normal or subnormal
    const float far = as_stored(fmaf(nudge, direction, x));
    return direction > 0.f ? (x > near ? far : near) : (near > x ? far : near);
}

// A scale and a zero, and what takes numbers to steps under them: above GRID, where f32 has steps of 2^-9.
struct Trial {
    static constexpr float GRID = 24576.f;
    float scale, zero, inverse, offset;
    DEVICE Trial(float s, float z) : scale(s), zero(z), inverse(inverse_of(s)), offset(fmaf(-z, inverse_of(s), GRID)) {}
    DEVICE float steps(float x) const { return fmaf(x, inverse, offset); }
};

// Numbers of a range in steps of a trial: sums of errors and codes, of their products and squares.
struct Line {
    float offs = 0.f, codes = 0.f, along = 0.f, power = 0.f;
    DEVICE void join(const Trial& trial, float x, float weight) {
        const float steps = trial.steps(x), off = steps - rintf(steps), code = rintf(steps) - Trial::GRID;
        offs = fmaf(off, weight, offs), codes = fmaf(code, weight, codes);
        along = fmaf(off * weight, code, along), power = fmaf(code * weight, code, power);
    }
};

constexpr int TRIALS = 3;
constexpr float END_WEIGHT = 4.f;  // how often more than others the ends of a range count

// Scale and zero of least squares for the codes under a trial, if they are better as stored.
DEVICE Scale least_squares(const Line& line, const Trial& trial, float count) {
    const float part = __fdiv_rn(1.f, count), mean = -(line.codes * part);
    const float spread = fmaf(mean, line.codes, line.power);
    float more = spread > 0.5f ? __fdiv_rn(fmaf(mean, line.offs, line.along), spread) : 0.f;
    const float scale = as_stored(fmaf(trial.scale, more, trial.scale));
    more = fmaf(scale, trial.inverse, -1.f);
    const float zero = as_stored(fmaf(trial.scale, fmaf(-more, line.codes, line.offs) * part, trial.zero));
    const float shift = (zero - trial.zero) * trial.inverse;
    const float of_shift = fmaf(fmaf(more, line.codes, shift * count), -0.5f, line.offs);
    const float of_more = fmaf(fmaf(more, line.power, shift * line.codes), -0.5f, line.along);
    const bool better = fmaf(shift, of_shift, more * of_more) > 0.f;
    return {(better ? scale : trial.scale) + 0.f, (better ? zero : trial.zero) + 0.f};
}

// Keys: of one channel over the page's tokens; x(i) is token i's number, `top` the largest code. `fitted`, below 6 bits: the best of three
// ranges, moved to least squares.
template <int TOKENS, class X>
DEVICE Scale range_scale(X x, float top, bool fitted) {
    constexpr float CUTS[TRIALS][2] = {{0.2f, 0.2f}, {0.4f, 0.f}, {0.f, 0.4f}};
    float low = x(0), high = low;
#pragma unroll 4
    for (int i = 1; i < TOKENS; i++) low = fminf(low, x(i)), high = fmaxf(high, x(i));
    const float base = outward(low, -1.f);
    const Scale plain = {outward(__fdiv_rn(high - base, top), 1.f) + 0.f, base + 0.f};
    if (!fitted) return plain;
    const float step = (high - low) * __fdiv_rn(1.f, top);
    Trial best(plain.scale, plain.zero);
    float least = __int_as_float(0x7f800000);
#pragma unroll
    for (int k = 0; k < TRIALS; k++) {
        const Trial trial(as_stored(step * (1.f - __fdiv_rn(CUTS[k][0] + CUTS[k][1], top))) + 0.f, as_stored(fmaf(step, CUTS[k][0], low)) + 0.f);
        const float first = trial.steps(low), last = trial.steps(high);
        const float of_first = first - rintf(first), of_last = last - rintf(last);
        float squares = fmaf(of_first, of_first, of_last * of_last) * END_WEIGHT;
#pragma unroll 4
        for (int i = 0; i < TOKENS; i++) {
            const float steps = trial.steps(x(i)), off = steps - rintf(steps);
            squares = fmaf(off, off, squares);
        }
        const float cost = trial.scale * trial.scale * squares;
        // Where the zero is rounded coarsely, an end may have come to lie beyond half a step.
        const float beyond = fmaxf(Trial::GRID - first, last - (Trial::GRID + top));
        if (beyond <= 0.5f && trial.inverse > 0.f && cost < least) best = trial, least = cost;
    }
    Line line;
#pragma unroll 4
    for (int i = 0; i < TOKENS; i++) line.join(best, x(i), 1.f);
    line.join(best, low, END_WEIGHT), line.join(best, high, END_WEIGHT);
    return least_squares(line, best, TOKENS + 2.f * END_WEIGHT);
}
template <int BITS, class X>
DEVICE Scale channel_scale(X x) {
    return range_scale<PAGE_TOKENS>(x, (1 << BITS) - 1, BITS < 6);
}

// Values: of one token and 32 channels, which lie N to a lane in 32/N neighbouring lanes; every lane gets the scale. The extreme with
// its sign is -8 steps of 4 bits, of which the best of three parts is moved to least squares; the largest magnitude is 127 of 8. Lanes
// beyond the last channel hold zeros that do not count.
template <int BITS, int N>
DEVICE float group_scale(const float (&x)[N], bool counts = true) {
    static_assert(BITS == 4 || BITS == 8, "int4 and k8v4, int8");
    constexpr float GRID = 3072.f;  // where f32 has steps of 2^-12
    constexpr float PARTS[TRIALS] = {1.f - 0.4f / 8.f, 1.01f, 1.f + 0.96f / 8.f};
    float low = x[0], high = x[0];
#pragma unroll
    for (int i = 1; i < N; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    if (!counts) high = MINUS_INFINITY, low = -high;
#pragma unroll
    for (int o = 1; o < 32 / N; o *= 2) low = fminf(low, __shfl_xor_sync(~0u, low, o)), high = fmaxf(high, __shfl_xor_sync(~0u, high, o));
    if constexpr (BITS == 8) return as_stored(__fdiv_rn(fmaxf(high, -low), 127.f)) + 0.f;
    const float plain = as_stored(__fdiv_rn(-low > high ? low : high, -8.f)) + 0.f, inverse = inverse_of(plain);
    float best = 0.f, most = -1.f;
#pragma unroll
    for (int k = 0; k < TRIALS; k++) {
        const float of_part = inverse * (1.f / PARTS[k]);
        float along = 0.f, power = 0.f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float steps = fmaf(x[i], of_part, GRID) - GRID, code = fminf(rintf(steps), 7.f);
            along = fmaf(steps, code, along), power = fmaf(code, code, power);
        }
#pragma unroll
        for (int o = 1; o < 32 / N; o *= 2) along += __shfl_xor_sync(~0u, along, o), power += __shfl_xor_sync(~0u, power, o);
        const float ratio = power > 0.f ? __fdiv_rn(along, power) : 1.f;
        const float taken = ratio * along * (PARTS[k] * PARTS[k]);
        if (taken > most) best = plain * PARTS[k] * ratio, most = taken;
    }
    return as_stored(best) + 0.f;
}

DEVICE u8 code_of(float level, float bottom, float top) { return (u8)__float2int_rn(fminf(fmaxf(level, bottom), top)); }
DEVICE bool storable(float x) { return fabsf(x) <= 65504.f; }  // false for NaN
