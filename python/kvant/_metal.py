"""Attention on packed pages by Metal: what MLX and torch have in common.

The kernels are kvant's own, as naga translates them (``metal/*.metal``): one attends, one puts the splits of a query together. Each file is a
whole text with one kernel at its end, which torch compiles as it is and MLX takes in two parts. What they are told comes from the native
module (``LayerCache.device_pass``), so this module keeps pages and launches.

Encoded pages go to the device once: they never change. Sinks and the page that is being filled are exact rows, which come with every pass.
Keys and values are encoded by the processor, and its pages stay where they are, so packed pages are held twice.

Nobody has run this on a Mac.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Protocol

import numpy as np

#: The most tokens of a pass whose queries are attended with here; longer passes, prompts, are the processor's.
MOST_TOKENS = 16

#: Tokens of a page.
PAGE = 64

#: Threads of a workgroup.
THREADS = 128

#: Queries that share a reading of a page, which is how many sums a task has; each with its largest score and its denominator.
COLUMNS = 4

#: Pages of a row that there is room for at first.
FIRST_ROOM = 16

#: What is said where a pass is longer.
LONG_PASS = f"Metal attends with up to {MOST_TOKENS} tokens of a pass; longer passes, as of prompts, run on the processor"

_said: set[str] = set()


def say_once(reason: str) -> None:
    """One line on stderr, the first time."""
    if reason not in _said:
        _said.add(reason)
        print(f"kvant: {reason}", file=sys.stderr)


@dataclass(frozen=True)
class Kernel:
    """A text of ``metal/``, and its parts."""

    name: str
    text: str
    #: What is before the kernel, and what is between its braces.
    header: str
    body: str
    #: Its buffers in their order, and those among them that it writes.
    buffers: tuple[str, ...]
    outputs: tuple[str, ...]


@cache
def kernel(name: str) -> Kernel:
    """The kernel of that name."""
    text = resources.files("kvant").joinpath("metal", f"{name}.metal").read_text()
    header, rest = text.split(f"\nkernel void {name}(\n")
    signature, body = rest.split("\n) {\n")
    found = re.findall(r"device (const )?\w+\* (\w+) \[\[buffer\(\d+\)\]\]", signature)
    buffers = tuple(buffer for _, buffer in found)
    outputs = tuple(buffer for constant, buffer in found if not constant)
    return Kernel(name, text, header + "\n", body.rstrip().removesuffix("}"), buffers, outputs)


class Device(Protocol):
    """A library's arrays and its way to launch kernels."""

    def words(self, numbers: np.ndarray) -> Any:
        """An array of 32-bit words on the device."""

    def floats(self, numbers: np.ndarray) -> Any:
        """An array of f32 on the device."""

    def room(self, old: Any, rows: int, words: int) -> Any:
        """An array of words, (rows, words), that begins with the rows of an old one, if there is one."""

    def put(self, pool: Any, rows: list[int], words: Any) -> Any:
        """The array with some of its rows written over."""

    def launch(self, kernel: Kernel, inputs: dict[str, Any], count: int, workgroups: int) -> Any:
        """Runs a kernel that writes `count` f32 and nothing else, and returns them."""


class DevicePages:
    """The encoded pages of one layer on the device, and attention on them.

    Made of a layer that there are no kernels for, it raises `ValueError` with the reason.
    """

    def __init__(self, device: Device, native: Any, window: int | None):
        form, self._page_bytes, kv_heads, finish = native.device_form()
        self._attend, self._merge = kernel(f"attend_{form}"), kernel(f"merge_{form}")
        self._device = device
        self._has_window = window is not None
        #: Words of a page of all kv heads and both sides.
        self._row_words = 2 * kv_heads * self._page_bytes // 4
        self._finish = device.floats(np.frombuffer(finish, np.float32))
        #: (page of the ring and row, words of its kv heads and sides).
        self._pool: Any = None
        self._room = 0
        self._held: list[int] = []

    def attend(self, native: Any, queries: Any, scale: float, soft_cap: float | None = None) -> Any:
        """Attention of the last tokens of every row. `queries` are f32 on the device, (batch, tokens, heads, channels) without gaps; the
        result is (batch × tokens × heads × channels) in the same order."""
        rows, tokens, heads, dim = queries.shape
        self._make_room(native, rows, tokens)
        plan, exact, places, fresh, attend, merge, tasks, held = native.device_pass(
            tokens, heads, self._held, self._room, self._page_bytes, scale, soft_cap
        )
        device = self._device
        if places:
            new = np.frombuffer(fresh, np.uint32).reshape(len(places), self._row_words)
            self._pool = device.put(self._pool, places, device.words(new))
        self._held = held
        plan = device.words(np.frombuffer(plan, np.uint32))
        inputs = {
            "plan": plan,
            "q": queries,
            "prepared": queries,
            "pages0": self._pool,
            "pages1": device.words(np.frombuffer(exact, np.uint32)),
        }
        count = tasks * COLUMNS * (dim + 2)
        partials = self._launch(self._attend, inputs, attend, count, tasks)
        inputs = {"plan": plan, "partials": partials, "finish": self._finish, "logits": self._finish}
        return self._launch(self._merge, inputs, merge, rows * tokens * heads * dim, rows * tokens * heads)

    def cut(self, lens: list[int], sinks: int) -> None:
        """Forgets the pages that sequences of these lengths have not filled: what comes in their place has other bytes. With a window
        all are forgotten, because the ring may have none of those that are seen again."""
        filled = [0 if self._has_window else max(length - sinks, 0) // PAGE for length in lens]
        self._held = [min(pair) for pair in zip(self._held, filled, strict=False)]

    def _make_room(self, native: Any, rows: int, tokens: int) -> None:
        needed = max(native.device_room(tokens), 1)
        if len(self._held) == rows and needed <= self._room:
            return
        is_kept = len(self._held) == rows and not self._has_window
        room = max(FIRST_ROOM, needed + needed // 2)
        # Pages lie in the order of their numbers, new ones behind them. The ring of a window begins anew.
        old = self._pool if is_kept else None
        self._held = self._held if is_kept else [0] * rows
        self._pool, self._room = self._device.room(old, room * rows, self._row_words), room

    def _launch(self, of: Kernel, inputs: dict[str, Any], arguments: bytes, count: int, workgroups: int) -> Any:
        sizes = [4 * count if name in of.outputs else inputs[name].nbytes for name in of.buffers[:-2]]
        # At least eight words: MLX puts shorter arrays into another address space.
        told = np.zeros(16, np.uint32)
        told[: len(sizes)] = sizes
        own = {"arguments": self._device.words(np.frombuffer(arguments, np.uint32)), "sizes": self._device.words(told)}
        return self._device.launch(of, {**inputs, **own}, count, workgroups)
