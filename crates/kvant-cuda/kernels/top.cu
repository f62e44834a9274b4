// The beginning of a row's ranking, so that a token can be chosen without its logits going to the host. A logit and its place make one
// key of 64 bits, larger for a larger logit and, of equals, for a lower place: no two keys are equal, so there is one ranking and no order
// of work can change it. Runs of keys are sorted in shared memory and their first ones kept, again and again, until one run is left. Runs are of 512
// keys where few are wanted: a sort is bound by shared memory, and short runs take less of it and more SMs.
#include "device.cuh"

// 16 bytes for each row: set to zero before a pass.
struct TopHeader {
    u64 mass;
    u32 broken;  // a logit is NaN or +infinity
    u32 unused;
};

// The logit as an ordered integer, above the complement of its place; never 0.
DEVICE u64 rank_key(float logit, u32 place) {
    const u32 bits = __float_as_uint(logit == 0.f ? 0.f : logit);
    return (u64)(bits >> 31 ? ~bits : bits | 0x80000000u) << 32 | ~place;
}
DEVICE float logit_of(u64 key) {
    const u32 bits = key >> 32;
    return __int_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

struct TopParams {
    const float* logits;  // (rows, n); null in later rounds
    const u64* keys;      // (rows, n) of a later round, 0 for none
    u64* out;             // (rows, runs, count), each run's largest first; 0 for none
    TopHeader* headers;   // (rows)
    int n, count;         // count <= RUN / 8, or 1
    float scale;          // of logits
};
// Grid: (runs of RUN keys, rows).
template <int RUN, int THREADS>
DEVICE void sort_run(const TopParams& p) {
    __shared__ u64 keys[RUN];
    pdl_wait();
    pdl_trigger();
    const u64 row = blockIdx.y;
    const int t = threadIdx.x, first = blockIdx.x * RUN, here = min(RUN, p.n - first);
    int padded = RUN;  // keys that are sorted: a power of two
    while (padded / 2 >= max(here, p.count) && padded > 2) padded /= 2;
    for (int i = t; i < padded; i += THREADS) {
        u64 key = 0;
        if (i < here) {
            if (p.logits) {
                const float logit = __fmul_rn(p.scale, p.logits[row * p.n + first + i]);
                key = rank_key(logit, first + i);
                if (!(logit < -MINUS_INFINITY)) p.headers[row].broken = 1;
            } else {
                key = p.keys[row * p.n + first + i];
            }
        }
        keys[i] = key;
    }
    __syncthreads();
    auto order = [&](int low, int high, bool falling) {
        const u64 a = keys[low], b = keys[high];
        if ((a < b) == falling) keys[low] = b, keys[high] = a;
    };
    if (p.count == 1) {
        for (int half = padded / 2; half; half /= 2) {
            for (int i = t; i < half; i += THREADS) order(i, i + half, true);
            __syncthreads();
        }
    } else {
        // Batcher's bitonic sort, falling.
        for (int size = 2; size <= padded; size *= 2)
            for (int half = size / 2; half; half /= 2) {
                for (int i = t; i < padded / 2; i += THREADS) {
                    const int low = 2 * i - (i & (half - 1));
                    order(low, low + half, !(low & size));
                }
                __syncthreads();
            }
    }
    for (int i = t; i < p.count; i += THREADS) p.out[(row * gridDim.x + blockIdx.x) * p.count + i] = keys[i];
}
extern "C" __global__ void __launch_bounds__(512) top_run(const __grid_constant__ TopParams p) { sort_run<2048, 512>(p); }
extern "C" __global__ void __launch_bounds__(256) top_run_short(const __grid_constant__ TopParams p) { sort_run<512, 256>(p); }

// round(2^40 e^x) for x <= 0: kvant_model::top::weight to the bit, so without fused multiply-adds.
DEVICE u64 top_weight(double x) {
    if (x < -28.5) return 0;
    // 1/k!, each the one before divided by k.
    const double TAYLOR[13] = {1.0, 1.0, 0.5, 0.16666666666666666,
                               0.041666666666666664, 0.008333333333333333, 0.001388888888888889, 0.0001984126984126984,
                               2.48015873015873e-05, 2.7557319223985893e-06, 2.7557319223985894e-07, 2.505210838544172e-08,
                               2.08767569878681e-09};
    const long long n = (long long)__dadd_rn(__dmul_rn(x, 1.44269504088896340735992468100189214), -0.5);
    const double r = __dadd_rn(x, -__dmul_rn((double)n, 0.693147180559945309417232121458176568));
    double sum = 0.;
#pragma unroll
    for (int k = 12; k >= 0; k--) sum = __dadd_rn(__dmul_rn(sum, r), TAYLOR[k]);
    const double power = __longlong_as_double((long long)(1023 + 40 + n) << 52);
    return (u64)__dadd_rn(__dmul_rn(sum, power), 0.5);
}

struct MassParams {
    const float* logits;        // (rows, n)
    const u64* top;             // (rows, count): the ranking
    const float* temperatures;  // (rows): 0 where no mass is wanted
    TopHeader* headers;         // (rows)
    int n, count;
    float scale;
    int unused;
};
// The sum of all weights; whole numbers, so that their order does not matter. Grid: (any, rows).
extern "C" __global__ void __launch_bounds__(256) top_mass(const __grid_constant__ MassParams p) {
    pdl_wait();
    pdl_trigger();
    const u64 row = blockIdx.y;
    const float temperature = p.temperatures[row];
    if (temperature == 0.f || p.headers[row].broken) return;
    const double highest = logit_of(p.top[row * p.count]);
    u64 mass = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += gridDim.x * blockDim.x) {
        const double logit = __fmul_rn(p.scale, p.logits[row * p.n + i]);
        mass += top_weight(__ddiv_rn(__dadd_rn(logit, -highest), (double)temperature));
    }
    for (int o = 16; o; o /= 2) mass += __shfl_xor_sync(~0u, mass, o);
    if (threadIdx.x % WARP == 0) atomicAdd(&p.headers[row].mass, mass);
}
