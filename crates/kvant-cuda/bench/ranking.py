"""The beginnings of rankings (kernels/top.cu) against Python's own sort, and masses against the same arithmetic in Python's doubles, which does not fuse
multiply and add. Both are to the bit."""
import math, struct
import torch
from driver import pack

def form(count):
    """Keys of a run, and what sorts them, as src/top.rs chooses."""
    return (512, "top_run_short", 256) if 2 <= count <= 64 else (2048, "top_run", 512)


TAYLOR = [1.0]
for k in range(1, 13):
    TAYLOR.append(TAYLOR[-1] / k)


def weight(x):
    if x < -28.5:
        return 0
    n = int(x * 1.4426950408889634 - 0.5)
    r, total = x - n * 0.6931471805599453, 0.0
    for c in reversed(TAYLOR):
        total = total * r + c
    return int(total * math.ldexp(1.0, 40 + n) + 0.5)


def rank(kernels, logits, count, scale=1.0, temperature=0.0):
    """Launches as the backend makes them: keys (rows, count), headers (rows, 2)."""
    rows, n = logits.shape
    run, kernel, threads = form(count)
    empty = lambda *shape: torch.full(shape, -1, dtype=torch.int64, device=kernels.dev)
    keys, headers, spare = empty(rows, count), torch.zeros(rows, 2, dtype=torch.int64, device=kernels.dev), [empty(rows, -(-n // run) * count) for _ in range(2)]
    source, left, turn = None, n, 0
    while True:
        runs = -(-left // run)
        out = keys if runs == 1 else spare[turn % 2]
        kernels.launch(kernel, (runs, rows), threads, pack("4Q2if", None if turn else logits, source, out, headers, left, count, scale))
        if runs == 1:
            break
        source, left, turn = out, runs * count, turn + 1
    if temperature:
        temperatures = torch.full((rows,), temperature, device=kernels.dev)
        kernels.launch("top_mass", (5, rows), 256, pack("4Q2ifi", logits, keys, temperatures, headers, n, count, scale, 0))
    kernels.synchronize()
    return keys, headers


def top(kernels, say, cases=((1, 300, 1, 1.0, 0.7), (2, 300, 40, 1.0, 1.3), (1, 5000, 256, 0.3, 0.2), (2, 2048, 256, 1.0, 1.0), (1, 20, 40, 1.0, 2.0), (3, 128256, 256, 1.0, 0.8), (1, 70000, 7, 1.7, 0.9))):
    failures = []
    single = lambda x: struct.unpack("f", struct.pack("f", x))[0]
    for rows, n, count, scale, temperature in cases:
        logits = torch.randn(rows, n, generator=torch.Generator().manual_seed(n + count)) * 3
        logits[:, ::3] = (logits[:, ::3] * 4).round() / 4  # equals, and zeros of both signs
        logits[:, 5::7] = float("-inf")
        keys, headers = rank(kernels, logits.to(kernels.dev), count, scale, temperature)
        good = True
        for row in range(rows):
            scaled = [single(single(scale) * x) for x in logits[row].tolist()]
            want = sorted(range(n), key=lambda i: (-scaled[i], i))[:count]
            got = [~key & 0xFFFFFFFF for key in keys[row].tolist() if key]
            highest = scaled[want[0]]
            mass = sum(weight((x - highest) / single(temperature)) for x in scaled if x > float("-inf"))
            good &= got == want and headers[row].tolist() == [mass, 0]
        broken = logits.clone()
        broken[0, n // 2], broken[-1, 0] = float("nan"), float("inf")
        found = rank(kernels, broken.to(kernels.dev), count, scale, temperature)[1][:, 1].tolist()
        good &= [bool(b) for b in found] == [row in (0, rows - 1) for row in range(rows)]
        say(f"top {count} of {rows} x {n}: ranking, mass and broken rows{'' if good else ' FAIL'}")
        failures += [] if good else [f"top {count} of {n}"]
    return failures
