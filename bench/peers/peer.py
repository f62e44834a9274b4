"""llama.cpp as the peer: a pinned prebuilt binding from PyPI, or a build for this machine (`--peer FOLDER`, made by build.sh).

Both are the same to the scripts: `open_model(folder, path)` gives a model that tokenizes and opens contexts, a context that
reads tokens and has logits. What is imported from here at the top of a script needs no package; models work inside the
environment under target/ alone.
"""

import json
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


def add_option(parser):
    parser.add_argument(
        "--peer",
        metavar="FOLDER",
        help="llama.cpp as bench/peers/build.sh has built it into this folder [default: the prebuilt wheel]",
    )


def short_name(folder):
    """For tables."""
    return "native" if folder else "wheel"


def describe(folder):
    """The peer in words, with what it was built for."""
    if folder:
        return (Path(folder) / "build.txt").read_text().strip()
    return f"llama.cpp through `{PEER}` from PyPI, {BUILD}"


def save_figures(path, figures):
    """Writes a file of results. The words of a page that is there already stay, and its answer has to be read again."""
    code = ["kvant-codec", "kvant-attention", "kvant-weights", "kvant-cpu"]
    words = {"answer": "Not written down yet.", "topic": "cpu", "short": []}
    path = Path(path)
    if path.exists():
        old = json.loads(path.read_text())
        words = {key: old[key] for key in ("title", "answer", "topic", "order", "short") if key in old}
    # Hashes that are empty are filled in by `cargo xtask ledger`.
    figures = figures | words | {"covers": {f"crates/{name}/src": "" for name in code}}
    path.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    print(f"{path}: written; check `answer` and `short`, then `cargo xtask ledger`")


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


def open_model(folder, path):
    """A model of the build in `folder`, or of the wheel."""
    if folder:
        import native

        return native.Model(folder, path)
    import prebuilt

    return prebuilt.Model(path)


def open_context(model, size, threads, kv, flash, batch=None):
    """An empty context of `size` tokens; `batch` is the most tokens given to it at once."""
    return model.open(size, threads, GGML_TYPE[kv], flash, batch or size)
