// Barriers in shared memory on which warps and the copy engine wait for one another (mbarrier), and registers that warpgroups give each other:
// Hopper alone.
#pragma once
#ifndef KVANT_HOST  // bench/host has its own
#include "device.cuh"

DEVICE void barrier_init(u32 b, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory"); }
DEVICE void barrier_expect(u32 b, u32 bytes) { asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory"); }
DEVICE void barrier_arrive(u32 b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory"); }
DEVICE void barriers_are_there() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }  // for the copy engine too
DEVICE void barrier_wait(u32 b, u32 parity) {
    asm volatile("{\n .reg .pred p;\nL_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @!p bra L_%=;\n}" ::"r"(b), "r"(parity) : "memory");
}

// One of them. A phase ends when `count` threads have arrived; phases have parities 0, 1, 0, …, and the one before the first counts as ended.
struct Barrier {
    u64 word;
    DEVICE void init(int count) { barrier_init(shared_address(this), count); }
    DEVICE void arrive() { barrier_arrive(shared_address(this)); }
    DEVICE void wait(u32 parity) { barrier_wait(shared_address(this), parity); }
};

// Registers of each thread of this warpgroup from here on.
template <int N>
DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N>
DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
#endif
