"""kvant.tiers with the engines' own classes: vLLM's offloading manager, SGLang's backend factory, LMCache's serde processor.

What they import of servers and GPUs is not needed here: packages are named below whose own initialisation is skipped.
"""

from __future__ import annotations

import importlib.util
import select
import sys
import time
import types
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from kvant import _kvant  # noqa: E402

LAYERS, HEADS, DIM = 3, 2, 64


def hollow(*names: str) -> None:
    """Packages whose modules are imported without their own initialisation."""
    for name in names:
        root, *rest = name.split(".")
        module = types.ModuleType(name)
        module.__path__ = [str(Path(importlib.util.find_spec(root).submodule_search_locations[0], *rest))]
        sys.modules[name] = module


@pytest.fixture(scope="module")
def vllm():
    pytest.importorskip("vllm")
    # Parsers and grammars of its server.
    hollow("vllm.v1.structured_output")
    from vllm.v1.kv_offload import base, config
    from vllm.v1.kv_offload.tiering import base as tiering
    from vllm.v1.kv_offload.tiering import factory, manager, spec

    return types.SimpleNamespace(base=base, config=config, tiering=tiering, factory=factory, manager=manager, spec=spec)


def vllm_config(vllm, layout: str = "LBNHC", dtype: str = "float16", tokens: int = 16, chunk: int = 4, tp: int = 1, **extra):
    """The configuration that vLLM would hand over, with blocks of 16 tokens in chunks of 64."""
    config, size = vllm.config, 4 if dtype == "float32" else 2
    names = tuple(f"model.layers.{layer}.self_attn.attn" for layer in range(LAYERS))
    fields = {"tokens_per_block": tokens, "layer_names": names}
    if "group_id" in config.OffloadingGroupConfig.__dataclass_fields__:
        fields["group_id"] = 0
    return config.OffloadingConfig(
        groups=(config.OffloadingGroupConfig(**fields),),
        worker_kv_bytes_per_block=LAYERS * tokens * HEADS // tp * 2 * DIM * size,
        enable_kv_cache_events=False,
        extra_config={"cpu_bytes_to_use": 1 << 22, **extra},
        engine_id=f"kvant-test-{time.monotonic_ns()}",
        model=config.OffloadingModelConfig(name="test/model", dtype=dtype),
        cache=config.OffloadingCacheConfig(tokens_per_hash=16, blocks_per_chunk=chunk),
        parallel=config.OffloadingParallelConfig(
            rank=0, world_size=tp, tp_size=tp, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0, data_parallel_size=1,
            data_parallel_rank_local=None, is_parallelism_agnostic=False,
        ),
        kv_cache_layout=layout,
    )  # fmt: skip


TIER = {"type": "KvantTier", "module_path": "kvant.tiers.vllm", "kv": "int4", "kv_heads": HEADS, "head_dim": DIM, "limit": "1GiB"}


def put(row: torch.Tensor, layout: str, tp: int, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Writes (layers, heads, tokens, channels) into a row of vLLM's memory, as its workers do: block by block of 16 tokens."""
    own, at = HEADS // tp, 0
    flat = row.view(torch.float16)
    for worker in range(tp):
        for layer in range(LAYERS):
            for block in range(4):
                part = torch.cat([keys, values], -1)[layer, worker * own : (worker + 1) * own, 16 * block : 16 * block + 16]
                part = part if layout == "LBHNC" else part.transpose(0, 1)
                flat[at : at + part.numel()] = part.reshape(-1)
                at += part.numel()


def expected(kv: str, rows: torch.Tensor, side: str) -> torch.Tensor:
    import kvant

    codec = kvant.codec(kv)
    flat = rows.reshape(-1, *rows.shape[-2:]).float().numpy()
    return torch.from_numpy(codec.decode(codec.encode(flat, side))).reshape(rows.shape).half()


@pytest.mark.parametrize(("layout", "tp"), [("LBNHC", 1), ("LBHNC", 1), ("LBHNC", 2)])
def test_vllm_gets_back_what_the_codecs_make_of_its_blocks(vllm, layout, tp):
    config = vllm_config(vllm, layout, tp=tp)
    spec = types.SimpleNamespace(config=config, kv_events_config=types.SimpleNamespace(enable_kv_cache_events=False))
    size = LAYERS * 64 * HEADS * 2 * DIM * 2
    memory = torch.zeros((4, size), dtype=torch.int8)
    rows = torch.randn((2, LAYERS, HEADS, 64, DIM), generator=torch.Generator().manual_seed(5)).half()
    put(memory[1], layout, tp, *rows)
    tier = vllm.factory.SecondaryTierFactory.create_secondary_tier(dict(TIER), memoryview(memory.numpy()), spec)
    assert isinstance(tier, vllm.tiering.SecondaryTierManager)
    key, context = vllm.base.make_offload_key(b"a hash", 0), vllm.base.ReqContext(req_id="1")
    assert tier.lookup(key, context) is vllm.base.LookupResult.MISS
    places = "chunk_ids" if "chunk_ids" in vllm.tiering.TransferJob.__dataclass_fields__ else "block_ids"
    job = lambda number, place, is_load: vllm.tiering.TransferJob(  # noqa: E731
        job_id=number, keys=[key], is_promotion=is_load, req_context=context, **{places: np.array([place])}
    )
    tier.submit_store(job(7, 1, False))
    assert tier.has_pending_work()
    tier.drain_jobs()
    [done] = tier.get_finished_jobs()
    assert (done.job_id, done.success) == (7, True) and done.transfer_time > 0
    assert tier.lookup(key, context) is vllm.base.LookupResult.HIT
    tier.submit_load(job(8, 3, True))
    tier.drain_jobs()
    [done] = tier.get_finished_jobs()
    assert done.success and not tier.has_pending_work()
    wanted = torch.zeros_like(memory[3])
    put(wanted, layout, tp, expected("int4", rows[0], "key"), expected("int4", rows[1], "value"))
    assert torch.equal(memory[3], wanted)
    usage = tier.usage
    assert usage["stored_bytes"] <= 0.29 * usage["stored_raw"] == 0.29 * size
    names = tier.build_metric_definitions({})
    stats = tier.get_stats()
    assert set(stats._values) <= set(names) and "vllm:kv_offload_kvant_stored_bytes" in stats._values
    # A block that is not there fails alone.
    other = vllm.base.make_offload_key(b"another", 0)
    both = vllm.tiering.TransferJob(job_id=9, keys=[other, key], is_promotion=True, req_context=context, **{places: np.array([0, 2])})
    tier.submit_load(both)
    tier.drain_jobs()
    [done] = tier.get_finished_jobs()
    assert not done.success and list(done.successful_keys) == [key]
    tier.shutdown()


def test_vllm_promotes_blocks_through_its_own_manager(vllm, tmp_path):
    """Its primary tier in shared memory, its manager, and ours below."""
    tier_config = {**TIER, "folder": str(tmp_path)}
    spec = vllm.spec.TieringOffloadingSpec(
        vllm_config(vllm, spec_name="TieringOffloadingSpec", secondary_tiers=[tier_config])
    )
    metrics = spec.build_metric_definitions({"secondary_tiers": [tier_config]})
    assert "vllm:kv_offload_kvant_plan_kl" in metrics
    manager = spec.get_manager()
    [tier] = manager.secondary_tiers
    assert type(tier).__name__ == "KvantTier"
    context = vllm.base.ReqContext(req_id="1")
    manager.on_new_request(context)
    keys = [vllm.base.make_offload_key(b"hash %d" % number, 0) for number in range(3)]
    output = manager.prepare_store(keys, context)
    view = np.frombuffer(manager.primary_tier.get_kv_memoryview(), np.float16).reshape(-1, tier._primary_kv_view.shape[1] // 2)
    numbers = np.random.default_rng(1).standard_normal((3, view.shape[1])).astype(np.float16)
    view[output.store_spec.block_ids] = numbers
    manager.complete_store(output.keys_to_store, context)
    step = vllm.base.ScheduleEndContext(new_req_ids=[], preempted_req_ids=())
    for _ in range(100):
        manager.on_schedule_end(step)
        if tier.usage["stored_blocks"] == 3 and not tier.has_pending_work():
            break
        time.sleep(0.01)
    assert tier.usage["stored_blocks"] == 3
    del view
    manager.shutdown()
    # Another engine finds them: its primary tier is empty.
    again = vllm.spec.TieringOffloadingSpec(
        vllm_config(vllm, spec_name="TieringOffloadingSpec", secondary_tiers=[tier_config])
    ).get_manager()
    again.on_new_request(context)
    results = set()
    for _ in range(200):
        results = {again.lookup(key, context) for key in keys}
        if results == {vllm.base.LookupResult.HIT}:
            break
        again.on_schedule_end(step)
        time.sleep(0.01)
    assert results == {vllm.base.LookupResult.HIT}
    found = again.prepare_load(keys, context)
    view = np.frombuffer(again.primary_tier.get_kv_memoryview(), np.float16).reshape(numbers.shape[1:] and (-1, numbers.shape[1]))
    difference = np.abs(view[found.block_ids].astype(np.float32) - numbers)
    assert 0 < difference.mean() < 0.1
    again.complete_load(keys, context)
    del view
    again.shutdown()


def test_vllm_is_told_what_is_not_supported(vllm):
    from kvant.tiers import ModelShape
    from kvant.tiers.vllm import block_forms

    shape = ModelShape(HEADS, DIM)
    for change, words in (
        ({"layout": "LHBNC"}, "layout LHBNC"),
        ({"dtype": "fp8_e4m3"}, "fp8_e4m3 already"),
        ({"tp": 3}, "do not divide over 3"),
    ):
        with pytest.raises(ValueError, match=words):
            block_forms(vllm_config(vllm, **change), shape)
    with pytest.raises(ValueError, match="kv_heads or head_dim are others"):
        block_forms(vllm_config(vllm), ModelShape(HEADS, 2 * DIM))


def test_logits_through_the_tier_are_as_good_as_with_the_cache(vllm):
    """A prompt's keys and values go through vLLM's memory and the tier, and the model goes on from what comes back."""
    transformers = pytest.importorskip("transformers")
    from kvant.hf import KvantCache

    torch.manual_seed(11)
    config = transformers.LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=HEADS,
        head_dim=DIM, vocab_size=151, initializer_range=0.3,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 151, (1, 192), generator=torch.Generator().manual_seed(2))
    prompt, rest = ids[:, :128], ids[:, 128:]

    def after(cache) -> torch.Tensor:
        with torch.no_grad():
            return model(rest, past_key_values=cache).logits[0].double().log_softmax(-1)

    def read(cache):
        with torch.no_grad():
            model(prompt, past_key_values=cache)
        return cache

    exact = read(transformers.DynamicCache())
    sides = [torch.cat([getattr(layer, side) for layer in exact.layers]).half() for side in ("keys", "values")]
    size = LAYERS * 64 * HEADS * 2 * DIM * 2
    kl = {}
    for kv in ("int8", "int4"):
        memory = torch.zeros((4, size), dtype=torch.int8)
        for chunk in range(2):
            put(memory[chunk], "LBHNC", 1, *(side[:, :, 64 * chunk : 64 * chunk + 64] for side in sides))
        spec = types.SimpleNamespace(config=vllm_config(vllm, "LBHNC"), kv_events_config=None)
        tier = vllm.factory.SecondaryTierFactory.create_secondary_tier({**TIER, "kv": kv}, memoryview(memory.numpy()), spec)
        keys = [vllm.base.make_offload_key(b"chunk %d" % chunk, 0) for chunk in range(2)]
        tier._tier.store(1, tier._memory, [(0, key, chunk) for chunk, key in enumerate(keys)])
        tier.drain_jobs()
        tier._tier.load(2, tier._memory, [(0, key, 2 + chunk) for chunk, key in enumerate(keys)])
        tier.drain_jobs()
        cold = transformers.DynamicCache()
        rows = memory[2:].view(torch.float16).reshape(2, LAYERS, 4, HEADS, 16, 2 * DIM)
        rows = rows.permute(1, 3, 0, 2, 4, 5).reshape(LAYERS, 1, HEADS, 128, 2 * DIM).float()
        for layer in range(LAYERS):
            cold.update(rows[layer][..., :DIM], rows[layer][..., DIM:], layer)
        tier.shutdown()
        # All 128 tokens lie in pages in both.
        warm = after(read(KvantCache(config=config, kv=f"{kv};sinks=0")))
        reference, through = after(read(transformers.DynamicCache())), after(cold)
        divergence = lambda other: float((reference.exp() * (reference - other)).sum(-1).mean())  # noqa: B023, E731
        kl[kv] = divergence(through)
        assert 0 < kl[kv] <= 1.1 * divergence(warm), (kl, divergence(warm))
    assert kl["int8"] < kl["int4"]


@pytest.mark.parametrize("layout", ["layer_first", "page_first", "page_first_direct"])
def test_sglang_writes_and_reads_pages_in_place(layout, tmp_path):
    pytest.importorskip("sglang")
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig
    from sglang.srt.mem_cache.storage import StorageBackendFactory

    page, pages = 64, 6
    shape = {
        "layer_first": (2, LAYERS, pages * page, HEADS, DIM),
        "page_first": (2, pages * page, LAYERS, HEADS, DIM),
        "page_first_direct": (2, pages, LAYERS, page, HEADS, DIM),
    }[layout]
    pool = types.SimpleNamespace(
        layout=layout, dtype=torch.bfloat16, head_num=HEADS, head_dim=DIM, layer_num=LAYERS, page_size=page, page_num=pages,
        size=pages * page, start_layer=0, kv_buffer=torch.zeros(shape, dtype=torch.bfloat16),
    )  # fmt: skip
    extra = {"backend_name": "kvant", "module_path": "kvant.tiers.sglang", "class_name": "KvantStorage", "interface_v1": 1,
             "kv": "int4", "folder": str(tmp_path)}  # fmt: skip
    config = HiCacheStorageConfig(
        tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, is_mla_model=False,
        enable_storage_metrics=False, is_page_first_layout=layout != "layer_first", model_name="test", extra_config=extra,
    )  # fmt: skip
    storage = StorageBackendFactory.create_backend("dynamic", config, pool)
    storage.register_mem_pool_host(pool)

    def tokens(first: int) -> torch.Tensor:
        """(K and V, layers, tokens, heads, channels) of a page."""
        index = first // page
        return {
            "layer_first": lambda: pool.kv_buffer[:, :, first : first + page],
            "page_first": lambda: pool.kv_buffer[:, first : first + page].transpose(1, 2),
            "page_first_direct": lambda: pool.kv_buffer[:, index],
        }[layout]()

    rows = torch.randn((2, LAYERS, page, HEADS, DIM), generator=torch.Generator().manual_seed(9)).bfloat16()
    tokens(page)[:] = rows
    keys = ["aaaa", "bbbb"]
    indices = torch.cat([torch.arange(page, 2 * page), torch.arange(3 * page, 4 * page)])
    assert storage.batch_set_v1(keys, indices) == [True, True]
    assert storage.batch_exists([*keys, "cccc"]) == 2 and not storage.exists("cccc")
    target = torch.cat([torch.arange(4 * page, 5 * page), torch.arange(5 * page, 6 * page), torch.arange(0, page)])
    assert storage.batch_get_v1([*keys, "cccc"], target) == [True, True, False]
    for side, name in enumerate(("key", "value")):
        wanted = expected("int4", rows[side].transpose(1, 2).float(), name)
        assert torch.allclose(tokens(4 * page)[side].transpose(1, 2).float(), wanted.float(), atol=0.02, rtol=0.01)
    assert tokens(5 * page).count_nonzero() == 0
    assert storage.usage["stored_bytes"] <= 0.29 * storage.usage["stored_raw"]
    with pytest.raises(NotImplementedError, match="interface_v1"):
        storage.get("aaaa")
    storage.close()
    config.extra_config = {**extra, "codec": "int4"}
    with pytest.raises(ValueError, match="no setting codec"):
        StorageBackendFactory.create_backend("dynamic", config, pool)


def test_lmcache_packs_chunks_by_its_own_processor():
    pytest.importorskip("lmcache")
    from lmcache.v1.distributed.api import MemoryLayoutDesc
    from lmcache.v1.distributed.serde import SerdeConfig, create_serde_processor

    import kvant.tiers.lmcache  # noqa: F401

    processor = create_serde_processor(SerdeConfig("kvant", {"kv": "int4", "head_dim": DIM}))
    for tokens in (256, 100):
        shape = torch.Size((2, LAYERS, tokens, HEADS * DIM))
        chunk = torch.randn(shape, generator=torch.Generator().manual_seed(tokens)).half()
        room = processor.estimate_serialized_size(MemoryLayoutDesc(shapes=[shape], dtypes=[torch.float16]))
        assert tokens == 100 or room <= 0.29 * chunk.numel() * 2
        part = lambda tensor: types.SimpleNamespace(tensor=tensor)  # noqa: E731
        packed, back = torch.zeros(room, dtype=torch.uint8), torch.zeros_like(chunk)

        def run(submit, query, descriptor, source, target):
            task = submit([part(source)], [part(target)], [None])
            select.select([descriptor], [], [], 10)
            while (result := query(task)) is None:
                time.sleep(0.001)
            return result

        assert run(processor.submit_serialize, processor.query_serialize_result, processor.get_serialize_event_fd(), chunk, packed)
        load = (processor.submit_deserialize, processor.query_deserialize_result, processor.get_deserialize_event_fd())
        assert run(*load, packed, back)
        assert 0 < (back - chunk).abs().float().mean() < 0.1
        packed[-1] ^= 1
        assert run(*load, packed, back) is False
    processor.close()
    for settings, words in (({}, "head_dim"), ({"head_dim": 64, "bits": 4}, "no setting bits")):
        with pytest.raises(ValueError, match=words):
            create_serde_processor(SerdeConfig("kvant", settings))
    assert isinstance(_kvant.BlockPacker, type)
