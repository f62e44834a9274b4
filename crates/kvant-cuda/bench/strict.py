"""kernels/strict.cu: pages that are padded, and exact pages that get what codes stand for, against the codec's rules in Python."""
import torch
import pages as P
from driver import pack


def strict(kernels, say, dims=(64, 128, 256)):
    failures, dev = [], kernels.dev
    for codec, d in ((codec, d) for codec in ("int4", "int8", "k8v4") for d in dims):
        k, v = (torch.randn(2, 2, 64, d, generator=torch.Generator().manual_seed(d + i)).half() for i in range(2))
        codes = P.encode(k, v, codec)
        want = P.pack_exact(*(x.half().view(2, 2, 64, d) for x in P.decode(*codes, codec)))
        memory = P.Memory(4 * 16 * (128 * d + P.UNIT), dev)
        exact = [memory.put(x.to(dev)) for x in P.pack_exact(k, v)]
        coded = [memory.put(x.to(dev)) for x in P.pack_codes(*codes, codec)]
        jobs, turn = torch.stack([*exact, *coded], -1).view(-1, 4).contiguous(), P.signs(d, dev)
        lengths = [64, 1, 37, 63]
        tokens = torch.tensor(lengths, dtype=torch.int32, device=dev)
        halves = lambda units: torch.stack([memory.bytes[u * P.UNIT:u * P.UNIT + 128 * d] for u in units.flatten().tolist()]).cpu().view(torch.float16)
        params = pack("4Q", memory.bytes, jobs, tokens, turn)
        kernels.launch(f"pad_d{d}", 4, 128, params)
        kernels.synchronize()
        rows = [x.view(4, 64, d).clone() for x in (k, v)]
        for page, length in enumerate(lengths):
            for x in rows:
                x[page, length:] = x[page, length - 1]
        padded = [x.view(torch.float16).reshape(4, -1) for x in P.pack_exact(*(x.view(2, 2, 64, d) for x in rows))]
        same = all(torch.equal(halves(units), x) for units, x in zip(exact, padded))
        kernels.launch(f"decode_{codec}_d{d}", 4, 128, params)
        kernels.synchronize()
        off = [((halves(units).float() - x.view(torch.float16).reshape(4, -1).float()).abs().max() / x.view(torch.float16).float().abs().max()).item() for units, x in zip(exact, want)]
        good = same and max(off) < 1e-3
        say(f"strict {codec} d{d}: padded {same}, decoded pages off by {off[0]:.1e} and {off[1]:.1e}{'' if good else ' FAIL'}")
        failures += [] if good else [f"strict {codec} d{d}"]
    return failures
