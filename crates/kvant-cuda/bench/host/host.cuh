// The vocabulary of kernels/device.cuh on a CPU: every CUDA thread is a fiber, and what a warp does together is a meeting of its 32
// fibers. Kernels are compiled as they are, with this file found first; CTAs run one after the other. It is slow, and good for one
// thing: the kernels' arithmetic and indices can be tested where there is no card. Races and memory models it does not show.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
using std::max;
using std::min;

#define DEVICE inline
#define __device__
#define __global__
#define __grid_constant__
#define __forceinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static
#define DYNAMIC_SHARED(name) u8* name = host::dynamic_shared
#define MINUS_INFINITY (-INFINITY)
constexpr int WARP = 32;
constexpr float LOG2_E = 1.4426950408889634f;
constexpr int SCARCE_TILES = 2;

struct uint2 { u32 x, y; };
struct int2 { int x, y; };
struct alignas(16) uint4 { u32 x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

namespace host {
struct Index { unsigned x, y, z; };
struct Message { u32 a[4], b[2]; };  // what a lane brings to a meeting
extern Index thread, block, threads, grid;
extern u8* dynamic_shared;
const Message* meet(const Message& mine);  // waits for the whole warp; the messages of its lanes
void meet_cta();
void wait_phase(const int& phase, u32 parity);  // until that of this parity has ended
float number(u16 half);
u16 half(float number);
inline int lane() { return thread.x % WARP; }
}
#define threadIdx host::thread
#define blockIdx host::block
#define blockDim host::threads
#define gridDim host::grid

template <class T, class F> inline T as(const F& x) {
    static_assert(sizeof(T) == sizeof(F), "as many bytes");
    T y;
    std::memcpy(&y, &x, sizeof y);
    return y;
}
inline float __int_as_float(u32 x) { return as<float>(x); }
inline u32 __float_as_uint(float x) { return as<u32>(x); }
inline int __float2int_rn(float x) { return (int)lrintf(x); }
inline float __fmul_rn(float a, float b) { volatile float y = a * b; return y; }
inline float __fadd_rn(float a, float b) { volatile float y = a + b; return y; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __dmul_rn(double a, double b) { volatile double y = a * b; return y; }
inline double __dadd_rn(double a, double b) { volatile double y = a + b; return y; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __longlong_as_double(long long x) { return as<double>(x); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcg(const T* p) { return *p; }
template <class T> inline void __stcg(T* p, T x) { *p = x; }
inline void atomicAdd(u64* p, u64 x) { *p += x; }
inline void atomicMax(int* p, int x) { *p = max(*p, x); }
inline void __syncthreads() { host::meet_cta(); }
inline void __syncwarp() { host::meet({}); }
inline u32 __byte_perm(u32 a, u32 b, u32 pick) {
    const u64 bytes = (u64)b << 32 | a;
    u32 y = 0;
    for (int i = 0; i < 4; i++) y |= (u32)(bytes >> 8 * (pick >> 4 * i & 7) & 255) << 8 * i;
    return y;
}
template <class T> inline T __shfl_sync(u32, T x, int from) {
    host::Message m = {};
    std::memcpy(m.a, &x, sizeof x);
    const host::Message* all = host::meet(m);
    std::memcpy(&x, all[from & 31].a, sizeof x);
    return x;
}
template <class T> inline T __shfl_xor_sync(u32 mask, T x, int with) { return __shfl_sync(mask, x, host::lane() ^ with); }
inline bool __any_sync(u32, bool x) {
    const host::Message* all = host::meet({{x}, {}});
    bool any = false;
    for (int i = 0; i < 32; i++) any |= all[i].a[0];
    return any;
}
inline u32 __ballot_sync(u32, bool x) {
    const host::Message* all = host::meet({{x}, {}});
    u32 votes = 0;
    for (int i = 0; i < 32; i++) votes |= (u32)(all[i].a[0] != 0) << i;
    return votes;
}

inline u32 __match_any_sync(u32, int x) {
    const host::Message* all = host::meet({{(u32)x}, {}});
    u32 same = 0;
    for (int i = 0; i < 32; i++) same |= (u32)(all[i].a[0] == (u32)x) << i;
    return same;
}
inline int __popc(u32 x) { return __builtin_popcount(x); }

inline float f16_to_f32(u16 x) { return host::number(x); }
inline u16 f32_to_f16(float x) { return host::half(x); }
inline u32 pack_f16x2(float lo, float hi) { return host::half(lo) | (u32)host::half(hi) << 16; }
inline u32 mul_f16x2(u32 a, u32 b) {
    return pack_f16x2(f16_to_f32(a) * f16_to_f32(b), f16_to_f32(a >> 16) * f16_to_f32(b >> 16));
}
inline u32 add_f16x2(u32 a, u32 b) {
    return pack_f16x2(f16_to_f32(a) + f16_to_f32(b), f16_to_f32(a >> 16) + f16_to_f32(b >> 16));
}
inline u32 fma_f16x2(u32 a, u32 b, u32 c) {  // exact in f32 for what kernels make of codes
    return pack_f16x2(f16_to_f32(a) * f16_to_f32(b) + f16_to_f32(c), f16_to_f32(a >> 16) * f16_to_f32(b >> 16) + f16_to_f32(c >> 16));
}
inline float ex2(float x) { return exp2f(x); }
inline float reciprocal(float x) { return 1.f / x; }

inline void mma16816(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const host::Message* all = host::meet({{a0, a1, a2, a3}, {b0, b1}});
    const int g = host::lane() / 4, t = host::lane() % 4;
    for (int j = 0; j < 4; j++) {
        const int high = j / 2, column = 2 * t + j % 2;
        double sum = 0;
        for (int k = 0; k < 4; k++)
            for (int c = 0; c < 2; c++) {
                const u32 a = all[4 * g + k].a[2 * c + high], b = all[4 * column + k].b[c];
                sum += (double)f16_to_f32(a) * f16_to_f32(b) + (double)f16_to_f32(a >> 16) * f16_to_f32(b >> 16);
            }
        d[j] = (float)(d[j] + sum);
    }
}
inline void mma1688(float (&d)[4], u32 a0, u32 a1, u32 b0) { mma16816(d, a0, a1, 0u, 0u, b0, 0u); }
inline void mma_nibbles(float (&d)[4], u32 w, u32 b0, u32 b1) {
    const u32 x = __byte_perm(w, 0, 0x4341);
    mma16816(d, w & 0x000f000fu, w & 0x00ff00ffu, x & 0x000f000fu, x, b0, b1);
}
constexpr float ROW_LO = 16777216.0f, ROW_HI = 1048576.0f;
inline u32 transpose8x8(u32 x) {
    const host::Message* all = host::meet({{x}, {}});
    const int g = host::lane() / 4, t = host::lane() % 4;
    auto at = [&](int row, int column) { return all[4 * row + column / 2].a[0] >> 16 * (column % 2) & 0xffff; };
    return at(2 * t, g) | at(2 * t + 1, g) << 16;
}

// wgmma of a warp's 16 rows, done at once. A matrix is its address: rows of 128 bytes, swizzled; a k-step is 32 bytes on.
inline u32 shared_address(const void* p) { return (u32)(uintptr_t)p; }
inline u8* shared_at(u32 address) { return host::dynamic_shared + (int)(address - shared_address(host::dynamic_shared)); }
inline u64 matrix_at(const u8* tile) {
    if ((uintptr_t)tile % 1024) std::abort();
    return (uintptr_t)tile;
}
inline u64 matrix_at(u32 address) { return matrix_at(shared_at(address)); }
constexpr u64 MATRIX_STEP = 32;
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int PENDING> inline void wgmma_wait() {}
inline void fence_async() {}
template <int N> struct Wgmma {
    static void add(float (&d)[N / 2], const u32* a, u64 b, int more) {
        const host::Message* all = host::meet({{a[0], a[1], a[2], a[3]}, {}});
        const int g = host::lane() / 4, t = host::lane() % 4;
        for (int j = 0; j < N / 2; j++) {
            const int high = j / 2 % 2, row = j / 4 * 8 + 2 * t + j % 2;
            const u8* from = (const u8*)(b & ~127ull) + row * 128;
            double sum = 0;
            for (int k = 0; k < 4; k++)
                for (int c = 0; c < 2; c++) {
                    const int at = (b & 127) + 16 * c + 4 * k;
                    u32 y;
                    std::memcpy(&y, from + ((at / 16 ^ row % 8) << 4) + at % 16, 4);
                    const u32 x = all[4 * g + k].a[2 * c + high];
                    sum += (double)f16_to_f32(x) * f16_to_f32(y) + (double)f16_to_f32(x >> 16) * f16_to_f32(y >> 16);
                }
            d[j] = (float)((more ? d[j] : 0.f) + sum);
        }
    }
};
struct alignas(8) Barrier {
    int phase;
    short count, left;
    void init(int n) { phase = 0, count = left = (short)n; }
    void arrive() {
        if (left <= 0) std::abort();
        if (--left == 0) left = count, phase++;
    }
    void wait(u32 parity) { host::wait_phase(phase, parity); }
};
// Barriers by their addresses. Bytes that are expected are copied before anyone else goes on.
inline void barrier_init(u32 b, int count) { reinterpret_cast<Barrier*>(shared_at(b))->init(count); }
inline void barrier_arrive(u32 b) { reinterpret_cast<Barrier*>(shared_at(b))->arrive(); }
inline void barrier_expect(u32 b, u32) { barrier_arrive(b); }
inline void barrier_wait(u32 b, u32 parity) { reinterpret_cast<Barrier*>(shared_at(b))->wait(parity); }
inline void barriers_are_there() {}
// A plane of numbers that is copied in boxes, dimensions and boxes from the fastest to the slowest; numbers past its ends are zeros.
struct TensorMap {
    u64 data, dims[2], row_bytes, boxes[2], bytes, swizzled, unused[8];
};
inline void tensor_copy(u32 to, const TensorMap* map, u32, int c0, int c1) {
    const u64 width = map->boxes[0] * map->bytes;
    u8* out = shared_at(to);
    if ((uintptr_t)out % (map->swizzled ? 1024 : 128)) std::abort();
    for (u64 row = 0; row < map->boxes[1]; row++)
        for (u64 i = 0; i < map->boxes[0]; i++) {
            const bool is_there = c1 + row < map->dims[1] && c0 + i < map->dims[0];
            const u64 at = i * map->bytes, place = map->swizzled ? (at / 16 ^ row % 8) * 16 + at % 16 : at;
            if (is_there) std::memcpy(out + row * width + place, (const u8*)map->data + (c1 + row) * map->row_bytes + (c0 + i) * map->bytes, map->bytes);
            else std::memset(out + row * width + place, 0, map->bytes);
        }
}
template <int N> inline void fewer_registers() {}
template <int N> inline void more_registers() {}
inline uint4 load_rows(const u16* row, bool turned) {
    host::Message m = {};
    std::memcpy(m.a, &row, sizeof row);
    const host::Message* all = host::meet(m);
    const int g = host::lane() / 4, t = host::lane() % 4;
    u32 v[4];
    for (int i = 0; i < 4; i++) {
        auto at = [&](int r, int c) {
            const u16* from;
            std::memcpy(&from, all[8 * i + r].a, sizeof from);
            if ((uintptr_t)from % 16) std::abort();
            return (u32)from[c];
        };
        v[i] = turned ? at(2 * t, g) | at(2 * t + 1, g) << 16 : at(g, 2 * t) | at(g, 2 * t + 1) << 16;
    }
    return {v[0], v[1], v[2], v[3]};
}
inline uint4 load_matrices(const u16* row) { return load_rows(row, false); }
inline uint4 load_matrices_turned(const u16* row) { return load_rows(row, true); }
inline void prefetch_l2(const void*) {}
inline uint4 load_shared(const u8* p) { return *reinterpret_cast<const uint4*>(p); }
inline uint2 load_shared_pair(const u8* p) { return *reinterpret_cast<const uint2*>(p); }
inline u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
inline uint4 load_stream(const void* p) { return *static_cast<const uint4*>(p); }
inline uint4 load_coherent(const void* p) { return *static_cast<const uint4*>(p); }
inline void pdl_trigger() {}
inline void pdl_wait() {}

inline void copy16(u8* dst, const void* src) {
    if (((uintptr_t)dst | (uintptr_t)src) % 16) std::abort();
    std::memcpy(dst, src, 16);
}
inline void end_copies() {}
template <int PENDING> inline void wait_copies() {}

// Copies happen at once. A stage that is read before it was filled, or filled before it was read, is an error.
template <int STAGES> struct Ring {
    int stage;
    bool filled[STAGES];
    void init(u64*, int) {
        stage = 0;
        for (bool& f : filled) f = false;
    }
    void begin(int into, u32, int) {
        if (filled[into]) std::abort();
        filled[into] = true;
    }
    void copy(int, u8* dst, const u8* src, u32 bytes, int lane) {
        if (((uintptr_t)dst | (uintptr_t)src | bytes) % 16) std::abort();
        if (lane == 0) std::memcpy(dst, src, bytes);
    }
    void end() { __syncwarp(); }
    void wait() {
        if (!filled[stage]) std::abort();
        filled[stage] = false;
    }
    void advance() { stage = (stage + 1) % STAGES; }
};
