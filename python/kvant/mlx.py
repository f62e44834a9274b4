"""A compressed KV cache for mlx-lm.

    from kvant.mlx import make_prompt_cache

    cache = make_prompt_cache(model, kv="int4")
    generate(model, tokenizer, prompt, prompt_cache=cache)

Pages lie in host memory. Attention gets decoded arrays, or with ``on_bytes`` reads the pages as they are: by kvant's kernels for
processors, and of up to 16 tokens by Metal where that is (int4, heads of 64 or 128 channels). mlx-lm's ``save_prompt_cache`` and ``load_prompt_cache`` work where this
module was imported. Batches of caches that were made apart (``BatchGenerator``) are not supported: mlx-lm refuses them, because there is no
``merge``. Tested with MLX's CPU build on Linux; on a Mac it is untested.
"""

from __future__ import annotations

import hashlib
import json
from os import PathLike
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import base as mlx_base
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models.base import create_causal_mask

from . import _kvant
from ._metal import LONG_PASS, MOST_TOKENS, DevicePages, say_once
from ._metal_mlx import MlxDevice

__all__ = ["KvantCache", "from_prompt_cache", "make_prompt_cache"]

#: Tokens at a time when a whole cache is taken over: so many exact rows are held beside the pages.
CHUNK = 512

#: Tokens that there is room for beyond those that have come, where decoded arrays are kept.
ROOM = 256

#: The form of `KvantCache.state`.
VERSION = 1


def make_prompt_cache(
    model: Any,
    kv: str | PathLike | bytes = "int4",
    *,
    threads: int | None = None,
    keep_decoded: bool = False,
    on_bytes: bool = False,
) -> list[Any]:
    """The cache of a model: one `KvantCache` for every layer with keys and values, the model's own for layers with recurrent state.

    `kv` is a spec such as ``int4`` or ``kivi4;recent=128``, or a plan: the path of a ``.kvplan`` file, or its bytes. `keep_decoded`
    and `on_bytes` are those of `KvantCache`.
    """
    own = mlx_cache.make_prompt_cache(model)
    layout, how = _layout(kv, threads, len(own)), {"keep_decoded": keep_decoded, "on_bytes": on_bytes}
    return [_of_layer(layout, index, layer, how) for index, layer in enumerate(own)]


def from_prompt_cache(
    cache: list[Any],
    kv: str | PathLike | bytes = "int4",
    *,
    threads: int | None = None,
    keep_decoded: bool = False,
    on_bytes: bool = False,
) -> list[Any]:
    """Compresses what mlx-lm's own caches hold, as after a prompt. Layers with recurrent state stay as they are."""
    layout, how = _layout(kv, threads, len(cache)), {"keep_decoded": keep_decoded, "on_bytes": on_bytes}
    return [_of_layer(layout, index, layer, how) for index, layer in enumerate(cache)]


def _layout(kv: str | PathLike | bytes, threads: int | None, layers: int) -> _kvant.CacheLayout:
    is_plan = not isinstance(kv, str) or kv.endswith(".kvplan")
    plan = (kv if isinstance(kv, bytes) else Path(kv).read_bytes()) if is_plan else None
    layout = _kvant.CacheLayout(None if is_plan else kv, plan, threads)
    layout.check(layers)
    return layout


def _of_layer(layout: _kvant.CacheLayout, index: int, own: Any, how: dict[str, bool]) -> Any:
    if isinstance(own, mlx_cache.CacheList):
        return mlx_cache.CacheList(*(_of_layer(layout, index, part, how) for part in own.caches))
    if isinstance(own, mlx_cache.ArraysCache):
        return own
    return KvantCache.from_kvcache(own, layout, index, **how)


class _Held:
    """What stands for keys and values that stay pages: mlx-lm hands it from the cache to its attention."""

    def __init__(self, cache: KvantCache):
        self.cache = cache

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"this model asks keys or values for {name!r} between its cache and its attention, and they stay pages: leave on_bytes out"
        )


def _quantized_attention(queries: mx.array, keys: Any, values: Any, scale: float, mask: Any, **kwargs: Any) -> mx.array:
    """mlx-lm's attention on caches with `bits`, which sends those of kvant to their pages."""
    if isinstance(keys, _Held):
        return keys.cache.attend(queries, scale, mask)
    return _of_mlx(queries, keys, values, scale, mask, **kwargs)


class _State(dict):
    """What `KvantCache.state` is saved as, made when somebody goes through it. mlx-lm asks for states after every piece of a prompt, to
    have arrays computed; pages are never pending, and copying them each time would cost more than they do."""

    def __init__(self, cache: KvantCache):
        super().__init__()
        self._cache = cache

    def items(self) -> Any:
        return self._cache._saved().items()


class KvantCache(mlx_cache._BaseCache):
    """Keys and values of one layer, compressed.

    Args:
        kv: How they are kept: a spec such as ``int4``, or a layout that the layers of a model share.
        layer: Which layer it is; plans and policies have something to say about each.
        window: The layer's sliding window, its own token included.
        keep_decoded: Keep what attention gets, in layers without a window: each page is decoded once, and not at every step. Steps are
            faster, and memory is that of an uncompressed cache and the pages beside it.
        on_bytes: Attention reads the pages as they are, by Metal or on the processor, and nothing is decoded. For causal attention without sink
            logits; what a model wants besides is refused.
    """

    def __init__(
        self,
        kv: str | _kvant.CacheLayout = "int4",
        layer: int = 0,
        window: int | None = None,
        *,
        keep_decoded: bool = False,
        on_bytes: bool = False,
    ):
        if keep_decoded and on_bytes:
            raise ValueError("on_bytes decodes nothing, so there is nothing for keep_decoded to keep: choose one")
        self.layout = _kvant.CacheLayout(kv) if isinstance(kv, str) else kv
        self.layer = layer
        self.window = window
        self.keep_decoded = keep_decoded
        self.on_bytes = on_bytes
        if on_bytes:
            # By these mlx-lm knows a cache whose keys are no arrays. What they say it does not use for ours.
            self.bits, self.group_size = 0, 0
        self.offset = 0
        #: Tokens that were never held: those before the window of a cache that was taken over.
        self._base = 0
        self._native: _kvant.LayerCache | None = None
        self._shape: tuple[int, int, int] | None = None
        #: Decoded keys and values, (batch, kv heads, room, channels), and how many positions of them will not change.
        self._kept: list[mx.array] | None = None
        self._closed = 0
        #: Pages on the GPU; `False` where they are not read there.
        self._pages: DevicePages | bool | None = None

    @classmethod
    def from_kvcache(
        cls,
        cache: Any,
        kv: str | _kvant.CacheLayout = "int4",
        layer: int = 0,
        *,
        keep_decoded: bool = False,
        on_bytes: bool = False,
    ) -> KvantCache:
        """Compresses what a `KVCache` or a `RotatingKVCache` of mlx-lm holds; of a rotating one its window. Other caches are refused."""
        window = None
        if type(cache) is mlx_cache.RotatingKVCache:
            if cache.keep:
                raise ValueError(
                    f"layer {layer} keeps {cache.keep} attention sinks beside its window, which KvantCache does not"
                )
            window = cache.max_size
        elif type(cache) is not mlx_cache.KVCache:
            raise ValueError(f"layer {layer} has a {type(cache).__name__}, which KvantCache does not replace")
        result = cls(kv, layer, window, keep_decoded=keep_decoded, on_bytes=on_bytes)
        if cache.empty():
            return result
        keys, values = cache.keys, cache.values
        if window is None:
            keys, values = cache.keys_and_values()
        else:
            keys, values = cache._temporal_order(keys), cache._temporal_order(values)
        result._base = result.offset = cache.offset - keys.shape[2]
        for start in range(0, keys.shape[2], CHUNK):
            result._append(keys[:, :, start : start + CHUNK], values[:, :, start : start + CHUNK])
        result._native.settle()
        return result

    def to_quantized(self, group_size: int = 64, bits: int = 4) -> KvantCache:
        """mlx-lm asks this of caches when ``kv_bits`` is given. This one is compressed already, in another way: refused."""
        raise ValueError(
            f"kv_bits={bits} is for mlx-lm's own caches, and this one is kept as {self.layout.kv}: leave kv_bits out"
        )

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[Any, Any]:
        """Takes keys and values, (batch, kv heads, tokens, channels), and returns all that their queries see, decoded or, with
        `on_bytes`, what stands for it."""
        if self.on_bytes:
            self._append(keys, values)
            return _Held(self), _Held(self)
        first = max(self.offset + 1 - self.window, self._base) if self.window else 0
        self._append(keys, values)
        if self.keep_decoded and self.window is None:
            found = self._decoded_once(keys.dtype, values.dtype)
        else:
            found = self._decoded(first, keys.dtype, values.dtype)
        self._native.settle()
        return found

    def attend(self, queries: mx.array, scale: float, mask: Any = None) -> mx.array:
        """Attention of the tokens that came last, (batch, query heads, tokens, channels), on the pages."""
        rows, heads, tokens, _ = queries.shape
        self._check_mask(mask, tokens)
        pages = self._on_metal()
        if pages and tokens > MOST_TOKENS:
            say_once(LONG_PASS)
        elif pages:
            out = pages.attend(self._native, queries.swapaxes(1, 2).astype(mx.float32), float(scale))
            self._native.settle()
            return out.reshape(rows, tokens, heads, self._shape[2]).swapaxes(1, 2).astype(queries.dtype)
        mx.eval(queries)
        out = np.empty((rows, heads, tokens, self._shape[2]), np.float32)
        self._native.attend(queries, out, float(scale))
        self._native.settle()
        return mx.array(out).astype(queries.dtype)

    def _on_metal(self) -> DevicePages | bool:
        """The pages on the GPU, if there is Metal and a kernel for them; why not is said once."""
        if self._pages is None:
            self._pages = False
            if mx.metal.is_available():
                try:
                    self._pages = DevicePages(MlxDevice(), self._native, self.window)
                except ValueError as refused:
                    say_once(f"{refused}; attention of {self.layout.kv} runs on the processor")
        return self._pages

    def _check_mask(self, mask: Any, tokens: int) -> None:
        """Refuses masks that hide anything but the future and what has left the window."""
        if isinstance(mask, str) and mask == "causal" or mask is None and tokens == 1:
            return
        if isinstance(mask, mx.array) and mask.dtype == mx.bool_:
            held = mask.shape[-1]
            own = create_causal_mask(tokens, held - tokens, window_size=self.window)
            if mx.all(mask == own).item():
                return
        raise ValueError(
            f"layer {self.layer}: attention on bytes is causal, and this model asks for another mask (padding, images, packed sequences): "
            "leave on_bytes out"
        )

    def _append(self, keys: mx.array, values: mx.array) -> None:
        shape = (keys.shape[1], keys.shape[-1], values.shape[-1])
        if self._native is None:
            self._open(shape)
        mx.eval(keys, values)
        self._native.append(keys, values)
        self.offset += keys.shape[2]

    def _open(self, shape: tuple[int, int, int]) -> None:
        self._shape = shape
        self._native = self.layout.layer(self.layer, *shape, window=self.window)
        # Speculative decoding takes tokens back without a warning beforehand.
        self._native.record(True)

    def _decoded(self, first: int, *types: mx.Dtype) -> tuple[mx.array, mx.array]:
        """Positions from `first` on."""
        heads, *dims = self._shape
        rows = len(self._native.lens)
        # numpy has no bfloat16.
        halves = [np.float16 if kind == mx.float16 else np.float32 for kind in types]
        sides = [
            np.empty((rows, heads, self.offset - first, dim), kind) for dim, kind in zip(dims, halves, strict=True)
        ]
        self._native.decode(*sides, [first - self._base] * rows)
        keys, values = (mx.array(side).astype(kind) for side, kind in zip(sides, types, strict=True))
        return keys, values

    def _decoded_once(self, *types: mx.Dtype) -> tuple[mx.array, mx.array]:
        """The same of all positions, where only what is not in the kept part is decoded."""
        fresh = self._decoded(self._closed, *types)
        if self._kept is None or self._kept[0].shape[2] < self.offset:
            room = self.offset + max(ROOM, self.offset // 4)
            wider = [mx.zeros((*side.shape[:2], room, side.shape[3]), side.dtype) for side in fresh]
            for index, side in enumerate(self._kept or ()):
                wider[index][:, :, : self._closed] = side[:, :, : self._closed]
            self._kept = wider
        for side, rows in zip(self._kept, fresh, strict=True):
            side[:, :, self._closed : self.offset] = rows
        self._closed = self._native.closed
        keys, values = (side[:, :, : self.offset] for side in self._kept)
        return keys, values

    # What mlx-lm saves and loads

    @property
    def state(self) -> dict[str, Any]:
        """What is held, for `save_prompt_cache`: a description, the plan, and every sequence with its checksums."""
        return _State(self)

    @state.setter
    def state(self, saved: dict[str, Any]) -> None:
        try:
            told = json.loads(saved["about"])
            version, plan, rows = told["version"], saved.get("plan"), saved.get("rows", ())
        except (AttributeError, KeyError, TypeError, ValueError):
            raise ValueError("this is not the state of a KvantCache") from None
        if version != VERSION:
            raise ValueError(f"the state of a KvantCache has version {version}, and this kvant reads {VERSION}")
        layout = _kvant.CacheLayout(told["kv"], None if plan is None else _raw(plan), told["threads"])
        # States of before there was attention on bytes do not say.
        how = {"keep_decoded": told["keep_decoded"], "on_bytes": told.get("on_bytes", False)}
        self.__init__(layout, told["layer"], told["window"], **how)
        if told["shape"] is not None:
            self._open(tuple(told["shape"]))
            self._native.load([_raw(row) for row in rows], self._signature())
            self._base, self.offset = told["base"], told["offset"]
            if self._native.lens != [self.offset - self._base] * len(rows):
                raise ValueError(f"the state of layer {self.layer} holds other lengths than it says")

    def _saved(self) -> dict[str, Any]:
        told = {
            "version": VERSION,
            "kv": self.layout.kv,
            "threads": self.layout.threads,
            "layer": self.layer,
            "window": self.window,
            "keep_decoded": self.keep_decoded,
            "on_bytes": self.on_bytes,
            "shape": self._shape,
            "base": self._base,
            "offset": self.offset,
        }
        saved: dict[str, Any] = {"about": json.dumps(told)}
        if self.layout.plan is not None:
            saved["plan"] = _bytes(self.layout.plan)
        if self._native is not None:
            saved["rows"] = [_bytes(row) for row in self._native.save(self.layout.kv, self._signature())]
        return saved

    def _signature(self) -> bytes:
        """What must be the same for pages to mean the same."""
        return hashlib.sha256(b"kvant.mlx cache\n" + self.layout.kv.encode() + b"\n" + (self.layout.plan or b"")).digest()

    def __reduce__(self) -> tuple:
        saved = self._saved()
        if "plan" in saved:
            saved["plan"] = _raw(saved["plan"])
        return KvantCache.from_state, ({**saved, "rows": [_raw(row) for row in saved.get("rows", ())]},)

    def __deepcopy__(self, memo: dict) -> KvantCache:
        """Another cache with the same tokens. Pages are shared; the two go on apart."""
        twin = KvantCache(
            self.layout, self.layer, self.window, keep_decoded=self.keep_decoded, on_bytes=self.on_bytes
        )
        twin.offset, twin._base, twin._shape = self.offset, self._base, self._shape
        if self._native is not None:
            twin._native = self._native.fork()
            twin._native.record(True)
        return twin

    # What generation asks for

    def size(self) -> int:
        return min(self.offset, self.window) if self.window else self.offset

    def empty(self) -> bool:
        return self._native is None

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Takes back the last `n` tokens."""
        n = min(self.offset - self._base, n)
        if n > 0:
            self._native.crop([held - n for held in self._native.lens])
            if self._pages:
                self._pages.cut(self._native.lens, self.layout.sinks)
            self.offset -= n
            self._closed = min(self._closed, self._native.closed)
        return n

    def make_mask(self, N: int, window_size: int | None = None, return_array: bool = False) -> Any:
        if self.window is None:
            return mlx_cache.create_attention_mask(
                N, offset=self.offset, return_array=return_array, window_size=window_size
            )
        window = min(window_size or self.window, self.window)
        offset = min(self.window - 1, self.offset)
        if N > 1:
            is_narrow = offset + N > window or return_array
            return create_causal_mask(N, offset, window_size=window) if is_narrow else "causal"
        return mx.arange(offset + 1) >= offset + 1 - window if offset + 1 > window else None

    @property
    def nbytes(self) -> int:
        """Bytes stored: encoded pages with all their scales, and exact rows."""
        return 0 if self._native is None else self._native.footprint()["stored"]

    @property
    def decoded_nbytes(self) -> int:
        """Bytes that `keep_decoded` keeps beside the pages."""
        return sum(side.nbytes for side in self._kept or ())


def _bytes(data: bytes) -> mx.array:
    return mx.array(np.frombuffer(data, np.uint8))


def _raw(part: mx.array | bytes) -> bytes:
    return part if isinstance(part, bytes) else np.asarray(part, np.uint8).tobytes()


# mlx-lm's attention calls this by its name in its own module, for caches that have `bits`.
_of_mlx = mlx_base.quantized_scaled_dot_product_attention
mlx_base.quantized_scaled_dot_product_attention = _quantized_attention

# `load_prompt_cache` looks for the classes of a file among mlx-lm's own.
mlx_cache.KvantCache = KvantCache
