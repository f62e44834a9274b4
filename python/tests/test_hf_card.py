"""KvantCache on an NVIDIA card: the same codes as on the host, outputs within a bound, nothing copied, and faults that are said.

With a card, on torch's CUDA tensors. Without one, where ``libcuda.so.1`` is the stand-in of crates/kvant-cuda/tests/driver, on tensors in
host memory that are taken for ones of a card; and else not at all.
"""

from __future__ import annotations

import ctypes
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
)

from kvant import KvantError  # noqa: E402
from kvant.hf import KvantCache, context, layer  # noqa: E402

torch.set_num_threads(1)


def find_driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


DRIVER = find_driver()
IS_STAND_IN = hasattr(DRIVER, "kvant_fault")
if DRIVER is None or not (IS_STAND_IN or torch.cuda.is_available()):
    pytest.skip("no card, and no driver that stands in for one", allow_module_level=True)
DEVICE = "cpu" if IS_STAND_IN else "cuda"

#: What attention differs by from the host's, relative to the largest output. Most of it is the host's, which rounds queries and weights to bytes
#: where it meets codes; with f16 both are exact but for f16's own 11 bits.
BOUND = {"int4": 1e-2, "int8": 1e-2, "k8v4": 1e-2, "f16": 2e-3}
#: What bfloat16, which outputs are rounded to, adds to it.
BF16 = 2**-8

BASE = {
    "hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "vocab_size": 200, "max_position_embeddings": 4096,
}  # fmt: skip
MODELS = {
    "llama": lambda: LlamaConfig(**BASE),
    # Sliding and full layers.
    "gemma3": lambda: Gemma3TextConfig(
        **BASE, sliding_window=80, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=64
    ),
    # Soft caps.
    "gemma2": lambda: Gemma2Config(**BASE, sliding_window=80, attn_logit_softcapping=2.5, query_pre_attn_scalar=64),
    # Attention sinks.
    "gpt_oss": lambda: GptOssConfig(
        **BASE, sliding_window=80, num_local_experts=2, num_experts_per_tok=1, layer_types=["sliding_attention", "full_attention"]
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    """Tensors in host memory are taken for ones of a card, where there is none."""
    if IS_STAND_IN:
        monkeypatch.setattr(layer, "card_of", lambda _: 0)
        monkeypatch.setattr(layer, "stream_of", lambda _: 0)
    context._warned_devices.clear()
    yield
    for fault in ("memory", "lost", "driver"):
        if IS_STAND_IN:
            DRIVER.kvant_fault(fault.encode(), ctypes.c_longlong(-1))


def on_host(monkeypatch):
    """From here on tensors are the host's."""
    monkeypatch.setattr(layer, "card_of", lambda _: None)


def model(name: str, attention: str = "kvant", dtype: torch.dtype = torch.float32):
    torch.manual_seed(3)
    made = AutoModelForCausalLM.from_config(MODELS[name](), dtype=dtype, attn_implementation=attention)
    made.generation_config.eos_token_id = None
    made.generation_config.pad_token_id = 0
    return made.to(DEVICE).eval()


def ids_of(*shape: int) -> torch.Tensor:
    return torch.randint(3, BASE["vocab_size"], shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def states(batch: int, heads: int, tokens: int, dim: int, seed: int, dtype=torch.float32) -> torch.Tensor:
    """Numbers that every format holds: those of bfloat16 around one."""
    numbers = torch.randn((batch, heads, tokens, dim), generator=torch.Generator().manual_seed(seed))
    return numbers.bfloat16().to(dtype).to(DEVICE)


def distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    assert got.shape == expected.shape and bool(got.isfinite().all())
    return ((got.float() - expected.float()).abs().max() / expected.float().abs().max()).item()


def first_layer(kv: str, dim: int = 64, heads: int = 4, kv_heads: int = 2):
    sizes = {"head_dim": dim, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "hidden_size": 16 * heads}
    config = LlamaConfig(**{**BASE, **sizes})
    return KvantCache(config, kv=kv, attention="bytes").layers[0]


def passes(own, counts, *, dim=64, heads=4, kv_heads=2, batch=1, dtype=torch.float32, seed=0):
    """What attention gives for passes of so many tokens."""
    total = sum(counts)
    keys, values = (states(batch, kv_heads, total, dim, seed + side, dtype) for side in (1, 2))
    queries, outs, at = states(batch, heads, total, dim, seed + 3, dtype), [], 0
    for count in counts:
        part = slice(at, at + count)
        own.update(keys[:, :, part], values[:, :, part])
        outs.append(own.attend(queries[:, :, part], None, dim**-0.5))
        at += count
    return torch.cat(outs, dim=1)


def host_page(native, *which) -> bytes:
    address, size = native.page(*which)
    return ctypes.string_at(address, size)


@pytest.mark.parametrize(("kv", "dim"), [("int4", 64), ("int4", 128), ("int8", 64), ("k8v4", 64), ("f16", 64), ("int4", 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_codes_are_those_of_the_host_and_outputs_within_a_bound(kv, dim, dtype, monkeypatch):
    if IS_STAND_IN and dtype != torch.bfloat16 and (kv, dim) != ("int4", 64):
        pytest.skip("on fibers one format is enough")
    counts = [140, 1, 1, 60]
    there = first_layer(kv, dim)
    got = passes(there, counts, dim=dim, dtype=dtype)
    assert there.native.lens == [202] and type(there.native).__name__ == "CardLayerCache"
    on_host(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        here = first_layer(kv, dim)
        expected = passes(here, counts, dim=dim, dtype=dtype)
    for head in range(2):
        for side in ("key", "value"):
            for page in range(3):
                got_page = there.native.page_bytes(0, head, side, page)
                assert bytes(got_page) == host_page(here.native, 0, head, side, page)
    assert distance(got, expected) < BOUND[kv] + (BF16 if dtype == torch.bfloat16 else 0)
    assert there.native.footprint() == here.native.footprint()
    for one, other in ((there.keys, here.keys), (there.values, here.values)):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kv", ["int4", "f16", "int4;recent=100"])
def test_a_token_has_the_same_bits_in_a_chunk_as_alone(kv):
    whole = passes(first_layer(kv), [150])
    assert torch.equal(passes(first_layer(kv), [90, 1, 1, 20, 38]), whole)
    again = passes(first_layer(kv), [150])
    assert torch.equal(again, whole)


def test_a_long_prompt_is_taken_in_pieces():
    count = 1100 if IS_STAND_IN else 5000
    one = {"heads": 1, "kv_heads": 1}
    own = first_layer("int4", **one)
    whole = passes(own, [count], **one)
    assert own.native.lens == [count]
    assert torch.equal(passes(first_layer("int4", **one), [700, count - 700], **one), whole)


@pytest.mark.parametrize("heads", [2, 16, 24])
def test_many_query_heads_of_a_kv_head(heads, monkeypatch):
    got = passes(first_layer("int4", heads=heads), [80, 1], heads=heads)
    on_host(monkeypatch)
    expected = passes(first_layer("int4", heads=heads), [80, 1], heads=heads)
    assert distance(got, expected) < BOUND["int4"]


@pytest.mark.parametrize("name", MODELS)
def test_models_with_an_exact_cache_are_those_of_dynamic_cache(name):
    ids = ids_of(1, 150)
    with torch.no_grad():
        exact = model(name, "eager")
        expected = exact(ids, past_key_values=DynamicCache(config=exact.config)).logits
        own, cache = model(name), None
        cache = KvantCache(own.config, kv="f16")
        parts = [own(part, past_key_values=cache).logits for part in ids.tensor_split([120, 121, 122], dim=1)]
    assert all(type(one.native).__name__ == "CardLayerCache" for one in cache.layers)
    assert distance(torch.cat(parts, dim=1), expected) < 5e-3


def test_generation_goes_on_greedily():
    own = model("llama")
    cache, ids = KvantCache(own.config, kv="int4"), ids_of(1, 70)
    out = own.generate(ids, past_key_values=cache, max_new_tokens=5, do_sample=False)
    assert out.shape == (1, 75) and cache.get_seq_length() == 74
    assert cache.nbytes > 0 and cache.memory >= cache.nbytes


@pytest.mark.parametrize("kv, bound", [("f16", 5e-3), ("int4", 2e-2)])
def test_rows_with_left_padding_are_sequences_of_their_own(kv, bound):
    """A card's products of three rows and of one differ in their last bits. With f16 that is all; with int4 a code flips now and then."""
    own, ids = model("gemma3"), ids_of(3, 100)
    mask = torch.zeros_like(ids)
    for row, length in enumerate((100, 71, 40)):
        mask[row, 100 - length :] = 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad():
        cache = KvantCache(own.config, kv=kv)
        got = own(ids, attention_mask=mask, position_ids=positions, past_key_values=cache).logits
        assert cache.layers[0].native.lens == [100, 71, 40]
        longer = torch.cat([mask, torch.ones_like(mask[:, :1])], dim=1)
        step = own(ids[:, :1], attention_mask=longer, position_ids=positions[:, -1:] + 1, past_key_values=cache).logits
        for row, length in enumerate((100, 71, 40)):
            alone = KvantCache(own.config, kv=kv)
            expected = own(ids[row : row + 1, 100 - length :], past_key_values=alone).logits[0]
            assert distance(got[row, 100 - length :], expected) < bound
            assert distance(step[row, -1], own(ids[row : row + 1, :1], past_key_values=alone).logits[0, -1]) < bound


def test_a_corrupted_byte_changes_the_output():
    found = []
    for corrupt in (False, True):
        own = first_layer("int4")
        passes(own, [140])
        for side in ("key", "value"):
            address, size = own.native.page(0, 1, side, 0)
            byte = (ctypes.c_uint8 * 1)()
            torch.cuda.synchronize() if DEVICE == "cuda" else None
            at = ctypes.c_uint64(address + size // 2)
            if corrupt:
                assert DRIVER.cuMemcpyDtoHAsync_v2(byte, at, ctypes.c_size_t(1), None) == 0
                torch.cuda.synchronize() if DEVICE == "cuda" else None
                byte[0] ^= 0xFF
                assert DRIVER.cuMemcpyHtoDAsync_v2(at, byte, ctypes.c_size_t(1), None) == 0
                torch.cuda.synchronize() if DEVICE == "cuda" else None
        found.append(passes(own, [1], seed=9))
    assert bool(found[1].isfinite().all()) and not torch.equal(*found)


def test_nothing_is_copied_to_the_host():
    own = first_layer("int4")
    passes(own, [140])
    if IS_STAND_IN:
        before = DRIVER.kvant_copied()
        passes(own, [1, 1, 20], seed=5)
        assert DRIVER.kvant_copied() == before
        return
    states(1, 2, 22, 64, 6), torch.cuda.synchronize()
    keys, values, queries = (states(1, heads, 22, 64, heads) for heads in (2, 2, 4))
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for token in range(22):
            part = slice(token, token + 1)
            own.update(keys[:, :, part], values[:, :, part])
            own.attend(queries[:, :, part], None, 0.125)
        torch.cuda.synchronize()
    names = [event.key for event in profile.key_averages()]
    assert any(name.startswith("attend_") for name in names), names
    assert not [name for name in names if "DtoH" in name or "Device -> " in name], names


def test_forks_and_reordered_rows_share_pages():
    own = model("llama")
    cache, ids = KvantCache(own.config, kv="int4"), ids_of(2, 140)
    with torch.no_grad():
        own(ids, past_key_values=cache)
        alone = cache.memory
        fork = cache.fork()
        assert cache.memory < 1.9 * alone
        expected = own(ids[:, :1], past_key_values=fork).logits
        cache.reorder_cache(torch.tensor([1, 0, 1]))
        got = own(ids[[1, 0, 1], :1], past_key_values=cache).logits
    assert torch.equal(got, expected[[1, 0, 1]])
    assert cache.layers[0].native.lens == [141] * 3


def test_tokens_are_taken_back():
    own = model("llama")
    ids = ids_of(1, 150)
    with torch.no_grad():
        cache = KvantCache(own.config, kv="int4")
        own(ids[:, :140], past_key_values=cache)
        expected = own(ids[:, 140:141], past_key_values=cache).logits
        own(ids[:, 141:143], past_key_values=cache)
        cache.crop(-3)
        assert torch.equal(own(ids[:, 140:141], past_key_values=cache).logits, expected)
        # Into a page that is encoded.
        with pytest.raises(ValueError, match="activate_past_recording"):
            cache.crop(-20)


def test_recorded_passes_are_taken_back_into_encoded_pages():
    own, ids = model("llama"), ids_of(1, 150)
    with torch.no_grad():
        cache = KvantCache(own.config, kv="int4")
        own(ids[:, :120], past_key_values=cache)
        cache.activate_past_recording()
        own(ids[:, 120:127], past_key_values=cache)
        expected = own(ids[:, 127:128], past_key_values=cache.fork()).logits
        for part in ids[:, 127:140].split(4, dim=1):
            own(part, past_key_values=cache)
        cache.crop(-13)
        assert torch.equal(own(ids[:, 127:128], past_key_values=cache).logits, expected)
        cache.crop(-5)
        assert cache.layers[0].native.lens == [123]


def test_what_another_cache_holds_is_taken_over():
    own, ids = model("llama"), ids_of(1, 140)
    with torch.no_grad():
        dynamic = DynamicCache(config=own.config)
        own.set_attn_implementation("sdpa")
        own(ids, past_key_values=dynamic)
        own.set_attn_implementation("kvant")
        cache = KvantCache.from_cache(dynamic, own.config, "int4")
        assert type(cache.layers[0].native).__name__ == "CardLayerCache" and cache.layers[0].native.lens == [140]
        assert bool(own(ids[:, :1], past_key_values=cache).logits.isfinite().all())


@pytest.mark.parametrize(
    ("options", "shape", "reason"),
    [
        ({"kv": "kivi2"}, {}, "CUDA backend keeps"),
        ({"kv": "int4"}, {"dim": 16}, "channels"),
        ({"kv": "int4", "attention": "decoded"}, {}, "attn_implementation='kvant'"),
    ],
)
def test_what_has_no_kernels_goes_through_host_memory_and_says_why(options, shape, reason):
    config = LlamaConfig(**{**BASE, "head_dim": shape.get("dim", 64)})
    cache = KvantCache(config, **{"attention": "bytes", **options})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for own in cache.layers:
            keys = states(1, 2, 5, config.head_dim, 1)
            own.update(keys, keys)
            if options.get("attention") != "decoded":
                own.attend(states(1, 4, 5, config.head_dim, 2), None, 0.125)
    said = [str(warning.message) for warning in caught if "host memory" in str(warning.message)]
    assert len(said) == 1 and reason in said[0], said
    assert type(cache.layers[0].native).__name__ == "LayerCache"


def test_numbers_beyond_f16_are_refused_at_the_next_pass():
    own, keys = first_layer("int4"), states(1, 2, 1, 64, 1)
    own.update(keys * 1e6, keys)
    own.attend(states(1, 4, 1, 64, 2), None, 0.125)
    torch.cuda.synchronize() if DEVICE == "cuda" else None
    own.update(keys, keys)
    with pytest.raises(KvantError, match="layer 0.*f16 does not hold"):
        own.attend(states(1, 4, 1, 64, 2), None, 0.125)


stand_in = pytest.mark.skipif(not IS_STAND_IN, reason="a card cannot be made to fail")


def fault(what: str, count: int) -> None:
    assert DRIVER.kvant_fault(what.encode(), ctypes.c_longlong(count)) == 0


@stand_in
def test_a_card_without_memory_says_so_and_keeps_what_it_has():
    own, twin, many = first_layer("int4"), first_layer("int4"), 1500
    passes(own, [100])
    passes(twin, [100])
    keys, queries = states(1, 2, 1, 64, 1).expand(1, 2, many, 64), states(1, 4, 1, 64, 2).expand(1, 4, many, 64)
    fault("memory", 0)
    own.update(keys, keys)
    with pytest.raises(KvantError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        own.attend(queries, None, 0.125)
    assert own.native.lens == [100] and own.get_seq_length() == 100
    # With more memory it fails later, in the second piece of the pass too.
    failed = 0
    # The table of pages grows in both pieces, to 512 and to 1024 bytes.
    for left in (0, 512, 1 << 22):
        fault("memory", left)
        try:
            own._append(keys, keys, None)
        except KvantError as error:
            assert "memory" in str(error).lower() and own.native.lens == [100]
            failed += 1
        else:
            break
    assert failed == 2 and own.native.lens == [100 + many]
    fault("memory", -1)
    twin._append(keys, keys, None)
    for one in (own, twin):
        one._seen = 100 + many
    assert torch.equal(passes(own, [1], seed=4), passes(twin, [1], seed=4))


@stand_in
def test_a_lost_card_says_so_and_the_host_goes_on(monkeypatch):
    own = first_layer("int4")
    passes(own, [100])
    fault("lost", 1)
    with pytest.raises(KvantError, match="CUDA: .* failed: CUDA_ERROR_LAUNCH_FAILED"):
        passes(own, [1])
    with pytest.raises(KvantError, match="CUDA_ERROR_LAUNCH_FAILED"):
        passes(own, [1])
    on_host(monkeypatch)
    assert bool(passes(first_layer("int4"), [100, 1]).isfinite().all())


@stand_in
def test_an_old_driver_is_named(tmp_path):
    import subprocess
    import sys

    script = (
        "import ctypes, warnings, torch\n"
        "driver = ctypes.CDLL('libcuda.so.1'); driver.kvant_fault(b'driver', ctypes.c_longlong(12040))\n"
        "from kvant import _kvant\n"
        "try: _kvant.CacheLayout('int4').card_layer(0, 0, 2, 64, 64)\n"
        "except ValueError as error: print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "too old" in said and "12.4" in said and "570" in said
