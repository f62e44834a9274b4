"""Every kernel against float64, and its bits against themselves. `run` returns a list of failures."""
import pathlib
import torch
import klt
import latent
import pages as P
import weights as W
from cases import Case, error
from driver import FEW_SHARED, pack
from ranking import top
from strict import strict

CASES = [
    dict(positions=[4095], kv_heads=8, group=8, d=128),
    dict(positions=[4095], kv_heads=8, group=8, d=128, hard=True),
    dict(positions=[70, 5000, 3, 8251, 64 * 40 + 3], kv_heads=2, group=4, d=128),
    dict(positions=[70, 5000, 3, 8251], kv_heads=3, group=3, d=64),
    dict(positions=[2500], kv_heads=2, group=16, d=128),
    dict(positions=[2500, 900], kv_heads=2, group=12, d=64),
    dict(positions=[3000, 400, 1500], kv_heads=2, group=1, d=128, window=1024),
    dict(positions=[3000, 10, 1500], kv_heads=2, group=8, d=64, window=130),
    dict(positions=[3000, 100], kv_heads=2, group=2, d=128, cap=30.0, hard=True),
    dict(positions=[3000, 100], kv_heads=2, group=2, d=64, cap=3.0),
    dict(positions=[3000, 100], kv_heads=2, group=8, d=64, logits=True),
    dict(positions=[3000, 700], kv_heads=2, group=4, d=128, recent=200, sinks=20),
    dict(positions=[3000, 700], kv_heads=2, group=4, d=128, window=512, streaming=True),
    dict(positions=[3000], kv_heads=2, group=4, d=128, sinks=0),
    dict(positions=[131071 + 4], kv_heads=8, group=8, d=128),
    dict(positions=[70, 5000, 3, 8251], kv_heads=2, group=8, d=256),
    dict(positions=[2500, 900], kv_heads=2, group=16, d=256, cap=30.0),
    dict(positions=[3000, 10, 1500], kv_heads=4, group=2, d=256, window=1024, logits=True),
    dict(positions=[70, 5000, 3, 8251], kv_heads=2, group=8, d=512),
    dict(positions=[2500, 900], kv_heads=2, group=16, d=512, cap=30.0),
    dict(positions=[3000, 10, 1500], kv_heads=4, group=2, d=512, window=1024, logits=True, hard=True),
    dict(positions=[3000, 700], kv_heads=2, group=4, d=512, recent=200, sinks=20, window=512, streaming=True),
]


CODECS = ("int4", "int8", "k8v4", "klt", "klt128", "f16")


def runs(codec, case):
    """Whether there are kernels: keys of a plan have none for other heads, and none with soft caps."""
    return not codec.startswith("klt") or case["d"] in (64, 128) and not case.get("cap")


# Several query tokens of every sequence, some across the end of a page, under every mask.
MANY = [
    dict(positions=[4090], tokens=150, kv_heads=2, group=4, d=128),
    dict(positions=[1000, 0, 300], tokens=70, kv_heads=2, group=8, d=128),
    dict(positions=[1000, 62], tokens=67, kv_heads=2, group=1, d=64, hard=True),
    dict(positions=[1000, 5], tokens=40, kv_heads=1, group=16, d=128),
    dict(positions=[900, 5], tokens=40, kv_heads=1, group=12, d=64, cap=30.0),
    dict(positions=[900, 100], tokens=150, kv_heads=2, group=3, d=64, window=130),
    dict(positions=[900], tokens=150, kv_heads=2, group=2, d=128, window=200, cap=5.0),
    dict(positions=[900, 20], tokens=9, kv_heads=2, group=4, d=64, recent=200, sinks=20, logits=True),
    dict(positions=[900, 0], tokens=40, kv_heads=2, group=4, d=128, window=150, streaming=True),
    dict(positions=[500], tokens=17, kv_heads=2, group=7, d=128, sinks=0),
    dict(positions=[900, 20], tokens=70, kv_heads=2, group=2, d=256, window=200, cap=50.0),
    dict(positions=[1000, 0], tokens=33, kv_heads=1, group=12, d=256, hard=True),
    dict(positions=[4090, 700], tokens=150, kv_heads=2, group=8, d=256),
    dict(positions=[1000, 62], tokens=67, kv_heads=2, group=4, d=96, window=300),
    dict(positions=[4090], tokens=150, kv_heads=2, group=1, d=96, hard=True),
    dict(positions=[900, 20], tokens=70, kv_heads=2, group=2, d=512, window=200, cap=50.0),
    dict(positions=[1000, 0], tokens=33, kv_heads=1, group=12, d=512),
]


def attention(kernels, say, cases=CASES, repeats=15, many=MANY):
    failures = []
    for number, case in enumerate(cases):
        for codec in CODECS:
            if codec in ("f16", "int8", "klt", "klt128") and max(case["positions"]) > 100000 or not runs(codec, case):
                continue
            c = Case(**case, codec=codec, seed=number, dev=kernels.dev)
            reference = c.reference()
            first = c.run(kernels, pdl_reduce=False).clone()
            kernels.synchronize()
            e = error(first, reference)
            same = all(torch.equal(first, c.run(kernels, pdl_main=m, pdl_reduce=r)) for m in (0, 1) for r in (0, 1) for _ in range(repeats))
            grids = all(torch.equal(first, c.run(kernels, grid=g)) for g in (1, 7, 50, 131))
            alone = True
            if c.rows > 1:  # a sequence gets the same bits alone
                sequences, whole = c.sequences, (c.table, c.exact, c.q, c.q_sinks, c.rows)
                for row in range(c.rows):
                    c.sequences, c.rows, kv = [(*sequences[row][:5], 0, sequences[row][6])], 1, c.kv_heads
                    c.table, c.exact = (x[row * kv:(row + 1) * kv].contiguous() for x in whole[:2])
                    c.projected, c.q, c.q_sinks = None, whole[2][row:row + 1].contiguous(), None if whole[3] is None else whole[3][row:row + 1].contiguous()
                    c.plan()
                    alone &= torch.equal(c.run(kernels)[0], first[row])
                c.projected, c.sequences, (c.table, c.exact, c.q, c.q_sinks, c.rows) = None, sequences, whole
                c.plan()
            c.plan(many=True)  # one token each through the kernel of many
            tiled = torch.equal(c.run(kernels), first)
            c.plan()
            moved = True
            if codec != "f16" and max(x[2] for x in c.sequences) > 4 and not case.get("window") and not (case.get("cap") and case.get("hard")):  # the bytes are what is read
                row = max(range(c.rows), key=lambda r: c.sequences[r][2])
                units = c.table[row * c.kv_heads, 2].tolist()
                for side, at in c.parts(0):
                    place = units[side] * P.UNIT + at
                    c.memory.bytes[place] ^= 0x37
                    moved &= not torch.equal(c.run(kernels)[row], first[row])
                    c.memory.bytes[place] ^= 0x37
            ok = e < (5e-3 if case.get("hard") else 1.5e-3) and same and grids and alone and moved and tiled
            say(f"attention {codec} {case}: error {e:.1e} repeats {same} grids {grids} alone {alone} many {tiled} corrupted {moved}{'' if ok else ' FAIL'}")
            failures += [] if ok else [f"attention {codec} {case}"]
    for number, case in enumerate(many):
        for codec in (codec for codec in CODECS if runs(codec, case)):
            c = Case(**case, codec=codec, seed=number, dev=kernels.dev)
            reference = c.reference()
            single = c.run(kernels).clone()
            kernels.synchronize()
            c.plan(many=True)
            tiled = c.run(kernels).clone()
            same = all(torch.equal(tiled, c.run(kernels, grid=g, pdl_main=m)) for g in (0, 1, 7, 131) for m in (0, 1))
            kernels.synchronize()
            e, equal = error(tiled, reference), torch.equal(single, tiled)
            apart = (single != tiled).flatten(1).any(1).nonzero().flatten().tolist()
            if kernels.has(f"attend_tile_{codec}_d{case['d']}"):
                c.plan(wide=True)
                wide = [c.run(kernels, wide_grid=g).clone() for g in (0, 1, 7, 131, 0)]
                kernels.synchronize()
                apart += [f"tiles: {(single != x).sum().item()} of {x.numel()}" for x in wide if not torch.equal(single, x)]
                equal &= all(torch.equal(single, x) for x in wide)
            ok = e < (5e-3 if case.get("hard") else 1.5e-3) and equal and same
            say(f"many {codec} {case}: {c.n_items} items, error {e:.1e}, bits of decode {equal} {apart[:8]} repeats {same}{'' if ok else ' FAIL'}")
            failures += [] if ok else [f"many {codec} {case}"]
    return failures


DIMS = (64, 80, 96, 128, 192, 256, 512)


def encode(kernels, say, dims=DIMS):
    failures = []
    for codec, d in ((codec, d) for codec in CODECS[:3] for d in dims if runs(codec, dict(d=d))):
        for hard in (False, True):
            dev = kernels.dev
            g = torch.Generator().manual_seed(d)
            k, v = (torch.randn(3, 5, 64, d, generator=g).half().to(dev) for _ in range(2))
            if hard:
                k, v = k * 40 + 100, v * 1000
                k[0, 0, :, 3], v[1, 1, 7] = 2.5, 0  # a constant channel, a token of zeros
                k[0, 1], v[0, 1] = k[0, 1] * 1e-6, v[0, 1] * 1e-7  # scales below f16's normal numbers
            want = [x.to(dev) for x in P.pack_codes(*P.encode(k.cpu(), v.cpu(), codec), codec)]  # a CPU divides as IEEE says; torch on a card does not
            memory = P.Memory(4 * 16 * (128 * d + P.UNIT), dev)
            exact = [memory.put(x) for x in P.pack_exact(k, v)]
            coded = [memory.put(torch.zeros_like(x)) for x in want]
            jobs, turn = torch.stack([*exact, *coded], -1).view(-1, 4).contiguous(), P.signs(d, dev)
            refused = torch.zeros(1, dtype=torch.int32, device=dev)
            kernels.launch(f"encode_{codec}_d{d}", (len(jobs), 2), 256, pack("4Q", memory.bytes, jobs, turn, refused))
            kernels.synchronize()
            read = lambda units, size: torch.stack([memory.bytes[u * P.UNIT:u * P.UNIT + size] for u in units.flatten().tolist()])
            different = [int((read(u, w.shape[-1]) != w.reshape(-1, w.shape[-1])).sum()) for u, w in zip(coded, want)]
            ok = different == [0, 0] and refused.item() == 0
            say(f"encode {codec} d{d}{' hard' if hard else ''}: bytes that differ from the CPU codec's rule {different}, refused {refused.item()}{'' if ok else ' FAIL'}")
            failures += [] if ok else [f"encode {codec} d{d} {hard}"]
    return failures


FIXTURES = pathlib.Path(__file__).resolve().parents[2] / "kvant-codec" / "tests" / "fixtures" / "pages"


def encode_klt(kernels, say, dims=(64, 128)):
    """Keys into a plan's basis, in pages of 64 and of 128 tokens, and values beside them."""
    failures, dev = [], kernels.dev
    for d, page, hard in ((d, page, hard) for d in dims for page in (64, 128) for hard in (False, True)):
        g, heads, pair = torch.Generator().manual_seed(d), 3, page // 64
        k, v = torch.randn(2, heads, page, d, generator=g).half(), torch.randn(2, heads * pair, 64, d, generator=g).half()
        if hard:
            k, v = k * 40 + 100, v * 1000
            k[0, 0, :, 3], k[1] = 2.5, k[1] * 1e-5
        bases, lists = [klt.basis(d, h, "cpu") for h in range(heads)], [klt.widths(d, h) for h in range(heads)]
        want = [klt.pack(*klt.encode(k[:, h:h + 1], *bases[h], lists[h]), lists[h]).to(dev) for h in range(heads)]
        want.append(P.pack_values(*P.encode_values(v, 4), 4).to(dev))
        memory = P.Memory(1 << 21, dev)
        exact_keys, _ = P.pack_exact(k.reshape(2, heads * pair, 64, d).to(dev), v.to(dev))
        exact = memory.put(exact_keys.reshape(2, heads, -1)), memory.put(P.pack_exact(v, v)[1].to(dev))
        coded = torch.cat([memory.put(torch.zeros_like(x)) for x in want[:heads]], 1), memory.put(torch.zeros_like(want[heads]))
        nothing = lambda x: torch.zeros_like(x)
        key_jobs = torch.stack([exact[0], nothing(exact[0]), coded[0], nothing(exact[0])], -1).view(-1, 4).contiguous()
        value_jobs = torch.stack([nothing(exact[1]), exact[1], nothing(exact[1]), coded[1]], -1).view(-1, 4).contiguous()
        owners = torch.arange(heads, dtype=torch.int32).repeat(2).to(dev)
        refused, table, sizes = torch.zeros(1, dtype=torch.int32, device=dev), klt.forward_table(bases).to(dev), klt.widths_table(lists, dev, page)
        turn = P.signs(d, dev)
        kernels.launch(f"encode_klt{'_p128' if pair > 1 else ''}_d{d}", len(key_jobs), 128, pack("6Q", memory.bytes, key_jobs, owners, table, sizes, refused))
        kernels.launch(f"encode_v4_d{d}", len(value_jobs), 256, pack("4Q", memory.bytes, value_jobs, turn, refused))
        kernels.synchronize()
        different = []
        for h in range(heads + 1):
            units, pages = (coded[0][:, h] if h < heads else coded[1]).flatten().tolist(), want[h].reshape(-1, want[h].shape[-1])
            different.append(sum(int((memory.bytes[u * P.UNIT:u * P.UNIT + w.numel()] != w).sum()) for u, w in zip(units, pages)))
        ok = not any(different) and refused.item() == 0
        say(f"encode klt of {page} tokens d{d}{' hard' if hard else ''}: bytes that differ by kv head, and of values {different}, refused {refused.item()}{'' if ok else ' FAIL'}")
        failures += [] if ok else [f"encode klt p{page} d{d} {hard}"]
    return failures


def fixtures(kernels, say, dims=(64, 80, 128)):
    """The pages that kvant-codec's tests keep, from the same rows: the same bytes."""
    failures = []
    for codec, d in ((codec, d) for codec in CODECS[:3] for d in dims if runs(codec, dict(d=d))):
        t, c = torch.arange(64)[:, None], torch.arange(d)[None]
        rows = ((((37 * t * t + 101 * c + 13 * t * c) % 257) - 128) / 32 * (1 + c % 5)).half().view(1, 1, 64, d).to(kernels.dev)
        want = P.pack_codes(*P.read_canonical(*((FIXTURES / f"{codec}-{side}-{d}.page").read_bytes() for side in ("key", "value")), d, codec), codec)
        memory = P.Memory(1 << 20, kernels.dev)
        places = [memory.put(x) for x in P.pack_exact(rows, rows)] + [memory.put(torch.zeros_like(x).to(kernels.dev)) for x in want]
        jobs, turn, refused = torch.stack(places, -1).view(-1, 4).contiguous(), P.signs(d, kernels.dev), torch.zeros(1, dtype=torch.int32, device=kernels.dev)
        kernels.launch(f"encode_{codec}_d{d}", (1, 2), 256, pack("4Q", memory.bytes, jobs, turn, refused))
        kernels.synchronize()
        got = [memory.bytes[u.item() * P.UNIT:u.item() * P.UNIT + w.numel()].cpu() for u, w in zip(places[2:], want)]
        different = [int((a != b.flatten()).sum()) for a, b in zip(got, want)]
        ok = different == [0, 0] and refused.item() == 0
        say(f"fixtures {codec} d{d}: bytes that differ {different}{'' if ok else ' FAIL'}")
        failures += [] if ok else [f"fixtures {codec} d{d}"]
    return failures


PLAIN = (0, 1.0, 0.0, 0)  # of LinearParams: no gates, no norm


def product(kernels, name, form, data, x, y, rows, channels, tokens, accumulate=0, grid=None, pdl=False):
    """One launch as src/product.rs sets it out."""
    params = pack("3Q4ifi2fQ", data, x, y, rows, channels, tokens, accumulate, 1.0, *PLAIN)
    if form in ("one", "few"):
        kernels.launch(f"linear_{name}_{form}", grid, 448, params, pdl, few_shared(rows, channels, tokens, grid))
    elif form.startswith("w"):
        n = int(form[1:])
        token_tiles = -(-tokens // n)
        all_ = -(-rows // 128) * token_tiles
        rest = all_ % kernels.sms
        cut = rest if 2 * rest <= kernels.sms else 0
        params = pack("3Q4ifi2fQ4i", data, x, y, rows, channels, tokens, accumulate, 1.0, *PLAIN, token_tiles, all_ - cut, all_ + cut, 0)
        kernels.launch(f"linear_{name}_{form}", min(all_ + cut, kernels.sms), 384, params, pdl, map=kernels.wide_maps(data, x, name, rows, channels, tokens, n // 2))
    else:
        size = dict(t32=32, tile=64, large=128)[form]
        kernels.launch(f"linear_{name}_{form}", (-(-tokens // size), -(-rows // max(size, 64))), 256 if form == "large" else 128, params, pdl)


def padded(data):
    """Packed weights with what `few` may read after the last ones."""
    return torch.cat([data.flatten(), torch.zeros(8192, dtype=torch.uint8, device=data.device)])


def few_shared(rows, channels, tokens, grid):
    """Bytes of activations and sums of a CTA of `few`."""
    share = -(-tokens // grid[1])
    return 2 * share * -(-channels // 256) * 256 + 64 * share * -(-channels // 1024) * -(-(-(-rows // 16)) // grid[0])


def wide_forms(kernels, name, channels):
    """Kernels by wgmma for so many channels."""
    forms = [f for f in ("w16", "w32", "w64", "w128", "w176") if kernels.has(f"linear_{name}_{f}")]
    return [f for f in forms if channels % 128 == 0 or int(f[1:]) >= 128]


def linear(kernels, say, shapes=((64, 256), (1024, 4096), (48, 14336), (4000, 2816), (1037, 1280)), most=300):
    failures = []
    for name, make in W.TYPES.items():
        for rows, channels in shapes:
            data, w = make(-(-rows // 16) * 16, channels, torch.Generator().manual_seed(rows))
            data, w = padded(data).to(kernels.dev), w[:rows].to(kernels.dev)
            x = torch.randn(most, channels, device=kernels.dev).half()
            y = torch.full((most, rows), float("nan"), device=kernels.dev)
            ids = torch.arange(rows - 20, rows, device=kernels.dev, dtype=torch.int32)
            got = torch.full((20, channels), float("nan"), device=kernels.dev)
            kernels.launch(f"embed_{name}", 20, 256, pack("3Qif", data, ids, got, channels, 1.0))
            table = error(got, w[rows - 20:])
            truth = x.double() @ w.T
            worst, bits, first = 0.0, True, torch.full((most, rows), float("nan"), device=kernels.dev)
            wide = [(form, (most, 65, 33, 17, 9, 1)) for form in wide_forms(kernels, name, channels)]
            for form, counts in [("tile", (most, 65, 33, 1)), ("large", (most, 129, 1)), ("t32", (32, 9, 1)), ("few", (8, 3, 1)), ("one", (1,)), *wide]:
                for tokens in (n for n in counts if n <= most):  # x and y have no more
                    grids = [grid for grid in ((-(-rows // 16), tokens), (min(264, -(-rows // 16)), 1), (3, 1), (3, tokens))
                             if few_shared(rows, channels, tokens, grid) <= FEW_SHARED]
                    for grid in grids if form in ("one", "few") else (None,):
                        y[:] = float("nan")
                        product(kernels, name, form, data, x, y, rows, channels, tokens, grid=grid)
                        kernels.synchronize()
                        if tokens == most and form == "tile":
                            first[:] = y
                        here = error(y[:tokens], truth[:tokens])
                        worst = max(worst, here) if here == here else float("inf")  # NaN is less than nothing
                        same = torch.equal(y[:tokens], first[:tokens]) and bool(y[tokens:].isnan().all())
                        if not same:
                            off = y[:tokens] != first[:tokens]
                            nan = [int(of[:tokens].isnan().sum()) for of in (y, first)]
                            say(f"    {name} {rows}x{channels} {form} of {tokens}: {int(off.sum())} numbers differ from the first tile's, token and row "
                                f"{off.nonzero()[:1].tolist()} to {off.nonzero()[-1:].tolist()}, NaN here and there {nan}, past the last {int((~y[tokens:].isnan()).sum())}")
                        bits &= same
            added = True
            for form, tokens in [("t32", 32), ("tile", most), ("few", 1), *((form, most) for form in wide_forms(kernels, name, channels))]:
                y[:] = first
                product(kernels, name, form, data, x, y, rows, channels, tokens, accumulate=1, grid=(2, 1))
                kernels.synchronize()
                added &= torch.equal(y[:tokens], first[:tokens] + first[:tokens])
            ok = worst < 2e-5 and bits and added and table < 1e-6
            say(f"linear {name} {rows}x{channels}: error {worst:.1e}, embedding {table:.1e}, same bits in any batch, kernel and grid {bits}, adds {added}{'' if ok else ' FAIL'}")
            failures += [] if ok else [f"linear {name} {rows}x{channels}"]
    return failures


def rows(kernels, say):
    dev = kernels.dev
    failures = []
    x, w = torch.randn(5, 4096, device=dev) * 3, torch.rand(4096, device=dev)
    y = torch.zeros(5, 4096, device=dev, dtype=torch.float16)
    kernels.launch("rms_norm", 5, 512, pack("3Qif", x, w, y, 4096, 1e-5))
    norm = error(y, x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * w.double())
    gu = torch.randn(5, 2 * 14336, device=dev) * 4
    z = torch.zeros(5, 14336, device=dev, dtype=torch.float16)
    gate, up = gu.double().chunk(2, -1)
    f, glu = torch.nn.functional, 0.0
    functions = (f.silu, f.gelu, lambda x: f.gelu(x, approximate="tanh"), f.relu, lambda x: f.relu(x).square())
    for number, function in enumerate(functions):
        kernels.launch("activate_rows", (5, 8), 256, pack("2Q3i3f", gu, z, 14336, number, 1, 1.0, 0.0, 0.0))
        glu = max(glu, error(z, function(gate) * up))
        kernels.launch("activate_rows", (5, 8), 256, pack("2Q3i3f", gu, z, 14336, number, 0, 0.5, 0.0, 0.0))  # of the first rows alone, as plain ones
        glu = max(glu, error(z, function(0.5 * gu.double().view(10, 14336)[:5])))
    kernels.launch("activate_rows", (5, 8), 256, pack("2Q3i3f", gu, z, 14336, 0, 1, 1.0, 7.0, 1.702))
    clamped = gate.clamp(max=7.0)
    glu = max(glu, error(z, clamped * torch.sigmoid(1.702 * clamped) * (up.clamp(-7.0, 7.0) + 1)))
    stream = torch.randn(5, 4096, device=dev)
    want_stream = stream.double() + x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * w.double()
    kernels.launch("norm_add", 5, 512, pack("3Qif", x, w, stream, 4096, 1e-5))
    after = error(stream, want_stream)
    logits = torch.randn(4, 128256, device=dev)
    logits[1, 77] = logits[1, 99000] = 50.0
    logits[2] = float("nan")
    logits[3, 5], logits[3, 9] = float("nan"), 40.0
    ids = torch.full((4,), -1, dtype=torch.int32, device=dev)
    kernels.launch("argmax", 4, 1024, pack("2Qi", logits, ids, 128256))
    chosen = ids.tolist() == [logits[0].argmax().item(), 77, 0, 9]
    ok = norm < 1e-3 and glu < 1e-3 and after < 1e-5 and chosen
    say(f"rows: norm {norm:.1e}, after a block {after:.1e}, activations {glu:.1e}, argmax {chosen}{'' if ok else ' FAIL'}")
    failures += [] if ok else ["rows"]
    for d, neighbours, pairs, normed in ((128, 0, 64, True), (64, 1, 32, False), (128, 1, 32, False), (64, 0, 16, True)):
        n, heads, kv = 3, 6, 2
        qkv = torch.randn(n, heads + 2 * kv, d, device=dev)
        turns = torch.stack([torch.cos(t := torch.rand(n, pairs, device=dev) * 6), torch.sin(t)], -1)
        gains = [torch.rand(d, device=dev) if normed else None for _ in range(2)]
        memory = P.Memory(64 * (128 * d + P.UNIT), dev)
        empty = torch.zeros(n * kv, 3, 128 * d, dtype=torch.uint8, device=dev)
        exact = torch.stack([memory.put(empty), memory.put(empty)], -1).contiguous()
        targets = torch.tensor([[0, 0, 2, 0], [1, 1, 63, 0], [2, 2, 17, 0]], dtype=torch.int32, device=dev)
        q, refused = torch.zeros(n, heads, d, device=dev, dtype=torch.float16), torch.zeros(1, dtype=torch.int32, device=dev)
        kernels.launch(f"append_d{d}", (n, heads + 2 * kv), d, pack("11Q11i4f2i", qkv, turns, *gains, None, None, q, memory.bytes, exact, targets, refused, heads, kv, 3,
                                                                  pairs, neighbours, 0, (heads + 2 * kv) * d, d, d, heads * d, (heads + kv) * d, 1e-6, 1e-6, 0.0, 1.0, 0, 0))
        kernels.synchronize()
        want = qkv.double().clone()
        for part, gain in ((slice(0, heads), gains[0]), (slice(heads, heads + kv), gains[1])):
            if gain is not None:
                want[:, part] = want[:, part] / (want[:, part].square().mean(-1, keepdim=True) + 1e-6).sqrt() * gain.double()
        a = torch.arange(pairs, device=dev) * (2 if neighbours else 1)
        b = a + (1 if neighbours else pairs)
        cos, sin = turns[:, None, :, 0].double(), turns[:, None, :, 1].double()
        head = want[:, :heads + kv]
        head[..., a], head[..., b] = head[..., a] * cos - head[..., b] * sin, head[..., b] * cos + head[..., a] * sin
        e = error(q, want[:, :heads])
        page = torch.zeros(n * kv, 3, 64, d, dtype=torch.float64, device=dev)
        worst = 0.0
        for side in (0, 1):
            half = torch.stack([memory.bytes[u * P.UNIT:u * P.UNIT + 128 * d] for u in exact[..., side].flatten().tolist()]).view(n * kv, 3, -1)
            shown = P.pack_exact(*(torch.arange(64 * d, device=dev, dtype=torch.int32).to(torch.int16).view(torch.float16).view(1, 1, 64, d),) * 2)[side]
            place = shown.view(torch.int16).flatten().long() % (64 * d)  # place[i]: which (token, channel) lies at i
            rows_ = torch.zeros(n * kv, 3, 64 * d, dtype=torch.float64, device=dev)
            rows_[..., place] = half.view(torch.float16).double()
            page.zero_()
            for r, (row, entry, token, _) in enumerate(targets.tolist()):
                page[row * kv:(row + 1) * kv, entry, token] = want[r, heads + side * kv:heads + (side + 1) * kv]
            worst = max(worst, error(rows_.view_as(page), page))
        ok = e < 1e-3 and worst < 1e-3 and refused.item() == 0
        say(f"append d{d} pairs {pairs}{' neighbours' if neighbours else ''}: queries {e:.1e}, pages {worst:.1e}{'' if ok else ' FAIL'}")
        failures += [] if ok else [f"append d{d}"]
    return failures


def route(logits, score, chosen, bias=None, groups=None, renormalise=None, scale=1.0, own=None):
    """Experts and shares of one token, float64: what kvant-oracle says."""
    scores = {0: torch.softmax(logits, -1), 1: logits, 2: torch.sigmoid(logits)}[score]
    ranks = scores if bias is None else scores + bias
    order = lambda x: sorted(range(len(x)), key=lambda i: -x[i])
    eligible = range(len(ranks))
    if groups:
        count, kept, best = groups
        parts = ranks.view(count, -1)
        stay = order([part.sort(descending=True).values[:best].sum().item() for part in parts])[:kept]
        eligible = [e for e in eligible if e // parts.shape[1] in stay]
    picked = sorted(eligible, key=lambda e: -ranks[e].item())[:chosen]
    shares = scores[picked]
    if score == 1:
        shares = torch.softmax(shares, -1)
    if renormalise:
        shares = shares / (max(shares.sum().item(), renormalise[1]) + renormalise[0])
    return picked, shares * scale * (1.0 if own is None else own[picked])


def experts(kernels, say, tokens=70):
    """Router, groups of pairs, products of groups and their sum, against float64."""
    dev, failures = kernels.dev, []
    g = torch.Generator().manual_seed(5)
    for count, chosen, options in ((8, 2, dict(score=0, renormalise=(0.0, 0.0))), (60, 4, dict(score=0)), (32, 4, dict(score=1)),
                                   (64, 6, dict(score=2, bias=True, groups=(8, 3, 2), renormalise=(1e-20, 0.0), scale=2.5)),
                                   (128, 8, dict(score=2, own=True, renormalise=(0.0, 1e-3), scale=1.5))):
        logits = torch.randn(tokens, count, generator=g) * 2
        bias, own = (torch.rand(count, generator=g) if options.get(k) else None for k in ("bias", "own"))
        say_groups, norm = options.get("groups") or (0, 0, 0), options.get("renormalise")
        want = [route(l.double(), options["score"], chosen, None if bias is None else bias.double(), options.get("groups"), norm, options.get("scale", 1.0),
                      None if own is None else own.double()) for l in logits]
        picked, shares = torch.full((tokens, chosen), -1, dtype=torch.int32, device=dev), torch.zeros(tokens, chosen, device=dev)
        there = [None if x is None else x.to(dev) for x in (logits, bias, own)]
        kernels.launch("route", tokens, 32, pack("5Q7i4f", *there, picked, shares, count, chosen, options["score"], *say_groups, int(norm is not None),
                                                 *(norm or (0.0, 0.0)), 1.0, options.get("scale", 1.0)))
        kernels.synchronize()
        same = picked.tolist() == [p for p, _ in want]
        e = error(shares, torch.stack([s for _, s in want]).to(dev))
        # Groups, and a product of each with the tokens that chose it.
        pairs, rows_, channels = tokens * chosen, 48, 256
        data, w = W.q8_0(count * rows_, channels, torch.Generator().manual_seed(1))
        data, w, x = data.contiguous().to(dev), w.view(count, rows_, channels).to(dev), torch.randn(tokens, channels, device=dev).half()
        bits, worst, outs = True, 0.0, []
        forms = [(8, "group8", 448), (64, "group64", 128)] + [(128, "group128", 384)] * kernels.has("linear_q8_0_group128")
        for size, form, threads in forms:
            most = min(pairs, count + pairs // size)
            places, sources, owners = (torch.full((pairs,), -1, dtype=torch.int32, device=dev) for _ in range(3))
            groups = torch.full((most, 4), -1, dtype=torch.int32, device=dev)
            kernels.launch("group_pairs", 1, 512, pack("5Q5i", picked, places, sources, owners, groups, pairs, chosen, count, size, most))
            y, z = torch.full((pairs, rows_), float("nan"), device=dev), torch.full((tokens, rows_), float("nan"), device=dev)
            if size == 128:
                panels, by_pair = -(-rows_ // 128), torch.empty(pairs, channels, dtype=torch.float16, device=dev)
                kernels.launch("gather_rows", pairs, 256, pack("3Qi", x, sources, by_pair, channels // 2))
                kernels.launch(f"linear_q8_0_{form}", min(kernels.sms, most * panels), threads,
                               pack("3Q4ifi2fQQ2i", data, by_pair, y, rows_, channels, pairs, 0, 1.0, *PLAIN, groups, panels, most * panels),
                               map=kernels.wide_maps(data, by_pair, "q8_0", count * rows_, channels, pairs, 64))
            else:
                kernels.launch(f"linear_q8_0_{form}", (most, 2 if size == 8 else -(-rows_ // 64)), threads,
                               pack("3Q4ifi2fQ3Q", data, x, y, rows_, channels, pairs, 0, 1.0, *PLAIN, groups, sources, data.numel() // count),
                               shared=16 * channels + 2 * 64 * 8 if size == 8 else None)
            kernels.launch("combine", (tokens, 1), 256, pack("4Q4i", y, shares, places, z, rows_, chosen, 0, 0))
            kernels.synchronize()
            bits &= sorted(places.tolist()) == list(range(pairs)) and owners[places.long()].tolist() == picked.flatten().tolist()
            truth = torch.stack([sum(shares[t, j].double() * (w[picked[t, j]] @ x[t].double()) for j in range(chosen)) for t in range(tokens)])
            worst = max(worst, error(z, truth))
            outs.append(z)
        bits &= all(torch.equal(outs[0], out) for out in outs)
        ok = same and e < 1e-5 and worst < 2e-5 and bits
        say(f"experts {count}, {chosen} chosen, {options}: same experts {same}, shares {e:.1e}, sum {worst:.1e}, groups of all sizes alike {bits}{'' if ok else ' FAIL'}")
        failures += [] if ok else [f"experts {count} {options}"]
    return failures


def run(kernels, say):
    return fixtures(kernels, say) + attention(kernels, say) + encode(kernels, say) + encode_klt(kernels, say) + linear(kernels, say) + rows(kernels, say) + experts(kernels, say) + top(kernels, say) + strict(kernels, say) + latent.check(kernels, say)


HOST_CASES = [dict(positions=[300, 40], kv_heads=1, **options) for options in (
    dict(group=2, d=128, hard=True), dict(group=12, d=64), dict(group=2, d=64, window=130), dict(group=2, d=64, cap=30.0, hard=True),
    dict(group=2, d=64, logits=True), dict(group=2, d=64, recent=100, sinks=20), dict(group=2, d=64, window=150, streaming=True),
    dict(group=2, d=64, sinks=0), dict(group=1, d=128, window=100, cap=5.0))]

HOST_MANY = [dict(positions=[190, 3], tokens=9, kv_heads=1, **options) for options in (
    dict(group=4, d=128), dict(group=16, d=64), dict(group=3, d=64, window=100), dict(group=2, d=64, window=70, cap=5.0),
    dict(group=2, d=128, window=100, streaming=True), dict(group=3, d=96), dict(group=4, d=256, window=150))]


def small(kernels, say):
    """Short sequences, all features: what fibers, or a card under a sanitizer, can do in a few minutes."""
    return fixtures(kernels, say) + rows(kernels, say) + top(kernels, say, ((2, 300, 40, 1.0, 1.3), (1, 5000, 256, 0.3, 0.2), (1, 20, 40, 1.0, 2.0))) + strict(kernels, say, (64,)) + encode(kernels, say) + encode_klt(kernels, say) + linear(kernels, say, ((64, 256), (24, 768)), 72) + experts(kernels, say, 12) + attention(
        kernels, say, HOST_CASES, 1, HOST_MANY) + latent.check(kernels, say, latent.TINY)
