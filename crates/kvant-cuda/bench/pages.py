"""Page layouts, codecs and float64 attention in torch: independent of the Rust code, so that both are held to the kernels."""
import math
import torch

PAGE, UNIT = 64, 128
SEED = 0  # of the SRHT, as `rot4g32` has it


def signs(d, dev):
    """Sign / sqrt(d) of every channel: SplitMix64."""
    mask, state, out = (1 << 64) - 1, SEED, []
    while len(out) < d:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        z ^= z >> 31
        out += [1 if z >> b & 1 else -1 for b in range(64)]
    return (torch.tensor(out[:d], dtype=torch.float64) / math.sqrt(d)).float().to(dev)


def hadamard(x):
    """Unnormalised, over the last axis, lowest stage first: the order of roundings of every kvant backend."""
    shape, h = x.shape, 1
    while h < shape[-1]:
        y = x.reshape(*shape[:-1], -1, 2, h)
        x = torch.stack((y[..., 0, :] + y[..., 1, :], y[..., 0, :] - y[..., 1, :]), -2).reshape(shape)
        h *= 2
    return x


def odd_part(d):
    return d if d % 2 else odd_part(d // 2)


def turn(x):
    """The Walsh-Hadamard transform of a power of two beside a Hartley transform of the odd part's neighbours, in its order of roundings."""
    d, m = x.shape[-1], odd_part(x.shape[-1])
    x = x.unflatten(-1, (d // m, m))
    if m > 1:
        a = [2 * math.pi * n / m for n in range(m)]
        h = torch.tensor([[math.cos(a[i * j % m]) + math.sin(a[i * j % m]) for j in range(m)] for i in range(m)], dtype=torch.float64, device=x.device)
        if x.dtype == torch.float32:
            h, y = h.float(), torch.zeros_like(x)
            for j in range(m):
                y = fma(x[..., j:j + 1], h[:, j], y)
            x = y
        else:
            x = x @ h
    return hadamard(x.transpose(-1, -2).contiguous()).transpose(-1, -2).flatten(-2)


def rotate(x):  # y = H diag(signs) x, f32
    return turn(x * signs(x.shape[-1], x.device))


def rotate_back(y):  # float64
    return turn(y.double()) * signs(y.shape[-1], y.device).double()


# ---- codecs, bit for bit as kvant-codec encodes ----
def outward(x, direction):
    near = x.half().float()
    nudge = (x.abs() * (1 / 2048)).clamp(min=3.0e-8)
    far = (x + nudge * direction).half().float()
    return torch.where(x > near if direction > 0 else near > x, far, near)


def inverse(scale):
    return torch.where(scale.abs() > 1.17549435e-38, 1 / scale, torch.zeros_like(scale))


def fma(a, b, c):  # an exact product in f64, one rounding to f32
    as_double = lambda x: x.double() if torch.is_tensor(x) else float(x)
    return (as_double(a) * as_double(b) + as_double(c)).float()


def single(x):  # constants are f32 too
    return torch.tensor(x, dtype=torch.float32)


def stored(x):
    return x.half().float() + 0.0


def fitted_range(x, low, high, plain, top):
    """Scale and zero of numbers along axis 2: the best of three ranges, moved to least squares; kvant-codec's docs/page-format.md."""
    grid, ends = 24576.0, 4
    numbers = torch.cat([x, low[:, :, None].expand(-1, -1, ends, -1), high[:, :, None].expand(-1, -1, ends, -1)], 2)

    def steps(x, scale, zero):
        offset = fma(-zero, inverse(scale), grid)
        of = (lambda t: t[:, :, None]) if x.dim() > scale.dim() else (lambda t: t)
        return fma(x, of(inverse(scale)), of(offset))

    step, (best, zero), least = (high - low) * (1 / single(top)), plain, torch.full_like(low, math.inf)
    for a, b in ((0.2, 0.2), (0.4, 0.0), (0.0, 0.4)):
        z = stored(fma(step, single(a), low))
        s = stored(step * (1 - (single(a) + single(b)) / single(top)))
        v = steps(numbers, s, z)
        cost = s * s * (v - v.round()).double().square().sum(2).float()
        beyond = torch.maximum(grid - steps(low, s, z), steps(high, s, z) - (grid + top))
        take = (beyond <= 0.5) & (inverse(s) > 0) & (cost < least)
        best, zero, least = torch.where(take, s, best), torch.where(take, z, zero), torch.where(take, cost, least)
    v = steps(numbers, best, zero)
    off, code = v - v.round(), v.round() - grid
    o, c, along, power = (t.double().sum(2).float() for t in (off, code, off * code, code * code))
    count, i = numbers.shape[2], inverse(best)
    part = 1 / single(count)
    mean = -(c * part)
    spread = fma(mean, c, power)
    more = torch.where(spread > 0.5, fma(mean, o, along) / spread, torch.zeros_like(o))
    scale = stored(fma(best, more, best))
    more = fma(scale, i, -1.0)
    low = stored(fma(best, fma(-more, c, o) * part, zero))
    shift = (low - zero) * i
    gain = fma(shift, fma(fma(more, c, shift * count), -0.5, o), more * fma(fma(more, power, shift * c), -0.5, along))
    return torch.where(gain > 0, scale, best), torch.where(gain > 0, low, zero)


BITS = dict(int4=(4, 4), int8=(8, 8), k8v4=(8, 4), klt=(None, 4), klt128=(None, 4))  # of keys and values


def encode_keys(k, bits):  # f16 [n, P, 64, d] -> codes u8, scale, zero f16 [n, P, d]
    k, top = k.float(), 2**bits - 1
    low, high = k.amin(2), k.amax(2)
    zero = outward(low, -1.0) + 0.0
    scale = outward((high - zero) / top, 1.0) + 0.0
    if bits < 6:
        scale, zero = fitted_range(k, low, high, (scale, zero), top)
    codes = ((k - zero[:, :, None]) * inverse(scale)[:, :, None]).clamp(0, top).round()
    return codes.to(torch.uint8), scale.half(), zero.half()


def fitted_max(y, plain):
    """The scale of groups along the last axis: the best of three parts of the extreme's, moved to least squares."""
    scale, most = torch.zeros_like(plain), torch.full_like(plain, -1.0)
    for p in (1 - single(0.4) / 8, single(1.01), 1 + single(0.96) / 8):
        steps = fma(y, (inverse(plain) * (1 / p))[..., None], 3072.0) - 3072.0
        code = steps.round().clamp(max=7)
        along, power = ((t.double() * code.double()).sum(-1).float() for t in (steps, code))
        ratio = torch.where(power > 0, along / power, torch.ones_like(power))
        taken = ratio * along * (p * p)
        scale, most = torch.where(taken > most, plain * p * ratio, scale), torch.maximum(taken, most)
    return stored(scale)


def encode_values(v, bits):  # f16 [n, P, 64, d] -> codes u8, scale f16 [n, P, 64, d/32]
    y, d = rotate(v.float()) if bits == 4 else v.float(), v.shape[-1]
    if d % 32:  # the last group has 16 channels; numbers of its own in their place change nothing but what is added up
        whole, last = (encode_groups(part, bits) for part in (y[..., :d // 32 * 32].unflatten(-1, (-1, 32)), y[..., d // 32 * 32:].unflatten(-1, (-1, d % 32))))
        return tuple(torch.cat(pair, -1) for pair in zip(whole, last))
    return encode_groups(y.unflatten(-1, (-1, 32)), bits)


def encode_groups(y, bits):
    low, high = y.amin(-1), y.amax(-1)
    if bits == 4:
        scale = fitted_max(y, stored(torch.where(-low > high, low, high) / -8))
    else:
        scale = stored(torch.maximum(high, -low) / 127)
    codes = fma(y, inverse(scale)[..., None], float(2**(bits - 1))).clamp(0 if bits == 4 else 1, 2**bits - 1).round()
    return codes.flatten(-2).to(torch.uint8), scale.half()


def encode(k, v, codec):
    return (*encode_keys(k, BITS[codec][0]), *encode_values(v, BITS[codec][1]))


def decode(kc, ks, kz, vc, vs, codec):
    """float64 keys and values in the model's basis, [n, P*64, d]."""
    k = kc.double() * ks.double()[:, :, None] + kz.double()[:, :, None]
    return k.flatten(1, 2), decode_values(vc, vs, BITS[codec][1])


def decode_values(vc, vs, bits):
    v = (vc.double() - 2**(bits - 1)) * vs.double().repeat_interleave(32, -1)[..., :vc.shape[-1]]
    return (rotate_back(v) if bits == 4 else v).flatten(1, 2)


# ---- the canonical layout (docs/page-format.md of kvant-codec) ----
def read_canonical(keys, values, d, codec):
    """Bytes of a page of keys and one of values -> codes, scales, zeros as `encode` gives them."""
    half, groups = lambda data: torch.frombuffer(bytearray(data), dtype=torch.float16), -(-d // 32)
    ks, kz, vs = half(keys[:2 * d])[None, None], half(keys[2 * d:4 * d])[None, None], half(values[:128 * groups]).view(1, 1, groups, 64).transpose(2, 3)
    kc, vc = torch.zeros(2, 1, 1, 64, d, dtype=torch.uint8)

    def code(page, bits, row, unit, high, i):  # of vector V_high of a unit
        at = (4 * d if page is keys else 128 * groups) + (row + unit) * 16 * bits
        return page[at + i] >> 4 * high & 15 if bits == 4 else page[at + 64 * high + i]

    for t in range(64):
        for c in range(d):
            kc[0, 0, t, c] = code(keys, BITS[codec][0], c // 8 * 4, t // 16, c % 8 // 4, 4 * (t % 16) + c % 4)
            vc[0, 0, t, c] = code(values, BITS[codec][1], c // 16 * 8, t // 8, t % 8 // 4, 4 * (c % 16) + t % 4)
    return kc, ks.contiguous(), kz.contiguous(), vc, vs.contiguous()


# ---- device layouts (kernels/pages.cuh) ----
def words(parts):
    """Words of (codes, bits up)."""
    w = sum(codes.to(torch.int64) << up for codes, up in parts)
    return torch.where(w >= 2**31, w - 2**32, w).to(torch.int32).contiguous()


def fragments(codes, bits, in_load):
    """u8 [n, P, rows, depth] -> words of A fragments, `in_load` steps along k to a lane at once."""
    n, P, rows, depth = codes.shape
    x = codes.view(n, P, rows // 16, 2, 8, depth // 16, 2, 4, 2)  # mt r g ks c t e
    at = lambda r, c, e: x[:, :, :, r, :, :, c, :, e]  # mt g ks t
    if bits == 4:
        w = words([(at(r, c, e), 4 * r + 8 * c + 16 * e) for r in (0, 1) for c in (0, 1) for e in (0, 1)]).unsqueeze(-1)
    else:
        w = torch.stack([words([(at(r, c, e), 8 * r + 16 * e) for r in (0, 1) for e in (0, 1)]) for c in (0, 1)], -1)
    if in_load is None:  # a step along k of all rows: ks c g t mt
        return w.permute(0, 1, 4, 6, 3, 5, 2)
    # mt g ks t c -> mt ks/in_load g t ks%in_load c
    return w.unflatten(4, (-1, in_load)).permute(0, 1, 2, 4, 3, 6, 5, 7)


def raw(x, n, P):
    return x.contiguous().view(n, P, -1).view(torch.uint8)


def pack_codes(kc, ks, kz, vc, vs, codec):
    """(key half pages, value half pages), u8 [n, P, bytes]; of more than 256 channels as heads of 128, one after the other."""
    if kc.shape[-1] > 256:
        parts = [pack_codes(*(x.split(size, -1)[i].contiguous() for x, size in ((kc, 128), (ks, 128), (kz, 128), (vc, 128), (vs, 4))), codec)
                 for i in range(kc.shape[-1] // 128)]
        return tuple(torch.cat(halves, -1) for halves in zip(*parts))
    n, P, _, d = kc.shape
    kb, T = BITS[codec][0], d // 16
    kw = fragments(kc, kb, None if d % 64 else 4 if kb == 4 else 2)
    # channel = 16 ks + 8 c + 2 t + e; a last odd step has [t][c][e]
    pairs = lambda x, order: raw(x[..., :T // 2 * 32].reshape(n, P, T // 2, 2, 2, 4, 2).permute(order), n, P)
    odd = lambda x: raw(x[..., T // 2 * 32:].reshape(n, P, T % 2, 2, 4, 2).permute(0, 1, 2, 4, 3, 5), n, P)
    keys = torch.cat([pairs(ks, (0, 1, 2, 5, 3, 4, 6)), odd(ks), pairs(kz, (0, 1, 2, 5, 4, 3, 6)), odd(kz), raw(kw, n, P)], -1)
    return keys, pack_values(vc, vs, BITS[codec][1])


def pack_values(vc, vs, bits):
    n, P = vc.shape[:2]
    vw = fragments(vc.transpose(2, 3).contiguous(), bits, 4 if bits == 4 else 2)
    token = vs.view(n, P, 2, 2, 2, 4, 2, -1).permute(0, 1, 7, 2, 5, 3, 4, 6)
    return torch.cat([raw(vw, n, P), raw(token, n, P)], -1)


def pack_exact(k, v):
    """f16 [n, P, 64, d] -> (key half pages, value half pages), u8 [n, P, 128 d]."""
    n, P, _, d = k.shape
    # token = 16 tile + 8 r + g, channel = 16 ks + 8 c + 2 t + e -> tile ks g t c r e
    keys = k.view(n, P, 4, 2, 8, d // 16, 2, 4, 2).permute(0, 1, 2, 5, 4, 7, 6, 3, 8)
    # channel = 16 mt + 8 r + g, token = 16 tile + 8 c + 2 t + e -> tile mt g t c r e
    values = v.view(n, P, 4, 2, 4, 2, d // 16, 2, 8).permute(0, 1, 2, 6, 8, 4, 3, 7, 5)
    return raw(keys, n, P), raw(values, n, P)


class Memory:
    """Page memory that hands out half pages in a shuffled order, with a hole after each, as a cache that has lived would."""

    def __init__(self, total, dev, seed=0):
        self.bytes = torch.zeros(total + UNIT, dtype=torch.uint8, device=dev)
        self.offset = -self.bytes.data_ptr() % UNIT
        self.bytes = self.bytes[self.offset:self.offset + total]
        self.used, self.seed = 0, seed

    def put(self, halves, shuffle=True):
        """u8 [..., bytes] -> units int32 [...]."""
        shape, size = halves.shape[:-1], halves.shape[-1]
        stride = -(-size // UNIT) * UNIT + (UNIT if shuffle else 0)
        count = math.prod(shape)
        assert self.used + count * stride <= self.bytes.numel(), "page memory is full"
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed)) if shuffle else torch.arange(count)
        place = self.bytes[self.used:self.used + count * stride].view(count, stride)
        place[order.to(halves.device), :size] = halves.reshape(count, size)
        units = (self.used + order.to(torch.int64) * stride) // UNIT
        self.used, self.seed = self.used + count * stride, self.seed + 1
        return units.to(torch.int32).view(shape).to(halves.device)


# ---- plans, as src/plan.rs makes them ----
def split_pages(pages):
    most = math.ceil(pages / 128)
    return max(8, min(32, 8 * most), 4 * most)


def step_plan(sequences, split=None, tile=1):
    """[(position, sinks, closed, first_seen, keeps_sinks, seat, values)] -> items [n, 12], first and number of every row's slots [rows, 2], slots in
    all. `values`: pages whose values are codes, one more than `closed` where its keys are still exact. `tile`: query tokens of an item at most."""
    views = []
    for position, sinks, closed, first_seen, keeps, seat, values in sequences:
        first, tail, sink_end = max(first_seen - sinks, 0), values * PAGE, min(sinks, position + 1)
        sink = (0 if keeps else min(first_seen, sink_end), sink_end)
        views.append((seat, position, (closed, values), min(first // PAGE, values), first, sink, max(position + 1 - sinks - tail, 0)))
    items, exact, own, slots, row = [], [], [], 0, 0
    while row < len(views):
        seat, position, (closed, values), begin, first, sink, end = views[row]
        count, slide = 1, None
        while row + count < len(views) and count < tile:
            s, p, c, b, f, k, _ = views[row + count]
            if (s, p, c, b, k) != (seat, position + count, (closed, values), begin, sink) or f - first not in ((0, count) if slide is None else (slide * count,)):
                break
            slide, count = (f - first) // count, count + 1
        step = split or split_pages(max(closed - begin, 0))
        runs = [(seat, page, min(page + step, closed)) for page in range(begin, closed, step)]
        runs += [(-1 - row, closed, values)] if begin <= closed < values else []
        rows = (row, count, slide or 0, len(runs) + 1)
        for i, (s, a, z) in enumerate(runs):
            items.append((s, a, z, slots + i, first - a * PAGE, 0, 0, 0, *rows))
        exact.append((seat, 0, 0, slots + len(runs), *sink, first - values * PAGE, end, *rows))
        own += [(slots + i * rows[3], rows[3]) for i in range(count)]
        slots, row = slots + count * rows[3], row + count
    return torch.tensor(items + exact, dtype=torch.int32), torch.tensor(own, dtype=torch.int32), slots


def attention(q, k, v, scale, cap=None, logit=None):
    """float64: q [heads, d] over k, v [tokens, d] of one kv head; logit [heads] takes part in the softmax without a value."""
    s = q.double() @ k.T * scale
    if cap:
        s = cap * torch.tanh(s / cap)
    if logit is not None:
        s = torch.cat([s, logit.double()[:, None]], -1)
        return torch.softmax(s, -1)[:, :-1] @ v
    return torch.softmax(s, -1) @ v
