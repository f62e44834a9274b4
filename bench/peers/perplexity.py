#!/usr/bin/env python3
"""Perplexity of kvant beside llama.cpp's, on the same models, token ids, windows and scoring.

    cargo build --release -p kvant-cli
    python3 bench/peers/perplexity.py --text wiki.test.raw MODEL.gguf...
    python3 bench/peers/perplexity.py --text notes.txt --peer-kv f16,q4_0 --kv f16,int4 MODEL.gguf...

llama.cpp comes as a pinned prebuilt binding from PyPI, into a virtual environment under target/, or, with --peer, as
build.sh has built it for this machine. Both engines tokenise the text themselves; the digests of their window ids
are compared, and a difference is an error. Without --peer-kv the peer's cache has the number type of ours (--kv), and the
two figures have to agree: the peer's activations are quantised to 8 bits in products with quantised weights, ours are not,
so a small difference remains. With it both engines show what their own caches cost them.
"""

import argparse
import array
import hashlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import peer

TOLERANCE_PERCENT = 0.5


def flash_attention(kv):
    """Flash attention rounds an f32 cache to f16 before use: its results are those of f16, bit for bit."""
    return kv != "f32"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--text", required=True, metavar="FILE")
    parser.add_argument("--ctx", type=int, default=512)
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--score", choices=["second-half", "all"], default="second-half")
    parser.add_argument("--kv", default="f32", metavar="SPEC,SPEC", help="kvant's caches; without --peer-kv f32 or f16")
    parser.add_argument("--peer-kv", metavar="TYPE,TYPE", help="llama.cpp's caches, to see what each engine's cost it")
    peer.add_option(parser)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--kvant", default=str(peer.KVANT), metavar="BINARY")
    parser.add_argument("--save", metavar="FILE", help="also write the figures, as rows for cargo xtask ledger record")
    options = parser.parse_args()
    if not options.peer_kv and options.kv not in ("f32", "f16"):
        parser.error("--kv: without --peer-kv both engines have the same cache, f32 or f16")
    for kv in (options.peer_kv or options.kv).split(","):
        if kv not in peer.GGML_TYPE:
            parser.error(f"{kv}: llama.cpp's cache types here are {', '.join(peer.GGML_TYPE)}")
    return options


def peer_windows(model, options):
    """Windows as llama.cpp's perplexity tool cuts them: the first id of each becomes the beginning-of-text one."""
    text = Path(options.text).read_bytes().decode("utf-8")
    ids = model.tokenize(text)
    needed = options.ctx * options.chunks
    if len(ids) < needed:
        sys.exit(f"{options.text}: the text has {len(ids)} tokens, and {needed} are needed")
    windows = [ids[start : start + options.ctx] for start in range(0, needed, options.ctx)]
    if model.beginning is not None:
        windows = [[model.beginning, *window[1:]] for window in windows]
    return windows


def digest(windows):
    words = array.array("I", [token for window in windows for token in window])
    if sys.byteorder == "big":
        words.byteswap()
    return hashlib.sha256(words.tobytes()).hexdigest()


def measure_peer(model, options, kv):
    import numpy

    windows = peer_windows(model, options)
    first = options.ctx // 2 if options.score == "second-half" else 0

    surprises = []
    start = time.monotonic()
    for number, window in enumerate(windows):
        context = peer.open_context(model, options.ctx, options.threads, kv, flash_attention(kv))
        context.read(window, 0, every_logit=True)
        for position in range(first, options.ctx - 1):
            logits = context.logits(position)
            largest = logits.max()
            mass = numpy.log(numpy.exp(logits - largest).sum())
            surprises.append(float(mass - (logits[window[position + 1]] - largest)))
        print(f"\rllama.cpp, {kv}: window {number + 1} of {len(windows)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    seconds = time.monotonic() - start

    count = len(surprises)
    mean = math.fsum(surprises) / count
    variance = math.fsum((s - mean) ** 2 for s in surprises) / (count - 1)
    return {
        "engine": peer.describe(options.peer),
        "ids_sha256": digest(windows),
        "tokens": count,
        "nll_mean": mean,
        "ppl": math.exp(mean),
        "ppl_stderr": math.exp(mean) * math.sqrt(variance / count),
        "kv": kv,
        "flash_attention": flash_attention(kv),
        "threads": options.threads,
        "seconds": seconds,
    }


def measure_kvant(path, options):
    command = [options.kvant, "eval", path, "--json", "--text", options.text, "--ctx", str(options.ctx)]
    command += ["--chunks", str(options.chunks), "--score", options.score, "--threads", str(options.threads)]
    # The exact cache is kvant's own for a perplexity; any other is measured beside it, which takes twice as long.
    command += [] if options.kv == "f32" else ["--kv", options.kv]
    print("kvant: running", file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE)
    except OSError as error:
        sys.exit(f"cannot run {options.kvant}: {error}. Build it first: cargo build --release -p kvant-cli")
    if done.returncode != 0:
        sys.exit(f"kvant eval failed with exit code {done.returncode}")
    text = done.stdout.decode()
    return [json.loads(text)] if options.kv == "f32" else [json.loads(line) for line in text.splitlines()]


def check_ids(path, theirs, ours):
    if theirs["ids_sha256"] != ours["ids_sha256"] or theirs["tokens"] != ours["tokens"]:
        sys.exit(f"{path}: the engines made different token ids of the text; their perplexities do not compare")


def cache_rows(path, options):
    """What each engine's caches cost it, as rows for the ledger."""
    model = peer.open_model(options.peer, path)
    theirs = [measure_peer(model, options, kv) for kv in options.peer_kv.split(",")]
    del model
    ours = measure_kvant(path, options)
    check_ids(path, theirs[0], ours[0])
    about = {"model": Path(path).name, "text": Path(options.text).name}
    about |= {key: ours[0][key] for key in ("tokens", "ctx", "chunks", "score", "ids_sha256", "machine")}
    row = lambda engine, kv, found, f16: about | {
        "engine": engine,
        "kv": kv,
        "ppl": found["ppl"],
        "stderr": found["ppl_stderr"],
        "against_f16": found["ppl"] / f16["ppl"],
        # Only kvant holds its caches against exact logits.
        **({"kl": found["kl_mean"], "top1": found["top1"]} if "kl_mean" in found else {}),
    }
    rows = [row(f"llama.cpp, {peer.short_name(options.peer)}", found["kv"], found, theirs[0]) for found in theirs]
    rows += [row("kvant", found["spec"], found, ours[0]) for found in ours]
    return [one | {"peer": theirs[0]["engine"]} for one in rows]


def print_caches(rows):
    print("| model | text | engine | cache | perplexity | against its f16 | mean KL |")
    print("|---|---|---|---|--:|--:|--:|")
    for row in rows:
        kl = f"{row['kl']:.4f}" if "kl" in row else ""
        print(
            f"| {row['model']} | {row['text']} | {row['engine']} | `{row['kv']}` | {row['ppl']:.2f} ± {row['stderr']:.2f} "
            f"| {row['against_f16']:.3f}× | {kl} |"
        )


def compare(path, options):
    theirs = measure_peer(peer.open_model(options.peer, path), options, options.kv)
    (ours,) = measure_kvant(path, options)
    check_ids(path, theirs, ours)
    # File names only: where they lie is nobody's business in a results file.
    ours |= {"model": Path(path).name, "text": Path(options.text).name}
    return {"model": Path(path).name, "peer": theirs, "kvant": ours, "ratio": ours["ppl"] / theirs["ppl"]}


def ledger_row(row):
    theirs, ours = row["peer"], row["kvant"]
    kept = ["model", "tokens", "ppl", "ppl_stderr", "ctx", "chunks", "score", "ids_sha256", "machine"]
    peer_figures = {"peer": theirs["engine"], "peer_ppl": theirs["ppl"], "peer_stderr": theirs["ppl_stderr"]}
    return {key: ours[key] for key in kept} | peer_figures | {"kv": theirs["kv"], "ratio": row["ratio"]}


def main():
    options = arguments()
    peer.enter(__file__)
    rows = []
    if options.peer_kv:
        for path in options.models:
            rows += cache_rows(path, options)
            if options.save:
                Path(options.save).write_text("".join(json.dumps(row) + "\n" for row in rows))
        print(f"peer: {peer.describe(options.peer)}\n")
        return print_caches(rows)
    for path in options.models:
        rows.append(compare(path, options))
        if options.save:
            Path(options.save).write_text("".join(json.dumps(ledger_row(row)) + "\n" for row in rows))
    machine = rows[0]["kvant"]["machine"]
    print(f"{machine['cpu']}, {machine['cores']} cores; {Path(options.text).name}, {options.chunks} windows of")
    print(f"{options.ctx} tokens, {options.score} scored, {options.kv} cache; {peer.describe(options.peer)}\n")
    print("| model | scored tokens | llama.cpp | kvant | kvant / llama.cpp |")
    print("|---|---|---|---|---|")
    for row in rows:
        theirs, ours = row["peer"], row["kvant"]
        print(
            f"| {row['model']} | {ours['tokens']} | {theirs['ppl']:.4f} ± {theirs['ppl_stderr']:.3f} "
            f"| {ours['ppl']:.4f} ± {ours['ppl_stderr']:.3f} | {row['ratio']:.4f} |"
        )
    worst = max(abs(row["ratio"] - 1) * 100 for row in rows)
    within = worst <= TOLERANCE_PERCENT
    print(f"\nlargest difference {worst:.2f} %: {'within' if within else 'NOT within'} {TOLERANCE_PERCENT} %")
    sys.exit(0 if within else 1)


if __name__ == "__main__":
    main()
