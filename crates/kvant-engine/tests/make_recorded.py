"""Prints the seeded runs recorded in sampler.rs, from the documented chain written a second time.

    pip install numpy
    python make_recorded.py
"""

from decimal import Decimal, getcontext

import numpy as np

getcontext().prec = 40
M = 2**64 - 1
f32 = np.float32


def generator(seed):
    """xoshiro256++ seeded by SplitMix64."""
    s = []
    for _ in range(4):
        seed = seed + 0x9E3779B97F4A7C15 & M
        z = seed
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M
        z = (z ^ z >> 27) * 0x94D049BB133111EB & M
        s.append(z ^ z >> 31)
    rot = lambda x, k: (x << k | x >> 64 - k) & M
    while True:
        yield rot(s[0] + s[3] & M, 23) + s[0] & M
        t = s[1] << 17 & M
        s[2] ^= s[0]; s[3] ^= s[1]; s[1] ^= s[2]; s[0] ^= s[3]; s[2] ^= t
        s[3] = rot(s[3], 45)


def below(numbers, bound):
    while True:
        product = next(numbers) * bound
        if product & M >= 2**64 % bound:
            return product >> 64


def weight(x):
    return int((Decimal(x).exp() * 2**40).quantize(Decimal(1)))


def logits(step):
    return [f32(f32((i * 37 + step * 101) % 997) * f32(0.01) - f32(i % 7) * f32(0.5)) for i in range(1000)]


def run(seed, t=1.0, k=0, p=1.0, m=0.0, rep=1.0, freq=0.0, pres=0.0, bias=()):
    numbers, history, out = generator(seed), [], []
    for step in range(12):
        l = logits(step)
        for token in set(history[-64:]):
            count = f32(history[-64:].count(token))
            l[token] = l[token] / f32(rep) if l[token] > 0 else l[token] * f32(rep)
            l[token] = l[token] - (count * f32(freq) + f32(pres))
        for token, b in bias:
            l[token] = l[token] + f32(b)
        rank = sorted(range(1000), key=lambda i: (-l[i], i))[: k or None]
        best = float(l[rank[0]])
        w = {i: weight((float(l[i]) - best) / float(f32(t))) for i in rank if l[i] > -np.inf}
        target, kept, mass = float(f32(p)) * sum(w.values()), [], 0
        for i in rank:
            kept.append(i)
            mass += w.get(i, 0)
            if p < 1 and mass >= target:
                break
        kept = sorted(i for i in kept if w.get(i, 0) > 0 and w[i] >= float(f32(m)) * 2**40)
        at = below(numbers, sum(w[i] for i in kept))
        for i in kept:
            if at < w[i]:
                break
            at -= w[i]
        out.append(i)
        history.append(i)
    return out


print("PLAIN", run(42))
print("FULL", run(7, 0.8, 200, 0.95, 0.02, 1.1, 0.2, 0.1, [(3, 2.0), (5, -np.inf)]))
