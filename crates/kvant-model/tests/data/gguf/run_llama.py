"""Logits of llama.cpp itself for the files beside this one: those after the fixture's first prompt.

    python3 -m venv venv && venv/bin/pip install cyllama==0.2.18 numpy==2.4.6 safetensors
    venv/bin/python run_llama.py     # writes llama_logits.safetensors

Every file is opened in a process of its own, because one that llama.cpp refuses may end it. Weights, keys and values are f32,
without flash attention, on one thread.
"""
import gzip
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
FIXTURES = HERE.parent.parent / "fixtures"


def prompt(name: str) -> list[int]:
    from safetensors.numpy import load

    return load(gzip.decompress((FIXTURES / name / "expected.safetensors.gz").read_bytes()))["input_ids"][0].tolist()


def run(name: str, out: str) -> None:
    import cyllama.llama.llama_cpp as llama

    # Reading logits, this version of the binding asks the model for `n_vocab`, which only its vocabulary has.
    class Model(llama.LlamaModel):
        n_vocab = 256

    params = llama.LlamaModelParams()
    params.n_gpu_layers = 0
    with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
        file.write(gzip.decompress((HERE / f"{name}.gguf.gz").read_bytes()))
        file.flush()
        model = Model(file.name, params)
        ids = prompt(name)
        params = llama.LlamaContextParams()
        params.n_ctx = params.n_batch = params.n_ubatch = 256
        params.n_threads = params.n_threads_batch = 1
        params.type_k = params.type_v = 0
        params.flash_attn_type = 0
        context = llama.LlamaContext(model, params)
        batch = llama.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
        batch.set_batch(ids, 0, True)
        context.decode(batch)
        np.save(out, np.asarray(context.get_logits_ith(len(ids) - 1), dtype=np.float32))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        run(*sys.argv[1:])
        sys.exit()
    from safetensors.numpy import save_file

    found = {}
    for path in sorted(HERE.glob("*.gguf.gz")):
        name = path.name.removesuffix(".gguf.gz")
        with tempfile.TemporaryDirectory() as folder:
            out = f"{folder}/logits.npy"
            result = subprocess.run([sys.executable, __file__, name, out], capture_output=True, text=True)
            if result.returncode == 0:
                found[name] = np.load(out)
                print(f"{name}: runs")
            else:
                reason = [line for line in result.stderr.splitlines() if "error" in line or "Error" in line]
                print(f"{name}: {reason[0] if reason else result.returncode}")
    save_file(found, HERE / "llama_logits.safetensors")
