"""Puts a compiled module and the package around it into a wheel, as maturin does.

    python pack_wheel.py LIBRARY FOLDER [--command PROGRAM] [--platform TAG]

With --command the wheel brings that program too: `pip install` puts it beside Python. TAG is the platform that it is for, this one's otherwise.

`cargo xtask test` compiles the module together with everything else of the workspace, which takes seconds where maturin, that knows this
package alone, would compile most of the workspace again; `cargo xtask dist` compiles it with the command. `pip install ./python` is maturin's;
the named step `wheel` tests that way.
"""

import argparse
import base64
import hashlib
import sysconfig
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

# What the package has beside the module; of kernels the text, which MLX and torch compile.
ENDINGS = (".py", ".pyi", ".typed", ".metal")

# The first moment that a zip file can name, so that the same files make the same wheel.
ORIGIN = (1980, 1, 1, 0, 0, 0)


def metadata(project: dict, version: str) -> str:
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}"]
    lines += [f"Summary: {project['description']}", f"Requires-Python: {project['requires-python']}"]
    lines += [f"License-Expression: {project['license']}"]
    lines += [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    return "\n".join(lines) + "\n"


def record(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def main(library: Path, folder: Path, command: Path | None, platform: str | None) -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    version = tomllib.loads((HERE.parent / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    platform = platform or sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"cp311-abi3-{platform}"
    ending = "pyd" if platform.startswith("win") else "abi3.so"
    files = {f"kvant/_kvant.{ending}": library.read_bytes()}
    sources = [path for path in sorted((HERE / "kvant").rglob("*")) if path.suffix in ENDINGS]
    files |= {path.relative_to(HERE).as_posix(): path.read_bytes() for path in sources}
    about = f"{project['name']}-{version}.dist-info"
    if command:
        files[f"{project['name']}-{version}.data/scripts/{command.name}"] = command.read_bytes()
    files[f"{about}/METADATA"] = metadata(project, version).encode()
    files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: kvant\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    records = "".join(record(name, content) for name, content in files.items()) + f"{about}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{project['name']}-{version}-{tag}.whl", "w") as wheel:
        for name, content in {**files, f"{about}/RECORD": records.encode()}.items():
            entry = zipfile.ZipInfo(name, ORIGIN)
            # What tests install lives for a minute.
            entry.compress_type = zipfile.ZIP_DEFLATED if command else zipfile.ZIP_STORED
            # Programs are programs, for everybody.
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            wheel.writestr(entry, content)


if __name__ == "__main__":
    typed = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    typed.add_argument("library", type=Path)
    typed.add_argument("folder", type=Path)
    typed.add_argument("--command", type=Path)
    typed.add_argument("--platform")
    main(**vars(typed.parse_args()))
