// A CUDA driver without a card: as much of the driver API as the backend calls, over the host's memory, with the kernels compiled for the
// CPU (bench/host). So whole models run through the backend, pages, tables, plans and graphs where there is no card. `cargo xtask test cuda`
// compiles it and runs the tests on it.
// Memory that was never written holds ones, and NaN as floats; copies and launches happen at once. `kvant_fault` makes it fail as cards and
// drivers do, `kvant_copied` counts what went to the host.
#include "../../bench/host/host.cpp"
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>

typedef int Result;
constexpr Result OK = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500, LAUNCH_FAILED = 719;
struct Function {
    void (*entry)(Params);
    unsigned shared;
};
struct Config {
    unsigned gx, gy, gz, bx, by, bz, shared;
    void* stream;
    void* attributes;
    unsigned count;
};
struct Launched {
    Function* function;
    Config config;
    Params params;
};
static std::mutex mutex;
static void* current_context;
static std::map<void*, std::vector<Launched>*> capturing;  // by stream
static std::map<std::string, Function> functions;
static std::map<u64, size_t> sizes;  // of what cuMemAlloc gave
static long long memory_left = -1, launches_left = -1, driver_version = 12080, copied;
static bool is_lost, has_maps;
static bool takes(size_t bytes) {
    if (memory_left >= 0 && (long long)bytes > memory_left) return false;
    if (memory_left >= 0) memory_left -= bytes;
    return true;
}
static void gives(size_t bytes) {
    if (memory_left >= 0) memory_left += bytes;
}
#define ALIVE if (is_lost) return LAUNCH_FAILED

static void launch(const Launched& l) {
    host_launch(l.function->entry, l.config.gx, l.config.gy, l.config.bx, std::max(l.config.shared, l.function->shared), &l.params, sizeof l.params);
}

// A struct of 16 bytes is passed in registers, so this one is not called as the others are.
static void clear_pages_entry(Params p) {
    ClearParams own;
    memcpy(&own, &p, sizeof own);
    clear_pages(own);
}

extern "C" {
// `memory`: so many bytes can still be had; `lost`: after so many launches the card is gone; `driver`: the version. Negative: no such fault.
// `maps`: 1 for a card with tensor maps, which takes wider tiles.
int kvant_fault(const char* what, long long n) {
    std::lock_guard<std::mutex> lock(mutex);
    if (!strcmp(what, "memory")) return memory_left = n, 0;
    if (!strcmp(what, "lost")) return launches_left = n, is_lost = n == 0, 0;
    if (!strcmp(what, "driver")) return driver_version = n < 0 ? 12080 : n, 0;
    if (!strcmp(what, "maps")) return has_maps = n == 1, 0;
    return 1;
}
long long kvant_copied() { return copied; }

Result cuInit(unsigned) { return OK; }
Result cuDriverGetVersion(int* version) { return *version = driver_version, OK; }
Result cuDeviceGetCount(int* count) { return *count = 1, OK; }
Result cuDeviceGet(int* device, int) { return *device = 0, OK; }
Result cuDeviceGetName(char* name, int size, int) { return strncpy(name, "the host, one fiber per thread", size), OK; }
Result cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = 2ull << 30, OK; }
Result cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16: *value = 3; break;  // multiprocessors
        case 75: *value = 9; break;  // compute capability
        case 76: *value = 0; break;
        case 127: *value = has_maps; break;
        default: *value = 0;
    }
    return OK;
}
Result cuDevicePrimaryCtxRetain(void** context, int) { return *context = &mutex, OK; }
Result cuDevicePrimaryCtxRelease_v2(int) { return OK; }
Result cuCtxGetCurrent(void** context) { return *context = current_context, OK; }
Result cuCtxSetCurrent(void* context) { return current_context = context, OK; }
Result cuCtxSynchronize() { return OK; }
Result cuGetErrorName(Result, const char** name) { return *name = "an error of the host's driver", OK; }
Result cuGetErrorString(Result, const char** text) { return *text = "an error of the host's driver", OK; }

Result cuModuleLoadData(void** module, const void*) { return *module = &functions, OK; }
Result cuModuleUnload(void*) { return OK; }
Result cuModuleGetFunction(void** function, void*, const char* name) {
    std::lock_guard<std::mutex> lock(mutex);
    Dl_info own;
    dladdr((void*)cuInit, &own);
    void* library = dlopen(own.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    void* entry = dlsym(library, name);
    if (!entry) return NOT_FOUND;
    const int* shared = (const int*)dlsym(library, (std::string(name) + "_shared").c_str());
    if (!strcmp(name, "clear_pages")) entry = (void*)clear_pages_entry;
    functions[name] = {(void (*)(Params))entry, shared ? (unsigned)*shared : 0};
    return *function = &functions[name], OK;
}
Result cuFuncSetAttribute(void*, int, int) { return OK; }

Result cuStreamCreate(void** stream, unsigned) { return *stream = new char, OK; }
Result cuStreamDestroy_v2(void* stream) { return delete (char*)stream, OK; }
Result cuStreamSynchronize(void*) {
    ALIVE;
    return OK;
}
Result cuEventCreate(void** event, unsigned) { return *event = &current_context, OK; }
Result cuEventDestroy_v2(void*) { return OK; }
Result cuEventRecord(void*, void*) { return OK; }
Result cuEventSynchronize(void*) {
    ALIVE;
    return OK;
}
Result cuStreamWaitEvent(void*, void*, unsigned) { return OK; }

Result cuMemAlloc_v2(u64* address, size_t bytes) {
    ALIVE;
    std::lock_guard<std::mutex> lock(mutex);
    if (!takes(bytes)) return OUT_OF_MEMORY;
    void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);
    sizes[(u64)memory] = bytes;
    return *address = (u64)memory, OK;
}
Result cuMemFree_v2(u64 address) {
    std::lock_guard<std::mutex> lock(mutex);
    return gives(sizes[address]), free((void*)address), OK;
}
Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) { return *memory = malloc(bytes), OK; }
Result cuMemFreeHost(void* memory) { return free(memory), OK; }
Result cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void*) {
    ALIVE;
    return memcpy((void*)to, from, bytes), OK;
}
Result cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void*) {
    ALIVE;
    return copied += bytes, memcpy(to, (void*)from, bytes), OK;
}
Result cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void*) {
    ALIVE;
    return memcpy((void*)to, (void*)from, bytes), OK;
}
Result cuMemsetD8Async(u64 to, u8 value, size_t bytes, void*) { return memset((void*)to, value, bytes), OK; }

Result cuMemAddressReserve(u64* base, size_t bytes, size_t alignment, u64, u64) {
    u8* memory = (u8*)mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    return *base = ((u64)memory + alignment - 1) / alignment * alignment, OK;
}
Result cuMemAddressFree(u64, size_t) { return OK; }
Result cuMemCreate(u64* handle, size_t bytes, const void*, u64) {
    ALIVE;
    std::lock_guard<std::mutex> lock(mutex);
    return takes(bytes) ? (*handle = bytes, OK) : OUT_OF_MEMORY;
}
Result cuMemRelease(u64 bytes) {
    std::lock_guard<std::mutex> lock(mutex);
    return gives(bytes), OK;
}
Result cuMemMap(u64, size_t, size_t, u64, u64) { return OK; }
Result cuMemUnmap(u64 at, size_t bytes) { return mprotect((void*)at, bytes, PROT_NONE) ? OUT_OF_MEMORY : OK; }
Result cuMemSetAccess(u64 at, size_t bytes, const void*, size_t) {
    if (mprotect((void*)at, bytes, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
    return memset((void*)at, 0xff, bytes), OK;
}

Result cuTensorMapEncodeTiled(TensorMap* map, int number, unsigned, void* data, const u64* dims, const u64* strides, const unsigned* boxes, const unsigned*, int, int swizzle, int, int) {
    // Numbers of two bytes or of eight.
    *map = {(u64)data, {dims[0], dims[1]}, strides[0], {boxes[0], boxes[1]}, number == 6 ? 2u : 8u, swizzle == 3, {}};
    return (u64)data % 16 || strides[0] % 16 ? LAUNCH_FAILED : OK;
}

Result cuLaunchKernelEx(const Config* config, void* function, void** arguments, void**) {
    std::lock_guard<std::mutex> lock(mutex);
    if (launches_left > 0 && --launches_left == 0) is_lost = true;
    ALIVE;
    Launched l = {(Function*)function, *config, {}};
    // The backend passes as many words for every kernel, and maps before them to those that have some.
    const size_t maps = arguments[0] == arguments[1] ? 0 : sizeof(WideMaps);
    memcpy(&l.params, arguments[0], maps);
    memcpy((u8*)&l.params + maps, arguments[1], sizeof l.params - sizeof(WideMaps));
    auto graph = capturing.find(config->stream);
    if (graph != capturing.end()) graph->second->push_back(l);
    else launch(l);
    return OK;
}
Result cuStreamBeginCapture_v2(void* stream, int) {
    std::lock_guard<std::mutex> lock(mutex);
    return capturing[stream] = new std::vector<Launched>, OK;
}
Result cuStreamEndCapture(void* stream, void** graph) {
    std::lock_guard<std::mutex> lock(mutex);
    return *graph = capturing[stream], capturing.erase(stream), OK;
}
Result cuGraphInstantiateWithFlags(void** ready, void* graph, u64) { return *ready = new std::vector<Launched>(*(std::vector<Launched>*)graph), OK; }
Result cuGraphDestroy(void* graph) { return delete (std::vector<Launched>*)graph, OK; }
Result cuGraphExecDestroy(void* graph) { return delete (std::vector<Launched>*)graph, OK; }
Result cuGraphLaunch(void* graph, void*) {
    ALIVE;
    std::lock_guard<std::mutex> lock(mutex);
    for (const Launched& l : *(std::vector<Launched>*)graph) launch(l);
    return OK;
}
}
