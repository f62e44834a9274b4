#!/usr/bin/env python3
"""How far routing by prefix carries: a simulation of 1 to 1,000 replicas.

Conversations come and go; each turn repeats all that was said and adds some. A replica reads what its cache does not hold, then
writes the answer; it holds so many tokens and forgets the conversation that was asked longest ago. The router is kvant's own
(`kvant.ray.prefixes.PrefixMap`), and what it is compared with sends every turn to the replica that has the least to do.

    python bench/scale.py --read 300 --write 40 --cache 200000

`--read` and `--write` are the tokens that one replica reads and writes in a second: take them from `kvant bench` on your machine.
Times are simulated; nothing is measured here.
"""

from __future__ import annotations

import argparse
import heapq
import importlib.util
import random
import sys
from collections import OrderedDict
from pathlib import Path

_PREFIXES = Path(__file__).resolve().parent.parent / "python" / "kvant" / "ray" / "prefixes.py"


def prefix_map() -> type:
    """The router's memory, without the rest of the package."""
    spec = importlib.util.spec_from_file_location("prefixes", _PREFIXES)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["prefixes"] = module
    spec.loader.exec_module(module)
    return module.PrefixMap


class Replica:
    """One engine: when it is free again, and the conversations it holds."""

    def __init__(self, capacity: int) -> None:
        self.free, self.held, self.tokens, self.capacity = 0.0, OrderedDict(), 0, capacity

    def take(self, talk: int, prompt: int, answer: int) -> int:
        """Reads a prompt and writes an answer; returns the tokens it found in its cache."""
        found = min(self.held.pop(talk, 0), prompt)
        self.tokens += prompt + answer - found
        self.held[talk] = prompt + answer
        while self.tokens > self.capacity and len(self.held) > 1:
            _, gone = self.held.popitem(last=False)
            self.tokens -= gone
        return found


def simulate(replicas: int, by_prefix: bool, options: argparse.Namespace) -> tuple[float, float, float]:
    """Hit rate in tokens, turns a second, and the median wait for a turn's first token."""
    dice = random.Random(5)
    engines = [Replica(options.cache) for _ in range(replicas)]
    names, held = [str(at) for at in range(replicas)], prefix_map()(2_000_000)
    # As many conversations as keep the replicas busy for the part `--load` of the time, if nothing is read twice.
    busy = options.turn / options.read + options.answer / options.write
    talks = max(1, round(replicas * options.load * (busy + options.think) / busy))
    events = [(dice.expovariate(1 / options.think), talk, 0, 0) for talk in range(talks)]
    heapq.heapify(events)
    turns = prompts = hits = 0
    waits, now, fresh = [], 0.0, talks
    while turns < options.turns * replicas:
        now, talk, turn, said = heapq.heappop(events)
        prompt = said + options.turn
        least = min(range(replicas), key=lambda at: engines[at].free)
        at = least
        if by_prefix:
            digests = [f"{talk}/{turn}".encode() for turn in range(turn + 1)]
            holder, _ = held.longest(digests, names)
            # A wait longer than reading the prompt anew is not worth the cache.
            if holder is not None and engines[int(holder)].free - max(now, engines[least].free) < said / options.read:
                at = int(holder)
            held.read(digests, names[at])
        engine = engines[at]
        found = engine.take(talk, prompt, options.answer)
        begin = max(now, engine.free)
        first = begin + (prompt - found) / options.read
        engine.free = first + options.answer / options.write
        waits.append(first - now)
        turns, prompts, hits = turns + 1, prompts + prompt - options.turn, hits + found
        later = engine.free + dice.expovariate(1 / options.think)
        if dice.random() < 1 / options.length:
            heapq.heappush(events, (later, fresh, 0, 0))
            fresh += 1
        else:
            heapq.heappush(events, (later, talk, turn + 1, prompt + options.answer))
    waits.sort()
    return hits / max(prompts, 1), turns / now, waits[len(waits) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, about in [
        ("read", 300.0, "tokens that a replica reads in a second"),
        ("write", 40.0, "tokens that it writes in a second"),
        ("cache", 200_000, "tokens that its cache holds"),
        ("turn", 150, "tokens that a turn adds to its conversation"),
        ("answer", 150, "tokens of an answer"),
        ("think", 20.0, "seconds before the next turn, on average"),
        ("length", 8.0, "turns of a conversation, on average"),
        ("load", 0.6, "part of the time that replicas would be busy if nothing were read twice"),
        ("turns", 200, "turns per replica"),
    ]:
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{about} [{default}]")
    options = parser.parse_args()
    print("| replicas | routed by | prompt tokens found | turns a second | each | wait, median s |")
    print("|--:|---|--:|--:|--:|--:|")
    for replicas in (1, 2, 4, 10, 30, 100, 300, 1000):
        for by_prefix in (True, False):
            hit, rate, wait = simulate(replicas, by_prefix, options)
            how = "prefix" if by_prefix else "least to do"
            print(f"| {replicas:,} | {how} | {hit:.0%} | {rate:,.2f} | {rate / replicas:.3f} | {wait:.2f} |", flush=True)


if __name__ == "__main__":
    main()
