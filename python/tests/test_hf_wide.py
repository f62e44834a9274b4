"""Every kind of attention layer there is, against DynamicCache. Takes minutes: runs where KVANT_WIDE is set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

from hf_fixtures import equal_on, greedy, tokens  # noqa: E402
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, LlamaForCausalLM  # noqa: E402

import kvant  # noqa: E402
from kvant.hf import KvantCache  # noqa: E402

pytestmark = pytest.mark.skipif(not os.environ.get("KVANT_WIDE"), reason="a named step: set KVANT_WIDE=1")

#: Prose that is no quotation.
TEXT = """The harbour was quiet when the first boats came back. Nobody had expected them before evening, and the woman who kept the
lamp counted them twice: eleven had gone out, and eleven returned, though one of them was towed. She wrote the number on the slate,
as her father had done, with the hour and the wind beside it, and went down to ask what had happened beyond the second light. """

ARCHITECTURES = [
    "deepseek_v2",
    "falcon_h1",
    "gemma",
    "gemma2",
    "gemma3n",
    "gemma4_dense",
    "gemma4_e",
    "gemma4_moe",
    "glm4_moe_lite",
    "gpt2",
    "gpt_neox",
    "granitemoehybrid",
    "lfm2",
    "mistral",
    "mixtral",
    "nemotron_h",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3_5",
    "smollm3",
    "starcoder2",
]


@pytest.mark.parametrize("attention", ["eager", "kvant"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_exact_tokens_are_those_of_dynamic_cache(name, attention):
    equal_on(name, attention)


def test_compiled_models_of_many_layers_stay_below_the_recompile_limit():
    """With the setting that docs/python-hf.md names: torch takes the number of a layer for a constant without it."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    model = LlamaForCausalLM(LlamaConfig(num_hidden_layers=12, vocab_size=99, **sizes)).eval()
    model.set_attn_implementation("kvant")
    model.generation_config.eos_token_id, model.generation_config.pad_token_id = None, 0
    ids = tokens(model, 1, 70)
    with torch.no_grad():
        expected = greedy(model, ids, KvantCache(model.config, kv="int8"), 8)
        torch._dynamo.reset()
        model.forward = torch.compile(model.forward, backend="eager")
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True, allow_unspec_int_on_nn_module=True):
            assert torch.equal(greedy(model, ids, KvantCache(model.config, kv="int8"), 8), expected)


#: A model that people use, where KVANT_MODELS lists its file.
SMOLLM2 = [path for path in os.environ.get("KVANT_MODELS", "").split(os.pathsep) if "smollm2" in path.lower()]


@pytest.mark.skipif(not SMOLLM2, reason="KVANT_MODELS lists no GGUF file of SmolLM2")
def test_smollm2_through_its_gguf():
    path = Path(SMOLLM2[0])
    with kvant.Engine.open(path, kv="f32", ctx=512) as engine:
        ids = torch.tensor([engine.tokenize(TEXT * 12)[:512]])
    measured = kvant.evaluate(path, "int4", text=TEXT * 12, ctx=512, chunks=1)[0]["kl_mean"]
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        expected = greedy(model, ids[:, :300], DynamicCache(config=model.config), 20)
        for attention in ("sdpa", "kvant"):
            model.set_attn_implementation(attention)
            assert torch.equal(greedy(model, ids[:, :300], KvantCache(model.config, kv="f32"), 20), expected)
        # The same tokens, the same cache: what it costs is what `kvant eval` says.
        exact, int4 = (model(ids, past_key_values=KvantCache(model.config, kv=kv)).logits[0] for kv in ("f32", "int4"))
        exact, int4 = exact.double().log_softmax(-1), int4.double().log_softmax(-1)
        found = (exact.exp() * (exact - int4)).sum(-1).mean().item()
    assert 0.5 * measured < found < 2.0 * measured, (found, measured)
