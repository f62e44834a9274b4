"""Attention on packed pages by the Metal kernels of the package, run on the host: against its definition in f64."""

from __future__ import annotations

import shutil

import metal_on_host
import numpy as np
import pytest

from kvant import _kvant
from kvant._metal import LONG_PASS, MOST_TOKENS, THREADS, DevicePages, Kernel, kernel, say_once

if shutil.which("g++") is None:
    pytest.skip("the kernels are compiled by g++ (Debian: g++)", allow_module_level=True)

WINDOW = 150


class HostDevice:
    """numpy's arrays, and kernels run by `metal_on_host` as torch would have them compiled."""

    def __init__(self):
        self.uploaded = 0

    def words(self, numbers: np.ndarray) -> np.ndarray:
        return numbers.copy()

    floats = words

    def room(self, old: np.ndarray | None, rows: int, words: int) -> np.ndarray:
        new = np.zeros((rows, words), np.uint32)
        if old is not None:
            new[: len(old)] = old
        return new

    def put(self, pool: np.ndarray, rows: list[int], words: np.ndarray) -> np.ndarray:
        self.uploaded += len(rows)
        pool[rows] = words
        return pool

    def launch(self, of: Kernel, inputs: dict, count: int, workgroups: int) -> np.ndarray:
        result = np.empty(count, np.float32)
        buffers = [result if name in of.outputs else inputs[name] for name in of.buffers]
        outputs = [of.buffers.index(name) for name in of.outputs]
        metal_on_host.run(of.text, of.name, buffers, outputs, workgroups, THREADS)
        return result


class Layer:
    """A layer's cache, and its pages on the host's device."""

    def __init__(self, kv: str, rows: int, kv_heads: int, dim: int, window: int | None = None):
        self.layout, self.window, self.device = _kvant.CacheLayout(kv), window, HostDevice()
        self.native = self.layout.layer(0, kv_heads, dim, dim, window=window)
        self.native.record(True)
        self.rows, self.kv_heads, self.dim = rows, kv_heads, dim
        self.random = np.random.default_rng(5)
        self.pages: DevicePages | None = None
        #: Keys and values as they came: (batch, kv heads, tokens, channels).
        self.rows_of = [np.zeros((rows, kv_heads, 0, dim), np.float32) for _ in range(2)]

    def append(self, tokens: int) -> None:
        shape = (self.rows, self.kv_heads, tokens, self.dim)
        new = [self.random.standard_normal(shape, np.float32) for _ in range(2)]
        self.native.append(*new)
        self.rows_of = [np.concatenate(pair, axis=2) for pair in zip(self.rows_of, new, strict=True)]

    def crop(self, length: int) -> None:
        self.native.crop([length] * self.rows)
        self.pages.cut([length] * self.rows, self.layout.sinks)
        self.rows_of = [side[:, :, :length] for side in self.rows_of]

    def attend(self, queries: np.ndarray, soft_cap: float | None = None) -> np.ndarray:
        """By the kernels: (batch, tokens, heads, channels)."""
        self.pages = self.pages or DevicePages(self.device, self.native, self.window)
        return self.pages.attend(self.native, queries, self.dim**-0.5, soft_cap).reshape(queries.shape)

    def step(self, tokens: int, heads: int, soft_cap: float | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Tokens that come and attend: what the kernels find, and what is true."""
        before = self.native.lens[0]
        self.append(tokens)
        queries = self.random.standard_normal((self.rows, tokens, heads, self.dim), np.float32)
        found = self.attend(queries, soft_cap)
        truth = np.empty(queries.shape)
        for token in range(tokens):
            truth[:, token] = self.truth(queries[:, token], before + token, soft_cap)
        self.native.settle()
        return found, truth

    def truth(self, queries: np.ndarray, position: int, soft_cap: float | None) -> np.ndarray:
        """Attention of the queries at a position, (batch, heads, channels), in f64: pages that ended before it are what their bytes
        decode to, all else the rows that came, as f16. All rows of the batch have one length."""
        first = max(position + 1 - self.window, 0) if self.window else 0
        seen = [np.empty((self.rows, self.kv_heads, self.native.lens[0] - first, self.dim), np.float32) for _ in range(2)]
        self.native.decode(*seen, [first] * self.rows)
        sinks, places = self.layout.sinks, np.arange(first, position + 1)
        recent = int(self.layout.kv.partition("recent=")[2] or 0)
        as_bytes = (places >= sinks) & (places < sinks + max(position - sinks - recent, 0) // 64 * 64)
        keys, values = (
            np.where(as_bytes[:, None], decoded[:, :, : len(places)], rows[:, :, places].astype(np.float16)).astype(np.float64)
            for decoded, rows in zip(seen, self.rows_of, strict=True)
        )
        group = queries.shape[1] // self.kv_heads
        keys, values = (side.repeat(group, axis=1) for side in (keys, values))
        scores = np.einsum("bhc,bhtc->bht", queries.astype(np.float64), keys) * self.dim**-0.5
        if soft_cap:
            scores = soft_cap * np.tanh(scores / soft_cap)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.einsum("bht,bhtc->bhc", weights, values)


def close(found: np.ndarray, truth: np.ndarray) -> bool:
    return bool(np.abs(found - truth).max() < 2e-5)


@pytest.mark.parametrize(("dim", "kv_heads", "heads"), [(64, 1, 1), (64, 3, 9), (64, 1, 7), (128, 2, 8)])
def test_the_kernels_compute_attention_as_it_is_defined(dim, kv_heads, heads):
    layer = Layer("int4", 1, kv_heads, dim)
    layer.append(2)
    # Within the sinks, behind them, where the first page is full, and where splits are several.
    for length in (3, 4, 5, 67, 68, 69, 131, 132, 400):
        if (gap := length - 1 - layer.native.lens[0]) > 0:
            layer.append(gap)
        found, truth = layer.step(1, heads)
        assert close(found, truth), length
        assert layer.native.lens == [length]


def test_recent_pages_soft_caps_and_batches():
    layer = Layer("int4;recent=100", 2, 2, 64)
    layer.append(300)
    for _ in range(3):
        assert close(*layer.step(1, 4, soft_cap=5.0))


@pytest.mark.parametrize("kv", ["int4", "int4;recent=64"])
def test_windows_forget_pages(kv):
    layer = Layer(kv, 2, 1, 64, WINDOW)
    layer.append(1)
    for length in (60, 70, 149, 151, 219, 300, 301, 420):
        layer.append(length - 1 - layer.native.lens[0])
        layer.native.settle()
        assert close(*layer.step(1, 2)), length
    assert layer.pages._room == 16


def test_several_tokens_have_what_each_has_alone():
    """A pass that fills a page: the tokens before its end read the page exactly, those behind it as bytes."""
    several, alone = Layer("int4", 2, 2, 64), Layer("int4", 2, 2, 64)
    random = np.random.default_rng(7)
    keys, values = (random.standard_normal((2, 2, 140, 64), np.float32) for _ in range(2))
    queries = random.standard_normal((2, 140, 4, 64), np.float32)
    for layer in (several, alone):
        layer.native.append(keys[:, :, :129], values[:, :, :129])
        layer.native.settle()
    found = []
    for at in range(129, 135):
        alone.native.append(keys[:, :, at : at + 1], values[:, :, at : at + 1])
        found.append(alone.attend(np.ascontiguousarray(queries[:, at : at + 1])))
        alone.native.settle()
    several.native.append(keys[:, :, 129:135], values[:, :, 129:135])
    together = several.attend(np.ascontiguousarray(queries[:, 129:135]))
    assert np.array_equal(together, np.concatenate(found, axis=1))


def test_the_processors_kernels_agree():
    layer = Layer("int4", 2, 2, 128)
    layer.append(500)
    layer.append(1)
    queries = layer.random.standard_normal((2, 1, 8, 128), np.float32)
    out = np.empty((2, 8, 1, 128), np.float32)
    layer.native.attend(np.ascontiguousarray(queries.swapaxes(1, 2)), out, 128**-0.5)
    found = layer.attend(queries)
    # The processor rounds queries and weights to bytes.
    assert np.linalg.norm(found - out.swapaxes(1, 2)) < 0.03 * np.linalg.norm(out)


def test_pages_go_to_the_device_once():
    layer = Layer("int4", 2, 1, 64)
    layer.append(64 * 20)
    layer.step(1, 2)
    before = layer.device.uploaded
    assert before == 2 * 19
    for _ in range(40):
        layer.append(1)
        layer.native.settle()
    layer.step(1, 2)
    layer.step(1, 2)
    assert layer.device.uploaded - before == 2


def test_taking_tokens_back_forgets_their_pages():
    for window in (None, WINDOW):
        layer = Layer("int4", 1, 1, 64, window)
        layer.append(250)
        assert close(*layer.step(1, 1))
        for length in (230, 190):
            layer.crop(length)
            layer.append(40)
            layer.native.settle()
            assert close(*layer.step(1, 1))


@pytest.mark.parametrize("side", ["key", "value"])
def test_a_byte_that_is_damaged_changes_the_sum(side):
    layer = Layer("int4", 1, 1, 64)
    layer.append(200)
    queries = layer.random.standard_normal((1, 1, 2, 64), np.float32)
    layer.append(1)
    found = layer.attend(queries)
    assert np.array_equal(layer.attend(queries), found)
    words = layer.pages._page_bytes // 4
    # A word of codes of the page in the middle.
    at = (0 if side == "key" else words) + words // 2
    layer.pages._pool[1, at] ^= 0x0F
    assert not np.array_equal(layer.attend(queries), found)


@pytest.mark.parametrize(
    ("kv", "dims", "words"),
    [
        ("int8", (64, 64), "Key pages of another form"),
        ("k8v4", (64, 64), "Key pages of another form"),
        ("k=ch4,v=sym4g32", (64, 64), "Value pages of another form"),
        ("int4", (80, 80), "heads of 80 and 80 channels"),
        ("int4", (128, 64), "heads of 128 and 64 channels"),
    ],
)
def test_other_pages_are_refused_by_name(kv, dims, words):
    native = _kvant.CacheLayout(kv).layer(0, 1, *dims)
    with pytest.raises(ValueError, match=f"{words}: Metal has kernels for int4"):
        DevicePages(HostDevice(), native, None)


def test_what_is_asked_for_wrongly_is_refused():
    layer = Layer("int4", 1, 2, 64)
    layer.append(5)
    page_bytes = layer.native.device_form()[1]
    for tokens, heads, held, room, words in (
        (6, 2, [0], 1, "6 queries for a sequence of 5"),
        (0, 2, [0], 1, "0 queries"),
        (1, 3, [0], 1, "3 query heads for 2 kv heads"),
        (1, 2, [0, 0], 1, "pages of 2 rows for 1"),
        (1, 2, [0], 1 << 30, "beyond 2 GiB"),
    ):
        with pytest.raises(ValueError, match=words):
            layer.native.device_pass(tokens, heads, held, room, page_bytes, 1.0)


def test_texts_have_the_parts_that_mlx_wants():
    for name in ("attend_int4_64", "attend_int4_128", "merge_int4_64", "merge_int4_128"):
        of = kernel(name)
        assert of.buffers[-2:] == ("arguments", "sizes") and len(of.outputs) == 1
        assert of.text == f"{of.header[:-1]}\nkernel void {name}(\n{of.text.split(f'kernel void {name}(')[1][1:]}"
        assert "kernel void" not in of.header and "thread_index_in_threadgroup" in of.body


def test_reasons_are_said_once(capsys):
    for _ in range(2):
        say_once("a reason")
    assert capsys.readouterr().err == "kvant: a reason\n"
    assert str(MOST_TOKENS) in LONG_PASS
