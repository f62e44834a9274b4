"""Puts a compiled module and the package around it into a wheel, as maturin does.

    python pack_wheel.py LIBRARY FOLDER

`cargo xtask test` compiles the module together with everything else of the workspace, which takes seconds where maturin, that knows this
package alone, would compile most of the workspace again. `pip install ./python` and releases are maturin's; the named step `wheel`
tests that way.
"""

import base64
import hashlib
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def metadata(project: dict, version: str) -> str:
    lines = ["Metadata-Version: 2.4", f"Name: {project['name']}", f"Version: {version}"]
    lines += [f"Summary: {project['description']}", f"Requires-Python: {project['requires-python']}"]
    lines += [f"License-Expression: {project['license']}"]
    lines += [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    return "\n".join(lines) + "\n"


def record(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def main(library: Path, folder: Path) -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    version = tomllib.loads((HERE.parent / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"cp311-abi3-{platform}"
    ending = "pyd" if sys.platform == "win32" else "abi3.so"
    files = {f"kvant/_kvant.{ending}": library.read_bytes()}
    sources = [path for path in sorted((HERE / "kvant").rglob("*")) if path.suffix in (".py", ".pyi", ".typed")]
    files |= {path.relative_to(HERE).as_posix(): path.read_bytes() for path in sources}
    about = f"{project['name']}-{version}.dist-info"
    files[f"{about}/METADATA"] = metadata(project, version).encode()
    files[f"{about}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: kvant\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    records = "".join(record(name, content) for name, content in files.items()) + f"{about}/RECORD,,\n"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / f"{project['name']}-{version}-{tag}.whl", "w") as wheel:
        for name, content in {**files, f"{about}/RECORD": records.encode()}.items():
            wheel.writestr(name, content)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
