"""Makes torch's wheel work without the libraries of CUDA, which are 4 GB that no processor needs.

    python without_cuda.py

The wheel of Linux is linked with them, so they have to be there when it is loaded; none is called where there is no GPU. This puts
libraries of their names beside torch's own, in which every function says that there is no device. Wants `cc`, `nm` and `objdump`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

#: cudaErrorNoDevice.
NO_DEVICE = 100
#: Functions that give a text.
TEXT = re.compile(r"Get(ErrorString|ErrorName)|_?get_?error_?string", re.IGNORECASE)
#: Asked wherever a mask is made, device or not: no stream is being captured.
ALWAYS_FINE = {"cudaStreamIsCapturing"}
#: What belongs to the system, or comes with torch.
AT_HAND = re.compile(r"lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s|z|quadmath|gomp|gfortran|shm)\.so|ld-linux")
#: Functions of CUDA's libraries, where no version says whose they are.
CUDA = re.compile(r"(cu|nv|nccl)[A-Za-z]")


def said(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    folder = Path(find_spec("torch").submodule_search_locations[0]) / "lib"
    own = [path for path in sorted(folder.glob("*.so")) if re.match(r"lib(torch|c10|caffe2)", path.name)]
    names = {path.name for path in own}
    #: By library: the versions of its symbols, and those.
    missing: dict[str, dict[str, set[str]]] = {}
    homes: dict[str, str] = {}
    for path in own:
        head = said("objdump", "-p", path)
        needed = re.findall(r"^\s+NEEDED\s+(\S+)", head, re.MULTILINE)
        missing |= {name: {} for name in needed if name not in names and not AT_HAND.match(name)}
        home = ""
        for line in head.partition("Version References:")[2].splitlines():
            if found := re.match(r"\s+required from (\S+):", line):
                home = found[1]
            elif found := re.match(r"\s+0x\S+ 0x\S+ \S+ (\S+)", line):
                homes[found[1]] = home
    defined: set[str] = set()
    loose: set[str] = set()
    for path in own:
        for line in said("nm", "-D", path).splitlines():
            kind, symbol = line.split()[-2:]
            symbol, _, version = symbol.partition("@")
            if kind != "U":
                defined.add(symbol)
            elif homes.get(version) in missing:
                missing[homes[version]].setdefault(version, set()).add(symbol)
            elif not version and CUDA.match(symbol):
                loose.add(symbol)
    for name, versions in missing.items():
        # Which library a symbol without a version is from, nobody says: all that have none bring it.
        build(folder / name, versions or {"": loose - defined})
    print(f"{len(missing)} libraries of CUDA stand in for the real ones in {folder}")


def definition(symbol: str) -> str:
    if TEXT.search(symbol):
        return f'const char *{symbol}(void) {{ return "no CUDA device"; }}\n'
    return f"int {symbol}(void) {{ return {0 if symbol in ALWAYS_FINE else NO_DEVICE}; }}\n"


def build(path: Path, versions: dict[str, set[str]]) -> None:
    """A library whose functions all find no device."""
    symbols = sorted(set().union(*versions.values()))
    source = "".join(map(definition, symbols))
    script = "".join(f"{version} {{ {'; '.join(sorted(own))}; }};\n" for version, own in versions.items() if version)
    with tempfile.NamedTemporaryFile("w", suffix=".map") as file:
        file.write(script)
        file.flush()
        flags = [f"-Wl,--version-script={file.name}"] if script else []
        command = ["cc", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{path.name}", "-o", path, *flags]
        subprocess.run([*command, "-x", "c", "-"], input=source, text=True, check=True)


if __name__ == "__main__":
    sys.exit(main())
