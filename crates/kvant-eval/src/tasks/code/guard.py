"""Runs the program on standard input, fenced in: it computes and reads, and does nothing else.

A seccomp filter lets through the system calls of an interpreter that computes, and of imports: files are opened for reading
only. There is no other process, no socket, no change to any file. Time and memory are bounded by limits of the process, and what it prints goes nowhere.
Says `ready` when the fence stands, and `passed` when the program has come to its end without an exception.
"""

import ctypes
import os
import resource
import struct
import sys

SECONDS, BYTES = 10, 1 << 30
# Of x86-64, by number.
ALLOWED = {
    "read": 0, "write": 1, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8, "mmap": 9, "mprotect": 10,
    "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "pread64": 17, "readv": 19,
    "writev": 20, "access": 21, "select": 23, "sched_yield": 24, "mremap": 25, "madvise": 28, "dup": 32, "nanosleep": 35,
    "getpid": 39, "exit": 60, "uname": 63, "fcntl": 72, "getcwd": 79, "readlink": 89, "gettimeofday": 96, "getrlimit": 97,
    "getrusage": 98, "sysinfo": 99, "times": 100, "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108,
    "sigaltstack": 131, "gettid": 186, "futex": 202, "sched_getaffinity": 204, "getdents64": 217, "clock_gettime": 228,
    "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "newfstatat": 262, "readlinkat": 267,
    "set_robust_list": 273, "getrandom": 318, "statx": 332, "rseq": 334, "faccessat2": 439,
}
OPENAT = 257
CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
AUDIT_ARCH_X86_64 = 0xC000003E
LOAD, EQUAL, ANY_BIT, RETURN = 0x20, 0x15, 0x45, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000 | 1, 0x80000000


def fence() -> None:
    def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("HBBI", code, then, otherwise, value)

    numbers = sorted(ALLOWED.values())
    steps = [step(LOAD, 4), step(EQUAL, AUDIT_ARCH_X86_64, 1, 0), step(RETURN, KILL), step(LOAD, 0)]
    # Every jump leads to the last step, which allows.
    after = len(numbers) + 4
    steps += [step(EQUAL, number, after - i - 1, 0) for i, number in enumerate(numbers)]
    steps += [step(EQUAL, OPENAT, 0, 2), step(LOAD, 32), step(ANY_BIT, CHANGES, 0, 1), step(RETURN, REFUSE), step(RETURN, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(steps))
    program = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0):
        raise OSError(ctypes.get_errno(), "no seccomp filter")


def main() -> None:
    source = sys.stdin.buffer.read()
    verdict, nothing = os.dup(1), os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    for limit, most in (("CPU", SECONDS), ("AS", BYTES), ("NOFILE", 64), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{limit}"), (most, most))
    fence()
    os.write(verdict, b"ready ")
    exec(compile(source, "program", "exec"), {"__name__": "__main__"})
    os.write(verdict, b"passed")


main()
