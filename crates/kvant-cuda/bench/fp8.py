"""int4 attention beside an FP8 cache, one query token at long contexts: python3 fp8.py. cuDNN's FP8 attention where its Python frontend (`cudnn`) is
installed and takes one query token; torch's own where it has one; and, always and so labelled, the time that FP8's bytes take at the best bandwidth measured
in this process. Writes $OUT/fp8.json."""
import json, os, sys
import torch
import speed
from driver import Kernels

SHAPES = [(1, 64, 8, 128, 131072), (1, 32, 8, 128, 131072), (1, 64, 8, 128, 32768)]


def sets_of(B, Hq, Hkv, d, S):
    """Queries, and as many caches as L2 does not hold; numbers that E4M3 holds."""
    fp8 = lambda h, s: torch.randn(B, h, s, d, device="cuda").clamp(-4, 4).to(torch.float8_e4m3fn)
    count = max(3, min(40, -(-int(speed.COLD) // (2 * B * Hkv * S * d))))
    return fp8(Hq, 1), [(fp8(Hkv, S), fp8(Hkv, S)) for _ in range(count)]


def cudnn_fp8(B, Hq, Hkv, d, S):
    """sdpa_fp8 of cuDNN's graph API; time and the error against the same numbers in f32."""
    import cudnn
    q, sets = sets_of(B, Hq, Hkv, d, S)
    one = torch.ones(1, 1, 1, 1, device="cuda")
    out = torch.empty(B, Hq, 1, d, device="cuda", dtype=torch.uint8).view(torch.float8_e4m3fn)
    amax_s, amax_o = torch.zeros(1, 1, 1, 1, device="cuda"), torch.zeros(1, 1, 1, 1, device="cuda")
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)
    tensor = lambda x, kind=cudnn.data_type.FP8_E4M3: graph.tensor(dim=list(x.shape), stride=list(x.stride()), data_type=kind)
    number = lambda: tensor(one, cudnn.data_type.FLOAT)
    tq, tk, tv = tensor(q), tensor(sets[0][0]), tensor(sets[0][1])
    scales = {n: number() for n in ("descale_q", "descale_k", "descale_v", "descale_s", "scale_s", "scale_o")}
    to, _, ts_max, to_max = graph.sdpa_fp8(q=tq, k=tk, v=tv, is_inference=True, attn_scale=d**-0.5, **scales)
    to.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride())).set_data_type(cudnn.data_type.FP8_E4M3)
    for x in (ts_max, to_max):
        x.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(cudnn.data_type.FLOAT)
    graph.validate(), graph.build_operation_graph(), graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support(), graph.build_plans()
    workspace = torch.empty(max(1, graph.get_workspace_size()), device="cuda", dtype=torch.uint8)

    def call(k, v):
        cudnn.set_stream(handle, torch.cuda.current_stream().cuda_stream)
        graph.execute({tq: q, tk: k, tv: v, to: out, ts_max: amax_s, to_max: amax_o, **{t: one for t in scales.values()}}, workspace, handle=handle)

    call(*sets[0]), torch.cuda.synchronize()
    k, v = (x.float().repeat_interleave(Hq // Hkv, 1) for x in sets[0])
    want = torch.softmax(q.float() @ k.transpose(2, 3) * d**-0.5, -1) @ v
    error = ((out.float() - want).norm() / want.norm()).item()
    return speed.graph_time(speed.rotation([lambda s=s: call(*s) for s in sets])), error


def torch_fp8(B, Hq, Hkv, d, S):
    """Torch's quantised attention, where this build has it."""
    from torch.nn.attention.experimental._scaled_dot_product_attention_quantized import _scaled_dot_product_attention_quantized as attend
    q, sets = sets_of(B, Hq, Hkv, d, S)
    call = lambda k, v: attend(q, k, v)
    call(*sets[0])
    return speed.graph_time(speed.rotation([lambda s=s: call(*s) for s in sets])), None


def main():
    results = dict(card=torch.cuda.get_device_name(0), torch=torch.__version__, cudnn=torch.backends.cudnn.version())
    kernels, rows = Kernels("cubin"), []
    print(results)
    for shape in SHAPES:
        B, Hq, Hkv, d, S = shape
        row = dict(shape=shape, fp8_bytes=2 * B * Hkv * S * d)
        for name in ("closed", "int4", "f16"):
            codec, options = speed.HOW[name]
            case = speed.repeated(B, Hq, Hkv, d, S, codec, **options)
            nbytes = B * Hkv * case.sequences[0][2] * case.page_bytes
            cases = speed.copies(case, nbytes)
            timed = lambda **kw: speed.graph_time(speed.rotation([lambda c=c: c.run(kernels, **kw) for c in cases]))
            row[name] = dict(bytes=nbytes, reduce=timed(), both=timed(pdl_main=True))
            del case, cases
        row["sdpa fp16"] = speed.sdpa(*shape)
        fp16 = min(v for v in row["sdpa fp16"].values() if isinstance(v, float))
        row["TB/s"] = max(2 * row["fp8_bytes"] / fp16, row["f16"]["bytes"] / row["f16"]["both"]) / 1e6
        row["fp8 bytes at that bandwidth"] = row["fp8_bytes"] / row["TB/s"] / 1e6
        for name, measure in (("cudnn fp8", cudnn_fp8), ("torch fp8", torch_fp8)):
            try:
                row[name], row[name + " error"] = measure(*shape)
            except Exception as problem:
                row[name + " failed"] = f"{type(problem).__name__}: {str(problem).splitlines()[0][:160] if str(problem) else ''}"
        fp8 = row.get("cudnn fp8") or row.get("torch fp8") or row["fp8 bytes at that bandwidth"]
        ratios = {how: fp8 / row[codec][key] for how, codec, key in (("closed", "closed", "reduce"), ("engine", "int4", "reduce"), ("engine, early", "int4", "both"))}
        print(json.dumps(row | dict(ratios=ratios)), flush=True)
        rows.append(row | dict(ratios=ratios))
        torch.cuda.empty_cache()
    if out := os.environ.get("OUT"):
        json.dump(results | dict(rows=rows), open(os.path.join(out, "fp8.json"), "w"), indent=1)


if __name__ == "__main__":
    sys.exit(main())
