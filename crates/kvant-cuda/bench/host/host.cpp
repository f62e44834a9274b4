// Fibers and meetings behind host.cuh, all kernels, and one C entry: g++ -O1 -fPIC -shared -DKVANT_HOST -Ibench/host -Ikernels bench/host/host.cpp
#include "host.cuh"
#include <ucontext.h>
#include <vector>

namespace host {
Index thread, block, threads, grid;
u8* dynamic_shared;

struct Fiber {
    ucontext_t context;
    std::vector<u8> stack;
    bool done;
};
struct Warp {
    Message messages[2][32];
    int arrived, generation, size;
};
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static ucontext_t scheduler;
static int current, cta_arrived, cta_generation, alive;
static void (*body)();

static void yield() { swapcontext(&fibers[current].context, &scheduler); }

const Message* meet(const Message& mine) {
    Warp& w = warps[current / 32];
    const int generation = w.generation;
    Message* all = w.messages[generation & 1];
    all[current % 32] = mine;
    if (++w.arrived == w.size) w.arrived = 0, w.generation++;
    while (w.generation == generation) yield();
    return all;
}
void meet_cta() {
    const int generation = cta_generation;
    if (++cta_arrived == alive) cta_arrived = 0, cta_generation++;
    while (cta_generation == generation) yield();
}
float number(u16 x) {
    const int e = x >> 10 & 31, f = x & 1023;
    const float y = e == 31 ? (f ? NAN : INFINITY) : e ? ldexpf(1024 + f, e - 25) : ldexpf(f, -24);
    return x >> 15 ? -y : y;
}
u16 half(float x) {  // to nearest, ties to even
    const u16 sign = as<u32>(x) >> 16 & 0x8000;
    const float a = fabsf(x);
    if (a != a) return sign | 0x7fff;
    if (a >= 65520.f) return sign | 0x7c00;
    if (a == 0.f) return sign;
    int e;
    frexpf(a, &e);
    const float unit = ldexpf(1.f, std::max(e - 11, -24));
    const int n = (int)rintf(a / unit);  // at most 2048
    return sign | (u16)(e - 11 <= -24 ? n : n == 2048 ? (e + 15) << 10 : (e + 14) << 10 | (n & 1023));
}
static void enter() {
    body();
    fibers[current].done = true;
    alive--;
    if (alive && cta_arrived == alive) cta_arrived = 0, cta_generation++;
    swapcontext(&fibers[current].context, &scheduler);
}
static void run_cta(unsigned count) {
    if (fibers.size() < count) fibers.resize(count);
    warps.assign((count + 31) / 32, Warp{});
    alive = count, cta_arrived = 0;
    for (unsigned i = 0; i < count; i++) {
        Fiber& f = fibers[i];
        f.done = false, f.stack.resize(96 << 10), warps[i / 32].size++;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
        makecontext(&f.context, enter, 0);
    }
    while (alive)
        for (unsigned i = 0; i < count; i++)
            if (!fibers[i].done) current = i, thread = {i, 0, 0}, swapcontext(&scheduler, &fibers[i].context);
}
}

#include "attention_int4.cu"
#include "attention_int8.cu"
#include "attention_k8v4.cu"
#include "attention_f16.cu"
#include "attention_dims.cu"
#undef ATTEND_SMALL
#include "attention_wide.cu"
#include "attention_klt.cu"
#include "encode.cu"
#include "encode_klt.cu"
#include "linear.cu"
#undef KERNEL
#undef KERNELS
#include "tile.cu"
#include "moe.cu"
#include "rows.cu"
#include "latent.cu"
#include "latent_rows.cu"
#include "strict.cu"
#include "tensors.cu"
#include "top.cu"

struct Params {  // passed by value in memory, like every kernel's own struct
    u64 words[24];
};
static Params params;
static void (*kernel)(Params);

extern "C" void host_launch(void (*entry)(Params), unsigned gx, unsigned gy, unsigned block, unsigned shared, const void* data, unsigned bytes) {
    static std::vector<u8> memory;
    memory.assign(shared + 128, 0xff);
    host::dynamic_shared = memory.data() + (128 - (uintptr_t)memory.data() % 128);
    std::memcpy(params.words, data, bytes);
    kernel = entry, host::body = [] { kernel(params); };
    host::threads = {block, 1, 1}, host::grid = {gx, gy, 1};
    for (unsigned y = 0; y < gy; y++)
        for (unsigned x = 0; x < gx; x++) host::block = {x, y, 0}, host::run_cta(block);
}
