"""Random weights of every type, packed for the device (kernels/weights.cuh), and as the f16 numbers that its kernels make of them, in float64."""
import torch


def halves(shape, g, scale=0.01):
    return (torch.rand(shape, generator=g) * scale + scale).half()


def rounded(x):
    return x.half().double()


def nibbles(n, rows, channels):
    """codes [rows, channels] -> bytes of words [tile][64 channels][lane][ks]."""
    x = n.view(rows // 16, 2, 8, channels // 64, 4, 2, 4, 2).to(torch.int64)  # tile r g chunk ks c t e
    w = sum(x[:, r, :, :, :, c, :, e] << (4 * r + 8 * c + 16 * e) for r in (0, 1) for c in (0, 1) for e in (0, 1))  # tile g chunk ks t
    w = w.permute(0, 2, 1, 4, 3).contiguous()  # tile chunk g t ks
    return torch.where(w >= 2**31, w - 2**32, w).to(torch.int32).view(rows // 16, channels // 64, -1).view(torch.uint8)


def by_block(s, rows, blocks):  # [rows, blocks per 64, …] f16 -> [tile][chunk][g][block][r]
    return s.view(rows // 16, 2, 8, blocks, 2).permute(0, 3, 2, 4, 1).contiguous().view(rows // 16, blocks, -1).view(torch.uint8)


def q4_0(rows, channels, g):
    n, d = torch.randint(0, 16, (rows, channels), generator=g), halves((rows, channels // 32), g)
    data = torch.cat([nibbles(n, rows, channels), by_block(d, rows, channels // 64)], -1)
    return data, rounded((n - 8).double().view(rows, -1, 32) * d.double()[..., None]).view(rows, channels)


def q8_0(rows, channels, g):
    n, d = torch.randint(-128, 128, (rows, channels), generator=g), halves((rows, channels // 32), g, 0.001)
    x = (n + 128).to(torch.uint8).view(rows // 16, 2, 8, channels // 64, 2, 2, 2, 4, 2)  # tile r g chunk ks/2 ks%2 c t e
    x = x.permute(0, 3, 4, 2, 7, 5, 6, 8, 1).contiguous().view(rows // 16, channels // 64, -1)  # tile chunk ks/2 g t ks%2 c e r
    return torch.cat([x, by_block(d, rows, channels // 64)], -1), rounded(n.double().view(rows, -1, 32) * d.double()[..., None]).view(rows, channels)


def f16(rows, channels, g):
    w = torch.randn(rows, channels, generator=g).mul_(0.05).half()
    x = w.view(rows // 16, 2, 8, channels // 64, 4, 2, 4, 2).permute(0, 3, 4, 2, 6, 5, 1, 7)  # tile chunk ks g t c r e
    return x.contiguous().view(rows // 16, channels // 64, -1).view(torch.uint8), w.double()


def q4_k(rows, channels, g, high=None):
    n, (d, m) = torch.randint(0, 16, (rows, channels), generator=g), (halves((rows, channels // 256), g, 0.0005) for _ in range(2))
    s, z = (torch.randint(0, 64, (rows, channels // 32), generator=g) for _ in range(2))
    supers = torch.stack([d, m], -1).view(rows // 16, 2, 8, -1, 2).permute(0, 3, 2, 1, 4).contiguous()  # tile block g r (d, m)
    pairs = torch.stack([s, z], -1).to(torch.uint8).view(rows // 16, 2, 8, channels // 256, 4, 2, 2).permute(0, 3, 4, 2, 5, 1, 6)
    tiles, blocks = rows // 16, channels // 256
    parts = [nibbles(n, rows, channels).view(tiles, blocks, 4, -1), pairs.contiguous().view(tiles, blocks, 4, -1)] + ([] if high is None else [fifths(high, rows, channels)])
    data = torch.cat([torch.cat(parts, -1).view(tiles, blocks, -1), supers.view(tiles, blocks, -1).view(torch.uint8)], -1)
    spread = lambda x, k: x.double().repeat_interleave(k, 1)
    fifth = 0 if high is None else 16 * high
    return data, rounded(rounded(spread(d, 256) * spread(s, 32)) * (n + fifth).double() - rounded(spread(m, 256) * spread(z, 32)))


def q6_k(rows, channels, g):
    n, d = torch.randint(0, 64, (rows, channels), generator=g), halves((rows, channels // 256), g, 0.0002)
    s = torch.randint(-128, 128, (rows, channels // 16), generator=g)
    tiles, blocks = rows // 16, channels // 256
    x = (n >> 4).view(tiles, 2, 8, channels // 64, 2, 2, 2, 4, 2)  # tile r g chunk ks/2 ks%2 c t e
    w = sum(x[:, r, :, :, :, k, c, :, e] << (2 * r + 4 * c + 8 * k + 16 * e) for r in (0, 1) for k in (0, 1) for c in (0, 1) for e in (0, 1))
    w = w.permute(0, 2, 1, 4, 3).contiguous()  # tile chunk g t ks/2
    high = torch.where(w >= 2**31, w - 2**32, w).to(torch.int32).view(tiles, blocks, 4, -1).view(torch.uint8)
    scales = (s + 128).to(torch.uint8).view(tiles, 2, 8, channels // 64, 4).permute(0, 3, 2, 4, 1).contiguous().view(tiles, blocks, 4, -1).view(torch.uint8)
    supers = d.view(tiles, 2, 8, blocks).permute(0, 3, 2, 1).contiguous().view(tiles, blocks, -1).view(torch.uint8)
    data = torch.cat([torch.cat([nibbles(n & 15, rows, channels).view(tiles, blocks, 4, -1), high, scales], -1).view(tiles, blocks, -1), supers], -1)
    spread = lambda x, k: x.double().repeat_interleave(k, 1)
    return data, rounded(rounded(spread(d, 256) * spread(s, 16)) * (n - 32).double())


def q4_1(rows, channels, g):
    n, d, m = torch.randint(0, 16, (rows, channels), generator=g), halves((rows, channels // 32), g), -8 * halves((rows, channels // 32), g)
    pairs = torch.stack([d, m], -1).view(rows // 16, 2, 8, channels // 64, 2, 2).permute(0, 3, 2, 4, 1, 5).contiguous()  # tile chunk g block r (d, m)
    data = torch.cat([nibbles(n, rows, channels), pairs.view(rows // 16, channels // 64, -1).view(torch.uint8)], -1)
    return data, rounded(n.double().view(rows, -1, 32) * d.double()[..., None] + m.double()[..., None]).view(rows, channels)


def fifths(fifth, rows, channels):
    """Bits [rows, channels] -> bytes of words [tile][block][64 channels][lane]."""
    x = fifth.view(rows // 16, 2, 8, channels // 64, 4, 2, 4, 2)  # tile r g chunk ks c t e
    v = sum(x[:, r, :, :, ks, c, :, e] << (r + 2 * c + 4 * ks + 16 * e) for r in (0, 1) for ks in range(4) for c in (0, 1) for e in (0, 1))  # tile g chunk t
    v = v.permute(0, 2, 1, 3).contiguous()
    return torch.where(v >= 2**31, v - 2**32, v).to(torch.int32).view(rows // 16, channels // 256, 4, -1).view(torch.uint8)


def q5_k(rows, channels, g):
    return q4_k(rows, channels, g, torch.randint(0, 2, (rows, channels), generator=g))


def mxfp4(rows, channels, g):
    n, e = torch.randint(0, 16, (rows, channels), generator=g), torch.randint(115, 122, (rows, channels // 32), generator=g)
    levels = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
    data = torch.cat([nibbles(n, rows, channels), by_block(e.to(torch.uint8), rows, channels // 64)], -1)
    return data, (levels[n].view(rows, -1, 32) * torch.exp2(e.double() - 127)[..., None]).view(rows, channels)


TYPES = dict(q4_0=q4_0, q8_0=q8_0, f16=f16, q4_k=q4_k, q6_k=q6_k, q4_1=q4_1, q5_k=q5_k, mxfp4=mxfp4)
