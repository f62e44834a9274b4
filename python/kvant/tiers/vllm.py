"""A secondary tier of vLLM that keeps offloaded blocks compressed.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240, "block_size": 64,
        "secondary_tiers": [{"type": "KvantTier", "module_path": "kvant.tiers.vllm",
                             "kv": "int4", "folder": "/mnt/kv", "limit": "200GiB"}]}}'

vLLM calls it from its scheduler, which must not wait: jobs run on threads of kvant's, without the GIL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, ClassVar

import numpy as np
from vllm.v1.kv_offload.base import (
    Locality,
    LookupResult,
    Medium,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingGaugeMetadata,
    RequestOffloadingContext,
    get_offload_group_idx,
)
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from .. import _kvant
from .shape import ModelShape, bytes_of, layer_number, source_of

__all__ = ["KvantTier", "block_forms"]

#: How a page of a layer is laid out, by vLLM's name of the order: heads before tokens, or tokens before heads; keys and values of a head
#: and token lie side by side.
_HEADS_FIRST = {"LBHNC": True, "BLHNC": True, "LBNHC": False, "BLNHC": False}

_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

#: Metrics: what they are called, what `usage` calls them, whether they only grow, and what they say.
_METRICS = [
    ("stored_raw_bytes", "stored_raw", True, "Bytes of stored blocks as vLLM had them."),
    ("stored_bytes", "stored_bytes", True, "Bytes of stored blocks as the tier keeps them."),
    ("loaded_raw_bytes", "loaded_raw", True, "Bytes of loaded blocks as vLLM got them."),
    ("encode_seconds", "encode_seconds", True, "Seconds of encoding, summed over threads."),
    ("decode_seconds", "decode_seconds", True, "Seconds of decoding, summed over threads."),
    ("evicted_entries", "evicted", True, "Entries that went to make room."),
    ("refused_entries", "refused", True, "Entries that could not be used: damaged, or of another kind."),
    ("failed_blocks", "failed", True, "Blocks that could not be stored."),
    ("bytes", "bytes", False, "Bytes of all entries."),
    ("limit_bytes", "limit", False, "The most bytes there may be."),
    ("plan_kl", "kl", False, "KL that the plan's search expects of its codecs, in nats a token; absent where a plan does not say."),
]  # fmt: skip


class KvantTier(SecondaryTierManager):
    """Blocks as pages of kvant's codecs, in memory or in a folder.

    Args:
        kv: How they are kept: a spec such as ``int4``, or the path of a ``.kvplan`` file. Which positions stay exact cannot be said.
        folder: Where entries lie; in memory where it is left out. Several processes may share one.
        limit: The most bytes of all entries, as a number or as text such as ``64GiB``.
        kv_heads: kv heads of a layer of the whole model; where it is left out, transformers is asked.
        head_dim: Channels of a head, likewise.
        threads: Threads that encode, decode, read and write; half the processors where it is left out.
        layout: vLLM's name of the cache's order, where vLLM does not tell it.
        kernel_block_tokens: Tokens of a block of the attention kernel, where that is smaller than a block of the cache.
        locality: ``LOCAL`` or ``REMOTE``, as for vLLM's own tiers.
        enable_kv_events: Publish events of stored blocks, as vLLM's own tiers do.
    """

    medium: ClassVar[Medium] = Medium.STORAGE

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        kv: str = "int4",
        folder: str | None = None,
        limit: int | str = "16GiB",
        kv_heads: int | None = None,
        head_dim: int | None = None,
        threads: int | None = None,
        layout: str | None = None,
        kernel_block_tokens: int | None = None,
        locality: str | None = None,
        enable_kv_events: bool = False,
        backpressure_detector: Any = None,
    ):
        # Releases before 0.33 have no back-pressure.
        more = {} if backpressure_detector is None else {"backpressure_detector": backpressure_detector}
        super().__init__(offloading_spec, primary_kv_view, tier_type, **more)
        self.locality = None if locality is None else Locality(locality)
        config = offloading_spec.config
        shape = ModelShape.of(config.model.name, kv_heads, head_dim)
        source = source_of(kv)
        if len(config.groups) > 1 and ("plan" in source or "layer" in kv):
            raise ValueError(
                f"vLLM keeps the layers of {config.model.name} in {len(config.groups)} groups that share memory, and does not tell "
                "a tier which is which: use one spec for all layers"
            )
        forms = block_forms(config, shape, layout, kernel_block_tokens)
        #: The place of every group in `forms`, by the number that keys end with.
        self._groups = {getattr(group, "group_id", place): place for place, group in enumerate(config.groups)}
        self._tier: _kvant.Tier | None = _kvant.Tier(
            forms, _namespace(config), bytes_of(limit), folder=folder, threads=threads, **source
        )
        memory = np.frombuffer(primary_kv_view, np.uint8)
        self._memory = _kvant.EngineMemory(memory, primary_kv_view.strides[0])
        del memory
        wants_events = enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events
        self._events: list[OffloadingEvent] | None = [] if wants_events else None
        #: Of jobs that are under way: their keys, and whether they load.
        self._jobs: dict[int, tuple[list[bytes], bool]] = {}
        self._told: dict[str, float] = {}

    def _group(self, key: bytes) -> int:
        return self._groups[get_offload_group_idx(key)]

    def lookup(self, key: bytes, req_context: Any) -> LookupResult:
        held = self._tier.held(self._group(key), key)
        if held is None:
            return LookupResult.RETRY
        return LookupResult.HIT if held else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        self._tier.store(job_metadata.job_id, self._memory, self._begin(job_metadata, is_load=False))

    def submit_load(self, job_metadata: TransferJob) -> None:
        self._tier.load(job_metadata.job_id, self._memory, self._begin(job_metadata, is_load=True))

    def _begin(self, job: TransferJob, *, is_load: bool) -> list[tuple[int, bytes, int]]:
        keys = list(job.keys)
        # Before 0.33 chunks were called blocks.
        places = job.chunk_ids if hasattr(job, "chunk_ids") else job.block_ids
        if len(keys) != len(places):
            raise ValueError(f"job {job.job_id} has {len(keys)} keys and {len(places)} blocks")
        self._jobs[job.job_id] = (keys, is_load)
        return [(self._group(key), key, int(place)) for key, place in zip(keys, places, strict=True)]

    def get_finished_jobs(self) -> Iterable[JobResult]:
        results = []
        for job, failed, error, seconds, _ in self._tier.finished():
            keys, is_load = self._jobs.pop(job)
            result = JobResult(job_id=job, success=error is None, transfer_time=seconds)
            left = [key for key in keys if key not in set(failed)] if failed else keys
            if failed and is_load and left:
                result.successful_keys = left
            if self._events is not None and not is_load and left:
                event = OffloadingEvent(keys=left, medium=self.medium, removed=False, locality=self.locality)
                self._events.append(event)
            results.append(result)
        return results

    def has_pending_work(self) -> bool:
        return bool(self._jobs)

    def take_events(self) -> Iterable[OffloadingEvent]:
        events, self._events = self._events, None if self._events is None else []
        return events or ()

    def touch(self, keys: Collection[bytes], req_context: Any) -> None:
        by_group: dict[int, list[bytes]] = {}
        for key in keys:
            by_group.setdefault(self._group(key), []).append(key)
        for group, own in by_group.items():
            self._tier.touch(group, own)

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        return RequestOffloadingContext()

    def drain_jobs(self) -> None:
        self._tier.drain()

    def shutdown(self) -> None:
        """Ends every job, and lets vLLM's memory go."""
        if self._tier is not None:
            self._tier.close()
            self._memory.close()
            self._tier = None
        self._primary_kv_view = None

    @property
    def usage(self) -> dict[str, Any]:
        """What the tier holds and has done."""
        return self._tier.usage()

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        kinds = {True: OffloadingCounterMetadata, False: OffloadingGaugeMetadata}
        return {
            f"vllm:kv_offload_kvant_{name}": kinds[grows](documentation=about, labelnames=("tier",))
            for name, _, grows, about in _METRICS
        }

    def get_stats(self) -> Any:
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats

        stats, usage = OffloadingConnectorStats(), self.usage
        for name, field, grows, _ in _METRICS:
            value = usage[field]
            if value is None:
                continue
            full, labels = f"vllm:kv_offload_kvant_{name}", (self.tier_type,)
            if grows:
                stats.increase_counter(full, value - self._told.get(name, 0), labels)
                self._told[name] = value
            else:
                stats.set_gauge(full, value, labels)
        return stats


def _namespace(config: Any) -> str:
    """What must be the same for two blocks of one key to be the same, besides the heads and layers."""
    return f"vllm\n{config.model.name}\n{config.model.dtype}"


def block_forms(
    config: Any, shape: ModelShape, layout: str | None = None, kernel_block_tokens: int | None = None
) -> list[tuple]:
    """Where keys and values lie in a row of vLLM's memory, for every group of layers."""
    order = layout or config.kv_cache_layout
    if order not in _HEADS_FIRST:
        raise ValueError(
            f"the cache has the layout {order}, and KvantTier reads {', '.join(_HEADS_FIRST)}: set VLLM_KV_CACHE_LAYOUT, "
            "or say `layout` where vLLM does not tell it"
        )
    if config.model.dtype not in _BYTES:
        raise ValueError(
            f"the cache is kept in {config.model.dtype} already; KvantTier compresses float16, bfloat16 and float32: leave "
            "--kv-cache-dtype out"
        )
    parallel = config.parallel
    if parallel.pp_size * parallel.pcp_size * parallel.dcp_size > 1 or config.replicated_layout:
        raise ValueError("KvantTier serves tensor parallelism; pipeline and context parallelism and MLA are not supported")
    workers = parallel.tp_size
    if shape.kv_heads % workers:
        raise ValueError(f"{shape.kv_heads} kv heads do not divide over {workers} workers: replicated heads are not supported")
    # With the canonical layout all workers write to one page; else each has a cell of its own.
    cells = 1 if config.canonical_layout else workers
    heads = shape.kv_heads // cells
    size = _BYTES[config.model.dtype]
    pair = 2 * shape.head_dim * size
    chunk, forms = config.cache.blocks_per_chunk, []
    for group in config.groups:
        tokens, names = group.tokens_per_block, group.layer_names
        page = tokens * heads * pair
        expected = len(names) * page * cells // workers
        if config.worker_kv_bytes_per_block != expected:
            raise ValueError(
                f"a block of vLLM's has {config.worker_kv_bytes_per_block} bytes a worker, and {len(names)} layers of {heads} kv heads "
                f"of {shape.head_dim} channels in {config.model.dtype} have {expected}: kv_heads or head_dim are others, or some layers "
                "keep more than keys and values (state, latents, scales), which KvantTier does not compress"
            )
        run = kernel_block_tokens or tokens
        if tokens % run:
            raise ValueError(f"blocks of {tokens} tokens are not whole blocks of {run}")
        run_bytes = run * heads * pair
        is_heads_first = _HEADS_FIRST[order]
        head_stride, token_stride = (run * pair, pair) if is_heads_first else (pair, heads * pair)
        # A layer's pages of a chunk lie side by side; where blocks come before layers, a block's layers do.
        is_blocks_first = order.startswith("B") and chunk > 1
        if is_blocks_first and run != tokens:
            raise ValueError(f"the layout {order} with blocks_per_chunk {chunk} and kernel blocks of {run} tokens is not supported")
        layer_bytes = page if is_blocks_first else page * chunk
        run_stride = page * len(names) if is_blocks_first else run_bytes
        layers = []
        for place, name in enumerate(names):
            starts = [
                cell * len(names) * page * chunk + place * layer_bytes + head * head_stride
                for cell in range(cells)
                for head in range(heads)
            ]
            places = [(start, start + shape.head_dim * size) for start in starts]
            layers.append((layer_number(name, place), places))
        form = (config.model.dtype, tokens * chunk, shape.head_dim, shape.head_dim, token_stride, run, run_stride, layers)
        forms.append(form)
    return forms
