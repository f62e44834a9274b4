"""The compiled kernels under torch, by the driver API alone: what the Rust backend does, in a page of ctypes."""
import ctypes, json, pathlib, struct, subprocess, tempfile, zlib
import torch

BIN = pathlib.Path(__file__).resolve().parent.parent / "kernels" / "bin"
FEW_SHARED = 227 << 10  # what the activations and sums of linear_*_few may take on a Hopper
MANIFEST = json.loads((BIN / "manifest.json").read_text())


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16)]


class Config(ctypes.Structure):
    _fields_ = [(n, ctypes.c_uint) for n in ("gx", "gy", "gz", "bx", "by", "bz", "shared")] + [
        ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("count", ctypes.c_uint)]


class Kernels:
    """All modules in one form, `cubin` or `ptx`."""
    dev = "cuda"

    def __init__(self, form="cubin"):
        torch.zeros(1, device="cuda")  # makes the primary context current
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.early = form == "cubin"  # code for sm_80 does not wait for the kernel before, so it must not begin early
        self.functions, self.images = {}, []
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        for stem in sorted({k["module"] for k in MANIFEST["kernels"].values()}):
            image = ctypes.create_string_buffer(zlib.decompress((BIN / f"{stem}.{form}.z").read_bytes()) + b"\0")
            module = ctypes.c_void_p()
            self.check(self.cuda.cuModuleLoadData(ctypes.byref(module), image), f"loading {stem}.{form}")
            self.images.append(image)
            for name, kernel in MANIFEST["kernels"].items():
                if kernel["module"] != stem or form == "ptx" and "sm_80" not in kernel:
                    continue
                function = ctypes.c_void_p()
                self.check(self.cuda.cuModuleGetFunction(ctypes.byref(function), module, name.encode()), name)
                if kernel["dynamic_shared"]:
                    self.check(self.cuda.cuFuncSetAttribute(function, 8, kernel["dynamic_shared"]), name)
                if name.endswith(("_one", "_few", "_group8")):
                    self.check(self.cuda.cuFuncSetAttribute(function, 8, FEW_SHARED), name)
                if name.startswith(("attend", "reduce")):  # one carve-out, or the reduce could not enter an SM that attention holds
                    self.check(self.cuda.cuFuncSetAttribute(function, 9, 100), name)
                self.functions[name] = function

    def has(self, name):
        return name in self.functions

    def per_sm(self, name):
        """CTAs of attention that fit into an SM of 228 KB."""
        return 2 if MANIFEST["kernels"][name]["dynamic_shared"] <= 113 << 10 else 1

    def check(self, rc, what):
        if rc:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(rc, ctypes.byref(text))
            raise RuntimeError(f"{what}: {text.value.decode() if text.value else rc}")

    def wide_maps(self, data, x, name, rows, channels, tokens, box):
        """WideMaps of kernels/wide.cu, as src/tensor_map.rs makes them."""
        raw = ctypes.create_string_buffer(512)
        at = ctypes.addressof(raw) + -ctypes.addressof(raw) % 64
        u64s, u32s = (lambda *n: (ctypes.c_uint64 * len(n))(*n)), (lambda *n: (ctypes.c_uint32 * len(n))(*n))
        part, shared = dict(q4_k=(576, 64), q5_k=(704, 64), q6_k=(832, 32), q4_0=(576, 0), q8_0=(1088, 0), f16=(2048, 0), q4_1=(640, 0), mxfp4=(544, 0))[name]
        row = channels // 256 * (4 * part + shared) if shared else channels // 64 * part
        planes = [(6, x, (channels, tokens), 2 * channels, (64, box), 3)] + [(5, data, (row // 8, -(-rows // 16)), row, (n // 8, 8), 0) for n in (part, shared or part)]
        for i, (kind, of, dims, stride, boxes, swizzle) in enumerate(planes):
            self.check(self.cuda.cuTensorMapEncodeTiled(ctypes.c_void_p(at + 128 * i), kind, 2, ctypes.c_void_p(of.data_ptr()), u64s(*dims), u64s(stride),
                                                        u32s(*boxes), u32s(1, 1), 0, swizzle, 2, 0), "a tensor map")
        return raw, at

    def launch(self, name, grid, block, params, pdl=False, shared=None, map=None):
        grid = (grid, 1, 1) if isinstance(grid, int) else (*grid, 1)
        attribute = Attribute(6, 0, (ctypes.c_int * 16)(1))
        config = Config(*grid, block, 1, 1, MANIFEST["kernels"][name]["dynamic_shared"] if shared is None else shared, torch.cuda.current_stream().cuda_stream,
                        ctypes.pointer(attribute), int(pdl and self.early))
        buffer = ctypes.create_string_buffer(params, len(params))
        own = ctypes.addressof(buffer)
        pointers = (ctypes.c_void_p * 2)(own, own) if map is None else (ctypes.c_void_p * 2)(map[1], own)
        self.check(self.cuda.cuLaunchKernelEx(ctypes.byref(config), self.functions[name], pointers, None), name)

    def synchronize(self):
        torch.cuda.synchronize()


class HostKernels:
    """The same kernels compiled for the CPU (bench/host), a fiber for every thread: slow, for tests without a card."""
    dev, sms = "cpu", 3

    def __init__(self, library=None):
        here = pathlib.Path(__file__).resolve().parent
        if library is None:
            library = f"{tempfile.mkdtemp()}/kernels.so"
            subprocess.run(["g++", "-std=c++17", "-O1", "-fPIC", "-shared", "-w", "-DKVANT_HOST", f"-I{here}/host", f"-I{here.parent}/kernels",
                            f"{here}/host/host.cpp", "-o", library], check=True)
        self.compiled = ctypes.CDLL(library)

    def launch(self, name, grid, block, params, pdl=False, shared=None):
        grid = (grid, 1) if isinstance(grid, int) else grid
        if not shared:
            shared = ctypes.c_int.in_dll(self.compiled, f"{name}_shared").value if hasattr(self.compiled, f"{name}_shared") else 0
        self.compiled.host_launch(getattr(self.compiled, name), *grid, block, shared, params, len(params))

    def has(self, name):
        return hasattr(self.compiled, name)

    def per_sm(self, name):
        return 2

    def synchronize(self):
        pass


def pack(format, *fields):
    """Parameters as C lays them out (native alignment, padded to 8 bytes); tensors become addresses, None a null pointer."""
    fields = [f.data_ptr() if torch.is_tensor(f) else 0 if f is None else f for f in fields]
    data = struct.pack(format, *fields)
    return data + b"\0" * (-len(data) % 8)

