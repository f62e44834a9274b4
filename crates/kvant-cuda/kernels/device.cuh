// Integer types, f16 conversions and thin wrappers around the PTX that the kernels are built from. No policy here, and no
// NVIDIA header: what is not a builtin of NVRTC is written out. What sm_90 has and sm_80 lacks is chosen here and nowhere else.
#pragma once
#ifdef KVANT_HOST  // on a CPU, for tests without a card: bench/host
#include "host.cuh"
#else
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
#define DYNAMIC_SHARED(name) extern __shared__ __align__(128) u8 name[]
constexpr int WARP = 32;
#define MINUS_INFINITY __int_as_float(0xff800000)

// ---- binary16 ----
DEVICE float f16_to_f32(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
DEVICE u16 f32_to_f16(float x) {  // to nearest, ties to even
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
DEVICE u32 pack_f16x2(float lo, float hi) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo));
    return y;
}
DEVICE u32 mul_f16x2(u32 a, u32 b) {
    u32 y;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 add_f16x2(u32 a, u32 b) {
    u32 y;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(a), "r"(b));
    return y;
}
DEVICE u32 fma_f16x2(u32 a, u32 b, u32 c) {
    u32 y;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
    return y;
}

// ---- functions of one number ----
DEVICE float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEVICE float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
constexpr float LOG2_E = 1.4426950408889634f;

// ---- tensor cores ----
// D(16x8,f32) += A(16x16,f16) * B(16x8,f16).  lane = 4g+t:
//   A: a0=(row g,  k 2t,2t+1) a1=(row g+8, same k) a2=(row g, k+8) a3=(row g+8, k+8)
//   B: b0=(k 2t,2t+1; col g)  b1=(k+8; col g)
//   D: d0,d1=(row g; col 2t,2t+1)  d2,d3=(row g+8; same cols)
DEVICE void mma16816(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
// D(16x8,f32) += A(16x8,f16) * B(8x8,f16): the same with a0, a1 and b0 alone.
DEVICE void mma1688(float (&d)[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
}
// Eight codes per 32-bit word, four per 16-bit half: n0 (bits 0-3) and n2 (8-11) belong to row g, n1 and n3 to row g+8.
// An integer below 1024 in a 16-bit half *is* the f16 subnormal n*2^-24, and the tensor cores take those at full speed. So one
// instruction makes each register of the A fragment, and no offset has to be taken away: rows g hold n0, rows g+8 the whole
// byte n0 + 16 n1. The product is linear, so row g+8 minus row g is 16 times what we want.
DEVICE void mma_nibbles(float (&d)[4], u32 w, u32 b0, u32 b1) {
    const u32 x = __byte_perm(w, 0, 0x4341);  // upper bytes of the two halves
    mma16816(d, w & 0x000f000fu, w & 0x00ff00ffu, x & 0x000f000fu, x, b0, b1);
}
constexpr float ROW_LO = 16777216.0f;  // 2^24: undoes the subnormal in rows g
constexpr float ROW_HI = 1048576.0f;   // 2^20: in (row g+8) - (row g)

DEVICE u32 transpose8x8(u32 x) {
    u32 y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// Four 8x8 matrices of halves from shared memory, whose rows the lanes name: lanes 0-7 those of the first, 8-15 of the second, and so on. Lane 4g+t
// gets (row g, columns 2t, 2t+1) of each; turned: (rows 2t, 2t+1, column g).
DEVICE uint4 load_matrices(const u16* row) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
    return v;
}
DEVICE uint4 load_matrices_turned(const u16* row) {
    uint4 v;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"((u32)__cvta_generic_to_shared(row)) : "memory");
    return v;
}

// ---- loads ----
DEVICE void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
DEVICE uint4 load_shared(const u8* p) { return *reinterpret_cast<const uint4*>(p); }
DEVICE uint2 load_shared_pair(const u8* p) { return *reinterpret_cast<const uint2*>(p); }
DEVICE u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
DEVICE uint4 load_stream(const void* p) {  // read once: not worth a place in L1
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}
DEVICE uint4 load_coherent(const void* p) {  // may have been written by the kernel before this one
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

// Tiles of keys side by side where registers are scarce: what ptxas finds room for.
#if __CUDA_ARCH__ >= 900
constexpr int SCARCE_TILES = 2;
#else
constexpr int SCARCE_TILES = 1;
#endif

// ---- programmatic dependent launch: nothing before sm_90 ----
DEVICE void pdl_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
DEVICE void pdl_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- copies from global to shared memory that the warp does not wait for ----
DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// 16 bytes of a CTA's copies, a group of which is ended by `end_copies`; `wait_copies` waits for this thread's copies but for those of the
// last PENDING groups.
DEVICE void copy16(u8* dst, const void* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(dst)), "l"(src) : "memory");
}
DEVICE void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
DEVICE void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// One warp's ring of STAGES buffers. On sm_90 lane 0 gives whole blocks to the copy engine, which counts bytes on an mbarrier;
// before that every lane copies 16 bytes at a time and waits for its own group of copies. `begin` … `end` bracket the copies of
// one stage, also of an empty one, because groups are counted.
template <int STAGES>
struct Ring {
    u64* full;  // STAGES barriers in shared memory
    int stage, parity;
    u64 policy;

    DEVICE void init(u64* barriers, int lane) {
        full = barriers, stage = 0, parity = 0, policy = 0;
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {
            for (int i = 0; i < STAGES; i++)
                asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[i])) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
        asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#endif
    }
    DEVICE void begin(int into, u32 bytes, int lane) {
#if __CUDA_ARCH__ >= 900
        if (lane == 0)
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full[into])), "r"(bytes) : "memory");
#endif
    }
    DEVICE void copy(int into, u8* dst, const u8* src, u32 bytes, int lane) {
#if __CUDA_ARCH__ >= 900
        if (lane == 0)
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                    shared_address(dst)), "l"(src), "r"(bytes), "r"(shared_address(&full[into])), "l"(policy) : "memory");
#else
        for (u32 at = lane * 16; at < bytes; at += WARP * 16) copy16(dst + at, src + at);
#endif
    }
    DEVICE void end() {
#if __CUDA_ARCH__ < 900
        end_copies();
#endif
    }
    // Waits for the copies of the current stage. Every stage handed back has been filled again (or was ended empty) by then.
    DEVICE void wait() {
#if __CUDA_ARCH__ >= 900
        asm volatile(
            "{\n .reg .pred p;\n"
            "L_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
            " @!p bra L_%=;\n}" ::"r"(shared_address(&full[stage])), "r"(parity) : "memory");
#else
        wait_copies<STAGES - 1>();
        __syncwarp();
#endif
    }
    DEVICE void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};
#endif
