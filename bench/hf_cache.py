"""A decode step with KvantCache beside transformers' own caches, on CPU torch or an NVIDIA card.

    python bench/hf_cache.py --shape smollm2 --tokens 4096 --steps 8

A model with random weights of the named shape; every cache holds the same random keys and values. All of them decode in turns, so that
load on the machine falls on all alike. Medians and the shortest of wall times, medians of processor time, and ratios of the medians.
`chrt -f 50 python bench/hf_cache.py --threads 1` has a processor to itself. On a card, where weights are as random but made there:

    python bench/hf_cache.py --device cuda --shape llama-8b --dtype bfloat16 --tokens 32768 --steps 32 --quantized none --no-decoded
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, Cache, DynamicCache, LlamaConfig, QuantizedCache
from transformers.utils import logging

from kvant.hf import KvantCache

SHAPES = {
    "smollm2": {
        "hidden_size": 576, "num_hidden_layers": 30, "intermediate_size": 1536, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
    },
    # llama2.c's stories110M: as many kv heads as query heads.
    "llama-110m": {
        "hidden_size": 768, "num_hidden_layers": 12, "intermediate_size": 2048, "num_attention_heads": 12,
        "num_key_value_heads": 12, "vocab_size": 32000, "tie_word_embeddings": True,
    },
    # Qwen3-0.6B's, without its norms: heads of 128 channels, 8 of keys and values.
    "llama-0.6b": {
        "hidden_size": 1024, "num_hidden_layers": 28, "intermediate_size": 3072, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
    },
    "llama-1b": {
        "hidden_size": 2048, "num_hidden_layers": 16, "intermediate_size": 8192, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True,
    },
    # Llama-3.1-8B's.
    "llama-8b": {
        "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128256, "tie_word_embeddings": False,
    },
}  # fmt: skip


def fill(cache: Cache, config: LlamaConfig, batch: int, tokens: int, dtype: torch.dtype, device: str = "cpu") -> Cache:
    """The same keys and values for every cache."""
    generator = torch.Generator(device).manual_seed(2)
    for layer in range(config.num_hidden_layers):
        shape = (2, batch, config.num_key_value_heads, tokens, config.head_dim)
        keys, values = torch.randn(shape, generator=generator, device=device).to(dtype)
        cache.update(keys, values, layer)
    return cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="smollm2")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--kv", default="int4")
    parser.add_argument("--quantized", default="quanto", choices=["quanto", "hqq", "none"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--no-decoded", action="store_true", help="leave out KvantCache with decoded tensors")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    settle = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    config = LlamaConfig(max_position_embeddings=2 * options.tokens, **SHAPES[options.shape])
    with torch.device(options.device):
        model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, options.dtype), attn_implementation="sdpa").eval()
    config = model.config
    ids = torch.randint(0, config.vocab_size, (options.batch, options.steps + 1), device=options.device)
    dtype, on_bytes = getattr(torch, options.dtype), f"KvantCache {options.kv}, on bytes"
    with torch.no_grad():
        caches = {"DynamicCache, sdpa": ("sdpa", DynamicCache(config=config))}
        if not options.no_decoded:
            caches[f"KvantCache {options.kv}, decoded, sdpa"] = ("sdpa", KvantCache(config, options.kv))
        if options.quantized != "none":
            quantized = QuantizedCache(options.quantized, config, nbits=4)
            caches[f"QuantizedCache {options.quantized} 4 bits, sdpa"] = ("sdpa", quantized)
        for _, cache in caches.values():
            fill(cache, config, options.batch, options.tokens, dtype, options.device)
        exact = caches["DynamicCache, sdpa"][1]
        caches[on_bytes] = ("kvant", KvantCache.from_cache(exact, config, options.kv, attention="bytes"))
        if options.device == "cuda":
            # torch's choice, cuDNN, makes a plan for every new length, which costs more than the attention.
            flash = DynamicCache(config=config)
            caches["DynamicCache, sdpa by flash"] = ("sdpa", fill(flash, config, options.batch, options.tokens, dtype, "cuda"))
        # What a step takes that no cache can save.
        caches["nothing before, sdpa"] = ("sdpa", DynamicCache(config=config))
        half = 2 * sum(layer.keys.numel() + layer.values.numel() for layer in exact.layers)
        stored, memory = caches[on_bytes][1].nbytes, caches[on_bytes][1].memory
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in caches}
        for step in range(options.steps + 1):
            for name, (attention, cache) in caches.items():
                model.config._attn_implementation = attention
                with sdpa_kernel(SDPBackend.FLASH_ATTENTION) if "flash" in name else contextlib.nullcontext():
                    settle()
                    start, busy = time.perf_counter(), time.process_time()
                    model(ids[:, step : step + 1], past_key_values=cache, use_cache=True)
                    settle()
                if step > 0:
                    times[name].append((time.perf_counter() - start, time.process_time() - busy))
        # QuantizedCache quantises all it holds anew whenever so many exact tokens have come together: once in 128 steps.
        requantising = None
        if options.quantized != "none":
            period = quantized.layers[0].residual_length
            fill(quantized, config, options.batch, period - 1 - quantized.layers[0].keys.shape[-2], dtype)
            model.config._attn_implementation = "sdpa"
            start = time.perf_counter()
            model(ids[:, :1], past_key_values=quantized, use_cache=True)
            requantising = time.perf_counter() - start
    medians = {name: [statistics.median(column) for column in zip(*taken, strict=True)] for name, taken in times.items()}
    for name, (wall, busy) in medians.items():
        faster = {f"faster than {other}": round(medians[other][0] / wall, 2) for other in medians if other != name}
        best = min(wall for wall, _ in times[name])
        row = {"cache": name, "ms": round(1e3 * wall, 1), "best_ms": round(1e3 * best, 1), "cpu_ms": round(1e3 * busy, 1)}
        print(json.dumps({**row, **faster}))
    if requantising is not None:
        name = f"QuantizedCache {options.quantized} 4 bits, sdpa"
        mean = (medians[name][0] * (period - 1) + requantising) / period
        faster = {f"{other} faster": round(mean / medians[other][0], 2) for other in medians if other.startswith("Kvant")}
        row = {"cache": f"{name}, mean of {period} steps", "ms": round(1e3 * mean, 1), "requantising_ms": round(1e3 * requantising, 1)}
        print(json.dumps({**row, **faster}))
    shape = {"tokens": options.tokens, "batch": options.batch, "shape": options.shape, "dtype": options.dtype, "device": options.device}
    row = {"bytes": stored, "of_f16": round(stored / half, 4), "with_room_kept": round(memory / half, 4)}
    print(json.dumps({**row, **shape, "threads": options.threads}))


if __name__ == "__main__":
    sys.exit(main())
