"""kvant.mlx with mlx-lm, on MLX's CPU build."""

from __future__ import annotations

import copy
import pickle
import shutil

import pytest

mx = pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

import numpy as np  # noqa: E402
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step  # noqa: E402
from mlx_lm.models import cache as mlx_cache  # noqa: E402
from mlx_lm.models import gemma3_text, llama  # noqa: E402
from mlx_lm.models.base import create_causal_mask  # noqa: E402
from mlx_lm.models.base import scaled_dot_product_attention as mlx_scaled  # noqa: E402
from pages import block  # noqa: E402

from kvant import _metal, _metal_mlx  # noqa: E402
from kvant.mlx import KvantCache, from_prompt_cache, make_prompt_cache  # noqa: E402

WINDOW = 24


def model(kind: str):
    """A tiny random model: one with full layers, one with sliding ones between."""
    mx.random.seed(7)
    if kind == "llama":
        args = llama.ModelArgs(
            model_type="llama", hidden_size=128, num_hidden_layers=2, intermediate_size=128, num_attention_heads=2,
            num_key_value_heads=1, rms_norm_eps=1e-5, vocab_size=97, head_dim=64,
        )  # fmt: skip
        return llama.Model(args)
    args = gemma3_text.ModelArgs(
        model_type="gemma3_text", hidden_size=128, num_hidden_layers=3, intermediate_size=128, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64, vocab_size=97, sliding_window=WINDOW, sliding_window_pattern=3,
    )  # fmt: skip
    return gemma3_text.Model(args)


def prompt(count: int) -> mx.array:
    return mx.array(np.random.default_rng(3).integers(0, 97, count))


def answer(network, cache, count: int = 24) -> list[int]:
    steps = generate_step(prompt(150), network, prompt_cache=cache, max_tokens=count, prefill_step_size=60)
    return [int(token) for token, _ in steps]


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_exact_tokens_are_those_of_mlx(kind):
    network = model(kind)
    expected = answer(network, mlx_cache.make_prompt_cache(network))
    cache = make_prompt_cache(network, kv="f32")
    assert answer(network, cache) == expected
    assert all(isinstance(layer, KvantCache) for layer in cache)
    assert [layer.window for layer in cache] == ([None, None] if kind == "llama" else [WINDOW, WINDOW, None])


def test_the_page_shows_what_runs(folder):
    shown = {"name": str(folder), "prompt": "The sky is"}
    exec(block("docs/python-hf.md", "make_prompt_cache"), shown)
    assert isinstance(shown["text"], str)


def test_int4_differs_a_little():
    network = model("llama")
    logits = {}
    for kv in ("f32", "int8", "int4"):
        cache = make_prompt_cache(network, kv=kv)
        logits[kv] = np.array(network(prompt(300)[None], cache=cache), dtype=np.float64)
    cost = {kv: np.abs(logits[kv] - logits["f32"]).mean() for kv in ("int8", "int4")}
    assert 0 < cost["int8"] < cost["int4"] < 0.1 * np.abs(logits["f32"]).mean()
    assert sum(layer.nbytes for layer in cache) < 0.4 * 2 * 300 * 2 * 2 * 64


def test_speculative_decoding_takes_tokens_back():
    network = model("llama")
    expected = answer(network, make_prompt_cache(network, kv="f32"), 20)
    mx.random.seed(8)
    caches = make_prompt_cache(network, kv="f32") + make_prompt_cache(network, kv="f32")
    steps = speculative_generate_step(
        prompt(150), network, network, prompt_cache=caches, max_tokens=20, num_draft_tokens=3
    )
    assert [int(token) for token, *_ in steps] == expected
    cache = KvantCache("int4")
    rows = mx.random.normal((1, 1, 200, 64))
    cache.update_and_fetch(rows, rows)
    before = cache.update_and_fetch(rows[:, :, :3], rows[:, :, :3])[0]
    assert cache.trim(2) == 2 and cache.offset == 201
    assert mx.array_equal(cache.update_and_fetch(rows[:, :, 1:3], rows[:, :, 1:3])[0], before)


def test_half_precision_keeps_its_type():
    cache = KvantCache("f32")
    rows = mx.random.normal((2, 1, 70, 64)).astype(mx.bfloat16)
    keys, values = cache.update_and_fetch(rows, rows)
    assert keys.dtype == values.dtype == mx.bfloat16
    assert mx.array_equal(keys, rows) and mx.array_equal(values, rows)


def test_windows_that_keep_sinks_are_refused():
    class Streaming:
        layers = [None]

        def make_cache(self):
            return [mlx_cache.RotatingKVCache(max_size=8, keep=4)]

    with pytest.raises(ValueError, match="sinks"):
        make_prompt_cache(Streaming())


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_saved_cache_goes_on_as_if_it_had_never_been_saved(kind, tmp_path):
    """`save_prompt_cache` of 162 tokens wrote 73 bytes, and `copy.deepcopy` raised."""
    network = model(kind)
    cache = make_prompt_cache(network, kv="int4")
    network(prompt(162)[None], cache=cache)
    path = str(tmp_path / "it.safetensors")
    mlx_cache.save_prompt_cache(path, cache, {"what": "noise"})
    loaded, told = mlx_cache.load_prompt_cache(path, return_metadata=True)
    assert told == {"what": "noise"}
    others = [loaded, copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
    steps = prompt(12)[None]
    expected = [network(steps[:, at : at + 1], cache=cache) for at in range(12)]
    for other in others:
        assert all(isinstance(layer, KvantCache) and layer.offset == 162 for layer in other)
        got = [network(steps[:, at : at + 1], cache=other) for at in range(12)]
        assert all(mx.array_equal(*pair) for pair in zip(got, expected, strict=True))
        assert [layer.nbytes for layer in other] == [layer.nbytes for layer in cache]


def test_saved_bytes_are_checked():
    cache = KvantCache("int4")
    rows = mx.random.normal((1, 1, 100, 64))
    cache.update_and_fetch(rows, rows)
    saved = dict(cache.state.items())
    damaged = np.array(saved["rows"][0])
    damaged[-100] ^= 1
    with pytest.raises(ValueError, match="does not match its checksum"):
        KvantCache.from_state({**saved, "rows": [mx.array(damaged)]})
    for state in ([], {}, {"about": "{}"}, {"about": 3}):
        with pytest.raises(ValueError, match="not the state"):
            KvantCache.from_state(state)
    for old, new, words in (
        ('"version": 1', '"version": 7', "version 7"),
        ("int4", "int8", "other settings"),
        ('"offset": 100', '"offset": 99', "other lengths"),
    ):
        assert old in saved["about"]
        with pytest.raises(ValueError, match=words):
            KvantCache.from_state({**saved, "about": saved["about"].replace(old, new)})
    # Nothing is held yet.
    empty = KvantCache.from_state(dict(KvantCache("int8", 3, 24).state.items()))
    assert (empty.layer, empty.window, empty.offset, empty.empty()) == (3, 24, 0, True)


def test_states_that_are_only_evaluated_copy_no_pages(monkeypatch):
    cache = KvantCache("int4")
    rows = mx.random.normal((1, 1, 100, 64))
    cache.update_and_fetch(rows, rows)
    monkeypatch.setattr(KvantCache, "_saved", lambda self: pytest.fail("pages were copied"))
    mx.eval([cache.state])


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_a_running_cache_of_mlx_is_taken_over(kind):
    network = model(kind)
    own, ids = mlx_cache.make_prompt_cache(network), prompt(180)[None]
    for start, end in ((0, 150), (150, 151), (151, 152)):
        network(ids[:, start:end], cache=own)
    cache, small = from_prompt_cache(own, kv="f32"), from_prompt_cache(own, kv="int4")
    assert [layer.offset for layer in cache] == [layer.offset for layer in own] == [152] * len(own)
    for start, end in ((152, 153), (153, 175), (175, 176), (176, 180)):
        expected, got = (network(ids[:, start:end], cache=each) for each in (own, cache))
        assert mx.abs(got - expected).max() < 1e-4 * mx.abs(expected).max()
    assert sum(layer.nbytes for layer in small) < 0.5 * sum(layer.nbytes for layer in own)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_kept_decoded_arrays_are_those_that_decoding_anew_gives(kind):
    network = model(kind)
    expected = answer(network, make_prompt_cache(network, kv="int4"))
    cache = make_prompt_cache(network, kv="int4", keep_decoded=True)
    assert answer(network, cache) == expected
    full = cache[-1]
    assert full.decoded_nbytes > full.nbytes and cache[0].decoded_nbytes == (0 if kind == "gemma3" else full.decoded_nbytes)
    rows, one = mx.random.normal((2, 1, 300, 64)), KvantCache("int4", keep_decoded=True)
    other = KvantCache("int4")
    for start, end in ((0, 100), (100, 101), (101, 250), (250, 251)):
        got, anew = (each.update_and_fetch(rows[:, :, start:end], rows[:, :, start:end]) for each in (one, other))
        assert all(mx.array_equal(*pair) for pair in zip(got, anew, strict=True))
    # Going back reopens a page that was closed.
    assert one.trim(60) == other.trim(60) == 60
    got, anew = (each.update_and_fetch(rows[:, :, 191:300], rows[:, :, 191:300]) for each in (one, other))
    assert all(mx.array_equal(*pair) for pair in zip(got, anew, strict=True))


def test_what_is_not_supported_is_refused_at_once():
    network = model("llama")
    cache = make_prompt_cache(network, kv="int4")
    with pytest.raises(ValueError, match="kv_bits"):
        next(generate_step(prompt(20), network, prompt_cache=cache, max_tokens=2, kv_bits=4, quantized_kv_start=0))
    for other in (mlx_cache.BatchKVCache([0]), mlx_cache.QuantizedKVCache(), mlx_cache.ChunkedKVCache(8)):
        with pytest.raises(ValueError, match=f"{type(other).__name__}, which KvantCache does not replace"):
            KvantCache.from_kvcache(other)
    batch = BatchGenerator(network, max_tokens=2)
    with pytest.raises(ValueError, match="[Bb]atch"):
        batch.insert([prompt(5).tolist()] * 2, caches=[make_prompt_cache(network) for _ in range(2)])
        for _ in range(3):
            batch.next()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_attention_on_bytes_is_that_on_decoded_arrays(kind):
    network = model(kind)
    exact = answer(network, mlx_cache.make_prompt_cache(network))
    assert answer(network, make_prompt_cache(network, kv="f32", on_bytes=True)) == exact
    ids = prompt(180)[None]
    parts, logits = ((0, 100), (100, 101), (101, 180)), []
    for kv, on_bytes in (("f32", False), ("int4", False), ("int4", True)):
        cache = make_prompt_cache(network, kv=kv, on_bytes=on_bytes)
        logits.append(mx.concatenate([network(ids[:, start:end], cache=cache) for start, end in parts], axis=1))
        assert [layer.trim(30) for layer in cache] == [30] * len(cache)
        again = network(ids[:, 150:180], cache=cache)
        assert mx.abs(again - logits[-1][:, 150:]).max() < 0.05 * mx.abs(again).max()
    # Each query reads what is near it exactly, which arrays that are decoded for a whole pass cannot do.
    exact, *others = logits
    decoded, on_bytes = (mx.abs(other - exact).mean().item() for other in others)
    assert 0 < on_bytes <= 1.05 * decoded


def test_attention_on_bytes_decodes_nothing_and_is_saved(monkeypatch, tmp_path):
    monkeypatch.setattr(KvantCache, "_decoded", lambda *_: pytest.fail("pages were decoded"))
    network = model("llama")
    cache = make_prompt_cache(network, kv="int4", on_bytes=True)
    network(prompt(162)[None], cache=cache)
    path = str(tmp_path / "it.safetensors")
    mlx_cache.save_prompt_cache(path, cache)
    others = [mlx_cache.load_prompt_cache(path), copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))]
    expected = network(prompt(3)[None], cache=cache)
    for other in others:
        assert all(layer.on_bytes for layer in other) and mx.array_equal(network(prompt(3)[None], cache=other), expected)
    taken = from_prompt_cache(mlx_cache.make_prompt_cache(network), kv="int4", on_bytes=True)
    assert all(layer.on_bytes for layer in taken)


def test_attention_on_bytes_refuses_what_it_cannot_do():
    with pytest.raises(ValueError, match="choose one"):
        KvantCache("int4", keep_decoded=True, on_bytes=True)
    cache, rows = KvantCache("int4", on_bytes=True), mx.random.normal((1, 1, 8, 64))
    keys, _ = cache.update_and_fetch(rows, rows)
    with pytest.raises(AttributeError, match="asks keys or values for 'shape'"):
        keys.shape  # noqa: B018
    causal = mx.arange(8)[:, None] >= mx.arange(8)[None]
    for mask in (None, causal & (mx.arange(8) != 2)[None], mx.zeros((8, 8))):
        with pytest.raises(ValueError, match="another mask"):
            cache.attend(rows, 0.125, mask)
    out = cache.attend(rows, 0.125, causal)
    with pytest.raises(ValueError, match="the pass has ended"):
        cache.attend(rows, 0.125, "causal")
    exact = mx.fast.scaled_dot_product_attention(rows, rows, rows, scale=0.125, mask=causal)
    assert mx.abs(out - exact).max() < 0.01
    quantized = mlx_cache.QuantizedKVCache()
    quantized.update_and_fetch(rows, rows)
    found = quantized.update_and_fetch(rows, rows)
    assert mlx_scaled(rows, *found, cache=quantized, scale=0.125, mask=None).shape == rows.shape


@pytest.fixture
def metal(monkeypatch):
    """Metal as far as it can be had: the kernels' texts as MLX would put them together, run on the host. Counts launches."""
    mlx_on_host = pytest.importorskip("mlx_on_host")
    if shutil.which("g++") is None:
        pytest.skip("the kernels are compiled by g++ (Debian: g++)")
    launches = []

    def metal_kernel(**kwargs):
        launch = mlx_on_host.metal_kernel(**kwargs)
        return lambda **told: launches.append(kwargs["name"]) or launch(**told)

    _metal_mlx._launcher.cache_clear()
    _metal._said.clear()
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    yield launches
    _metal_mlx._launcher.cache_clear()


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_metal_attends_as_the_processor_does(kind, metal, monkeypatch, capsys):
    network, ids = model(kind), prompt(180)[None]
    parts, logits = ((0, 130), (130, 131), (131, 136), (136, 137)), []
    for is_there in (False, True):
        monkeypatch.setattr(mx.metal, "is_available", lambda is_there=is_there: is_there)
        cache = make_prompt_cache(network, kv="int4", on_bytes=True)
        logits.append(mx.concatenate([network(ids[:, start:end], cache=cache) for start, end in parts], axis=1))
        assert bool(metal) == is_there
    layers = len(cache)
    assert metal == ["attend_int4_64", "merge_int4_64"] * (3 * layers)
    of_processor, of_metal = logits
    assert mx.array_equal(of_metal[:, :130], of_processor[:, :130])
    # The processor rounds queries and weights to bytes.
    assert 0 < mx.abs(of_metal - of_processor).max() < 0.05 * mx.abs(of_processor).max()
    assert capsys.readouterr().err.count("longer passes") == 1
    # Going back and on, and a copy, whose pages go to the GPU anew.
    assert [layer.trim(20) for layer in cache] == [20] * layers
    twin = copy.deepcopy(cache)
    steps = [[network(ids[:, at : at + 1], cache=each) for at in range(117, 123)] for each in (cache, twin)]
    assert all(mx.array_equal(*pair) for pair in zip(*steps, strict=True))
    again = mx.concatenate(steps[0], axis=1)
    assert mx.abs(again - of_processor[:, 117:123]).max() < 0.05 * mx.abs(of_processor).max()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_metal_keeps_shapes_and_types(dtype, metal):
    cache = KvantCache("int4", on_bytes=True)
    rows = mx.random.normal((2, 2, 100, 128)).astype(dtype)
    queries = mx.random.normal((2, 8, 3, 128)).astype(dtype)
    keys, _ = cache.update_and_fetch(rows, rows)
    cache.attend(mx.random.normal((2, 8, 100, 128)).astype(dtype), 0.1, "causal")
    keys, _ = cache.update_and_fetch(rows[:, :, :3], rows[:, :, :3])
    mask = create_causal_mask(3, 100)
    out = mlx_scaled(queries, keys, keys, cache=cache, scale=0.1, mask=mask)
    assert (out.shape, out.dtype) == ((2, 8, 3, 128), dtype) and metal == ["attend_int4_128", "merge_int4_128"]
    own = mx.concatenate([rows, rows[:, :, :3]], axis=2)
    exact = mx.fast.scaled_dot_product_attention(queries, own, own, scale=0.1, mask=mask)
    assert mx.abs((out - exact).astype(mx.float32)).max() < 0.2
    with pytest.raises(ValueError, match="another mask"):
        cache.attend(queries, 0.1, mx.zeros((3, 103), mx.bool_))


def test_metal_says_what_it_has_no_kernel_for(metal, capsys):
    rows = mx.random.normal((1, 1, 8, 64))
    for _ in range(2):
        cache = KvantCache("int8", on_bytes=True)
        cache.update_and_fetch(rows, rows)
        cache.attend(rows, 0.125, "causal")
    said = capsys.readouterr().err
    assert said == (
        "kvant: Key pages of another form: Metal has kernels for int4 with heads of 64 or 128 channels; "
        "attention of int8 runs on the processor\n"
    )
    assert not metal
