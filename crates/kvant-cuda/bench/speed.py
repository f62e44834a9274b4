"""Times: attention over every codec as the engine calls it beside torch's fp16 SDPA, of one query token and of a chunk, products of packed weights, small kernels. Microseconds per call
in a CUDA graph of at least 16 calls that rotate over at least 600 MB, so that L2 is cold; medians of 15 replays."""
import math, statistics
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
import check
import weights as W
from cases import Case
from driver import FEW_SHARED
from pages import UNIT, split_pages

COLD = 600e6
SHAPES = [(1, 64, 8, 128, 131072), (1, 16, 4, 256, 131072), (1, 64, 8, 128, 32768), (1, 64, 8, 128, 16384), (1, 64, 8, 128, 4096), (1, 32, 8, 128, 131072), (1, 32, 8, 128, 32768),
          (1, 32, 8, 128, 16384), (1, 32, 8, 128, 4096), (8, 64, 8, 128, 32768), (1, 64, 8, 64, 131072), (32, 32, 8, 128, 4096)]


def graph_time(calls, n=15):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(n + 3):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record(), graph.replay(), b.record()
        torch.cuda.synchronize()
        times.append(a.elapsed_time(b) * 1e3 / len(calls))
    return statistics.median(times[3:])


def rotation(items, least=16):
    return [items[i % len(items)] for i in range(max(len(items), least))]


def copies(case, nbytes):
    """Cases over copies of the same page memory at other addresses."""
    out = [case]
    for _ in range(max(3, min(130, math.ceil(COLD / nbytes))) - 1):
        twin = object.__new__(type(case))
        twin.__dict__ = dict(case.__dict__)
        twin.memory = object.__new__(type(case.memory))
        twin.memory.__dict__ = dict(case.memory.__dict__, bytes=case.memory.bytes.clone())
        out.append(twin)
    return out


def repeated(B, Hq, Hkv, d, S, codec, **options):
    """A cache of S tokens whose pages are those of at most 8k tokens, put again at new places."""
    part = min(S, 8192)
    case = Case([part + options.get("sinks", 0) - 1 + options.pop("tail", 1)] * B, Hkv, Hq // Hkv, d, codec, **options)
    times, closed = S // part, case.sequences[0][2]
    if times > 1:
        old = case.memory.bytes.view(-1)
        span = -(-old.numel() // UNIT) * UNIT
        memory = torch.zeros(span * times + UNIT, dtype=torch.uint8, device="cuda")
        memory = memory[-memory.data_ptr() % UNIT:][:span * times]
        for i in range(times):
            memory[i * span:i * span + old.numel()] = old
        more = (times - 1) * closed  # pages before those of the case
        case.table = torch.cat([case.table[:, :closed] + i * (span // UNIT) for i in range(1, times)] + [case.table], 1).contiguous()
        case.memory.bytes, case.table_stride = memory, case.table.shape[1]
        case.sequences = [(p + more * 64, s, c + more, f, k, seat, w + more) for p, s, c, f, k, seat, w in case.sequences]
        case.plan()
    case.truth = None
    return case


def sdpa(B, Hq, Hkv, d, S):
    nbytes = B * Hkv * S * d * 4
    rand = lambda h, s: torch.randn(B, h, s, d, dtype=torch.float16, device="cuda")
    sets, q = [(rand(Hkv, S), rand(Hkv, S)) for _ in range(max(3, min(40, math.ceil(COLD / nbytes))))], rand(Hq, 1)
    result = {}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        def call(k, v, backend=backend):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        try:
            result[name] = graph_time(rotation([lambda s=s: call(*s) for s in sets]))
        except Exception as problem:
            result[name + " failed"] = str(problem).splitlines()[0][:120]
    return result


HOW = dict(closed=("int4", dict(sinks=0, tail=1)), **{codec: (codec, dict(sinks=4, tail=40)) for codec in ("int4", "klt", "klt128", "k8v4", "int8", "f16")})


def attention(kernels, say, shapes=SHAPES):
    rows = []
    for shape in shapes:
        B, Hq, Hkv, d, S = shape
        row = dict(B=B, Hq=Hq, Hkv=Hkv, d=d, S=S)
        how = {name: of for name, of in HOW.items() if check.runs(of[0], row)}
        for name, (codec, options) in how.items():
            case = repeated(B, Hq, Hkv, d, S, codec, **options)
            nbytes = B * Hkv * case.sequences[0][2] * case.page_bytes
            cases = copies(case, nbytes)
            timed = lambda **kw: graph_time(rotation([lambda c=c: c.run(kernels, **kw) for c in cases]))
            row[name] = dict(bytes=nbytes, plain=timed(pdl_reduce=False), reduce=timed(), both=timed(pdl_main=True), append=timed(append=True), append_both=timed(append=True, pdl_main=True), no_reduce=timed(reduce=False))
            if name == "int4":
                for factor in (0.5, 2):  # split lengths: a policy of src/plan.rs
                    for c in cases:
                        c.plan(int(factor * split_pages(case.sequences[0][2])))
                    row[name] |= {f"reduce, splits x{factor}": timed(), f"both, splits x{factor}": timed(pdl_main=True)}
            del case, cases
        row["sdpa"] = sdpa(*shape)
        best = min(v for v in row["sdpa"].values() if isinstance(v, float))
        row["ratio"] = {n: best / row[n]["reduce"] for n in how}
        row["TB/s"] = {n: row[n]["bytes"] / row[n]["reduce"] / 1e6 for n in how}
        row["FP8's bytes at the bandwidth of fp16"] = best / 2
        say(f"{shape}: sdpa {best:.1f} us | " + " ".join(f"{n} {row[n]['reduce']:.1f} (both {row[n]['both']:.1f}, after append {row[n]['append']:.1f}, {row[n]['append_both']:.1f}, x {row['ratio'][n]:.2f}, {row['TB/s'][n]:.2f} TB/s)" for n in how))
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def chunks(kernels, say, shapes=((32, 8, 128, 4096), (32, 8, 128, 32768), (64, 8, 128, 32768), (32, 8, 64, 32768), (16, 8, 256, 32768)), tokens=512):
    """A chunk of a prompt after S tokens: every page is read once for as many queries as fit into a tile."""
    rows = []
    for Hq, Hkv, d, S in shapes:
        row = dict(Hq=Hq, Hkv=Hkv, d=d, S=S, tokens=tokens)
        flops = 4 * Hq * d * tokens * (S + tokens / 2)
        for codec in ("int4", "k8v4", "int8", "f16"):
            case = repeated(1, Hq, Hkv, d, S, codec, sinks=4, tail=1, tokens=tokens)
            case.plan(many=True)
            row[codec] = graph_time(rotation([lambda: case.run(kernels)], 4))
            row[codec + " attend"] = graph_time(rotation([lambda: case.run(kernels, reduce=False)], 4))
            if kernels.has(f"attend_tile_{codec}_d{d}"):
                case.plan(wide=True)
                row[codec + " tiles"] = graph_time(rotation([lambda: case.run(kernels)], 4))
                row[codec + " tiles attend"] = graph_time(rotation([lambda: case.run(kernels, reduce=False)], 4))
            del case
        q = torch.randn(1, Hq, tokens, d, dtype=torch.float16, device="cuda")
        k, v = (torch.randn(1, Hkv, S + tokens, d, dtype=torch.float16, device="cuda") for _ in range(2))
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            try:
                with sdpa_kernel(backend):
                    row[name] = graph_time(rotation([lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True)], 4))
            except Exception as problem:
                row[name + " failed"] = str(problem).splitlines()[0][:120]
        say(f"chunk of {tokens} after {S}, {Hq}/{Hkv} d{d}: " + ", ".join(f"{n} {t:.0f} us ({flops / t / 1e6:.0f} TFLOPS)" for n, t in row.items() if isinstance(t, float)))
        rows.append(row)
        torch.cuda.empty_cache()
    return rows


def products(kernels, say):
    """The matrices of an 8B model, one token, then 8 and 32."""
    rows = []
    for name, make in W.TYPES.items():
        for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)):
            sets = matrices(make, n, k)
            y = torch.zeros(32, n, device="cuda")
            x = torch.randn(32, k, device="cuda").half()
            row = dict(type=name, rows=n, channels=k, bytes=sets[0].numel())
            for tokens in (1, 8, 32):
                kind = "one" if tokens == 1 else "few" if tokens <= 8 else "w32" if kernels.has(f"linear_{name}_w32") else "t32"
                grid = (min(2 * kernels.sms, n // 16), 2 if tokens * k * 2 > FEW_SHARED // 2 else 1)
                for pdl in (False, True):
                    calls = [lambda d=d: check.product(kernels, name, kind, d, x, y, n, k, tokens, grid=grid, pdl=pdl) for d in sets]
                    row[f"{tokens}{' pdl' if pdl else ''}"] = graph_time(rotation(calls))
            row["TB/s"] = sets[0].numel() / row["1 pdl"] / 1e6
            say(f"linear {name} {n}x{k}: 1 token {row['1 pdl']:.1f} us ({row['TB/s']:.2f} TB/s), 8 {row['8 pdl']:.1f}, 32 {row['32 pdl']:.1f}")
            rows.append(row)
            del sets
            torch.cuda.empty_cache()
    return rows


def matrices(make, n, k):
    """As many copies of a packed matrix as L2 does not hold."""
    data = make(1024, k, torch.Generator().manual_seed(1))[0].reshape(-1).cuda()
    data = data.repeat(math.ceil(n / 1024))[:n // 16 * (data.numel() // 64)].contiguous()
    return [data.clone() for _ in range(max(2, math.ceil(COLD / data.numel())))]


def tiles(kernels, say, types=tuple(W.TYPES)):
    """Chunks of a prompt: TFLOP/s beside torch's product of f16 numbers."""
    rows = []
    for name in types:
        for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)):
            sets = matrices(W.TYPES[name], n, k)[:4]
            for tokens in (64, 256, 512, 2048):
                x, y = torch.randn(tokens, k, device="cuda").half(), torch.zeros(tokens, n, device="cuda")
                row = dict(type=name, rows=n, channels=k, tokens=tokens)
                flops = lambda us: 2e-6 * n * k * tokens / us
                for form in ("tile", "large", *(f for f in check.wide_forms(kernels, name, k) if int(f[1:]) >= 64)):
                    row[form] = graph_time(rotation([lambda d=d: check.product(kernels, name, form, d, x, y, n, k, tokens) for d in sets], 4), 7)
                if name == "f16":
                    plain = [torch.randn(n, k, device="cuda", dtype=torch.float16) for _ in range(4)]
                    row["torch"] = graph_time([lambda w=w: x @ w.T for w in plain], 7)
                    del plain
                say(f"tile {name} {n}x{k} of {tokens}: " + ", ".join(f"{f} {v:.1f} us ({flops(v):.0f} TFLOP/s)" for f, v in row.items() if isinstance(v, float)))
                rows.append(row)
            del sets
            torch.cuda.empty_cache()
    return rows
