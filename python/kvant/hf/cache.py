"""The cache itself: a list of layers, as transformers 5 expects it."""

from __future__ import annotations

import copy
import warnings
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    Cache,
    LinearAttentionCacheLayerMixin,
    get_layer_types_and_kwargs,
)

from .. import _kvant
from . import saved
from .context import CacheContext, CacheFileError
from .layer import KvantHybridLayer, KvantLayer, copy_states
from .plans import Plan, signature

#: Layers that keep no keys and values: transformers' own classes serve them.
RECURRENT = ("conv", "linear_attention", "moe", "mlp")


class KvantCache(Cache):
    """A KV cache in compressed pages.

    Args:
        config: The model's configuration; layers, windows and head sizes follow from it and from the first keys.
        kv: How keys and values are kept: a spec or policy (``"int4"``, ``"int8"``, ``"kivi4;recent=128"``, ``"turboquant4"``,
            ``"k=ch4,v=tq3;layers 0:f16"``), or a plan made by `calibrate` or by ``kvant calibrate`` (a `Plan`, its path or bytes).
        policy: With a plan, another policy than the plan's own that takes its numbers from it.
        attention: How attention reads it: ``"bytes"``, ``"decoded"``, or ``None`` for bytes if and only if the model's
            ``attn_implementation`` is ``"kvant"``.
        threads: Threads of the kernels; torch's number if it is not given.
        keep_decoded: Where attention gets decoded tensors, keep those of full attention layers: each page is decoded once, and not at
            every step. Steps are faster, and memory is that of an uncompressed cache and the pages beside it.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        kv: str | Plan | PathLike | bytes = "int4",
        *,
        policy: str | None = None,
        attention: str | None = None,
        threads: int | None = None,
        keep_decoded: bool = False,
    ):
        config = getattr(config, "config", config)
        config = config.get_text_config(decoder=True)
        spec, plan = (policy, Plan.of(kv)) if Plan.is_one(kv) else (kv, None)
        layout = _kvant.CacheLayout(spec, None if plan is None else plan.data, threads or torch.get_num_threads())
        if plan is not None and layout.plan_model != signature(config):
            warnings.warn(
                f"the plan was made for another checkpoint, or by `kvant calibrate` ({plan.made}): whether it fits is not known "
                "beyond shapes",
                stacklevel=2,
            )
        self.context = CacheContext(config, layout, attention, keep_decoded)
        types, options = get_layer_types_and_kwargs(config)
        layout.check(len(types))
        layers = [self._layer(index, *one) for index, one in enumerate(zip(types, options, strict=True))]
        super().__init__(layers=layers)

    def _layer(self, index: int, kind: str, options: dict[str, Any]) -> Any:
        if kind in ("full_attention", "sliding_attention"):
            return KvantLayer(self.context, index, **options)
        if kind in ("hybrid", "hybrid_sliding"):
            return KvantHybridLayer(self.context, index, **options)
        if kind in RECURRENT:
            return DYNAMIC_LAYER_TYPE_MAPPING[kind](**options)
        if kind == "chunked_attention" and not self.context.on_bytes:
            return KvantLayer(self.context, index, **options)
        raise ValueError(f"layer {index} is of type {kind!r}, which KvantCache does not keep")

    @torch.compiler.disable
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As any cache's. It runs outside of what `torch.compile` compiles, which would compile it anew for every layer."""
        return super().update(key_states, value_states, layer_idx, *args, **kwargs)

    @classmethod
    def from_cache(
        cls,
        cache: Cache,
        config: PreTrainedConfig,
        kv: str | Plan | PathLike | bytes = "int4",
        *,
        attention_mask: torch.Tensor | None = None,
        **options: Any,
    ) -> KvantCache:
        """Compresses what another cache holds, as after prefill. With padding in it, `attention_mask` says where, so that attention
        on bytes can leave it out."""
        result = cls(config, kv, **options)
        if len(cache.layers) > len(result.layers):
            raise ValueError(f"a cache of {len(cache.layers)} layers for a model with {len(result.layers)}")
        for index, source in enumerate(cache.layers):
            target = result.layers[index]
            if not isinstance(target, KvantLayer):
                result.layers[index] = copy.deepcopy(source)
                continue
            if isinstance(target, KvantHybridLayer):
                copy_states(source, target)
            length = source.get_seq_length()
            if length > 0:
                keys, values = source.keys, source.values
                if keys is None or keys.numel() == 0:
                    raise ValueError(f"layer {index} is a {type(source).__name__}, which does not hand out what it holds")
                target.load(keys, values, length, attention_mask if result.context.on_bytes else None)
        return result

    def fork(self) -> KvantCache:
        """Another cache with the same tokens. Pages are shared; the two go on apart."""
        return copy.deepcopy(self)

    def save(self, path: str | PathLike) -> int:
        """Saves the cache in a file, which is either replaced as a whole or left as it was; returns its bytes. The tokens are not in
        it: keep them beside it. What `activate_past_recording` keeps is not saved."""
        data = saved.to_bytes(self)
        saved.replace(path, data)
        return len(data)

    @classmethod
    def load(
        cls,
        path: str | PathLike,
        config: PreTrainedConfig,
        *,
        device: torch.device | str | None = None,
        **options: Any,
    ) -> KvantCache:
        """The cache that was saved in a file, for a model of the same configuration; everything in the file is checked.

        Args:
            path: The file.
            config: The model's configuration.
            device: Where the model is; where it was when the cache was saved if it is not given. Pages lie in host memory.
            options: `attention`, `threads` and `keep_decoded`, as for a new cache.
        """
        try:
            return cls._of_bytes(Path(path).read_bytes(), config, device, options)
        except CacheFileError as error:
            raise CacheFileError(f"{path} {error}") from None

    @classmethod
    def _of_bytes(
        cls, data: bytes, config: PreTrainedConfig, device: torch.device | str | None, options: dict[str, Any]
    ) -> KvantCache:
        try:
            header, parts = saved.header_of(data)
            config = getattr(config, "config", config).get_text_config(decoder=True)
            if header["model"] != signature(config).hex():
                raise CacheFileError("belongs to a model of another configuration")
            plan = parts.next() if header["has_plan"] else None
            kv = {"kv": header["kv"]} if plan is None else {"kv": plan, "policy": header["kv"]}
            cache = cls(config, **kv, **options)
            saved.fill(cache, header, parts, None if device is None else torch.device(device))
        except CacheFileError:
            raise
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise CacheFileError(f"cannot be used: {error}") from error
        return cache

    def __reduce__(self) -> tuple:
        context = self.context
        options = {
            "attention": context.attention,
            "threads": context.layout.threads,
            "keep_decoded": context.keep_decoded,
        }
        return type(self)._of_bytes, (saved.to_bytes(self), context.config, None, options)

    def __copy__(self) -> KvantCache:
        twin = type(self).__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __deepcopy__(self, memo: dict) -> KvantCache:
        twin = memo[id(self)] = self.__copy__()
        twin.__dict__.update({name: copy.deepcopy(value, memo) for name, value in self.__dict__.items()})
        return twin

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        for layer in self.layers:
            layer.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        for layer in self.layers:
            if isinstance(layer, KvantLayer):
                layer.batch_repeat_interleave(repeats)
            elif (rows := _rows(layer)) > 0:
                layer.reorder_cache(torch.arange(rows).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        for layer in self.layers:
            if isinstance(layer, KvantLayer):
                layer.batch_select_indices(indices)
            elif (rows := _rows(layer)) > 0:
                layer.reorder_cache(torch.arange(rows)[indices.cpu()])

    @property
    def batch_size(self) -> int:
        sizes = {layer.batch_size for layer in self.layers if isinstance(layer, KvantLayer)}
        return max(sizes, default=-1)

    @property
    def is_linear(self) -> list[bool]:
        return [not isinstance(layer, KvantLayer) for layer in self.layers]

    @property
    def kv(self) -> str:
        """How keys and values are kept."""
        return self.context.layout.kv

    @property
    def nbytes(self) -> int:
        """Bytes stored for keys and values: encoded pages with all their scales, and exact rows."""
        layers = (layer.native for layer in self.layers if isinstance(layer, KvantLayer))
        return sum(native.footprint()["stored"] for native in layers if native is not None)

    @property
    def decoded_nbytes(self) -> int:
        """Bytes that `keep_decoded` keeps beside the pages."""
        return sum(layer.decoded_nbytes for layer in self.layers if isinstance(layer, KvantLayer))

    @property
    def memory(self) -> int:
        """Bytes of all pages in use, forks' included, with the room that tails keep for more tokens."""
        return self.context.layout.memory


def _rows(layer: LinearAttentionCacheLayerMixin) -> int:
    """Sequences that a recurrent layer holds state of."""
    states = [*layer.conv_states.values(), *layer.recurrent_states.values()]
    return next((state.shape[0] for state in states if state is not None), 0)
