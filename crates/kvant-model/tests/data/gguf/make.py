"""GGUF files of the fixtures, made by llama.cpp's own converter, and the names that the gguf package gives tensors.

    git clone https://github.com/ggml-org/llama.cpp && git -C llama.cpp checkout b21e4de74567f5eef213765c9476a843c2e43f0d
    python3 -m venv venv && venv/bin/pip install torch numpy transformers sentencepiece safetensors
    venv/bin/python make.py llama.cpp              # writes NAME.gguf.gz and tensor_names.json beside this file
    venv/bin/python make.py llama.cpp qwen3_next   # one of them

Tensors and hyper-parameters are the converter's, untouched. Ours are the vocabulary, since fixtures have none (the 256 bytes as
GPT-2 spells them), and the inputs: the fixture's `config_legacy.json` with the changes of CHANGES, and its weights cut to a
few significant bits, so that the files are small. The tests cut the weights of the safetensors twin alike.
"""
import gzip
import json
import re
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
FIXTURES = HERE.parent.parent / "fixtures"
# Sign and exponent in matrices, also seven bits of the mantissa in vectors.
KEPT_OF_MATRICES, KEPT_OF_VECTORS = np.uint32(0xFF800000), np.uint32(0xFFFF0000)
# What released configurations say and those of the fixtures do not, what the converter insists on, and what transformers 5
# spells otherwise than the converter expects; None takes a key away.
CHANGES = {
    "deepseek_v3": {"scoring_func": "sigmoid"},
    "falcon_h1_norm": {"head_dim": 16},
    "glm4_moe_lite": {"scoring_func": "sigmoid"},
    "gpt2": {"n_ctx": 80},
    "gpt_neox": {"rotary_pct": 0.25},
    "granitemoehybrid": {"layer_types": ["mamba", "attention", "mamba"]},
    "granitemoehybrid_dense": {"layer_types": ["mamba", "attention", "mamba"], "intermediate_size": 48},
    "hunyuan_v1_dense": {"max_position_embeddings": 32768},
    "mimo_v2_flash": {"rope_parameters": None},
    "mistral4": {"architectures": ["Mistral3ForConditionalGeneration"]},
    "nemotron_h": {
        "num_experts_per_tok": None, "n_routed_experts": None, "mamba_d_head": 10, "rms_norm_eps": 1e-5,
        "hybrid_override_pattern": "M-*M-",
    },
    "nemotron_h_moe": {"mamba_d_head": 10, "rms_norm_eps": 1e-5, "hybrid_override_pattern": "ME*ME"},
    "qwen3_5": {"full_attention_interval": 3},
    "qwen3_5_moe": {"full_attention_interval": 3},
    "qwen3_next": {"full_attention_interval": 2},
}


# Of the same shape as others.
LEFT_OUT = {"gemma3_linear", "llama", "llama_tied", "phi3", "qwen2", "smollm2"}


def read_safetensors(path: Path) -> tuple[dict, bytes]:
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def cut_weights(source: Path, target: Path) -> None:
    """Copies tensors as float32 with most of their mantissas set to zero."""
    head, data = read_safetensors(source)
    parts, at = [], 0
    for name, entry in sorted(head.items()):
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            numbers = np.frombuffer(data[first:end], "<u2").astype("<u4") << 16
        else:
            assert entry["dtype"] == "F32", (source, name)
            numbers = np.frombuffer(data[first:end], "<u4")
        part = (numbers & (KEPT_OF_MATRICES if len(entry["shape"]) > 1 else KEPT_OF_VECTORS)).tobytes()
        parts.append(part)
        head[name] = entry | {"dtype": "F32", "data_offsets": [at, at + len(part)]}
        at += len(part)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def prepare(name: str, folder: Path) -> None:
    """A folder that the converter takes."""
    shutil.copy(FIXTURES / name / "config_legacy.json", folder / "config.json")
    cut_weights(FIXTURES / name / "model.safetensors", folder / "model.safetensors")
    # Some classes count the tokens here before they write the embeddings.
    vocabulary = {token: index for index, token in enumerate(byte_tokens())}
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": []}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def byte_tokens() -> list[str]:
    """The 256 bytes as GPT-2 spells them, in its order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(others))]


def write_vocabulary(writer) -> None:
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(byte_tokens())
    writer.add_token_types([1] * 256)
    writer.add_token_merges(["a b"])


def convert(name: str) -> None:
    import gguf
    import torch
    from conversion import get_model_class
    from conversion.base import ModelBase, ModelType, get_model_architecture

    folder = Path(tempfile.mkdtemp())
    out = folder / "model.gguf"
    prepare(name, folder)
    with torch.inference_mode():
        hparams = ModelBase.load_hparams(folder, False) | CHANGES.get(name, {})
        hparams = {key: value for key, value in hparams.items() if value is not None or key not in CHANGES.get(name, {})}
        model_class = get_model_class(get_model_architecture(hparams, ModelType.TEXT), mmproj=False)
        model_class.no_mtp = True
        model = model_class(folder, gguf.LlamaFileType.ALL_F32, out, eager=True, model_name=name, hparams=hparams)
        inner = getattr(model, "impl", model)
        inner.set_vocab = lambda: write_vocabulary(inner.gguf_writer)
        model.write()
    with open(HERE / f"{name}.gguf.gz", "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(out.read_bytes())
    shutil.rmtree(folder)
    print(name, (HERE / f"{name}.gguf.gz").stat().st_size)


def write_names() -> None:
    """For every GGUF architecture of ours the names its tensors may have, `{}` for the layer."""
    from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

    known = set(re.findall(r'entry\("[^"]*", "([^"]*)"', (HERE.parents[2] / "src/arch/mod.rs").read_text()))
    known = {name for names in known for name in names.split("|") if name}
    names = {
        MODEL_ARCH_NAMES[arch]: sorted(TENSOR_NAMES[tensor].replace("{bid}", "{}") for tensor in tensors)
        for arch, tensors in MODEL_TENSORS.items()
        if MODEL_ARCH_NAMES[arch] in known
    }
    assert names.keys() == known, known - names.keys()
    text = ",\n".join(f"{json.dumps(arch)}: {json.dumps(names[arch])}" for arch in sorted(names))
    (HERE / "tensor_names.json").write_text(f"{{\n{text}\n}}\n")


if __name__ == "__main__":
    checkout = Path(sys.argv[1]).resolve()
    sys.path[:0] = [str(checkout), str(checkout / "gguf-py")]
    write_names()
    for name in sys.argv[2:] or sorted({path.parent.name for path in FIXTURES.glob("*/config_legacy.json")} - LEFT_OUT):
        convert(name)
