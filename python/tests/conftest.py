"""Models that every test may read: tiny, of random weights, made once."""

import json
from pathlib import Path

import numpy as np
import pytest

import kvant

#: A Llama with a vocabulary of bytes and two control tokens.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 96,
    "vocab_size": 288,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 256,
    "eos_token_id": 257,
}

#: Qwen's way to write calls and reasoning, in a few words.
TEMPLATE = """\
{%- if tools %}Tools, called as <tool_call>{"name": ..., "arguments": ...}</tool_call>: {{ tools | tojson }}
{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}
{% endfor %}{% if add_generation_prompt %}assistant: {% if enable_thinking is defined and enable_thinking %}<think>
{% endif %}{% endif %}"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder of a model that converses."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    kvant.synth(path, CONFIG, seed=7)
    special = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "add_bos_token": True, "chat_template": TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(special))
    return path


@pytest.fixture(scope="session")
def engine(folder: Path):
    """An engine with an exact cache, one thread."""
    with kvant.Engine.open(folder, kv="f32", ctx=384, threads=1) as engine:
        yield engine


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)
