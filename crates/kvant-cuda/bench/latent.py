"""Attention over latents (MLA): canonical pages, one call of the kernels, what it should give in float64, and its speed."""
import math
import torch
import pages as P
from driver import pack

LOG2_E = 1.4426950408889634
BITS = dict(int4=(4, 4), int8=(8, 8), k8v4=(8, 4), f16=(0, 0))
SINK_PAGE = 32  # tokens of the sinks' page


def canonical_keys(codes, scale, zero, bits):
    """u8 [n, P, bytes] of codes [n, P, 64, d]: docs/page-format.md of kvant-codec, written out."""
    n, pages, _, d = codes.shape
    x = codes.view(n, pages, 4, 16, d // 8, 2, 4).permute(0, 1, 4, 2, 5, 3, 6)  # row unit high token channel
    x = x[:, :, :, :, 0] | x[:, :, :, :, 1] << 4 if bits == 4 else x
    return torch.cat([P.raw(scale, n, pages), P.raw(zero, n, pages), x.contiguous().view(n, pages, -1)], -1)


def canonical_values(codes, scale, bits):
    n, pages, _, d = codes.shape
    x = codes.view(n, pages, 8, 2, 4, d // 16, 16).permute(0, 1, 5, 2, 3, 6, 4)  # row unit high channel token
    x = x[:, :, :, :, 0] | x[:, :, :, :, 1] << 4 if bits == 4 else x
    return torch.cat([P.raw(scale.transpose(2, 3), n, pages), x.contiguous().view(n, pages, -1)], -1)


def exact_halves(rotated, latent):
    n, pages = latent.shape[:2]
    return P.raw(rotated.transpose(2, 3), n, pages), P.raw(latent, n, pages)


class LatentCase:
    """Sequences of `positions` (the first query's), each with `tokens` queries in a row."""

    def __init__(self, positions, heads, latent=512, rotated=64, codec="int8", sinks=4, recent=0, window=None, tokens=1, hard=False, dev="cuda", seed=0):
        g = torch.Generator(device=dev).manual_seed(seed)
        rand = lambda *shape: torch.randn(*shape, generator=g, device=dev).half()
        self.heads, self.latent, self.rotated, self.codec, self.dev = heads, latent, rotated, codec, dev
        self.scale, self.rows, self.seats = 1 / math.sqrt(latent + rotated), len(positions) * tokens, len(positions)
        queries = [(p + i, seat) for seat, p in enumerate(positions) for i in range(tokens)]
        closed = [max(p - sinks - recent, 0) // P.PAGE for p, _ in queries]
        most, tails = max(max(closed), 1), max((p + 1 - sinks) // P.PAGE - c + 1 for (p, _), c in zip(queries, closed))
        self.table_stride, self.exact_stride = most, 1 + max(tails, 1)
        n = self.seats
        r, l = rand(n, most, 64, rotated), rand(n, most, 64, latent)
        self.q = rand(self.rows, heads, latent + rotated)  # latent part first
        if hard:
            l[..., ::17] *= 6
            self.q *= 2
            r *= torch.linspace(0.5, 1.5, most, device=dev).half()[None, :, None, None]
        firsts = [closed[seat * tokens] for seat in range(n)]
        held = self.exact_stride + max(closed[seat * tokens + tokens - 1] - firsts[seat] for seat in range(n))
        er, el = rand(n, held, 64, rotated), rand(n, held, 64, latent)
        kb, vb = self.bits = BITS[codec]
        self.signs = P.signs(latent, dev) if vb == 4 else None
        self.plain = (r, l)
        if codec == "f16":
            halves, r, l = exact_halves(r, l), r.double().flatten(1, 2), l.double().flatten(1, 2)
        else:
            # A CPU divides as IEEE says; torch on a card does not.
            rc, rs, rz, lc, ls = (x.to(dev) for x in (*P.encode_keys(r.cpu(), kb), *P.encode_values(l.cpu(), vb)))
            halves = canonical_keys(rc, rs, rz, kb), canonical_values(lc, ls, vb)
            r, l = (rc.double() * rs.double()[:, :, None] + rz.double()[:, :, None]).flatten(1, 2), P.decode_values(lc, ls, vb)
        self.halves = halves
        exact = list(exact_halves(er, el))
        sink_keys = er[:, 0, :SINK_PAGE].transpose(1, 2).contiguous().view(n, -1).view(torch.uint8)  # [channel][32 tokens]
        exact[0][:, 0, :sink_keys.shape[-1]] = sink_keys
        self.memory = P.Memory(sum(x.numel() + x[..., 0].numel() * 2 * P.UNIT for x in (*halves, *exact)), dev, seed)
        entry = lambda pair: torch.stack([self.memory.put(x) for x in pair], -1).contiguous()
        self.table, pages = entry(halves), entry(exact).view(n, held, 2)
        shown = [[0, *range(1 + c - firsts[seat], c - firsts[seat] + self.exact_stride)] for (_, seat), c in zip(queries, closed)]
        self.shown = [[min(page, held - 1) for page in row] for row in shown]
        self.exact = torch.stack([pages[seat][row] for (_, seat), row in zip(queries, self.shown)]).contiguous()
        for row, ((p, _), c) in enumerate(zip(queries, closed)):  # a query lists the pages that it sees itself, and no later one's
            self.exact[row, 1 + max(-(-(p + 1 - sinks - c * P.PAGE) // P.PAGE), 0):] = 0
        self.sequences = [(p, sinks, c, max(p + 1 - window, 0) if window else 0, False, seat, c) for (p, seat), c in zip(queries, closed)]
        turned = self.q.float()
        if self.signs is not None:
            turned[..., :latent] = P.rotate(turned[..., :latent])
        self.q_closed = turned.half()
        self.truth = (r, l, er.double(), el.double())
        self.page_bytes = sum(x.shape[-1] for x in halves)
        self.plan()

    def plan(self, tile=1, split=None):
        """`split`: pages of an item; src/plan.rs has one for every query, here it is that of the longest."""
        pages = max(closed - max(first - sinks, 0) // P.PAGE for _, sinks, closed, first, *_ in self.sequences)
        items, own, self.slots = P.step_plan(self.sequences, split or max(2, -(-pages // 128)), tile)
        self.items, self.own, self.n_items, self.tile = items.to(self.dev), own.to(self.dev), len(items), tile
        nan = lambda *shape, **k: torch.full(shape, float("nan"), device=self.dev, **k)
        self.part_o, self.part_ml = nan(self.slots, self.heads, self.latent), nan(self.slots, self.heads, 2)
        self.out = nan(self.rows, self.heads, self.latent, dtype=torch.float16)

    def run(self, kernels, mt=None, early=False):
        columns = self.tile * self.heads
        mt = mt or (1 if columns <= 16 else 2 if columns <= 32 else 4)
        tiles = -(-columns // (16 * mt))
        params = pack("11Q11i2f", self.memory.bytes, self.table, self.exact, self.items, self.own, self.q, self.q_closed, self.part_o, self.part_ml, self.signs,
                      self.out, self.n_items, self.heads, self.latent, self.rotated, self.table_stride, self.exact_stride, *self.bits, SINK_PAGE, tiles, 1,
                      self.scale * LOG2_E, 0.0)
        kernels.launch(f"attend_latent_m{mt}", self.n_items * tiles, 256, params, early)
        kernels.launch("reduce_latent", (self.rows, self.heads), 512, params, True)
        return self.out

    def encode(self, kernels):
        """Closed pages made by the kernel, where the coded ones lay: whether they are the codec's to the byte."""
        n, pages = self.plain[0].shape[:2]
        exact = exact_halves(*self.plain)
        memory = P.Memory(sum(x.numel() + x[..., 0].numel() * 2 * P.UNIT for x in (*exact, *self.halves)), self.dev, 1)
        units = [memory.put(x).flatten() for x in (*exact, *(torch.zeros_like(x) for x in self.halves))]
        jobs, refused = torch.stack(units, -1).contiguous(), torch.zeros(1, dtype=torch.int32, device=self.dev)
        kernels.launch("encode_latent", n * pages, 256, pack("4Q4i", memory.bytes, jobs, self.signs, refused, self.latent, self.rotated, *self.bits))
        kernels.synchronize()
        got = [torch.stack([memory.bytes[u * P.UNIT:u * P.UNIT + x.shape[-1]] for u in at.tolist()]).view(x.shape) for at, x in zip(units[2:], self.halves)]
        return all(torch.equal(a, b) for a, b in zip(got, self.halves)) and refused.item() == 0

    def reference(self):
        r, l, er, el = self.truth
        out = torch.empty(self.rows, self.heads, self.latent, dtype=torch.float64, device=self.dev)
        for row, (position, sinks, closed, first_seen, _, seat, _) in enumerate(self.sequences):
            sink = torch.arange(min(first_seen, sinks), min(sinks, position + 1), device=self.dev)
            first = max(first_seen - sinks, 0)
            old = torch.arange(first, max(closed * 64, first), device=self.dev)
            new = torch.arange(max(first - closed * 64, 0), max(position + 1 - sinks - closed * 64, 0), device=self.dev) + 64
            xr, xl = (x[seat, self.shown[row]].flatten(0, 1) for x in (er, el))
            both = torch.cat([torch.cat([xl[sink], l[seat, old], xl[new]]), torch.cat([xr[sink], r[seat, old], xr[new]])], -1)
            out[row] = torch.softmax(self.q[row].double() @ both.T * self.scale, -1) @ both[:, :self.latent]
        return out


CASES = [
    dict(positions=[700, 70, 3, 64 * 9 + 3], heads=16),
    dict(positions=[900], heads=20, hard=True),
    dict(positions=[400, 130], heads=128),
    dict(positions=[600, 90], heads=5, latent=128, rotated=32, window=200),
    dict(positions=[500], heads=33, latent=256, rotated=16, recent=100, sinks=20),
    dict(positions=[300, 60], heads=16, latent=64, rotated=64, tokens=70, sinks=0),
    dict(positions=[300, 0], heads=4, tokens=40, window=130),
]
TINY = [
    dict(positions=[200], heads=5, latent=128, rotated=32, window=150),
    dict(positions=[140], heads=17, latent=64, rotated=16, tokens=6, sinks=20, recent=70),
    dict(positions=[70], heads=3, latent=512, rotated=64),
    dict(positions=[0], heads=4, latent=64, rotated=16, tokens=12),  # queries of one item that list different pages
]


def check(kernels, say, cases=CASES, codecs=("int8", "int4", "k8v4", "f16")):
    """Every case against float64, in every form the same bits; pages to the byte; a flipped byte shows."""
    failures = []
    for case in cases:
        for codec in codecs:
            c = LatentCase(**case, codec=codec, dev=kernels.dev)
            name = f"latent {codec} {case}"
            out = c.run(kernels).clone()
            kernels.synchronize()
            off = ((out.double() - c.reference()).norm() / c.reference().norm()).item()
            same = True
            for tile in (1, max(64 // c.heads, 1)):
                c.plan(tile)
                for mt in (1, 2, 4):
                    got = c.run(kernels, mt).clone()
                    kernels.synchronize()
                    same &= torch.equal(got.view(torch.int16), out.view(torch.int16))
            encoded = codec == "f16" or c.encode(kernels)
            changed = []
            if max(s[2] for s in c.sequences) and "window" not in case:
                bits, d = c.bits, c.rotated
                places = [(0, 101), (1, 101)] if codec == "f16" else [(0, 1), (0, 2 * d + 1), (0, 4 * d + 9), (1, 1), (1, 4 * c.latent + 77)]
                for side, byte in places:
                    at = c.table.view(-1, 2)[0, side].item() * P.UNIT + byte
                    c.memory.bytes[at] ^= 0x10
                    flipped = c.run(kernels).clone()
                    kernels.synchronize()
                    changed.append(not torch.equal(flipped.view(torch.int16), out.view(torch.int16)))
                    c.memory.bytes[at] ^= 0x10
            say(f"{name}: off by {off:.1e}, same bits {same}, pages {encoded}, flipped bytes seen {sum(changed)} of {len(changed)}")
            if not (off < 1.5e-3 and same and encoded and all(changed)):
                failures.append(name)
    return failures


def speed(kernels, say, shapes=((16, 4096), (16, 32768), (16, 131072), (128, 32768)), codecs=("int8", "int4", "f16")):
    """Microseconds of one decode step of one sequence, latents of 512 and 64 channels, as speed.py measures; beside the bytes read."""
    from speed import copies, graph_time, rotation
    rows = []
    for heads, tokens in shapes:
        for codec in codecs:
            case = LatentCase([tokens + 44], heads, codec=codec)
            nbytes = case.sequences[0][2] * case.page_bytes
            calls = [lambda c=c: c.run(kernels, early=True) for c in rotation(copies(case, nbytes))]
            us = graph_time(calls)
            rows.append(dict(heads=heads, tokens=tokens, codec=codec, us=round(us, 1), mb=round(nbytes / 1e6, 2), tb_s=round(nbytes / us / 1e6, 3),
                             tflop_s=round(2 * heads * tokens * (2 * 512 + 64) / us / 1e6, 1)))
            say(rows[-1])
    return rows
