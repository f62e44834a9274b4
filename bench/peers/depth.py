#!/usr/bin/env python3
"""Decode deep in a context, and a long prefill, beside llama.cpp: kvant's f16 and int4 against the peer's caches.

    cargo build --release -p kvant-cli
    python3 bench/peers/depth.py MODEL.gguf

The peer needs minutes to read thousands of tokens, so every one of its contexts is filled once: the prefill is timed
with the threads that are compared, what is left to the depth is read with all cores. Then engines take turns to decode. The
best round counts. Writes docs/results/depth.json; `cargo xtask ledger` makes the page from it.
"""

import argparse
import json
import os
import subprocess
import time

import peer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("--depth", type=int, default=7000, metavar="N")
    parser.add_argument("--prefill", type=int, default=4096, metavar="N")
    parser.add_argument("--threads", default="1,2", metavar="N,N", help="for decoding; the prompt is read with the last")
    parser.add_argument("--peer-kv", default="f16,q8_0,q4_0", metavar="TYPE,TYPE")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    peer.add_option(parser)
    parser.add_argument("--kvant", default=str(peer.KVANT), metavar="BINARY")
    parser.add_argument("--save", default=str(peer.REPOSITORY / "docs/results/depth.json"), metavar="FILE")
    options = parser.parse_args()
    peer.enter(__file__)
    from llama_worker import Worker

    threads = [int(count) for count in options.threads.split(",")]
    most = threads[-1]

    def kvant(count, *more):
        command = [options.kvant, "bench", options.model, "--kv", "f16,int4", "--threads", str(count), "--json"]
        lines = subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout.splitlines()
        return {row["kv"]: row for row in map(json.loads, lines)}

    best = {}

    def note(engine, kv, test, count, seconds):
        """Keeps the best of what stands beside the peer's cache `peer_kv`."""
        key = peer_kv, engine, kv, test, count
        best[key] = min(seconds, best.get(key, seconds))
        print(f"{engine:10} {kv:5} {test:12} {count} threads {1000 * seconds:9.2f} ms/token", flush=True)

    def note_kvant(test, count, *more):
        for kv, row in kvant(count, *more).items():
            note("kvant", kv, test, count, 1 / row["tok_s_best"])

    prefill, decode = f"pp{options.prefill}", f"tg at {options.depth:,}"
    worker, cores, steps = Worker(options.peer, options.model), os.cpu_count(), 4
    for peer_kv in options.peer_kv.split(","):
        context = peer.open_context(worker.model, options.depth + steps, most, peer_kv, True, 512)
        ids = worker.ids(options.depth)
        start = time.perf_counter()
        worker.read(context, ids[: options.prefill], 0)
        context.synchronize()
        note("llama.cpp", peer_kv, prefill, most, (time.perf_counter() - start) / options.prefill)
        note_kvant(prefill, most, "-p", str(options.prefill), "-n", "0", "-d", "0", "-r", "1")
        context.set_threads(cores)
        worker.read(context, ids[options.prefill :], options.prefill)
        worker.contexts[peer_kv] = context, options.depth
        for _ in range(options.rounds):
            for count in threads:
                note("llama.cpp", peer_kv, decode, count, worker.run(peer_kv, "tg", steps, count)["seconds"] / steps)
                note_kvant(decode, count, "-p", "0", "-n", "24", "-d", str(options.depth), "--fill", "-r", "2")
        del worker.contexts[peer_kv], context

    rows = []
    for (peer_kv, engine, _, test, count), seconds in best.items():
        if engine == "llama.cpp":
            f16, int4 = (best[peer_kv, "kvant", kv, test, count] for kv in ("f16", "int4"))
            row = {"test": test, "threads": count, "peer_kv": peer_kv, "peer_ms": 1000 * seconds}
            rows.append(row | {"f16_ms": 1000 * f16, "int4_ms": 1000 * int4, "ratio": seconds / int4, "own": f16 / int4})
    rows.sort(key=lambda row: (row["test"], row["threads"], row["peer_ms"]))
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    columns = [
        {"head": "test", "cell": "{test}", "left": True},
        {"head": "threads", "cell": "{threads:.0}"},
        {"head": "llama.cpp's cache", "cell": "`{peer_kv}`", "left": True},
        {"head": "llama.cpp, ms/token", "cell": "{peer_ms:.1}"},
        {"head": "kvant f16", "cell": "{f16_ms:.2}"},
        {"head": "kvant int4", "cell": "{int4_ms:.2}"},
        {"head": "int4 against llama.cpp", "cell": "{ratio:.1}×"},
        {"head": "int4 against f16", "cell": "{own:.2}×"},
    ]
    result = {
        "title": "How does kvant compare with llama.cpp deep in a context, on a CPU?",
        "machine": f"{cpu}, {cores} cores",
        "commit": commit,
        "command": f"python3 bench/peers/depth.py {'--peer FOLDER ' if options.peer else ''}"
        f"--rounds {options.rounds} {os.path.basename(options.model)}",
        "notes": [
            f"{os.path.basename(options.model)}. The peer is {peer.describe(options.peer)}, with flash attention and its "
            "rotation of the KV cache on. Rounds of both engines took turns; the best one beside each of the peer's caches counts."
        ],
        "rows": rows,
        "tables": {"depth": {"columns": columns}},
    }
    peer.save_figures(options.save, result)


if __name__ == "__main__":
    main()
