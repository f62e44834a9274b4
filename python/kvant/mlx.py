"""A compressed KV cache for mlx-lm.

    from kvant.mlx import make_prompt_cache

    cache = make_prompt_cache(model, kv="int4")
    generate(model, tokenizer, prompt, prompt_cache=cache)

Pages lie in host memory, and attention gets decoded arrays. Tested with MLX's CPU build on Linux; on a Mac it is untested.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as mlx_cache
from mlx_lm.models.base import create_causal_mask

from . import _kvant

__all__ = ["KvantCache", "make_prompt_cache"]


def make_prompt_cache(
    model: Any, kv: str | PathLike | bytes = "int4", *, threads: int | None = None
) -> list[Any]:
    """The cache of a model: one `KvantCache` for every layer with keys and values, the model's own for layers with recurrent state.

    `kv` is a spec such as ``int4`` or ``kivi4;recent=128``, or a plan: the path of a ``.kvplan`` file, or its bytes.
    """
    is_plan = not isinstance(kv, str) or kv.endswith(".kvplan")
    plan = (kv if isinstance(kv, bytes) else Path(kv).read_bytes()) if is_plan else None
    layout = _kvant.CacheLayout(None if is_plan else kv, plan, threads)
    own = mlx_cache.make_prompt_cache(model)
    layout.check(len(own))
    return [_of_layer(layout, index, layer) for index, layer in enumerate(own)]


def _of_layer(layout: _kvant.CacheLayout, index: int, own: Any) -> Any:
    if isinstance(own, mlx_cache.RotatingKVCache):
        if own.keep:
            raise ValueError(f"layer {index} keeps {own.keep} attention sinks beside its window, which KvantCache does not")
        return KvantCache(layout, index, own.max_size)
    if isinstance(own, mlx_cache.KVCache):
        return KvantCache(layout, index)
    if isinstance(own, mlx_cache.CacheList):
        return mlx_cache.CacheList(*(_of_layer(layout, index, part) for part in own.caches))
    if isinstance(own, mlx_cache.ArraysCache):
        return own
    raise ValueError(f"layer {index} has a {type(own).__name__}, which KvantCache does not replace")


class KvantCache(mlx_cache._BaseCache):
    """Keys and values of one layer, compressed.

    Args:
        kv: How they are kept: a spec such as ``int4``, or a layout that the layers of a model share.
        layer: Which layer it is; plans and policies have something to say about each.
        window: The layer's sliding window, its own token included.
    """

    def __init__(self, kv: str | _kvant.CacheLayout = "int4", layer: int = 0, window: int | None = None):
        self.layout = _kvant.CacheLayout(kv) if isinstance(kv, str) else kv
        self.layer = layer
        self.window = window
        self.offset = 0
        self._native: _kvant.LayerCache | None = None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Takes keys and values, (batch, kv heads, tokens, channels), and returns all that their queries see, decoded."""
        batch, heads, tokens, key_dim = keys.shape
        dims = (key_dim, values.shape[-1])
        if self._native is None:
            self._native = self.layout.layer(self.layer, heads, *dims, window=self.window)
            # Speculative decoding takes tokens back without a warning beforehand.
            self._native.record(True)
        mx.eval(keys, values)
        self._native.append(keys, values)
        first = max(self.offset + 1 - self.window, 0) if self.window else 0
        self.offset += tokens
        rows = [np.empty((batch, heads, self.offset - first, dim), np.float32) for dim in dims]
        self._native.decode(*rows, [first] * batch)
        self._native.settle()
        return mx.array(rows[0]).astype(keys.dtype), mx.array(rows[1]).astype(values.dtype)

    def size(self) -> int:
        return min(self.offset, self.window) if self.window else self.offset

    def empty(self) -> bool:
        return self._native is None

    def is_trimmable(self) -> bool:
        return True

    def trim(self, n: int) -> int:
        """Takes back the last `n` tokens."""
        n = min(self.offset, n)
        if n > 0:
            self._native.crop([held - n for held in self._native.lens])
            self.offset -= n
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
