"""One call of decode attention: caches of several sequences in page memory, tables, plan, parameters, and what it should give."""
import math
import torch
import klt
import pages as P
from driver import pack

LOG2_E = 1.4426950408889634


class Case:
    """Sequences of `positions` (the first query's), each with its own pages and `tokens` queries in a row. codec: int4, int8, k8v4, klt, klt128 (keys in
    pages of 128 tokens) or f16."""

    def __init__(self, positions, kv_heads, group, d, codec="int4", sinks=4, recent=0, window=None, cap=None, logits=False, streaming=False,
                 hard=False, split=None, tokens=1, dev="cuda", seed=0, floor=0.0):
        g = torch.Generator(device=dev).manual_seed(seed)
        rand = lambda *shape: torch.randn(*shape, generator=g, device=dev).half()
        self.d, self.group, self.kv_heads, self.rows, self.codec, self.cap, self.floor = d, group, kv_heads, len(positions) * tokens, codec, cap, floor
        self.scale, self.dev, self.seats = 1 / math.sqrt(d), dev, len(positions)
        queries = [(p + i, seat) for seat, p in enumerate(positions) for i in range(tokens)]
        values = [max(p - sinks - recent, 0) // P.PAGE for p, _ in queries]  # pages whose values are codes
        self.kernel, page = ("klt", 128) if codec == "klt128" else (codec, P.PAGE)
        pair = page // P.PAGE
        closed = [c // pair * pair for c in values]
        most, tails = -(-max(max(values), 1) // pair) * pair, max((p + 1 - sinks) // P.PAGE - c + 1 for (p, _), c in zip(queries, values))
        self.table_stride, self.exact_stride = most, 1 + max(tails, 1) + (pair > 1)
        n = self.seats * kv_heads
        k, v = rand(n, most, 64, d), rand(n, most, 64, d)
        self.q = rand(self.rows, kv_heads * group, d)
        if hard:  # channel offsets, outlier channels, a peaked softmax, scores that drift upwards
            k += 4 * rand(n, 1, 1, d)
            k[..., ::17] *= 6
            self.q *= 2
            k *= torch.linspace(0.5, 1.5, most, device=dev).half()[None, :, None, None]
        # Exact pages by their number, from the first that any query of the sequence reads exactly; before them the sinks' page.
        firsts = [closed[seat * tokens] for seat in range(self.seats)]
        held = 1 + self.exact_stride - 1 + max(values[seat * tokens + tokens - 1] - firsts[seat] for seat in range(self.seats))
        ek, ev = rand(n, held, 64, d), rand(n, held, 64, d)
        self.q_sinks = rand(self.rows, kv_heads * group, d) if streaming else None
        self.logits = torch.randn(kv_heads * group, generator=g, device=dev) if logits else None
        self.widths = self.bases = self.projected = None
        self.refused = torch.zeros(1, dtype=torch.int32, device=dev)
        if self.kernel == "klt":  # keys of every kv head have a basis and widths of their own
            self.lists, bases = [klt.widths(d, h) for h in range(kv_heads)], [klt.basis(d, h, dev) for h in range(kv_heads)]
            k = k.reshape(n, most // pair, page, d)
            coded, (vc, vs) = [klt.encode(k[h::kv_heads], *bases[h], self.lists[h]) for h in range(kv_heads)], P.encode_values(v, 4)
            halves = ([klt.pack(*coded[h], self.lists[h]) for h in range(kv_heads)], P.pack_values(vc, vs, 4))
            k = torch.stack([klt.decode(*coded[h], *bases[h]) for h in range(kv_heads)], 1).flatten(0, 1)
            v, self.signs = P.decode_values(vc, vs, 4), P.signs(d, dev)
            self.widths, self.bases = klt.widths_table(self.lists, dev, page), klt.query_table(bases)
        elif codec != "f16":
            self.coded = P.encode(k, v, codec)
            halves = P.pack_codes(*self.coded, codec)
            k, v = P.decode(*self.coded, codec)
            self.signs = P.signs(d, dev) if P.BITS[codec][1] == 4 else None
        else:
            halves = P.pack_exact(k, v)
            k, v, self.signs = k.double().flatten(1, 2), v.double().flatten(1, 2), None
        exact = P.pack_exact(ek, ev)
        parts = lambda x: x if isinstance(x, list) else [x]  # by kv head where their pages have different sizes
        total = sum(x.numel() + x[..., 0].numel() * 2 * P.UNIT for half in (*halves, *exact) for x in parts(half))
        self.memory = P.Memory(total, dev, seed)
        put = lambda half: torch.stack([self.memory.put(x) for x in half], 1).flatten(0, 1) if isinstance(half, list) else self.memory.put(half)
        entry = lambda pair: torch.stack([put(x) for x in pair], -1).contiguous()
        keys, coded_values = (put(x) for x in halves)
        self.table, pages = torch.stack([keys.repeat_interleave(pair, 1), coded_values], -1).contiguous(), entry(exact).view(self.seats, kv_heads, held, 2)
        shown = [[0, *range(1 + c - firsts[seat], 1 + c - firsts[seat] + self.exact_stride - 1)] for (_, seat), c in zip(queries, values)]
        self.shown = [[min(page, held - 1) for page in row] for row in shown]
        self.exact = torch.stack([pages[seat][:, row] for (_, seat), row in zip(queries, self.shown)]).contiguous()
        for row, ((_, seat), c, w) in enumerate(zip(queries, closed, values)):  # exact keys beside coded values
            if w > c:
                self.exact[row, :, -1, 0] = pages[seat, :, 1 + c - firsts[seat], 0]
                self.exact[row, :, -1, 1] = self.table.view(self.seats, kv_heads, most, 2)[seat, :, c, 1]
        self.mixed = [1 + c - firsts[seat] for (_, seat), c in zip(queries, closed)]
        self.exact = self.exact.flatten(0, 1)
        sizes = [sum(x.shape[-1] for x in parts(half)) // len(parts(half)) for half in halves]
        self.page_bytes = sizes[0] // pair + sizes[1]
        self.sequences = [(p, sinks, c, max(p + 1 - window, 0) if window else 0, streaming, seat, w) for (p, seat), c, w in zip(queries, closed, values)]
        self.plan(split)
        self.truth = (k, v, ek.double(), ev.double())

    def plan(self, split=None, many=False, wide=False):
        """`many`: as many query tokens to an item as its columns hold. `wide`: closed pages for tiles of 128 rows, exact rows as `many` has them."""
        many = many or wide
        self.many, columns = many, 16 if many and self.d <= 128 else 8  # 8 where a head has more channels
        self.wide = None
        items, own, self.slots = P.step_plan(self.sequences, split, max(columns // self.group, 1) if many else 1)
        if wide:
            runs, _, _ = P.step_plan(self.sequences, split, max(128 // self.group, 1))
            runs = runs[runs[:, 1] < runs[:, 2]]
            self.wide, items = runs[torch.argsort(runs[:, 1], stable=True)].contiguous().to(self.dev), items[items[:, 1] == items[:, 2]].contiguous()
        self.items, self.own, self.n_items = items.to(self.dev), own.to(self.dev), len(items)
        self.tiles = 1 if self.group <= columns else 2
        self.part_o = torch.full((self.slots, self.kv_heads * self.group, self.d), float("nan"), device=self.dev)
        self.part_ml = torch.full((self.slots, self.kv_heads * self.group, 2), float("nan"), device=self.dev)
        self.out = torch.full((self.rows, self.kv_heads * self.group, self.d), float("nan"), device=self.dev, dtype=torch.float16)
        self.q_closed, self.q_bias = None, None
        if self.kernel == "klt":
            self.q_closed, self.q_bias = torch.full_like(self.out, float("nan")), torch.full(self.out.shape[:2], float("nan"), device=self.dev)

    def params(self, grid, items=None):
        """Of these items in place of its own, one tile each."""
        tiles = self.tiles if items is None else 1
        items = self.items if items is None else items
        s, cap = (self.scale * LOG2_E, 0.0) if not self.cap else (2 * LOG2_E * self.scale / self.cap, self.cap * LOG2_E)
        return pack("12Q9i2f4if3Q", self.memory.bytes, self.table, self.exact, items, self.own, self.q, self.q_sinks,
                    self.part_o, self.part_ml, self.signs, self.logits, self.out, len(items), self.rows, self.kv_heads, self.group,
                    tiles - 1, self.table_stride, self.exact_stride, *divmod(grid, self.kv_heads * tiles), s, cap, 0, 0, 0, 0, self.floor,
                    self.q_closed, self.q_bias, self.widths)

    def append(self, kernels, pdl):
        """The queries as the kernel before attention makes them, into the basis of a plan's keys where there is one; keys and values are there already."""
        heads = self.kv_heads * self.group
        if self.projected is None or self.projected.shape[0] != self.rows:
            self.projected = torch.cat([self.q.float(), torch.zeros(self.rows, 2 * self.kv_heads, self.d, device=self.dev)], 1)
        own = pack("11Q11i4f2i", self.projected, None, None, None, None, None, self.q, self.memory.bytes, self.exact, None, self.refused, heads, self.kv_heads,
                   self.exact_stride, 0, 0, 0, (heads + 2 * self.kv_heads) * self.d, self.d, self.d, heads * self.d, (heads + self.kv_heads) * self.d, 0.0, 0.0, 0.0, 1.0, 0, 0)
        if self.kernel == "klt":
            return kernels.launch(f"append_klt_d{self.d}", (self.rows, heads), 4 * self.d, own + pack("3Q", self.q_closed, self.q_bias, self.bases), pdl)
        kernels.launch(f"append_d{self.d}", (self.rows, heads), -(-self.d // 32) * 32, own, pdl)

    def run(self, kernels, grid=0, wide_grid=0, pdl_main=False, pdl_reduce=True, reduce=True, append=False):
        name = f"attend_{'many_' if self.many or self.d > 128 else ''}{self.kernel}"
        capped = f"{name}_cap_d{self.d}"  # where there is none, the plain kernel has both
        name = capped if self.cap and kernels.has(capped) else f"{name}_d{self.d}"
        grid = min(grid or kernels.per_sm(name) * kernels.sms, self.n_items * self.kv_heads * self.tiles)
        params = self.params(grid)
        if append := append or self.kernel == "klt":
            self.append(kernels, pdl_main)
        if self.wide is not None and len(self.wide):
            own = min(wide_grid or kernels.sms, len(self.wide) * self.kv_heads)
            kernels.launch(f"attend_tile_{self.kernel}_d{self.d}", own, 384, self.params(own, self.wide), pdl_main)
        kernels.launch(name, grid, 128, params, pdl_main or append)
        if reduce:
            if self.wide is not None and kernels.has(f"reduce_many_d{self.d}"):
                kernels.launch(f"reduce_many_d{self.d}", -(-self.rows * self.kv_heads * self.group // 8), 256, params + pack("2i", 0, 0), pdl_reduce)
                return self.out
            kernels.launch(f"reduce_d{self.d}", self.rows * self.kv_heads * self.group, 256, params + pack("2i", 0, 0), pdl_reduce)
        return self.out

    def parts(self, kv):
        """(side, byte) in each part of a page of a kv head."""
        value_scales = (1, self.d * 8 * P.BITS[self.codec][1] + 1)
        if self.kernel != "klt":
            return [(0, 1), (0, self.d * 2 + 1), (0, self.d * 4 + 100), (1, 100), value_scales]
        bits, at = self.lists[kv], 32 * sum(b > 0 for b in self.lists[kv])
        rows = []
        for b in bits:
            rows, at = rows + [(0, at + i * 64 + 5) for i in range(b)], at + 64 * b
        if self.codec == "klt128":
            rows += [(side, place + 64 * sum(bits)) for side, place in rows]
        return [(0, 1), (0, 16 * sum(b > 0 for b in bits) + 1), *rows, (1, 100), value_scales]

    def reference(self):
        """float64, one kv head at a time, by positions."""
        k, v, ek, ev = self.truth
        out = torch.empty(self.rows, self.kv_heads * self.group, self.d, dtype=torch.float64, device=self.dev)
        for row, (position, sinks, closed, first_seen, keeps, seat, coded) in enumerate(self.sequences):
            for head in range(self.kv_heads):
                n, hs = seat * self.kv_heads + head, slice(head * self.group, (head + 1) * self.group)
                sink = torch.arange(0 if keeps else min(first_seen, sinks), min(sinks, position + 1), device=self.dev)
                first = max(first_seen - sinks, 0)
                old = torch.arange(first, max(closed * 64, first), device=self.dev)
                mixed = torch.arange(max(first, closed * 64), max(coded * 64, first), device=self.dev)  # exact keys, coded values
                new = torch.arange(max(first - coded * 64, 0), max(position + 1 - sinks - coded * 64, 0), device=self.dev) + 64
                xk, xv = (x[n, self.shown[row]].flatten(0, 1) for x in (ek, ev))
                later = torch.cat([ek[n, self.mixed[row]][mixed - closed * 64], xk[new]])
                keys, values = torch.cat([xk[sink], k[n, old], later]), torch.cat([xv[sink], v[n, old], v[n, mixed], xv[new]])
                q = self.q[row, hs].double()
                if self.q_sinks is None:
                    logit = None if self.logits is None else self.logits[hs]
                    out[row, hs] = P.attention(q, keys, values, self.scale, self.cap, logit)
                else:  # the sinks are met by another query
                    s = torch.cat([self.q_sinks[row, hs].double() @ xk[sink].T, q @ torch.cat([k[n, old], later]).T], -1) * self.scale
                    out[row, hs] = torch.softmax(s, -1) @ values
        return out


def error(out, reference):
    return ((out.double() - reference).norm() / reference.norm()).item()
