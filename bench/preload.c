/* What goes wrong around a program, put before its C library: cc -shared -fPIC -O2 -o preload.so bench/preload.c -ldl
   then LD_PRELOAD=preload.so and any of
     FAULT_DIR    a folder; calls that change its files are counted from 1 (opening for writing, write, truncate, sync, rename)
     FAULT_AT     the number of the call that fails; FAULT_LASTING=1: and all after it
     FAULT_ERRNO  what it fails with: 5 (EIO) unless given
     FAULT_COUNT  a file for how many calls there were
     CLOCK_JUMPS  seconds between two jumps of the time of day, by hours and years, there and back
     HEAP_FIFO    a FIFO: for each byte from it, free memory is given back and the bytes in use are written to HEAP_FIFO.out */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ({ static typeof(name) *real; if (!real) real = (typeof(name) *)dlsym(RTLD_NEXT, #name); real; })

static atomic_long calls;

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text ? atol(text) : otherwise;
}

static int fails_at(const char *path) {
    const char *folder = getenv("FAULT_DIR");
    if (!folder || strncmp(path, folder, strlen(folder))) return 0;
    long number = atomic_fetch_add(&calls, 1) + 1, at = setting("FAULT_AT", 0);
    if (!at || (setting("FAULT_LASTING", 0) ? number < at : number != at)) return 0;
    errno = (int)setting("FAULT_ERRNO", EIO);
    return 1;
}

static int fails(int file) {
    char link[64], path[PATH_MAX];
    if (!getenv("FAULT_DIR")) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails_at(path);
}

ssize_t write(int file, const void *bytes, size_t count) { return fails(file) ? -1 : REAL(write)(file, bytes, count); }
ssize_t writev(int file, const struct iovec *parts, int count) { return fails(file) ? -1 : REAL(writev)(file, parts, count); }
ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t at) { return fails(file) ? -1 : REAL(pwrite64)(file, bytes, count, at); }
int ftruncate64(int file, off64_t length) { return fails(file) ? -1 : REAL(ftruncate64)(file, length); }
int fsync(int file) { return fails(file) ? -1 : REAL(fsync)(file); }
int fdatasync(int file) { return fails(file) ? -1 : REAL(fdatasync)(file); }
int rename(const char *from, const char *to) { return fails_at(to) ? -1 : REAL(rename)(from, to); }

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return (flags & O_ACCMODE) != O_RDONLY && fails_at(path) ? -1 : REAL(open64)(path, flags, mode);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static const long jumps[] = {0, 3600, -3600, 400 * 86400L, -400 * 86400L, 40 * 365 * 86400L, 0, -20 * 365 * 86400L};
    int status = REAL(clock_gettime)(clock, now);
    long period = setting("CLOCK_JUMPS", 0);
    if (status == 0 && period && clock == CLOCK_REALTIME) now->tv_sec += jumps[now->tv_sec / period % (sizeof jumps / sizeof *jumps)];
    return status;
}

static void *report(void *fifo) {
    char byte, path[PATH_MAX];
    snprintf(path, sizeof path, "%s.out", (char *)fifo);
    for (;;) {
        int in = open(fifo, O_RDONLY);
        while (in >= 0 && read(in, &byte, 1) == 1) {
            malloc_trim(0);
            struct mallinfo2 heap = mallinfo2();
            FILE *out = fopen(path, "w");
            if (out) fprintf(out, "%zu %zu\n", heap.uordblks + heap.hblkhd, heap.arena + heap.hblkhd), fclose(out);
        }
        if (in >= 0) close(in);
    }
    return NULL;
}

__attribute__((constructor)) static void begin(void) {
    pthread_t thread;
    if (getenv("HEAP_FIFO")) pthread_create(&thread, NULL, report, getenv("HEAP_FIFO"));
}

__attribute__((destructor)) static void end(void) {
    if (!getenv("FAULT_COUNT")) return;
    FILE *out = fopen(getenv("FAULT_COUNT"), "w");
    if (out) fprintf(out, "%ld\n", calls), fclose(out);
}
