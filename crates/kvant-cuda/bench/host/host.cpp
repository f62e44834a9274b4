// Fibers and meetings behind host.cuh, all kernels, and one C entry: g++ -O1 -fPIC -shared -DKVANT_HOST -Ibench/host -Ikernels bench/host/host.cpp
#include "host.cuh"
#include <csetjmp>
#include <ucontext.h>
#include <vector>

namespace host {
Index thread, block, threads, grid;
u8* dynamic_shared;

// A fiber is entered by its context once and left and resumed by jumps, which make no system calls as contexts do.
struct Fiber {
    ucontext_t context;
    jmp_buf here;
    std::vector<u8> stack;
    bool begun, done;
    const int* waits;  // the meeting it waits for, if it does, and which one of those
    int generation;
};
struct Warp {
    Message messages[2][32];
    int arrived, generation, size;
};
static std::vector<Fiber> fibers;
static std::vector<Warp> warps;
static jmp_buf scheduler;
static int current, cta_arrived, cta_generation, alive;
static void (*body)();

static void wait_for(const int& meeting, int generation) {
    if (meeting != generation) return;
    Fiber& f = fibers[current];
    f.waits = &meeting, f.generation = generation;
    if (!_setjmp(f.here)) _longjmp(scheduler, 1);
}

const Message* meet(const Message& mine) {
    Warp& w = warps[current / 32];
    const int generation = w.generation;
    Message* all = w.messages[generation & 1];
    all[current % 32] = mine;
    if (++w.arrived == w.size) w.arrived = 0, w.generation++;
    wait_for(w.generation, generation);
    return all;
}
void meet_cta() {
    const int generation = cta_generation;
    if (++cta_arrived == alive) cta_arrived = 0, cta_generation++;
    wait_for(cta_generation, generation);
}
void wait_phase(const int& phase, u32 parity) {
    if ((phase & 1) == (int)parity) wait_for(phase, phase);
}
static const struct Numbers {
    float of[1 << 16];
    Numbers() {
        for (int x = 0; x < 1 << 16; x++) {
            const int e = x >> 10 & 31, f = x & 1023;
            const float y = e == 31 ? (f ? NAN : INFINITY) : e ? ldexpf(1024 + f, e - 25) : ldexpf(f, -24);
            of[x] = x >> 15 ? -y : y;
        }
    }
} numbers;
float number(u16 x) { return numbers.of[x]; }
u16 half(float x) {  // to nearest, ties to even
    const u32 bits = as<u32>(x), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
    if (a > 0x7f800000) return sign | 0x7fff;
    if (a >= 0x477ff000) return sign | 0x7c00;  // 65520 and more
    if (a < 0x38800000) return sign | (u16)rintf(as<float>(a) * 16777216.f);  // below 2^-14: in units of 2^-24
    return sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
}
static void enter() {
    body();
    fibers[current].done = true;
    alive--;
    if (alive && cta_arrived == alive) cta_arrived = 0, cta_generation++;
    _longjmp(scheduler, 1);
}
static void resume(Fiber& f) {
    if (_setjmp(scheduler)) return;
    if (f.begun) _longjmp(f.here, 1);
    f.begun = true;
    setcontext(&f.context);
}
static void run_cta(unsigned count) {
    if (fibers.size() < count) fibers.resize(count);
    warps.assign((count + 31) / 32, Warp{});
    alive = count, cta_arrived = 0;
    for (unsigned i = 0; i < count; i++) {
        Fiber& f = fibers[i];
        f.begun = f.done = false, f.waits = nullptr, f.stack.resize(96 << 10), warps[i / 32].size++;
        getcontext(&f.context);
        f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size();
        makecontext(&f.context, enter, 0);
    }
    while (alive)
        for (unsigned i = 0; i < count; i++) {
            Fiber& f = fibers[i];
            if (!f.done && !(f.waits && *f.waits == f.generation)) current = i, thread = {i, 0, 0}, resume(f);
        }
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
#include "attention_tile.cu"
#include "encode.cu"
#include "encode_klt.cu"
#include "linear.cu"
#undef KERNEL
#undef KERNELS
#include "tile.cu"
#undef KERNELS
#include "wide.cu"
#undef KERNELS
#include "wide_groups.cu"
#include "moe.cu"
#include "rows.cu"
#include "residual.cu"
#include "recurrent.cu"
#include "recurrent_chunks.cu"
#include "relay.cu"
#include "latent.cu"
#include "latent_rows.cu"
#include "streams.cu"
#include "strict.cu"
#include "tensors.cu"
#include "top.cu"
#include "general.cu"
#include "general_encode.cu"
#include "trellis_encode.cu"

struct Params {  // passed by value in memory, like every kernel's own struct; those of wide products have maps before it
    u64 words[24 + sizeof(WideMaps) / 8];
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
