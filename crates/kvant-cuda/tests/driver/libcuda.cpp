// A CUDA driver without a card: as much of the driver API as the backend calls, over the host's memory, with the kernels compiled for the
// CPU (bench/host). So whole models run through the backend, pages, tables, plans and graphs where there is no card:
//   g++ -std=c++17 -O2 -fPIC -shared -w -DKVANT_HOST -Ibench/host -Ikernels tests/driver/libcuda.cpp -o DIR/libcuda.so.1 -ldl
//   LD_LIBRARY_PATH=DIR KVANT_CARD_TESTS=short cargo test --features cuda --test card
// Memory that was never written holds ones, and NaN as floats; copies and launches happen at once.
#include "../../bench/host/host.cpp"
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <string>
#include <sys/mman.h>

typedef int Result;
constexpr Result OK = 0, OUT_OF_MEMORY = 2, NOT_FOUND = 500;
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
static std::vector<Launched>* capturing;
static std::map<std::string, Function> functions;

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
Result cuInit(unsigned) { return OK; }
Result cuDriverGetVersion(int* version) { return *version = 12080, OK; }
Result cuDeviceGetCount(int* count) { return *count = 1, OK; }
Result cuDeviceGet(int* device, int) { return *device = 0, OK; }
Result cuDeviceGetName(char* name, int size, int) { return strncpy(name, "the host, one fiber per thread", size), OK; }
Result cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = 2ull << 30, OK; }
Result cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16: *value = 3; break;  // multiprocessors
        case 75: *value = 9; break;  // compute capability
        case 76: *value = 0; break;
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

Result cuStreamCreate(void** stream, unsigned) { return *stream = &current_context, OK; }
Result cuStreamDestroy_v2(void*) { return OK; }
Result cuStreamSynchronize(void*) { return OK; }
Result cuEventCreate(void** event, unsigned) { return *event = &current_context, OK; }
Result cuEventDestroy_v2(void*) { return OK; }

Result cuMemAlloc_v2(u64* address, size_t bytes) {
    void* memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    if (!memory) return OUT_OF_MEMORY;
    memset(memory, 0xff, bytes);
    return *address = (u64)memory, OK;
}
Result cuMemFree_v2(u64 address) { return free((void*)address), OK; }
Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) { return *memory = malloc(bytes), OK; }
Result cuMemFreeHost(void* memory) { return free(memory), OK; }
Result cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void*) { return memcpy((void*)to, from, bytes), OK; }
Result cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void*) { return memcpy(to, (void*)from, bytes), OK; }
Result cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void*) { return memcpy((void*)to, (void*)from, bytes), OK; }
Result cuMemsetD8Async(u64 to, u8 value, size_t bytes, void*) { return memset((void*)to, value, bytes), OK; }

Result cuMemAddressReserve(u64* base, size_t bytes, size_t alignment, u64, u64) {
    u8* memory = (u8*)mmap(nullptr, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return OUT_OF_MEMORY;
    return *base = ((u64)memory + alignment - 1) / alignment * alignment, OK;
}
Result cuMemAddressFree(u64, size_t) { return OK; }
Result cuMemCreate(u64* handle, size_t, const void*, u64) { return *handle = 1, OK; }
Result cuMemRelease(u64) { return OK; }
Result cuMemMap(u64, size_t, size_t, u64, u64) { return OK; }
Result cuMemUnmap(u64 at, size_t bytes) { return mprotect((void*)at, bytes, PROT_NONE) ? OUT_OF_MEMORY : OK; }
Result cuMemSetAccess(u64 at, size_t bytes, const void*, size_t) {
    if (mprotect((void*)at, bytes, PROT_READ | PROT_WRITE)) return OUT_OF_MEMORY;
    return memset((void*)at, 0xff, bytes), OK;
}

Result cuLaunchKernelEx(const Config* config, void* function, void** arguments, void**) {
    std::lock_guard<std::mutex> lock(mutex);
    Launched l = {(Function*)function, *config, {}};
    memcpy(&l.params, arguments[0], sizeof l.params);  // the backend passes as many words for every kernel
    if (capturing) capturing->push_back(l);
    else launch(l);
    return OK;
}
Result cuStreamBeginCapture_v2(void*, int) { return capturing = new std::vector<Launched>, OK; }
Result cuStreamEndCapture(void*, void** graph) { return *graph = capturing, capturing = nullptr, OK; }
Result cuGraphInstantiateWithFlags(void** ready, void* graph, u64) { return *ready = new std::vector<Launched>(*(std::vector<Launched>*)graph), OK; }
Result cuGraphDestroy(void* graph) { return delete (std::vector<Launched>*)graph, OK; }
Result cuGraphExecDestroy(void* graph) { return delete (std::vector<Launched>*)graph, OK; }
Result cuGraphLaunch(void* graph, void*) {
    std::lock_guard<std::mutex> lock(mutex);
    for (const Launched& l : *(std::vector<Launched>*)graph) launch(l);
    return OK;
}
}
