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
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--peer-kv", default="f16,q8_0,q4_0", metavar="TYPE,TYPE")
    parser.add_argument("--rounds", type=int, default=2, metavar="N")
    parser.add_argument("--kvant", default=str(peer.KVANT), metavar="BINARY")
    parser.add_argument("--save", default=str(peer.REPOSITORY / "docs/results/depth.json"), metavar="FILE")
    options = parser.parse_args()
    peer.enter(__file__)
    from llama_worker import Worker

    def kvant(*more):
        command = [options.kvant, "bench", options.model, "--kv", "f16,int4", "--threads", str(options.threads), "--json"]
        lines = subprocess.run([*command, *more], check=True, capture_output=True, text=True).stdout.splitlines()
        return {row["kv"]: row for row in map(json.loads, lines)}

    best = {}

    def note(engine, kv, test, seconds):
        key = engine, kv, test
        best[key] = min(seconds, best.get(key, seconds))
        print(f"{engine:10} {kv:5} {test:8} {1000 * seconds:9.2f} ms/token", flush=True)

    def note_kvant(test, *more):
        for kv, row in kvant(*more).items():
            note("kvant", kv, test, 1 / row["tok_s_best"])

    prefill, decode = f"pp{options.prefill}", f"tg at {options.depth:,}"
    worker, cores, steps = Worker(options.model), os.cpu_count(), 4
    for kv in options.peer_kv.split(","):
        context = peer.open_context(worker.model, options.depth + steps, options.threads, kv, True, 512)
        ids = worker.ids(options.depth)
        start = time.perf_counter()
        worker.read(context, ids[: options.prefill], 0)
        context.synchronize()
        note("llama.cpp", kv, prefill, (time.perf_counter() - start) / options.prefill)
        context.set_n_threads(cores, cores)
        worker.read(context, ids[options.prefill :], options.prefill)
        worker.contexts[kv] = context, options.depth
        for _ in range(options.rounds):
            note("llama.cpp", kv, decode, worker.run(kv, "tg", steps, options.threads)["seconds"] / steps)
            note_kvant(decode, "-p", "0", "-n", "24", "-d", str(options.depth), "--fill", "-r", "2")
        note_kvant(prefill, "-p", str(options.prefill), "-n", "0", "-d", "0", "-r", "1")
        del worker.contexts[kv], context

    rows = []
    for (engine, kv, test), seconds in best.items():
        row = {"engine": engine, "kv": kv, "test": test, "ms": 1000 * seconds, "tok_s": 1 / seconds}
        row["against_int4"] = seconds / best["kvant", "int4", test]
        rows.append(row)
    rows.sort(key=lambda row: (row["test"], row["ms"]))
    cpu = next(line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name"))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    columns = [
        {"head": "test", "cell": "{test}", "left": True},
        {"head": "engine", "cell": "{engine}", "left": True},
        {"head": "cache", "cell": "`{kv}`", "left": True},
        {"head": "ms/token", "cell": "{ms:.2}"},
        {"head": "tok/s", "cell": "{tok_s:.1}"},
        {"head": "kvant int4 is faster by", "cell": "{against_int4:.2}×"},
    ]
    result = {
        "title": "Deep in a context, beside llama.cpp",
        "machine": f"{cpu}, {cores} cores",
        "commit": commit,
        "command": f"python3 bench/peers/depth.py --threads {options.threads} {os.path.basename(options.model)}",
        "notes": [
            f"{os.path.basename(options.model)}, {options.threads} thread(s). The peer is llama.cpp through "
            f"`{peer.PEER}`, {peer.BUILD}, with flash attention and its rotation of the KV "
            "cache on. Rounds of both engines took turns; the best one counts."
        ],
        "rows": rows,
        "tables": {"depth": {"columns": columns}},
    }
    with open(options.save, "w") as file:
        json.dump(result, file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()
