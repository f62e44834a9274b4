"""Tiny random models of the repository's fixtures, as transformers loads them."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, DynamicCache

from kvant.hf import KvantCache

# Tiny models: threads would only wait for each other.
torch.set_num_threads(1)

FIXTURES = Path(__file__).parents[2] / "crates" / "kvant-model" / "tests" / "fixtures"


def load(name: str, attention: str = "eager", dtype: torch.dtype = torch.float32):
    """The model of a fixture, in eval mode, that never stops by itself."""
    model = AutoModelForCausalLM.from_pretrained(FIXTURES / name, dtype=dtype, attn_implementation=attention)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model.eval()


def tokens(model, *shape: int, seed: int = 1) -> torch.Tensor:
    """Token ids that are no padding."""
    vocabulary = model.config.get_text_config().vocab_size
    return torch.randint(3, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def greedy(model, ids: torch.Tensor, cache, count: int = 24, **options) -> torch.Tensor:
    """New tokens of every row."""
    out = model.generate(ids, past_key_values=cache, max_new_tokens=count, do_sample=False, **options)
    return out[:, ids.shape[1] :]


def equal_on(name: str, attention: str) -> None:
    """Greedy tokens and logits with an exact cache are those of DynamicCache."""
    reference = load(name)
    ids = tokens(reference, 2, min(150, reference.config.get_text_config().max_position_embeddings - 24))
    with torch.no_grad():
        expected = greedy(reference, ids, DynamicCache(config=reference.config))
        model = reference if attention == "eager" else load(name, attention)
        cache = KvantCache(model.config, kv="f32")
        assert torch.equal(greedy(model, ids, cache), expected)
        assert cache.get_seq_length() == ids.shape[1] + expected.shape[1] - 1
        # In pieces, against one pass.
        whole = reference(ids, use_cache=False).logits
        cache = KvantCache(model.config, kv="f32")
        parts = [model(part, past_key_values=cache, use_cache=True).logits for part in ids.tensor_split([30, 31, 45], dim=1)]
    assert (torch.cat(parts, dim=1) - whole).abs().max() < 2e-3 * whole.abs().max().clamp(min=1.0)
