"""A storage backend of SGLang's hierarchical cache that keeps pages compressed.

    --enable-hierarchical-cache --page-size 64 --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "kvant", "module_path": "kvant.tiers.sglang", "class_name": "KvantStorage",
        "interface_v1": 1, "kv": "int4", "folder": "/mnt/kv", "limit": "200GiB"}'

SGLang calls it from threads of its own, which wait; jobs run on threads of kvant's, without the GIL.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

from .. import _kvant
from .shape import bytes_of, source_of

__all__ = ["KvantStorage"]

#: What its configuration may say, besides what SGLang itself reads.
_SETTINGS = {"kv", "folder", "limit", "threads"}
_OF_SGLANG = {"backend_name", "module_path", "class_name", "interface_v1", "prefetch_threshold", "prefetch_timeout_base",
              "prefetch_timeout_per_ki_token", "prefetch_timeout_max", "hicache_storage_pass_prefix_keys"}  # fmt: skip


class KvantStorage(HiCacheStorage):
    """Pages of SGLang as pages of kvant's codecs, in memory or in a folder.

    Its settings in the backend's extra config are `kv` (a spec such as ``int4``, or the path of a plan), `folder` (memory where it is left
    out), `limit` (bytes, or text such as ``64GiB``) and `threads`.
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None):
        extra = storage_config.extra_config or {}
        unknown = set(extra) - _SETTINGS - _OF_SGLANG
        if unknown:
            raise ValueError(f"KvantStorage has no setting {', '.join(sorted(unknown))}: it takes {', '.join(sorted(_SETTINGS))}")
        if not extra.get("interface_v1"):
            raise ValueError('KvantStorage reads SGLang\'s pages in place: set "interface_v1": 1')
        if storage_config.is_mla_model or storage_config.attn_cp_size > 1:
            raise ValueError("KvantStorage does not support latents (MLA) and context parallelism")
        self._source = source_of(extra.get("kv", "int4"))
        self._limit, self._folder = bytes_of(extra.get("limit", "16GiB")), extra.get("folder")
        self._threads = extra.get("threads")
        ranks = (storage_config.tp_rank, storage_config.tp_size, storage_config.pp_rank, storage_config.pp_size)
        self._namespace = f"sglang\n{storage_config.model_name}\n{ranks}"
        self._jobs = itertools.count()
        self._tier: _kvant.Tier | None = None

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """SGLang's memory, whose order is known from here on."""
        super().register_mem_pool_host(mem_pool_host)
        form, stride = _form(mem_pool_host)
        namespace = f"{self._namespace}\n{form[0]}"
        self._tier = _kvant.Tier([form], namespace, self._limit, folder=self._folder, threads=self._threads, **self._source)
        memory = mem_pool_host.kv_buffer.view(torch.uint8).reshape(-1).numpy()
        self._memory = _kvant.EngineMemory(memory, stride)
        #: SGLang says where a page begins by its first token; blocks are counted in pages, or in tokens where pages do not follow each other.
        self._per_place = 1 if mem_pool_host.layout == "layer_first" else mem_pool_host.page_size

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        raise ValueError(f"KvantStorage keeps keys and values alone, and this model has a pool {host_pool_name} beside them")

    def _list(self, keys: list[str], host_indices: torch.Tensor) -> list[tuple[int, bytes, int]]:
        size = self.mem_pool_host.page_size
        if host_indices.numel() != len(keys) * size:
            raise ValueError(f"{host_indices.numel()} tokens are not {len(keys)} pages of {size}")
        firsts = host_indices[::size].tolist()
        return [(0, key.encode(), first // self._per_place) for key, first in zip(keys, firsts, strict=True)]

    def _run(self, begin: Any, keys: list[str], host_indices: torch.Tensor) -> list[bool]:
        if not keys:
            return []
        job = next(self._jobs)
        begin(job, self._memory, self._list(keys, host_indices))
        failed = set(self._tier.wait(job)[1])
        return [key.encode() not in failed for key in keys]

    def batch_get_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._run(self._tier.load, keys, host_indices)

    def batch_set_v1(self, keys: list[str], host_indices: torch.Tensor, extra_info: Any = None) -> list[bool]:
        return self._run(self._tier.store, keys, host_indices)

    def exists(self, key: str) -> bool:
        return self._tier.held_now(0, key.encode())

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError('KvantStorage reads SGLang\'s pages in place: set "interface_v1": 1')

    get = batch_get = set = batch_set = _refuse

    def close(self) -> None:
        """Ends every job, and lets SGLang's memory go."""
        if self._tier is not None:
            self._tier.close()
            self._memory.close()
            self._tier = None

    @property
    def usage(self) -> dict[str, Any]:
        """What the tier holds and has done."""
        return self._tier.usage()


def _form(pool: Any) -> tuple[tuple, int]:
    """Where keys and values lie in a page of SGLang's memory, and how far its places are apart."""
    dims = {
        "layer_first": lambda size: (pool.layer_num, pool.size),
        "page_first": lambda size: (pool.size, pool.layer_num),
        "page_first_direct": lambda size: (pool.page_num, pool.layer_num, size),
    }
    if pool.layout not in dims or getattr(pool, "v_head_dim", pool.head_dim) != pool.head_dim:
        raise ValueError(
            f"the host pool {type(pool).__name__} has the layout {pool.layout}, with heads of {pool.head_dim} channels: KvantStorage reads "
            f"{', '.join(dims)}, with keys and values of one width (--hicache-mem-layout)"
        )
    item, heads, dim, page = pool.dtype.itemsize, pool.head_num, pool.head_dim, pool.page_size
    row = heads * dim * item
    if tuple(pool.kv_buffer.shape) != (2, *dims[pool.layout](page), heads, dim):
        raise ValueError(f"the host pool has the shape {tuple(pool.kv_buffer.shape)}, which is not that of {pool.layout}")
    half = pool.kv_buffer[0].numel() * item
    stride, token_stride, layer_stride = {
        "layer_first": (row, row, pool.size * row),
        "page_first": (page * pool.layer_num * row, pool.layer_num * row, row),
        "page_first_direct": (page * pool.layer_num * row, row, page * row),
    }[pool.layout]
    first = getattr(pool, "start_layer", 0) or 0
    layers = [
        (first + layer, [(layer * layer_stride + head * dim * item, half + layer * layer_stride + head * dim * item) for head in range(heads)])
        for layer in range(pool.layer_num)
    ]
    return (str(pool.dtype).removeprefix("torch."), page, dim, dim, token_stride, page, 0, layers), stride
