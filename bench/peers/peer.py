"""llama.cpp as the peer: a pinned prebuilt binding from PyPI in a virtual environment under target/.

What is imported from here at the top of a script needs no package. `open_model` and `open_context` work inside the
environment alone.
"""

import os
import subprocess
import sys
import venv
from pathlib import Path

PEER = "cyllama==0.2.18"
PINNED = [PEER, "numpy==2.4.6"]
# From a disassembly of the Linux wheel for x86-64.
BUILD = "built for AVX2, without AVX-512, VNNI or AMX"
REPOSITORY = Path(__file__).resolve().parents[2]
ENVIRONMENT = REPOSITORY / "target" / "peers" / "cyllama-0.2.18"
KVANT = REPOSITORY / "target" / "release" / "kvant"
GGML_TYPE = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8}


def python():
    """The interpreter of the environment, which is made on first use."""
    interpreter = ENVIRONMENT / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    ready = ENVIRONMENT / "installed.txt"
    if not ready.exists() or ready.read_text() != "\n".join(PINNED):
        print(f"installing {', '.join(PINNED)} into {ENVIRONMENT.relative_to(REPOSITORY)}", file=sys.stderr)
        venv.create(ENVIRONMENT, clear=True, with_pip=True)
        command = [interpreter, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *PINNED]
        if subprocess.run(command).returncode != 0:
            sys.exit(
                f"cannot install {', '.join(PINNED)}: see pip's message above. Either PyPI is out of reach or it "
                f"has no prebuilt wheel for Python {sys.version.split()[0]} on this machine. No comparison was made."
            )
        ready.write_text("\n".join(PINNED))
    return str(interpreter)


def enter(script):
    """Goes on with `script` inside the environment."""
    if Path(sys.prefix).resolve() != ENVIRONMENT.resolve():
        sys.exit(subprocess.run([python(), script, *sys.argv[1:]]).returncode)


def open_model(path):
    """The model and its vocabulary."""
    import cyllama.llama.llama_cpp as llama

    # Reading logits, this version of the binding asks the model for `n_vocab`, which only its vocabulary has.
    class Model(llama.LlamaModel):
        n_vocab = 0

    llama.disable_logging()
    params = llama.LlamaModelParams()
    params.n_gpu_layers = 0
    model = Model(path, params)
    vocabulary = model.get_vocab()
    Model.n_vocab = vocabulary.n_vocab() if callable(vocabulary.n_vocab) else vocabulary.n_vocab
    return model, vocabulary


def open_context(model, size, threads, kv, flash, batch=None):
    """An empty context of `size` tokens; `batch` is the most tokens given to it at once."""
    import cyllama.llama.llama_cpp as llama

    params = llama.LlamaContextParams()
    params.n_ctx = size
    params.n_batch = batch or size
    params.n_threads = params.n_threads_batch = threads
    params.type_k = params.type_v = GGML_TYPE[kv]
    params.flash_attn_type = int(flash)
    return llama.LlamaContext(model, params)


def last_logits(context):
    """Logits of the last position, as an array."""
    import numpy

    return numpy.asarray(context.get_logits_ith(-1), dtype=numpy.float64)
