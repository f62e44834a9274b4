"""Every kind of attention layer there is, against DynamicCache. Takes minutes: runs where KVANT_WIDE is set."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.0")

from hf_fixtures import equal_on  # noqa: E402

pytestmark = pytest.mark.skipif(not os.environ.get("KVANT_WIDE"), reason="a named step: set KVANT_WIDE=1")

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
