"""KvantCache for transformers: the same tokens as DynamicCache when it is exact, small differences when it is not, and everything
that generation does with a cache."""

from __future__ import annotations

import copy
import ctypes
import pickle
import shutil
import warnings
import zlib

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

from elsewhere import DEVICE, Elsewhere, Moves  # noqa: E402
from hf_fixtures import equal_on, greedy, load, tokens  # noqa: E402
from transformers import DynamicCache  # noqa: E402

from kvant import _metal  # noqa: E402
from kvant.hf import CacheFileError, KvantCache, Plan, calibrate, context, metal, saved  # noqa: E402

#: Plain; sliding and full layers; attention sinks; recurrent layers between; latents.
FIVE = ["llama", "gemma3", "gpt_oss", "qwen3_next", "deepseek_v3"]
MODES = ["eager", "kvant"]


@pytest.mark.parametrize("attention", MODES)
@pytest.mark.parametrize("name", FIVE)
def test_exact_tokens_are_those_of_dynamic_cache(name, attention):
    equal_on(name, attention)


def kl(of: torch.Tensor, to: torch.Tensor) -> float:
    """Mean KL of logits, in nats."""
    of, to = of.double().log_softmax(-1), to.double().log_softmax(-1)
    return (of.exp() * (of - to)).sum(-1).mean().item()


@pytest.mark.parametrize("attention", MODES)
def test_int4_differs_a_little_also_within_one_pass(attention):
    model = load("smollm2", attention)
    ids = tokens(model, 1, 400)
    with torch.no_grad():
        exact, int8, int4, int2 = (
            model(ids, past_key_values=KvantCache(model.config, kv=kv)).logits for kv in ("f32", "int8", "int4", "kivi2")
        )
    small, medium, large = kl(exact, int8), kl(exact, int4), kl(exact, int2)
    assert 0 < small < medium < large
    assert medium < 0.1


@pytest.mark.parametrize("attention", MODES)
def test_a_corrupted_byte_changes_the_output(attention):
    model = load("smollm2", attention)
    ids, found = tokens(model, 1, 200), []
    with torch.no_grad():
        for corrupt in (False, True):
            cache = KvantCache(model.config, kv="int4")
            model(ids[:, :-1], past_key_values=cache)
            address, size = cache.layers[0].native.page(0, 0, "key", 1)
            assert size > 0
            if corrupt:
                ctypes.c_uint8.from_address(address).value ^= 0xFF
            logits = model(ids[:, -1:], past_key_values=cache).logits
            found.append(logits)
    assert not torch.equal(*found)


def test_rows_with_left_padding_are_sequences_of_their_own():
    model = load("gemma3", "kvant")
    lengths, width = (150, 97, 40), 150
    ids = tokens(model, 3, width)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, width - length :] = 1
        ids[row, : width - length] = 0
    cache = KvantCache(model.config, kv="f32")
    got = greedy(model, ids, cache, attention_mask=mask)
    assert cache.layers[0].native.lens == [length + 23 for length in lengths]
    reference = load("gemma3")
    assert torch.equal(got, greedy(reference, ids, DynamicCache(config=reference.config), attention_mask=mask))
    decoded = greedy(reference, ids, KvantCache(reference.config, kv="f32"), attention_mask=mask)
    assert torch.equal(got, decoded)
    # Compressed, a row says what it says alone: padding takes no place in its pages.
    got = greedy(model, ids, KvantCache(model.config, kv="ch8"), attention_mask=mask)
    for row, length in enumerate(lengths):
        alone = greedy(model, ids[row : row + 1, width - length :], KvantCache(model.config, kv="ch8"))
        assert torch.equal(got[row : row + 1], alone)


@pytest.mark.parametrize("attention", MODES)
@pytest.mark.parametrize("name", ["llama", "qwen3_next"])
def test_beam_search(name, attention):
    reference, model = load(name), load(name, attention)
    ids = tokens(model, 2, 90)
    options = {"num_beams": 3, "num_return_sequences": 2}
    expected = greedy(reference, ids, DynamicCache(config=reference.config), 12, **options)
    assert torch.equal(greedy(model, ids, KvantCache(model.config, kv="f32"), 12, **options), expected)


@pytest.mark.parametrize("attention", MODES)
@pytest.mark.parametrize("name", ["smollm2", "mistral"])
def test_assisted_decoding_takes_back_exactly(name, attention):
    model = load(name, attention)
    kv = "int4" if name == "smollm2" else "ch8"
    ids = tokens(model, 1, 140)
    plain = greedy(model, ids, KvantCache(model.config, kv=kv), 60)
    options = {"prompt_lookup_num_tokens": 7, "max_matching_ngram_size": 1}
    if attention == "kvant":
        assert torch.equal(greedy(model, ids, KvantCache(model.config, kv=kv), 60, **options), plain)
    exact = greedy(model, ids, KvantCache(model.config, kv="f32"), 60)
    assert torch.equal(greedy(model, ids, KvantCache(model.config, kv="f32"), 60, **options), exact)


@pytest.mark.parametrize("attention", MODES)
def test_crop_leaves_no_trace_or_is_refused(attention):
    model = load("smollm2", attention)
    ids = tokens(model, 1, 130)
    tail = tokens(model, 1, 20, seed=2)
    with torch.no_grad():
        short = KvantCache(model.config, kv="int4")
        model(ids, past_key_values=short)
        expected = model(tail, past_key_values=short).logits
        # 130 is within the page 68..132, which is encoded once there are 132.
        cache = KvantCache(model.config, kv="int4")
        model(ids, past_key_values=cache)
        cache.activate_past_recording()
        for part in tokens(model, 1, 30, seed=3).split(10, dim=1):
            model(part, past_key_values=cache)
        cache.crop(-30)
        assert cache.get_seq_length() == 130
        assert torch.equal(model(tail, past_key_values=cache).logits, expected)
        cache = KvantCache(model.config, kv="int4")
        model(torch.cat([ids, tail], dim=1), past_key_values=cache)
        with pytest.raises(ValueError, match="nearest length is 68"):
            cache.crop(130)
        cache.crop(68)
        assert cache.get_seq_length() == 68


def pages(cache, layer: int = 0) -> list[bytes]:
    """Encoded pages of the first kv head's keys and values."""
    native, found = cache.layers[layer].native, []
    for side in ("key", "value"):
        page = 0
        while (at := native.page(0, 0, side, page)) is not None:
            found.append(ctypes.string_at(*at))
            page += 1
    return found


@pytest.mark.parametrize("attention", MODES)
def test_from_cache_holds_what_was_there_from_the_start(attention):
    model, reference = load("smollm2", attention), load("smollm2")
    ids, tail = tokens(model, 1, 300), tokens(model, 1, 9, seed=2)
    with torch.no_grad():
        dynamic = DynamicCache(config=reference.config)
        reference(ids, past_key_values=dynamic)
        exact = KvantCache.from_cache(dynamic, model.config, kv="f32")
        expected = reference(tail, past_key_values=dynamic).logits
        assert (model(tail, past_key_values=exact).logits - expected).abs().max() < 1e-3
        # The first layer's keys depend on no cache.
        direct = KvantCache(model.config, kv="int4")
        model(ids, past_key_values=direct)
        later = KvantCache.from_cache(dynamic, model.config, kv="int4")
        assert len(pages(direct)) == len(pages(later)) == 8
        assert pages(direct) == pages(later)


def test_from_cache_of_sliding_layers_with_padding():
    model = load("gemma3")
    ids = tokens(model, 2, 100)
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    with torch.no_grad():
        expected = greedy(model, ids, DynamicCache(config=model.config), attention_mask=mask)
        dynamic = DynamicCache(config=model.config)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        model(ids[:, :-1], attention_mask=mask[:, :-1], position_ids=positions[:, :-1], past_key_values=dynamic)
        for attention in MODES:
            other = load("gemma3", attention)
            cache = KvantCache.from_cache(dynamic, other.config, kv="f32", attention_mask=mask)
            assert torch.equal(greedy(other, ids, cache, attention_mask=mask), expected), attention


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    model = load("llama", "eager", dtype)
    ids = tokens(model, 1, 150)
    expected = greedy(model, ids, DynamicCache(config=model.config))
    # Every bfloat16 and float16 number is one of float32: what is decoded is what came.
    assert torch.equal(greedy(model, ids, KvantCache(model.config, kv="f32")), expected)
    on_bytes = load("llama", "kvant", dtype)
    with torch.no_grad():
        expected = model(ids).logits.float()
        got = on_bytes(ids, past_key_values=KvantCache(model.config, kv="f32")).logits
    assert got.dtype == dtype
    assert (got.float() - expected).abs().max() < 0.03 * expected.abs().max()


@pytest.mark.parametrize("kv", ["kivi4;recent=128", "turboquant4", "srft4", "int8", "k8v4;layers 0:f16"])
def test_published_caches_are_one_argument(kv):
    model = load("smollm2", "kvant")
    ids = tokens(model, 1, 300)
    with torch.no_grad():
        exact = model(ids, past_key_values=KvantCache(model.config, kv="f32")).logits
        cache = KvantCache(model.config, kv=kv)
        assert 0 < kl(exact, model(ids, past_key_values=cache).logits) < 0.3
    assert cache.nbytes < 0.6 * 4 * 300 * _numbers_per_token(model)


def _numbers_per_token(model) -> int:
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim


@pytest.mark.filterwarnings("error::UserWarning")
def test_calibration_makes_plans(tmp_path):
    model = load("smollm2", "kvant")
    text = tokens(model, 6, 250, seed=5)
    ids = tokens(model, 1, 400)
    read = []
    with torch.no_grad():
        exact = model(ids, past_key_values=KvantCache(model.config, kv="f32")).logits
        for kv in ("srft4:lambda", "k=ch4:mean,v=rot4g32", "klt4.25"):
            plan = calibrate(model, text, kv, text="noise", progress=read.append)
            assert model.config._attn_implementation == "kvant"
            plan.save(tmp_path / "it.kvplan")
            assert "1500 tokens of noise" in Plan.open(tmp_path / "it.kvplan").made
            cache = KvantCache(model.config, kv=tmp_path / "it.kvplan")
            assert cache.kv == plan.kv
            assert 0 < kl(exact, model(ids, past_key_values=cache).logits) < 0.2, kv
    assert read[:6] == [250, 500, 750, 1000, 1250, 1500]
    with torch.no_grad(), pytest.raises(ValueError, match="klt"):
        model(ids, past_key_values=KvantCache(model.config, kv="klt4.25"))
    other = load("llama", "kvant")
    refused = pytest.raises(ValueError, match="another model")
    with torch.no_grad(), pytest.warns(UserWarning, match="another checkpoint"), refused:
        other(tokens(other, 1, 9), past_key_values=KvantCache(other.config, kv=plan))


def test_batches_are_repeated_selected_and_forked():
    model = load("qwen3_next", "kvant")
    ids, tail = tokens(model, 2, 80), tokens(model, 4, 5, seed=2)
    with torch.no_grad():
        cache = KvantCache(model.config, kv="f32")
        model(ids, past_key_values=cache)
        fork = cache.fork()
        cache.batch_repeat_interleave(2)
        assert cache.batch_size == 4
        got = model(tail, past_key_values=cache).logits
        whole = model(torch.cat([ids.repeat_interleave(2, 0), tail], 1), use_cache=False).logits[:, 80:]
        assert (got - whole).abs().max() < 2e-3
        cache.batch_select_indices(torch.tensor([3, 0]))
        again = model(tail[[3, 0]], past_key_values=cache).logits
        assert again.shape[0] == 2
        assert fork.get_seq_length() == 80
        assert (model(tail[:2], past_key_values=fork).logits[0] - got[0]).abs().max() < 1e-4
        cache.reset()
        assert cache.get_seq_length() == 0
        assert (model(ids, past_key_values=cache).logits - model(ids, use_cache=False).logits).abs().max() < 2e-3


def test_bytes_are_counted():
    model = load("smollm2", "kvant")
    with torch.no_grad():
        cache, exact = KvantCache(model.config, kv="int4"), DynamicCache(config=model.config)
        ids = tokens(model, 1, 1500)
        model(ids, past_key_values=cache)
        load("smollm2")(ids, past_key_values=exact)
    half = sum(layer.keys.numel() + layer.values.numel() for layer in exact.layers) * 2
    assert 0.28 * half < cache.nbytes < 0.31 * half
    assert cache.nbytes <= cache.memory < 0.4 * half


def test_pages_that_have_left_the_window_are_freed():
    model = load("mistral", "kvant")
    with torch.no_grad():
        cache = KvantCache(model.config, kv="f16")
        for part in tokens(model, 1, 480).split(120, dim=1):
            model(part, past_key_values=cache)
    native = cache.layers[0].native
    assert native.lens == [480]
    whole = 2 * 480 * 2 * model.config.num_key_value_heads * model.config.head_dim
    assert native.footprint()["encoded"] < 0.5 * whole


def test_what_bytes_cannot_do_is_refused_by_name():
    model = load("llama", "kvant")
    ids = tokens(model, 1, 20)
    with torch.no_grad():
        cache = KvantCache(model.config, kv="f32")
        with pytest.raises(NotImplementedError, match="causal"):
            model(ids, past_key_values=cache, attention_mask=torch.zeros(1, 1, 20, 20))
        cache = KvantCache(model.config, kv="f32")
        model(ids, past_key_values=cache)
        hidden = torch.ones(1, 21, dtype=torch.long)
        hidden[0, 5] = 0
        with pytest.raises(ValueError, match="hides or shows"):
            model(ids[:, :1], past_key_values=cache, attention_mask=hidden)
        with pytest.raises(ValueError, match="1 sequences|of 2"):
            cache = KvantCache(model.config, kv="f32")
            model(ids, past_key_values=cache)
            model(tokens(model, 2, 3), past_key_values=cache)
    with pytest.raises(ValueError, match="int5"):
        KvantCache(model.config, kv="int5")
    with pytest.raises(ValueError, match="layer"):
        KvantCache(model.config, kv="int4;layers 99:f16")
    layer = KvantCache(model.config, kv="f32", attention="decoded").layers[0]
    with pytest.raises(ValueError, match="float32"):
        layer.update(torch.zeros(1, 2, 3, 16).double(), torch.zeros(1, 2, 3, 16).double())
    broken = torch.full((1, 2, 3, 16), float("nan"))
    layer = KvantCache(model.config, kv="f32", attention="decoded").layers[0]
    with pytest.raises(ValueError, match="NaN"):
        layer.update(broken, broken)


def test_the_implementation_serves_other_caches_too():
    for name in ("gemma2", "gpt_oss"):
        model, reference = load(name, "kvant"), load(name)
        # A pass that was broken off leaves no trace.
        KvantCache(model.config, kv="f32").layers[0].update(torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 1, 16))
        ids = tokens(model, 2, 60)
        mask = torch.ones_like(ids)
        mask[0, :20] = 0
        expected = greedy(reference, ids, DynamicCache(config=reference.config), attention_mask=mask)
        assert torch.equal(greedy(model, ids, DynamicCache(config=model.config), attention_mask=mask), expected)


@pytest.mark.parametrize("attention", ["decoded", "bytes"])
def test_tensors_of_other_devices_go_through_host_memory_with_one_warning(attention, monkeypatch):
    monkeypatch.setattr(context, "_warned_devices", set())
    config = load("llama").config
    here, there = (KvantCache(config, kv="int4", attention=attention).layers[0] for _ in range(2))
    generator = torch.Generator().manual_seed(4)
    with Moves() as moves, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for count in (150, 1, 1):
            keys, values = torch.randn((2, 1, 2, count, 16), generator=generator)
            queries = torch.randn((1, 4, count, 16), generator=generator)
            expected = here.update(keys, values)
            got = there.update(Elsewhere(keys), Elsewhere(values))
            if attention == "bytes":
                expected = [here.attend(queries, None, 0.25)]
                got = [there.attend(Elsewhere(queries), None, 0.25)]
            for one, other in zip(expected, got, strict=True):
                assert other.device == torch.device(DEVICE)
                assert torch.equal(other.inner, one)
    assert moves.to_host >= 6 and moves.to_device >= 3
    said = [str(warning.message) for warning in caught]
    assert len(said) == 1 and "mps" in said[0] and "host memory" in said[0], said


@pytest.mark.parametrize("attention", MODES)
def test_training_through_the_cache_is_refused(attention):
    """Gradients of keys and values were lost without a word."""
    model = load("llama", attention)
    ids = tokens(model, 1, 12)
    cache = KvantCache(model.config, kv="f32")
    with pytest.raises(RuntimeError, match="gradients.*no_grad"):
        model(ids, past_key_values=cache, labels=ids)
    # Nothing was taken, and evaluation goes on.
    with torch.inference_mode():
        assert torch.isfinite(model(ids, past_key_values=cache, labels=ids).loss)
    assert cache.get_seq_length() == 12
    # Queries alone can need gradients, as with an adapter on them.
    if attention == "kvant":
        layer = KvantCache(model.config, kv="f32").layers[0]
        layer.update(torch.zeros(1, 2, 3, 16), torch.zeros(1, 2, 3, 16))
        with pytest.raises(RuntimeError, match="gradients"):
            layer.attend(torch.zeros(1, 4, 3, 16, requires_grad=True), None, 0.25)


@pytest.mark.parametrize("attention", MODES)
@pytest.mark.parametrize("name", ["gemma3", "qwen3_next", "deepseek_v3"])
def test_a_saved_cache_goes_on_as_if_it_had_never_been_saved(name, attention, tmp_path):
    model = load(name, attention)
    ids, tail = tokens(model, 2, 150), tokens(model, 2, 9, seed=2)
    mask = torch.ones_like(ids)
    if name == "gemma3":
        mask[1, :30] = 0
    kv = "int4" if name == "deepseek_v3" else "ch8"
    with torch.no_grad():
        cache = KvantCache(model.config, kv=kv)
        model(ids, past_key_values=cache, attention_mask=mask)
        written = cache.save(tmp_path / "it.kvcache")
        assert written == (tmp_path / "it.kvcache").stat().st_size
        opened = KvantCache.load(tmp_path / "it.kvcache", model.config)
        unpickled = pickle.loads(pickle.dumps(cache))
        copied = copy.deepcopy(cache)
        longer = torch.cat([mask, torch.ones_like(tail)], dim=1)
        expected = model(tail, past_key_values=cache, attention_mask=longer).logits
        for other in (opened, unpickled, copied):
            assert other.kv == cache.kv and other.get_seq_length() == 150
            assert torch.equal(model(tail, past_key_values=other, attention_mask=longer).logits, expected)
            assert other.nbytes == cache.nbytes
    assert [path.name for path in tmp_path.iterdir()] == ["it.kvcache"]


def test_a_saved_cache_carries_its_plan(tmp_path):
    model = load("smollm2", "kvant")
    plan = calibrate(model, tokens(model, 2, 200, seed=5), "klt4.25", text="noise")
    ids, tail = tokens(model, 1, 200), tokens(model, 1, 5, seed=2)
    with torch.no_grad():
        cache = KvantCache(model.config, kv=plan)
        model(ids, past_key_values=cache)
        cache.save(tmp_path / "it")
        other = KvantCache.load(tmp_path / "it", model.config)
        assert other.kv == plan.kv
        assert torch.equal(model(tail, past_key_values=other).logits, model(tail, past_key_values=cache).logits)


def test_files_that_are_no_saved_caches_are_refused(tmp_path):
    model = load("llama", "kvant")
    with torch.no_grad():
        cache = KvantCache(model.config, kv="int8")
        model(tokens(model, 1, 100), past_key_values=cache)
    path = tmp_path / "it"
    cache.save(path)
    sound = path.read_bytes()

    def refused(data: bytes, words: str, config=model.config) -> None:
        path.write_bytes(data)
        with pytest.raises(CacheFileError, match=words):
            KvantCache.load(path, config)

    refused(b"", "not a saved KvantCache")
    refused(b"x" * 100, "not a saved KvantCache")
    refused(sound[:8] + b"\x09" + sound[9:], "version 9")
    refused(sound[:-1], "damaged")
    refused(sound + b"\0", "damaged")
    for at in range(12, len(sound), len(sound) // 23):
        refused(sound[:at] + bytes([sound[at] ^ 0x10]) + sound[at + 1 :], "damaged|format version")
    refused(sound, "another configuration", load("mistral").config)
    # A header that was made by somebody else, with a checksum that is right.
    text = b'{"model":3,"parts":[]}'
    refused(saved.FIXED.pack(saved.MAGIC, 1, zlib.crc32(text), len(text)) + text, "another configuration|cannot be used")
    path.write_bytes(sound)
    assert KvantCache.load(path, model.config).get_seq_length() == 100


@pytest.mark.parametrize("name", ["llama", "gemma3", "deepseek_v3"])
def test_kept_decoded_tensors_are_those_that_decoding_anew_gives(name):
    model = load(name)
    ids, tail = tokens(model, 2, 150), tokens(model, 2, 3, seed=2)
    kv = "int4;recent=40" if name == "deepseek_v3" else "ch8;recent=40"
    with torch.no_grad():
        caches = [KvantCache(model.config, kv=kv, keep_decoded=kept) for kept in (True, False)]
        said = [[] for _ in caches]
        for cache, logits in zip(caches, said, strict=True):
            cache.activate_past_recording()
            for part in ids.tensor_split([100, 101, 130], dim=1):
                logits.append(model(part, past_key_values=cache).logits)
            cache.reorder_cache(torch.tensor([1, 0]))
            # Going back reopens pages that were closed.
            cache.crop(-25)
            logits += [model(step, past_key_values=cache).logits for step in tail.split(1, dim=1)]
            fork = cache.fork()
            logits += [model(tail, past_key_values=one).logits for one in (fork, cache)]
        for kept, anew in zip(*said, strict=True):
            assert (kept - anew).abs().max() <= 1e-5 * anew.abs().max()
        assert torch.equal(*(cache.layers[-1].keys for cache in caches))
        assert caches[0].decoded_nbytes > caches[0].nbytes > 0 == caches[1].decoded_nbytes


def test_a_closed_page_is_decoded_once():
    layer = KvantCache(load("llama").config, kv="ch8", attention="decoded", keep_decoded=True).layers[0]
    rows = torch.randn((1, 2, 200, 16), generator=torch.Generator().manual_seed(4))
    first = layer.update(rows, rows)[0].clone()
    native, seen = layer.native, []
    layer._native = Watched(native, seen)
    for _ in range(5):
        got = layer.update(rows[:, :, :1], rows[:, :, :1])[0]
    closed = native.closed
    assert closed % 64 == 4 and closed >= 132
    assert seen == [[closed]] * 5
    assert torch.equal(got[:, :, :closed], first[:, :, :closed])


class Watched:
    """A native layer that notes from where on it decodes."""

    def __init__(self, native, seen: list):
        self.native, self.seen = native, seen

    def decode(self, keys, values, first, *rest):
        self.seen.append(first)
        self.native.decode(keys, values, first, *rest)

    def __getattr__(self, name):
        return getattr(self.native, name)


@pytest.mark.parametrize("attention", ["sdpa", "kvant"])
def test_compiled_models_are_not_compiled_anew_at_every_step(attention):
    """Every step was compiled anew until torch gave up."""
    model = load("llama", attention)
    ids = tokens(model, 1, 70)
    with torch.no_grad():
        expected = greedy(model, ids, KvantCache(model.config, kv="int8"), 20)
        torch._dynamo.reset()
        model.forward = torch.compile(model.forward, backend="eager")
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
            assert torch.equal(greedy(model, ids, KvantCache(model.config, kv="int8"), 20), expected)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0


class Library:
    """What `torch.mps.compile_shader` returns, for tensors of the host: kernels that `metal_on_host` runs."""

    def __init__(self, text: str, launches: list[str]):
        self._text, self._launches = text, launches

    def __getattr__(self, name: str):
        import metal_on_host

        def launch(*tensors, threads, group_size):
            self._launches.append(name)
            outputs = [slot for slot, kept in enumerate(_metal.kernel(name).buffers) if kept in _metal.kernel(name).outputs]
            metal_on_host.run(self._text, name, [tensor.numpy() for tensor in tensors], outputs, threads // group_size, group_size)

        return launch


def test_metal_attends_as_the_processor_does(monkeypatch, capsys):
    """Rows of two lengths, rows that change their places, tokens that are taken back."""
    if shutil.which("g++") is None:
        pytest.skip("the kernels are compiled by g++ (Debian: g++)")
    launches, logits = [], []
    metal._library.cache_clear()
    _metal._said.clear()
    monkeypatch.setattr(torch.mps, "compile_shader", lambda text: Library(text, launches))
    model = load("smollm2", "kvant")
    ids = tokens(model, 2, 160)
    mask = torch.ones_like(ids)
    mask[1, :30] = 0
    for is_there in (False, True):
        monkeypatch.setattr(metal, "is_here", lambda _, is_there=is_there: is_there)
        cache, found = KvantCache(model.config, kv="int4"), []
        with torch.no_grad():
            for start, end in ((0, 150), (150, 151), (151, 155)):
                found.append(model(ids[:, start:end], attention_mask=mask[:, :end], past_key_values=cache).logits)
            cache.reorder_cache(torch.tensor([1, 0]))
            cache.crop(-3)
            turned = (ids.flip(0)[:, 152:155], mask.flip(0)[:, :155])
            found.append(model(turned[0], attention_mask=turned[1], past_key_values=cache).logits)
        logits.append(torch.cat([part[:, -3:] for part in found], dim=1))
        assert bool(launches) == is_there
    of_processor, of_metal = logits
    dim = model.config.head_dim
    assert launches == [f"attend_int4_{dim}", f"merge_int4_{dim}"] * (3 * model.config.num_hidden_layers)
    # The processor rounds queries and weights to bytes.
    assert 0 < (of_metal - of_processor).abs().max() < 0.05 * of_processor.abs().max()
    assert "longer passes" in capsys.readouterr().err
    assert torch.equal(of_metal[:, -3:].flip(0).argmax(-1), of_metal[:, -6:-3].argmax(-1))
