#!/usr/bin/env python3
"""Compiles kernels/*.cu with NVRTC: PTX for sm_80, cubin for sm_90a, into kernels/bin (packed by zlib), with a manifest that names the compiler, the
hash of the sources, and every kernel's registers, spills and shared memory as ptxas reports them.

    python3 -m venv V && V/bin/pip install nvidia-cuda-nvrtc-cu12==12.8.93 nvidia-cuda-nvcc-cu12==12.8.93
    V/bin/python build_kernels.py [--check]

A module whose sources, headers included, are those of the manifest is not compiled again. `--check` compiles nothing and fails if the manifest is
not of these sources. No file of NVIDIA's is copied: both packages are
tools of the build."""
import ctypes, hashlib, importlib.util, json, pathlib, re, subprocess, sys, tempfile, zlib
from concurrent.futures import ProcessPoolExecutor

HERE = pathlib.Path(__file__).resolve().parent
KERNELS, BIN = HERE / "kernels", HERE / "kernels" / "bin"
OPTIONS = ["--std=c++17", "--extra-device-vectorization", "-default-device"]
PTX_ARCH, CUBIN_ARCH = "compute_80", "sm_90a"


def source_hash():
    """Of all sources, names included: what tests/kernels.rs computes too."""
    h = hashlib.sha256()
    for path in sorted(KERNELS.glob("*.cu*"), key=lambda p: p.name):
        h.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return h.hexdigest()


def module_hash(path):
    """Of a source, the headers that it includes, and what they include."""
    seen, todo = {}, [path]
    while todo:
        path = todo.pop()
        if path.name not in seen:
            seen[path.name] = path.read_bytes()
            todo += [KERNELS / name for name in re.findall(r'#include "([\w.]+)"', seen[path.name].decode()) if (KERNELS / name).exists()]
    h = hashlib.sha256()
    for name in sorted(seen):
        h.update(name.encode() + b"\0" + seen[name] + b"\0")
    return h.hexdigest()


def package(name):
    spec = importlib.util.find_spec("nvidia")
    for place in spec.submodule_search_locations if spec else []:
        if (found := pathlib.Path(place) / name).is_dir():
            return found
    sys.exit(f"nvidia/{name} is not installed: see the first lines of {__file__}")


class Nvrtc:
    def __init__(self):
        self.lib = ctypes.CDLL(str(package("cuda_nvrtc") / "lib" / "libnvrtc.so.12"))
        self.lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self.check(self.lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = f"nvrtc {major.value}.{minor.value}"

    def check(self, rc):
        if rc:
            sys.exit(f"NVRTC: {self.lib.nvrtcGetErrorString(rc).decode()}")

    def text(self, program, what):
        size = ctypes.c_size_t()
        self.check(getattr(self.lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        out = ctypes.create_string_buffer(size.value)
        self.check(getattr(self.lib, f"nvrtcGet{what}")(program, out))
        return out.raw

    def compile(self, path, arch, what):
        options = [*OPTIONS, f"--gpu-architecture={arch}", f"--include-path={KERNELS}"]
        program = ctypes.c_void_p()
        self.check(self.lib.nvrtcCreateProgram(ctypes.byref(program), path.read_bytes(), path.name.encode(), 0, None, None))
        rc = self.lib.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*[o.encode() for o in options]))
        log = self.text(program, "ProgramLog").rstrip(b"\0").decode().strip()
        if rc or log:
            print(log)
        self.check(rc)
        out = self.text(program, what)
        self.lib.nvrtcDestroyProgram(ctypes.byref(program))
        return out


def slim(ptx):
    """The same text without comments, blank lines and runs of blanks, which are an eighth of it."""
    lines = (re.sub(r"\s+", " ", re.sub(r"//.*", "", line)).strip() for line in ptx.decode().splitlines())
    return "\n".join(line for line in lines if line).encode() + b"\n"


def assemble(ptx, arch, cubin):
    """ptxas for the same arch: its report per kernel."""
    with tempfile.NamedTemporaryFile(suffix=".ptx") as f:
        f.write(ptx.rstrip(b"\0")), f.flush()
        run = subprocess.run([package("cuda_nvcc") / "bin" / "ptxas", "-v", f"-arch={arch}", "-o", cubin, f.name], capture_output=True, text=True)
    if run.returncode or re.search(r"C75\d\d", run.stderr):  # C75xx: wgmma that is serialised
        sys.exit(run.stderr)
    report = {}
    for name, text in re.findall(r"Compiling entry function '(\w+)'.*?\n(.*?)(?=ptxas info\s+: Compiling|\Z)", run.stderr, re.S):
        number = lambda pattern: int(m.group(1)) if (m := re.search(pattern, text)) else 0
        report[name] = dict(registers=number(r"Used (\d+) registers"), spill_stores=number(r"(\d+) bytes spill stores"),
                            spill_loads=number(r"(\d+) bytes spill loads"), stack=number(r"(\d+) bytes stack frame"),
                            shared=number(r"(\d+) bytes smem"))
    return report


def module(path):
    """Compiles a source: what the manifest says of its files and kernels."""
    nvrtc, files, kernels = Nvrtc(), {}, {}
    ptx = slim(nvrtc.compile(path, PTX_ARCH, "PTX").rstrip(b"\0"))
    with tempfile.NamedTemporaryFile() as scratch:
        old = assemble(ptx, "sm_80", scratch.name)
    new = nvrtc.compile(path, f"compute_{CUBIN_ARCH[3:]}", "PTX")
    with tempfile.NamedTemporaryFile() as scratch:
        report = assemble(new, CUBIN_ARCH, scratch.name)
        cubin = pathlib.Path(scratch.name).read_bytes()
    dynamic = dict(re.findall(r"\.const.*?|\.global .align 4 \.u32 (\w+)_shared = (\d+);", ptx.decode()))
    for name in report:
        kernels[name] = dict(module=path.stem, dynamic_shared=int(dynamic.get(name, 0)), sm_90a=report[name])
        if name in old:  # else for Hopper alone
            kernels[name]["sm_80"] = old[name]
        told = "; ".join(f"{arch} {of['registers']:3} regs, {of['spill_stores']} spilled" for arch, of in kernels[name].items() if arch.startswith("sm_"))
        print(f"{name:28} {told}; dynamic {dynamic.get(name, 0)} B", flush=True)
    for name, data in ((f"{path.stem}.ptx", ptx), (f"{path.stem}.cubin", cubin)):
        (BIN / f"{name}.z").write_bytes(zlib.compress(data, 9))
        files[name] = dict(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    return files, kernels


def main():
    digest = source_hash()
    manifest = BIN / "manifest.json"
    if "--check" in sys.argv:
        ok = manifest.exists() and json.loads(manifest.read_text())["sources"] == digest
        sys.exit(None if ok else "kernels/bin is not of these sources: run build_kernels.py")
    nvrtc = Nvrtc()
    ptxas = subprocess.run([package("cuda_nvcc") / "bin" / "ptxas", "--version"], capture_output=True, text=True).stdout
    BIN.mkdir(exist_ok=True)
    version = re.search(r"V([\d.]+)", ptxas).group(1)
    own = dict(compiler=f"{nvrtc.version}, ptxas {version}", options=OPTIONS, ptx=PTX_ARCH, cubin=CUBIN_ARCH)
    before = json.loads(manifest.read_text()) if manifest.exists() else {}
    known = before if all(before.get(key) == value for key, value in own.items()) else {}
    paths = sorted(KERNELS.glob("*.cu"))
    modules = {path.stem: module_hash(path) for path in paths}
    files, kernels = {}, {}
    with ProcessPoolExecutor() as pool:
        changed = [path for path in paths if known.get("modules", {}).get(path.stem) != modules[path.stem]]
        made = dict(zip([path.stem for path in changed], pool.map(module, changed)))
        for stem in modules:
            if stem in made:
                own_files, own_kernels = made[stem]
            else:
                own_files = {name: known["files"][name] for name in (f"{stem}.ptx", f"{stem}.cubin")}
                own_kernels = {name: kernel for name, kernel in known["kernels"].items() if kernel["module"] == stem}
            files |= own_files
            kernels |= own_kernels
    manifest.write_text(json.dumps(own | dict(sources=digest, modules=modules, files=files, kernels=kernels), indent=1) + "\n")
    print(f"{len(kernels)} kernels, {sum(f['bytes'] for f in files.values())} bytes, {own['compiler']}")


if __name__ == "__main__":
    main()
