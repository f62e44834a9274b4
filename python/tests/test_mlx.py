"""kvant.mlx with mlx-lm, on MLX's CPU build."""

from __future__ import annotations

import pytest

mx = pytest.importorskip("mlx.core")
pytest.importorskip("mlx_lm")

import numpy as np  # noqa: E402
from mlx_lm.generate import generate_step, speculative_generate_step  # noqa: E402
from mlx_lm.models import cache as mlx_cache  # noqa: E402
from mlx_lm.models import gemma3_text, llama  # noqa: E402

from kvant.mlx import KvantCache, make_prompt_cache  # noqa: E402

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
