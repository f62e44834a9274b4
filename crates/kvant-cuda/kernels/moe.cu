// Mixtures of experts: which experts a token visits and with which share, pairs of token and expert in the order of experts, and the sum of
// what the experts gave. The products between are those of linear.cu, tile.cu and wide_groups.cu, of groups of pairs.
//
// **Invariant:** a token's experts and shares depend on its own logits alone, and its sum goes over experts in the order of their rank: so
// it has the same bits whatever other tokens come with it.
#include "device.cuh"

constexpr int MAX_EXPERTS = 512, MAX_CHOSEN = 32, MAX_GROUPS = 32;
enum RouterScore { SOFTMAX, SOFTMAX_OF_CHOSEN, SIGMOID };

struct RouteParams {
    const float* logits;        // (tokens, experts)
    const float* bias;          // (experts) added to scores when experts are chosen; or null
    const float* expert_scale;  // (experts) multiplier of an expert's share; or null
    int* chosen;                // (tokens, chosen): experts by rank
    float* shares;              // (tokens, chosen)
    int experts, count;         // count: experts per token
    int score;
    int groups, kept, best;     // groups of experts, those that stay eligible, and how many of its experts rate a group; no groups: 0
    int renormalise;            // shares are divided by max(sum, least) + epsilon
    float epsilon, least, logit_scale, scale;
};

// The larger number at the smaller index, over a warp.
DEVICE void best_of_warp(float& value, int& index) {
#pragma unroll
    for (int o = 16; o; o /= 2) {
        const float other = __shfl_xor_sync(~0u, value, o);
        const int at = __shfl_xor_sync(~0u, index, o);
        if (other > value || (other == value && at < index)) value = other, index = at;
    }
}
DEVICE float sum_of_warp(float x) {
#pragma unroll
    for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

// Grid: (tokens), one warp each.
extern "C" __global__ void __launch_bounds__(32) route(const __grid_constant__ RouteParams p) {
    __shared__ float scores[MAX_EXPERTS], ranks[MAX_EXPERTS], worth[MAX_GROUPS], shares[MAX_CHOSEN];
    __shared__ int picked[MAX_CHOSEN];
    const int lane = threadIdx.x;
    pdl_wait();
    pdl_trigger();
    const float* logits = p.logits + (u64)blockIdx.x * p.experts;
    float top = MINUS_INFINITY;
    for (int e = lane; e < p.experts; e += WARP) scores[e] = p.logit_scale * __ldcg(logits + e), top = fmaxf(top, scores[e]);
    int unused = lane;
    best_of_warp(top, unused);
    float mass = 0.f;
    for (int e = lane; e < p.experts; e += WARP) {
        if (p.score == SOFTMAX) scores[e] = ex2((scores[e] - top) * LOG2_E), mass += scores[e];
        if (p.score == SIGMOID) scores[e] = 1.f / (1.f + ex2(-scores[e] * LOG2_E));
    }
    mass = sum_of_warp(mass);
    for (int e = lane; e < p.experts; e += WARP) {
        if (p.score == SOFTMAX) scores[e] /= mass;
        ranks[e] = scores[e] + (p.bias ? __ldg(p.bias + e) : 0.f);
    }
    __syncwarp();
    if (p.groups) {
        const int size = p.experts / p.groups;
        if (lane < p.groups) {  // the sum of its best, one after another
            float sum = 0.f, bound = -MINUS_INFINITY;
            int before = -1;
            for (int n = 0; n < p.best; n++) {
                float best = MINUS_INFINITY;
                int at = -1;
                for (int i = 0; i < size; i++) {
                    const float rank = ranks[lane * size + i];
                    if ((rank < bound || (rank == bound && i > before)) && rank > best) best = rank, at = i;
                }
                sum += best, bound = best, before = at;
            }
            worth[lane] = sum;
        }
        __syncwarp();
        u32 stay = 0;
        for (int n = 0; n < p.kept; n++) {
            float best = lane < p.groups && !(stay >> lane & 1) ? worth[lane] : MINUS_INFINITY;
            int at = lane;
            best_of_warp(best, at);
            stay |= 1u << at;
        }
        for (int e = lane; e < p.experts; e += WARP)
            if (!(stay >> (e / size) & 1)) ranks[e] = MINUS_INFINITY;
        __syncwarp();
    }
    for (int n = 0; n < p.count; n++) {
        float best = MINUS_INFINITY;
        int at = MAX_EXPERTS;
        for (int e = lane; e < p.experts; e += WARP)
            if (ranks[e] > best) best = ranks[e], at = e;
        best_of_warp(best, at);
        at = min(at, p.experts - 1);  // where nothing can be chosen, as of logits that are no numbers
        if (lane == 0) picked[n] = at, shares[n] = scores[at];
        if (at % WARP == lane) ranks[at] = MINUS_INFINITY;
        __syncwarp();
    }
    if (lane == 0) {
        float sum = 0.f;
        if (p.score == SOFTMAX_OF_CHOSEN) {
            float most = shares[0];
            for (int n = 0; n < p.count; n++) most = fmaxf(most, shares[n]);
            for (int n = 0; n < p.count; n++) shares[n] = ex2((shares[n] - most) * LOG2_E), sum += shares[n];
            for (int n = 0; n < p.count; n++) shares[n] /= sum;
        }
        sum = 0.f;
        for (int n = 0; n < p.count; n++) sum += shares[n];
        const float divisor = p.renormalise ? fmaxf(sum, p.least) + p.epsilon : 1.f;
        for (int n = 0; n < p.count; n++) {
            const u64 at = (u64)blockIdx.x * p.count + n;
            p.chosen[at] = picked[n];
            p.shares[at] = shares[n] / divisor * p.scale * (p.expert_scale ? __ldg(p.expert_scale + picked[n]) : 1.f);
        }
    }
}

struct GroupParams {
    const int* chosen;  // (pairs)
    int* places;        // (pairs): place of the pair in the order of experts
    int* sources;       // (pairs), by place: its token
    int* owners;        // (pairs), by place: its expert
    int4* groups;       // (most): expert, first place, pairs
    int pairs, count, experts;
    int size, most;     // pairs of a group, and how many groups there can be; those that are not have no pairs
};
constexpr int GROUP_THREADS = MAX_EXPERTS, GROUP_WARPS = GROUP_THREADS / WARP, AT_ONCE = 8;

// One CTA. A warp has a run of pairs, and counts those of every expert in it; then a thread is an expert, and finds where it and its groups begin; then
// warps go through their runs once more. An expert's pairs keep their order.
extern "C" __global__ void __launch_bounds__(GROUP_THREADS) group_pairs(const __grid_constant__ GroupParams p) {
    __shared__ int counts[GROUP_WARPS][MAX_EXPERTS], warps[2][GROUP_WARPS];
    const int expert = threadIdx.x, warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    pdl_wait();
    pdl_trigger();
    for (int w = 0; w < GROUP_WARPS; w++) counts[w][expert] = 0;
    __syncthreads();
    const int run = ((p.pairs + GROUP_WARPS - 1) / GROUP_WARPS + WARP - 1) / WARP * WARP;
    const int begin = warp * run, end = min(p.pairs, begin + run);
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        for (int first = begin; first < end; first += AT_ONCE * WARP) {
            int own[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const int pair = first + i * WARP + lane;
                own[i] = pair < end ? __ldcg(p.chosen + pair) : -1;
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                const u32 same = __match_any_sync(~0u, own[i]), before = same & ((1u << lane) - 1);
                int* count = &counts[warp][max(own[i], 0)];
                const int place = *count + __popc(before);
                __syncwarp();
                if (own[i] >= 0 && !before) *count += __popc(same);
                __syncwarp();
                if (pass == 0 || own[i] < 0) continue;
                const int pair = first + i * WARP + lane;
                p.places[pair] = place, p.sources[place] = pair / p.count, p.owners[place] = own[i];
            }
        }
        if (pass == 1) break;
        __syncthreads();
        int sum = 0;
        for (int w = 0; w < GROUP_WARPS; w++) sum += counts[w][expert];
        // What experts before this one have: pairs, and groups.
        int place = sum, groups = (sum + p.size - 1) / p.size;
#pragma unroll
        for (int o = 1; o < WARP; o *= 2) {
            const int pairs = __shfl_sync(~0u, place, lane - o), more = __shfl_sync(~0u, groups, lane - o);
            if (lane >= o) place += pairs, groups += more;
        }
        if (lane == WARP - 1) warps[0][warp] = place, warps[1][warp] = groups;
        __syncthreads();
        for (int w = 0; w < warp; w++) place += warps[0][w], groups += warps[1][w];
        place -= sum, groups -= (sum + p.size - 1) / p.size;
        for (int i = 0; i < sum; i += p.size) p.groups[groups++] = int4{expert, place + i, min(p.size, sum - i), 0};
        if (expert == GROUP_THREADS - 1)
            for (; groups < p.most; groups++) p.groups[groups] = int4{0, 0, 0, 0};
        for (int w = 0; w < GROUP_WARPS; w++) {  // from here on the next place of a warp's pairs
            const int count = counts[w][expert];
            counts[w][expert] = place, place += count;
        }
        __syncthreads();
    }
}

struct ExpertBiasParams {
    float* y;           // (pairs, width)
    const float* bias;  // (experts, width)
    const int* owners;  // (pairs)
    int width;
};
// Grid: (pairs, any).
extern "C" __global__ void __launch_bounds__(256) add_expert_bias(const __grid_constant__ ExpertBiasParams p) {
    pdl_wait();
    pdl_trigger();
    const float* bias = p.bias + (u64)__ldcg(p.owners + blockIdx.x) * p.width;
    float* y = p.y + (u64)blockIdx.x * p.width;
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.width; i += gridDim.y * blockDim.x) y[i] += __ldg(bias + i);
}

struct CombineParams {
    const float* experts;  // (pairs, width), by place
    const float* shares;   // (rows, count)
    const int* places;     // (rows, count); null where row n has the one place n
    float* y;              // (rows, width)
    int width, count;
    int sigmoid;           // shares are logits
    int accumulate;        // y += instead of y =
};
// Grid: (rows, any).
extern "C" __global__ void __launch_bounds__(256) combine(const __grid_constant__ CombineParams p) {
    __shared__ float shares[MAX_CHOSEN];
    __shared__ int places[MAX_CHOSEN];
    pdl_wait();
    pdl_trigger();
    const u64 row = blockIdx.x;
    if (threadIdx.x < p.count) {
        const float share = __ldcg(p.shares + row * p.count + threadIdx.x);
        shares[threadIdx.x] = p.sigmoid ? 1.f / (1.f + ex2(-share * LOG2_E)) : share;
        places[threadIdx.x] = p.places ? __ldcg(p.places + row * p.count + threadIdx.x) : (int)row;
    }
    __syncthreads();
    for (int i = blockIdx.y * blockDim.x + threadIdx.x; i < p.width; i += gridDim.y * blockDim.x) {
        float sum = 0.f;
#pragma unroll 8
        for (int n = 0; n < p.count; n++) sum = fmaf(shares[n], __ldcg(p.experts + (u64)places[n] * p.width + i), sum);
        float* y = p.y + row * p.width + i;
        *y = p.accumulate ? *y + sum : sum;
    }
}
