// Threads of a workgroup as fibers: each runs until it waits for the others or returns. Barriers, simdgroups of 32 threads and their
// matrices.
//
// A kernel is right only if it gives the same in every order of its threads, so the order is the caller's choice. Threads that meet
// at different places, or not at all, are an error.
#pragma once
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>
#include <ucontext.h>

namespace shim {

using metal::uint;
using metal::uint3;

constexpr uint WIDTH = 32;
constexpr uint MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 256 << 10;
constexpr size_t SHARED_BYTES = 32 << 10;

enum State { READY, AT_BARRIER, AT_SIMD, RETURNED };

// What a kernel is told of a thread.
struct Thread {
    uint index;
    uint3 place, group, groups, threads;
    uint3 in_grid() const { return group * threads + place; }
    uint lane() const { return index % WIDTH; }
    uint simdgroup() const { return index / WIDTH; }
    uint simdgroups() const { return (threads.x * threads.y * threads.z + WIDTH - 1) / WIDTH; }
};

struct Fiber {
    Thread thread;
    State state;
    int site;
    uint meetings;
    bool is_begun;
    ucontext_t start;
    jmp_buf at;
};

static Fiber* fibers;
static Fiber* current;
static jmp_buf scheduler;
static char message[256];
static bool is_wrong;
static void** buffers;
alignas(64) static unsigned char shared[SHARED_BYTES];
// What lanes bring to two meetings in a row, and who was there.
alignas(16) static unsigned char brought[2][MOST_THREADS][16];
static uint present[2][MOST_THREADS / WIDTH];

static void wrong(const char* what) {
    if (!is_wrong) std::snprintf(message, sizeof message, "%s", what);
    is_wrong = true;
}

static void leave(State state, int site) {
    current->state = state;
    current->site = site;
    if (_setjmp(current->at) == 0) _longjmp(scheduler, 1);
}

static void enter(Fiber& fiber) {
    current = &fiber;
    if (_setjmp(scheduler) == 0) {
        if (fiber.is_begun) _longjmp(fiber.at, 1);
        fiber.is_begun = true;
        setcontext(&fiber.start);
    }
}

// Written out for each kernel: the call of its function with the arguments it asks for.
static void call(const Thread& thread);

static void live() {
    for (;;) {
        call(current->thread);
        leave(RETURNED, 0);
    }
}

// A buffer of a slot as whatever a kernel takes it for.
struct Slot {
    uint slot;
    template <class T> operator T&() const { return *static_cast<T*>(buffers[slot]); }
};

// Bytes that variables of workgroup memory take, one after another.
template <class... T> constexpr size_t room() { return (size_t(0) + ... + ((sizeof(T) + 15) / 16 * 16)); }

// The variable that follows those of the types `Before`.
template <class T, class... Before> T& variable() {
    static_assert(room<T, Before...>() <= SHARED_BYTES, "more than 32 KiB of workgroup memory");
    return *reinterpret_cast<T*>(shared + room<Before...>());
}

// Lanes of a simdgroup that wait for each other: all that have not returned, at one place.
static bool release_simdgroup(uint first, uint end) {
    uint waiting = 0, others = 0, lanes = 0;
    int site = 0;
    for (uint i = first; i < end; i++) {
        Fiber& fiber = fibers[i];
        if (fiber.state == AT_SIMD) {
            if (waiting++ > 0 && fiber.site != site) wrong("lanes of a simdgroup meet at different places");
            site = fiber.site;
            lanes |= 1u << (i - first);
        } else if (fiber.state == AT_BARRIER) {
            others++;
        }
    }
    if (waiting == 0) return false;
    if (others > 0) wrong("some lanes of a simdgroup wait for a barrier, others for each other");
    for (uint i = first; i < end; i++) {
        if (fibers[i].state != AT_SIMD) continue;
        fibers[i].state = READY;
        present[fibers[i].meetings % 2][first / WIDTH] = lanes;
    }
    return true;
}

static void release_barrier(uint threads) {
    uint waiting = 0;
    int site = 0;
    for (uint i = 0; i < threads; i++) {
        if (fibers[i].state != AT_BARRIER) continue;
        if (waiting++ > 0 && fibers[i].site != site) wrong("threads wait at different barriers");
        site = fibers[i].site;
        fibers[i].state = READY;
    }
    if (waiting > 0 && waiting < threads) wrong("threads have returned while others wait at a barrier");
}

static void run_group(uint threads, const uint* order) {
    std::memset(shared, 0xff, sizeof shared);
    for (;;) {
        for (uint n = 0; n < threads; n++) {
            if (fibers[order[n]].state == READY) enter(fibers[order[n]]);
        }
        bool met = false, all_returned = true;
        for (uint first = 0; first < threads; first += WIDTH) {
            met |= release_simdgroup(first, first + WIDTH < threads ? first + WIDTH : threads);
        }
        for (uint i = 0; i < threads; i++) all_returned &= fibers[i].state == RETURNED;
        if (is_wrong || all_returned) return;
        if (!met) release_barrier(threads);
    }
}

// Forward, backward, or as the seed has it.
static void arrange(uint* order, uint count, uint kind, uint seed) {
    for (uint i = 0; i < count; i++) order[i] = kind == 1 ? count - 1 - i : i;
    for (uint i = count; kind == 2 && i > 1; i--) {
        seed = seed * 1664525u + 1013904223u;
        uint j = (seed >> 8) % i, last = order[i - 1];
        order[i - 1] = order[j];
        order[j] = last;
    }
}

static void make_fibers() {
    size_t bytes = MOST_THREADS * STACK_BYTES;
    void* stacks = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    fibers = static_cast<Fiber*>(std::calloc(MOST_THREADS, sizeof(Fiber)));
    for (uint i = 0; i < MOST_THREADS; i++) {
        getcontext(&fibers[i].start);
        fibers[i].start.uc_stack.ss_sp = static_cast<char*>(stacks) + i * STACK_BYTES;
        fibers[i].start.uc_stack.ss_size = STACK_BYTES;
        makecontext(&fibers[i].start, live, 0);
    }
}

} // namespace shim

// Runs a grid; what was wrong, or null.
extern "C" const char* kvant_launch(void** slots, const unsigned* grid, const unsigned* threads, unsigned order) {
    using namespace shim;
    if (!fibers) make_fibers();
    buffers = slots;
    is_wrong = false;
    uint3 groups(grid[0], grid[1], grid[2]), size(threads[0], threads[1], threads[2]);
    uint in_group = size.x * size.y * size.z, count = groups.x * groups.y * groups.z;
    if (in_group > MOST_THREADS) return "more than 1024 threads in a workgroup";
    static uint of_threads[MOST_THREADS];
    for (uint n = 0; n < count && !is_wrong; n++) {
        // Workgroups too come in any order.
        uint g = order == 1 ? count - 1 - n : n;
        uint3 group(g % groups.x, g / groups.x % groups.y, g / groups.x / groups.y);
        arrange(of_threads, in_group, order, g);
        for (uint i = 0; i < in_group; i++) {
            uint3 place(i % size.x, i / size.x % size.y, i / size.x / size.y);
            fibers[i].thread = Thread{i, place, group, groups, size};
            fibers[i].state = READY;
            fibers[i].meetings = 0;
        }
        run_group(in_group, of_threads);
    }
    // Those that were stopped in the middle begin anew.
    for (uint i = 0; is_wrong && i < in_group; i++) fibers[i].is_begun = false;
    return is_wrong ? message : nullptr;
}

namespace metal {

enum class mem_flags { mem_none, mem_device, mem_threadgroup, mem_texture };
inline mem_flags operator|(mem_flags a, mem_flags) { return a; }
#define PLACE int place = __builtin_LINE()
inline void threadgroup_barrier(mem_flags, PLACE) { shim::leave(shim::AT_BARRIER, place); }
inline void simdgroup_barrier(mem_flags, PLACE);

// What all lanes have brought to a meeting.
template <class T> struct Met {
    uint first, meeting;
    bool has(uint lane) const { return lane < shim::WIDTH && shim::present[meeting][first / shim::WIDTH] >> lane & 1; }
    // Of a lane that is not there: no number.
    T operator[](uint lane) const {
        T value;
        std::memset(static_cast<void*>(&value), 0xff, sizeof value);
        if (has(lane)) std::memcpy(static_cast<void*>(&value), shim::brought[meeting][first + lane], sizeof value);
        return value;
    }
};
template <class T> Met<T> meet(const T& value, int place) {
    static_assert(sizeof(T) <= 16);
    shim::Fiber& own = *shim::current;
    uint meeting = ++own.meetings % 2;
    std::memcpy(shim::brought[meeting][own.thread.index], &value, sizeof value);
    shim::leave(shim::AT_SIMD, place);
    return Met<T>{own.thread.simdgroup() * shim::WIDTH, meeting};
}
inline uint own_lane() { return shim::current->thread.lane(); }
inline void simdgroup_barrier(mem_flags, int place) { meet(0u, place); }

#define OVER_LANES(name, end, of) \
    template <class T> T name(T value, PLACE) { \
        Met<T> met = meet(value, place); \
        bool is_first = true; \
        T a = T(name##_empty); \
        for (uint lane = 0; lane < (end); lane++) { \
            if (!met.has(lane)) continue; \
            T b = met[lane]; \
            a = is_first ? b : T(of); \
            is_first = false; \
        } \
        return a; \
    }
constexpr int simd_sum_empty = 0, simd_product_empty = 1, simd_min_empty = 0, simd_max_empty = 0, simd_and_empty = 0,
              simd_or_empty = 0, simd_xor_empty = 0, simd_prefix_inclusive_sum_empty = 0,
              simd_prefix_exclusive_sum_empty = 0, simd_prefix_inclusive_product_empty = 1,
              simd_prefix_exclusive_product_empty = 1;
OVER_LANES(simd_sum, shim::WIDTH, a + b)
OVER_LANES(simd_product, shim::WIDTH, a * b)
OVER_LANES(simd_min, shim::WIDTH, min(a, b))
OVER_LANES(simd_max, shim::WIDTH, max(a, b))
OVER_LANES(simd_and, shim::WIDTH, a & b)
OVER_LANES(simd_or, shim::WIDTH, a | b)
OVER_LANES(simd_xor, shim::WIDTH, a ^ b)
OVER_LANES(simd_prefix_inclusive_sum, own_lane() + 1, a + b)
OVER_LANES(simd_prefix_exclusive_sum, own_lane(), a + b)
OVER_LANES(simd_prefix_inclusive_product, own_lane() + 1, a * b)
OVER_LANES(simd_prefix_exclusive_product, own_lane(), a * b)
#undef OVER_LANES

struct simd_vote {
    uint lanes;
    explicit operator uint64_t() const { return lanes; }
};
inline simd_vote simd_ballot(bool yes, PLACE) {
    Met<bool> met = meet(yes, place);
    uint lanes = 0;
    for (uint lane = 0; lane < shim::WIDTH; lane++) lanes |= uint(met.has(lane) && met[lane]) << lane;
    return simd_vote{lanes};
}
inline bool simd_any(bool yes, PLACE) { return simd_ballot(yes, place).lanes != 0; }
inline bool simd_all(bool yes, PLACE) { return simd_ballot(!yes, place).lanes == 0; }
template <class T> T simd_broadcast_first(T value, PLACE) {
    Met<T> met = meet(value, place);
    uint lane = 0;
    while (!met.has(lane)) lane++;
    return met[lane];
}
template <class T> T simd_shuffle(T value, uint lane, PLACE) { return meet(value, place)[lane]; }
template <class T> T simd_broadcast(T value, uint lane, PLACE) { return meet(value, place)[lane]; }
template <class T> T simd_shuffle_down(T value, uint by, PLACE) { return meet(value, place)[own_lane() + by]; }
template <class T> T simd_shuffle_up(T value, uint by, PLACE) { return meet(value, place)[own_lane() - by]; }
template <class T> T simd_shuffle_xor(T value, uint mask, PLACE) { return meet(value, place)[own_lane() ^ mask]; }
template <class T> T quad_broadcast(T value, uint lane, PLACE) { return meet(value, place)[own_lane() / 4 * 4 + lane]; }
template <class T> T quad_shuffle_xor(T value, uint mask, PLACE) { return meet(value, place)[own_lane() ^ mask]; }

// Every lane has the whole of a matrix; a store takes two numbers from each, so lanes that differ are seen.
template <class T, int C, int R> struct simdgroup_matrix {
    T at[R][C];
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T value) {
        for (auto& row : at)
            for (T& number : row) number = value;
    }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
template <class T, int C, int R>
void simdgroup_load(simdgroup_matrix<T, C, R>& m, const T* from, ulong stride, ulong2 origin = 0, bool turned = false, PLACE) {
    meet(0u, place);
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) {
            ulong row = (turned ? c : r) + origin.y, column = (turned ? r : c) + origin.x;
            m.at[r][c] = from[row * stride + column];
        }
    meet(0u, place);
}
template <class T, int C, int R>
void simdgroup_store(const simdgroup_matrix<T, C, R>& m, T* to, ulong stride, ulong2 origin = 0, bool turned = false, PLACE) {
    meet(0u, place);
    for (int n = own_lane(); n < R * C; n += shim::WIDTH) {
        int r = n / C, c = n % C;
        ulong row = (turned ? c : r) + origin.y, column = (turned ? r : c) + origin.x;
        to[row * stride + column] = m.at[r][c];
    }
    meet(0u, place);
}
template <class D, class A, class B, int N, int K, int M>
void simdgroup_multiply_accumulate(
    simdgroup_matrix<D, N, M>& d, const simdgroup_matrix<A, K, M>& a, const simdgroup_matrix<B, N, K>& b,
    const simdgroup_matrix<D, N, M>& c, PLACE) {
    meet(0u, place);
    simdgroup_matrix<D, N, M> sum = c;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++)
                sum.at[m][n] = static_cast<D>(::fmaf(float(a.at[m][k]), float(b.at[k][n]), float(sum.at[m][n])));
    d = sum;
}
#undef PLACE

} // namespace metal

using metal::simdgroup_load;
using metal::simdgroup_multiply_accumulate;
using metal::simdgroup_store;
