// Products of packed weights with many tokens by wgmma, with the sums of weights.cuh: Hopper alone, so only cubins have kernels of it. wide.cu has those
// of one matrix, wide_groups.cu those of experts.
//
// A CTA takes 128 rows x N tokens at a time, all channels of it: two warpgroups of 64 rows multiply, a third has one thread that keeps the copy
// engine busy. A stage is 64 channels: activations swizzled by 128 bytes as the right operand, and the parts of 8 tiles of weights, which become the
// left operand in registers while the k-steps before are multiplied. The grid is persistent; tiles go round robin, those of the same rows next
// to each other. What does not fill the last round may be cut into tiles of half as many tokens.
//
// **Invariant:** ptxas prints no line C75xx for kernels of this file; it would serialise wgmma. build_kernels.py refuses it.
#pragma once
#include "weights.cuh"

#ifndef KVANT_HOST  // bench/host has its own
// The host's CUtensorMap.
struct alignas(64) TensorMap {
    u64 words[16];
};
#endif
struct WideMaps {
    TensorMap x;        // (tokens, channels) f16, boxes of N / 2 tokens and 64 channels, swizzled by 128 bytes
    TensorMap weights;  // (tiles, eights of bytes) of all matrices, boxes of 8 tiles and a part
    TensorMap supers;   // the same, boxes of 8 tiles and what parts share, where there is such
};

// Stages that fit, at most so many.
template <class W, int N>
struct WideShape {
    static constexpr int X = N * 128, PARTS = 8 * W::PART, WEIGHTS = 8 * W::STAGED, STAGE = X + WEIGHTS;
    static constexpr int MOST = N <= 32 ? 12 : N <= 64 ? 10 : N <= 128 ? 8 : 7, FIT = (227 * 1024 - 1024) / (STAGE + 16), STAGES = FIT < MOST ? FIT : MOST;
    static constexpr int SHARED = STAGES * (STAGE + 16) + 1024;
};

#if defined(KVANT_HOST) || __CUDA_ARCH__ >= 900
#define HAS_WIDE
#include "barrier.cuh"
#include "wgmma.cuh"

#ifndef KVANT_HOST
DEVICE void tensor_copy(u32 to, const TensorMap* map, u32 barrier, int c0, int c1) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1) : "memory");
}
#endif

// Where a tile lies: its 128 rows of the matrix, its tokens, which end before `end`, and the first of its 16-row tiles among all matrices. After one that is
// not there none is.
struct WidePlace {
    int panel, token, end, weights, segment;
    int first, parts;  // of 64 channels
    bool half, is_there;
};

// A warpgroup's walk over the stages. G: k-steps that are started together, 2 or 4, while as many more are made ready.
template <class W, int N, int G>
struct Walk {
    using T = WideShape<W, N>;
    typedef typename W::Part Part;
    const u8 *weights, *supers;  // of this warp's tile in stage 0
    u32 x_at, full, empty;
    int lane, stage, before;  // before: the stage that may still be read
    u32 parity;
    Part now;
    u32 a0[4 * G], a1[4 * G];  // fragments that are multiplied, and that are made ready

    DEVICE void release(int s) {
        if (s >= 0 && lane == 0) barrier_arrive(empty + 8 * s);
    }
    DEVICE Part load() const { return W::staged(weights + stage * T::WEIGHTS, supers + stage * T::WEIGHTS, lane); }
    DEVICE void ready(u32 (&a)[4 * G], const Part& w, int first) const {
#pragma unroll
        for (int i = 0; i < G; i++) W::fragment(reinterpret_cast<u32(&)[4]>(a[4 * i]), w, first + i);
        if constexpr (W::IS_HALF) {  // else what is loaded is wgmma's operand itself, and ptxas serialises
#pragma unroll
            for (int i = 0; i < 4 * G; i++) a[i] = mul_f16x2(a[i], 0x3c003c00u);  // by one
        }
    }
    DEVICE void start() {
        barrier_wait(full, 0);
        now = load();
        ready(a0, now, 0);
    }
    template <int M>
    DEVICE void multiply(float (&acc)[M / 2], const u32 (&a)[4 * G], u64 b, int more) {
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < G; i++) Wgmma<M>::add(acc, a + 4 * i, b + MATRIX_STEP * i, i ? 1 : more);
        wgmma_commit();
    }
    DEVICE Part next() {
        if (++stage == T::STAGES) stage = 0, parity ^= 1;
        barrier_wait(full + 8 * stage, parity);
        return load();
    }
    // One part of G == 4: from `a`, while the next is made ready in `other`.
    template <int M>
    DEVICE void part(float (&acc)[M / 2], const u32 (&a)[4 * G], u32 (&other)[4 * G], int more) {
        const int here = stage;
        multiply<M>(acc, a, matrix_at(x_at + stage * T::X), more);
        const Part raw = next();
        wgmma_wait<1>();
        release(before), before = here;
        ready(other, raw, 0);
    }
    // acc = the sum over so many parts, in ascending k-steps
    template <int M>
    DEVICE void segment(float (&acc)[M / 2], int parts) {
        int more = 0;
        if constexpr (G == 2) {
#pragma unroll 1
            for (; parts; parts--, more = 1) {
                const int here = stage;
                const u64 b = matrix_at(x_at + stage * T::X);
                multiply<M>(acc, a0, b, more);
                const Part raw = next();
                wgmma_wait<1>();
                release(before), before = here;
                ready(a1, now, 2);
                multiply<M>(acc, a1, b + 2 * MATRIX_STEP, 1);
                wgmma_wait<1>();
                now = raw;
                ready(a0, now, 0);
            }
        } else {
#pragma unroll 1
            for (; parts; parts -= 2, more = 1) part<M>(acc, a0, a1, more), part<M>(acc, a1, a0, 1);  // an even number: channels are a multiple of 128
        }
        wgmma_wait<0>();
    }
    template <int M>
    DEVICE void tile(const LinearParams& p, const WidePlace& at) {
        float acc[M / 2], sum[M / 2];
#pragma unroll
        for (int i = 0; i < M / 2; i++) acc[i] = sum[i] = 0.f;
#pragma unroll 1
        for (int done = 0; done < at.parts; done += SEGMENT) {
            segment<M>(acc, min(SEGMENT, at.parts - done));
#pragma unroll
            for (int i = 0; i < M / 2; i++) sum[i] += acc[i];
        }
        const int row = at.panel * 128 + threadIdx.x / 32 * 16 + lane / 4, first = at.token + 2 * (lane % 4);
        if (p.gated) {
            const int inner = (at.panel * 8 + threadIdx.x / 32) * 8 + lane / 4;
#pragma unroll
            for (int i = 0; i < M / 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (first + 8 * i + e < at.end && 2 * inner < p.rows) p.put_gated(first + 8 * i + e, inner, sum[4 * i + e], sum[4 * i + 2 + e]);
            return;
        }
        // Sum `index` and where it goes, for those that there are.
        auto each = [&](auto use) {
#pragma unroll
            for (int i = 0; i < M / 8; i++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    if (first + 8 * i + e >= at.end) continue;
                    float* to = p.y + (u64)(at.segment * p.tokens + first + 8 * i + e) * p.rows + row;
                    if (row < p.rows) use(4 * i + e, to);
                    if (row + 8 < p.rows) use(4 * i + 2 + e, to + 8);
                }
        };
        // What they are added to is asked for all at once: a store may be to where a later load is from, so the compiler would wait for each.
        if (p.accumulate) each([&](int index, const float* from) { acc[index] = *from; });
        each([&](int index, float* to) { *to = p.accumulate ? fmaf(p.scale, sum[index], acc[index]) : p.scale * sum[index]; });
    }
};

// Of: a product that is cut into tiles. EARLY: whether its first weights are known before the kernel before has ended.
template <class W, int N, class Of>
DEVICE void produce(const WideMaps& maps, const Of& of, u32 x_at, u32 w_at, u32 full, u32 empty) {
    using T = WideShape<W, N>;
    constexpr int PARTS = W::CHANNELS / 64;
    int stage = 0;
    u32 parity = 1;
    auto copy_x = [&](const WidePlace& at, int part) {  // boxes of N / 2 tokens
        tensor_copy(x_at + stage * T::X, &maps.x, full + 8 * stage, part * 64, at.token);
        if (!at.half) tensor_copy(x_at + stage * T::X + T::X / 2, &maps.x, full + 8 * stage, part * 64, at.token + N / 2);
    };
    auto copy_weights = [&](const WidePlace& at, int part) {  // tiles past the last one are zeros
        barrier_expect(full + 8 * stage, at.half ? T::WEIGHTS + T::X / 2 : T::STAGE);
        const int first = part / PARTS * (W::BYTES / 8), to = w_at + stage * T::WEIGHTS;
        tensor_copy(to, &maps.weights, full + 8 * stage, first + part % PARTS * (W::PART / 8), at.weights);
        if (W::SUPERS) tensor_copy(to + T::PARTS, &maps.supers, full + 8 * stage, first + PARTS * (W::PART / 8), at.weights);
    };
    auto block = [&](const WidePlace& at, int part) {
        barrier_wait(empty + 8 * stage, parity);
        copy_weights(at, part), copy_x(at, part);
        if (++stage == T::STAGES) stage = 0, parity ^= 1;
    };
    int tile = blockIdx.x;
    if (!Of::EARLY) pdl_wait();
    WidePlace at = of.template place<N>(tile);
    if (!at.is_there) return;
    const int before = min((int)T::STAGES, at.parts);  // weights that do not wait for the kernel before
    for (stage = 0; stage < before; stage++) copy_weights(at, at.first + stage);
    if (Of::EARLY) pdl_wait();
    for (stage = 0; stage < before; stage++) copy_x(at, at.first + stage);
    if (stage == T::STAGES) stage = 0, parity = 0;
    for (int part = before; tile < of.tiles; tile += gridDim.x, part = 0) {
        const WidePlace next = of.template place<N>(tile);
        if (!next.is_there) break;
        at = next;
#pragma unroll 1
        for (; part < at.parts; part++) block(at, at.first + part);
    }
    block(at, at.first + at.parts - 1);  // what the warpgroups make ready last is not used
}

template <class W, int N, int G, class Of>
DEVICE void linear_wide(const WideMaps& maps, const Of& of) {
    using T = WideShape<W, N>;
    DYNAMIC_SHARED(memory);
    u8* const base = memory + (1024 - (shared_address(memory) & 1023)) % 1024;
    u8* const weights = base + T::STAGES * T::X;
    const u32 x_at = shared_address(base), w_at = shared_address(weights), full = w_at + T::STAGES * T::WEIGHTS, empty = full + T::STAGES * 8;
    if (threadIdx.x == 0) {
        for (int i = 0; i < T::STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 8);
        barriers_are_there();
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        fewer_registers<24>();
        if (threadIdx.x == 256) produce<W, N>(maps, of, x_at, w_at, full, empty);
    } else {
        more_registers<240>();
        pdl_wait();
        pdl_trigger();
        Walk<W, N, G> walk;
        walk.weights = weights + threadIdx.x / 32 * W::PART, walk.supers = weights + T::PARTS + threadIdx.x / 32 * W::SUPERS, walk.x_at = x_at, walk.full = full, walk.empty = empty;
        walk.lane = threadIdx.x % 32, walk.stage = 0, walk.before = -1, walk.parity = 0;
        if (!of.template place<N>(blockIdx.x).is_there) return;
        walk.start();
#pragma unroll 1
        for (int tile = blockIdx.x; tile < of.tiles; tile += gridDim.x) {
            const WidePlace at = of.template place<N>(tile);
            if (!at.is_there) break;
            if (at.half) walk.template tile<N / 2>(of.p, at);
            else walk.template tile<N>(of.p, at);
        }
    }
}
#endif
