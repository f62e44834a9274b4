"""The bits of products at odd shapes: every kernel against eight tokens at a time, between guards that none may read or write.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck --kernel-regex kns=linear_ python3 bits.py [ptx] [few] [TYPE …]

Also with `memcheck` and `initcheck`: without torch's cache of memory every tensor is an allocation, so they see what lies past its end. `few` takes fewer shapes."""
import sys, time
import torch
import weights as W
from check import product, padded, few_shared, wide_forms
from driver import FEW_SHARED, Kernels, pack

# Rows that are no whole tiles, of 16 or of 64; channels that are no whole segments of 1,024, stages of tile.cu, or pieces of linear_few.
SHAPES = [(24, 768), (1, 64), (7, 128), (17, 192), (33, 320), (40, 1088), (100, 576), (129, 2112), (264, 1024)]
SHAPES_K = [(24, 768), (1, 256), (40, 1280), (129, 2304)]
TOKENS = (1, 2, 7, 8, 9, 16, 31, 33, 63, 64, 65, 72, 127, 129, 200)
GUARD = 136  # rows after the last token


def forms(kernels, name, channels, tokens):
    few = [("one", tokens == 1), ("few", tokens <= 8), ("t32", tokens <= 32), ("tile", True), ("large", True)]
    return [form for form, fits in few if fits] + wide_forms(kernels, name, channels)


def poison(kernels):
    """Leaves NaN in the shared memory of all multiprocessors."""
    rows, channels = 128 * 2 * kernels.sms, 192
    data = torch.full((rows * channels * 2,), 0x7e, dtype=torch.uint8, device=kernels.dev)
    x = torch.full((128, channels), float("nan"), dtype=torch.float16, device=kernels.dev)
    y = torch.empty(128, rows, device=kernels.dev)
    product(kernels, "f16", "large", data, x, y, rows, channels, 128)
    kernels.synchronize()


def shape(kernels, say, name, rows, channels, counts):
    most = max(counts)
    g = torch.Generator().manual_seed(rows * 10007 + channels)
    data, w = W.TYPES[name](-(-rows // 16) * 16, channels, g)
    truth_of = w[:rows].T.contiguous()
    data = padded(data).to(kernels.dev)
    cpu = torch.randn(most, channels, generator=g).half()
    x = torch.full((most + GUARD, channels), float("nan"), dtype=torch.float16)
    x[:most] = cpu
    x = x.to(kernels.dev)
    nan = torch.full((most + GUARD, rows), float("nan"))
    y, want = nan.to(kernels.dev), nan.to(kernels.dev)
    for first in range(0, most, 8):
        count = min(8, most - first)
        grid = next(grid for grid in ((min(264, -(-rows // 16)), 1), (min(264, -(-rows // 16)), count)) if few_shared(rows, channels, count, grid) <= FEW_SHARED)
        product(kernels, name, "one" if count == 1 else "few", data, x[first:], want[first:], rows, channels, count, grid=grid)
    kernels.synchronize()
    want = want.cpu()
    truth = cpu.double() @ truth_of
    error = ((want[:most].double() - truth).norm() / truth.norm()).item()
    failures, launches = ([] if error < 2e-5 else [f"{name} {rows}x{channels}: error {error:.1e}"]), 0
    for tokens in counts:
        for form in forms(kernels, name, channels, tokens):
            y.copy_(nan)
            kernels.synchronize()
            product(kernels, name, form, data, x, y, rows, channels, tokens, grid=(2, 1) if form in ("one", "few") else None)
            kernels.synchronize()
            launches += 1
            got = y.cpu()
            off, past = got[:tokens].view(torch.int32) != want[:tokens].view(torch.int32), int((~got[tokens:].isnan()).sum())
            if off.any() or past:
                at = off.nonzero()
                failures.append(f"{name} {rows}x{channels} {form} of {tokens}: {int(off.sum())} differ, token and row {at[:1].tolist()} to {at[-1:].tolist()}, {past} past the last")
    return failures, launches, error


def main():
    asked = sys.argv[1:]
    started, failures, launches, worst = time.time(), [], 0, 0.0
    kernels = Kernels("ptx" if "ptx" in asked else "cubin")
    print(f"{time.time() - started:.1f} s: loaded", flush=True)
    poison(kernels)
    counts = (1, 8, 33, 65, 72) if "few" in asked else TOKENS
    for name in [n for n in asked if n in W.TYPES] or W.TYPES:
        shapes = SHAPES_K if name.endswith("_k") else SHAPES
        for rows, channels in shapes[:3] if "few" in asked else shapes:
            own, count, error = shape(kernels, print, name, rows, channels, counts)
            failures, launches, worst = failures + own, launches + count, max(worst, error)
    for line in failures:
        print("FAIL", line)
    print(f"{time.time() - started:.1f} s: {launches} launches, {len(failures)} with other bits, error against float64 at most {worst:.1e}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
