"""Keys of a plan (`klt`): codec, device pages and queries in torch, independent of the Rust code."""
import torch
import pages as P

ROW = 8  # channels of one width


def widths(d, seed):
    """Bits of every row of 8 channels, 4.25 on average where there are 16 rows, not rising; another list for every seed."""
    lists = {16: ([8, 6, 6, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 2, 2], [6, 6, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 4, 4, 3, 0], [8, 8, 8, 6, 6, 5, 4, 4, 4, 4, 3, 3, 2, 2, 1, 0],
                  [6, 5, 5, 5, 5, 5, 5, 4, 4, 4, 4, 4, 3, 3, 3, 3]),
             8: ([8, 6, 5, 4, 4, 3, 3, 1], [6, 5, 5, 5, 4, 4, 3, 2], [8, 8, 5, 5, 5, 3, 0, 0])}[d // ROW]
    return lists[seed % len(lists)]


def basis(d, seed, dev):
    """A matrix near a rotation, and a mean, f32."""
    g = torch.Generator().manual_seed(1000 + seed)
    q, _ = torch.linalg.qr(torch.randn(d, d, generator=g, dtype=torch.float64))
    m = (q * (0.5 + torch.rand(d, 1, generator=g, dtype=torch.float64))).float()
    return m.to(dev), torch.randn(d, generator=g).to(dev)


def turned(x, m, mean):
    """f32 [..., d]: m (x - mean), sums from the first channel on, every product added by one rounding."""
    x, y = x - mean, torch.zeros_like(x)
    for j in range(x.shape[-1]):
        y = P.fma(x[..., j:j + 1], m[:, j], y)
    return y


def encode(k, m, mean, bits):
    """f16 [n, P, tokens, d] -> codes u8, scale, zero f16 [n, P, d] of the rows that have codes."""
    y = turned(k.float(), m, mean)
    out = [[], [], []]
    for row, b in enumerate(bits):
        if b:
            x, top = y[..., ROW * row:ROW * row + ROW], 2**b - 1
            low, high = x.amin(2), x.amax(2)
            zero = P.outward(low, -1.0) + 0.0
            scale = P.outward((high - zero) / top, 1.0) + 0.0
            if b < 6:
                scale, zero = P.fitted_range(x, low, high, (scale, zero), top)
            codes = ((x - zero[:, :, None]) * P.inverse(scale)[:, :, None]).clamp(0, top).round().to(torch.uint8)
            for part, of in zip(out, (codes, scale.half(), zero.half())):
                part.append(of)
    return tuple(torch.cat(part, -1) for part in out)


def decode(codes, scale, zero, m, mean):
    """float64 keys in the model's basis, [n, P * tokens, d]."""
    y = codes.double() * scale.double()[:, :, None] + zero.double()[:, :, None]
    y = torch.nn.functional.pad(y, (0, m.shape[0] - y.shape[-1]))
    return (y @ torch.linalg.inv(m.double()).T + mean.double()).flatten(1, 2)


def pack(codes, scale, zero, bits):
    """u8 [n, P, bytes]: half pages as kernels/pages.cuh has them, the codes of 64 tokens after those of the 64 before."""
    n, pages = codes.shape[:2]
    return torch.cat([P.raw(scale, n, pages), P.raw(zero, n, pages), *(part for half in codes.split(64, 2) for part in planes(half, bits))], -1)


def planes(codes, bits):
    n, pages = codes.shape[:2]
    parts = []
    every = [(mt, r, e) for mt in range(4) for r in (0, 1) for e in (0, 1)]
    # Widths that have the plane, its bits, from which one on.
    for have, plane, shift in (((4, 5, 6, 8), 4, 0), ((8,), 4, 4), ((6,), 2, 4), ((2, 3), 2, 0), ((5,), 1, 4), ((3,), 1, 2), ((1,), 1, 0)):
        for row, b in enumerate(b for b in bits if b):
            if b not in have:
                continue
            x = codes[..., ROW * row:ROW * row + ROW].reshape(n, pages, 4, 2, 8, 4, 2)  # mt r g t e
            at = lambda mt, r, e: x[:, :, mt, r, :, :, e] >> shift & 2**plane - 1  # g t
            if plane == 4:
                w = torch.stack([P.words([(at(mt, r, e), 16 * e + 8 * (mt % 2) + 4 * r) for mt, r, e in every if mt // 2 == pair]) for pair in (0, 1)], -1)
            elif plane == 2:
                w = P.words([(at(mt, r, e), 16 * e + 8 * (mt // 2) + 4 * r + 2 * (mt % 2)) for mt, r, e in every])
            else:
                w = P.words([(at(mt, r, e), 8 * e + 4 * r + mt) for mt, r, e in every]).to(torch.int16)
            parts.append(P.raw(w, n, pages))
    return parts


def widths_table(lists, dev, page=64):
    """KeyWidths of every kv head."""
    rows = []
    for bits in lists:
        coded = sum(b > 0 for b in bits)
        padded = bytes(bits.count(b) for b in range(1, 9)) + bytes(bits) + bytes(24 - len(bits))
        words = lambda *numbers: torch.tensor(numbers, dtype=torch.int32).view(torch.uint8)
        rows.append(torch.cat([words(coded, 64 * sum(bits)), torch.frombuffer(bytearray(padded), dtype=torch.uint8), words(page // 64, 0)]))
    return torch.stack(rows).contiguous().to(dev)


def forward_table(bases):
    """What `encode_klt` reads: (kv_heads, d + 1, d)."""
    return torch.stack([torch.cat([m.T, mean[None]]) for m, mean in bases]).contiguous()


def query_table(bases):
    """What `append_klt` reads: M^-T, channel of the model by channel of the basis; the mean."""
    return torch.stack([torch.cat([torch.linalg.inv(m.double()).float(), mean[None]]) for m, mean in bases]).contiguous()
