#!/usr/bin/env python3
"""Writes kernels/wgmma.cuh: wgmma with a left operand in registers, one struct for every width of a tile that kernels/wide.cu has."""
import pathlib

WIDTHS = [8, 16, 32, 64, 88, 128, 176]
out = ["// Written by wgmma.py. wgmma.m64nNk16, f16 x f16 -> f32: d = a b + (more ? d : 0), a from registers, b from shared memory.", "#pragma once",
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
(pathlib.Path(__file__).resolve().parent / "kernels" / "wgmma.cuh").write_text("\n".join(out) + "\n")
