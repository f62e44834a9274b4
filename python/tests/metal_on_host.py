"""Metal kernels without a Mac: the text that MLX or torch would hand to Metal, compiled by a C++ compiler and run on the host.

The library of Metal's functions is that of `dev/kvant-msl`: threads of a workgroup are fibers, in three orders; each launch runs in all of
them and must write the same bytes. What Apple's compiler says of a text, and how fast it runs, this cannot tell.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

SHIM = Path(__file__).resolve().parents[2] / "dev/kvant-msl/src/shim"

#: Numbers without a suffix are f32 in MSL. Each operation is rounded once, as it is written.
OPTIONS = (
    "-std=c++17 -O1 -w -fsingle-precision-constant -ffp-contract=off -fno-strict-aliasing -fwrapv -U_FORTIFY_SOURCE -fPIC -shared"
).split()

#: What kernels ask of a thread, and what the shim calls it.
BUILT_IN = {
    "thread_index_in_threadgroup": "index",
    "thread_position_in_threadgroup": "place",
    "threadgroup_position_in_grid": "group",
    "threadgroups_per_grid": "groups",
}

ORDERS = 3


def with_swizzles(text: str) -> str:
    """`v.xy` as a function of the shim's."""
    places = {letter: str(place) for place, letter in enumerate("xyzw")}
    call = lambda found: f".swizzle<{', '.join(places[letter] for letter in found[1])}>()"  # noqa: E731
    return re.sub(r"\.([xyzw]{2,4})\b", call, text)


def with_shared_memory(text: str) -> str:
    """Variables of workgroup memory that a kernel declares in its body: one for all fibers, which begins as NaN."""
    before: list[str] = []

    def variable(found: re.Match) -> str:
        types = ", ".join([found[1], *before])
        before.append(found[1])
        return f"    {found[1]}& {found[2]} = shim::variable<{types}>();\n"

    return re.sub(r"^    threadgroup (\w+) (\w+);\n", variable, text, flags=re.MULTILINE)


def caller(text: str, name: str) -> str:
    """The call of a kernel with what each of its parameters asks for."""
    parameters = re.search(rf"(?:kernel|\[\[kernel\]\]) void {name}\((.*?)\)\s*\{{\n", text, re.DOTALL)[1]
    given = []
    for parameter in re.split(r",\n", parameters.strip()):
        declared, attribute = re.fullmatch(r"\s*(.*?) \[\[([\w()]+)\]\]", parameter, re.DOTALL).groups()
        if slot := re.fullmatch(r"buffer\((\d+)\)", attribute):
            pointed = declared.rsplit(" ", 1)[0].rstrip("*")
            given.append(f"static_cast<{pointed}*>(shim::buffers[{slot[1]}])")
        else:
            given.append(f"self.{BUILT_IN[attribute]}")
    return f"static void shim::call(const shim::Thread& self) {{ {name}({', '.join(given)}); }}\n"


@cache
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="kvant-metal-"))


@cache
def compiled(text: str, name: str):
    """The function that runs a kernel's grid."""
    source = with_shared_memory(with_swizzles(text.replace("[[kernel]]", ""))) + caller(text, name)
    own = folder() / hashlib.sha256(source.encode()).hexdigest()[:16]
    (own / "simd").mkdir(parents=True, exist_ok=True)
    (own / "simd/simd.h").write_text("")
    (own / "kernel.cpp").write_text(source)
    library = own / "kernel.so"
    command = [os.environ.get("CXX", "g++"), *OPTIONS, "-I", own, "-I", SHIM, "-o", library, own / "kernel.cpp"]
    found = subprocess.run(command, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[:3000]
    launch = ctypes.CDLL(str(library)).kvant_launch
    launch.restype = ctypes.c_char_p
    return launch


def run(text: str, name: str, buffers: list[np.ndarray], outputs: list[int], workgroups: int, threads: int) -> None:
    """Runs a kernel on arrays, by slot, in every order of its threads; those in `outputs` are written."""
    launch = compiled(text, name)
    assert all(array.flags.c_contiguous and array.dtype.itemsize == 4 for array in buffers)
    slots = (ctypes.c_void_p * len(buffers))(*(array.ctypes.data for array in buffers))
    grid, group = (ctypes.c_uint * 3)(workgroups, 1, 1), (ctypes.c_uint * 3)(threads, 1, 1)
    first = None
    for order in range(ORDERS):
        for slot in outputs:
            buffers[slot].view(np.uint32)[...] = 0xFFFFFFFF
        said = launch(slots, grid, group, order)
        assert said is None, said.decode()
        written = [buffers[slot].copy().view(np.uint32) for slot in outputs]
        first = first or written
        assert all(np.array_equal(*pair) for pair in zip(first, written, strict=True)), "threads in another order write other bytes"
