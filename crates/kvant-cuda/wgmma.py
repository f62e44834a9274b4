#!/usr/bin/env python3
"""Writes kernels/wgmma.cuh: wgmma with a left operand in registers, one struct for every width of a tile that kernels/wide.cu and
kernels/attention_tile.cu have."""
import pathlib

WIDTHS = [8, 16, 32, 40, 64, 88, 128, 176]
out = ["// Written by wgmma.py. wgmma.m64nNk16, f16 x f16 -> f32: d = a b + (more ? d : 0), a from registers, b from shared memory.", "#pragma once",
       "#ifndef KVANT_HOST  // bench/host has its own",
       'DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }',
       'DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }',
       "template <int PENDING>",
       'DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory"); }',
       "// What this thread wrote to shared memory is seen by wgmma, after a barrier.",
       'DEVICE void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }',
       "// A tile of rows of 128 bytes in shared memory, swizzled by 128 bytes, channels contiguous; from one k-step to the next.",
       "constexpr u64 MATRIX_STEP = 2;",
       "DEVICE u64 matrix_at(u32 address) { return (u64)((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62); }",
       "DEVICE u64 matrix_at(const u8* tile) { return matrix_at(shared_address(tile)); }",
       "template <int N> struct Wgmma;"]
for n in WIDTHS:
    r = n // 2
    d, outs = ",".join(f"%{i}" for i in range(r)), ", ".join(f'"+f"(d[{i}])' for i in range(r))
    out.append(f"""template <> struct Wgmma<{n}> {{
    static DEVICE void add(float (&d)[{r}], const u32* a, u64 b, int more) {{
        asm volatile("{{.reg .pred p; setp.ne.b32 p, %{r + 5}, 0;\\n"
            "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16 {{{d}}}, {{%{r},%{r + 1},%{r + 2},%{r + 3}}}, %{r + 4}, p, 1, 1, 0;}}"
            : {outs} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(more));
    }}
}};""")
out.append("#endif")
(pathlib.Path(__file__).resolve().parent / "kernels" / "wgmma.cuh").write_text("\n".join(out) + "\n")
