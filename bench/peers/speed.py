#!/usr/bin/env python3
"""Speed of kvant beside llama.cpp's, on the same files, depths and threads, run by run in turns.

    cargo build --release -p kvant-cli
    python3 bench/peers/speed.py --threads 1,2 --depths 0,2048,7000 MODEL.gguf...

llama.cpp comes as a pinned prebuilt binding from PyPI, into a virtual environment under target/, or, with --peer, as
build.sh has built it for this machine. Each engine loads a
model once and keeps its contexts; between two runs of one the other has a few. Prefill and decode are timed inside the
engines, the first token from the start of a fresh process, with the file in the page cache. The best of all runs
counts, and ratios are of tokens per second: above 1, kvant is faster.

Writes docs/results/speed.json (--save names another place); `cargo xtask ledger` makes the page from it.
"""

import argparse
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

import peer
import speed_report

WORKER = Path(__file__).with_name("llama_worker.py")
FIRST_PROMPT, FIRST_GENERATED = 32, 8
ROTATION_TOKENS = 256
# More than this over the last minute, and somebody else is running.
BUSY = 0.5
# Threads of the engine that has just run are still looking for work.
PAUSE_S = 0.02


def arguments():
    numbers = lambda text: [int(part) for part in text.split(",")]
    names = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("-p", "--prefill", type=int, default=512, metavar="N")
    parser.add_argument("-n", "--decode", type=int, default=64, metavar="N")
    parser.add_argument("--depths", type=numbers, default=[0, 2048, 7000], metavar="N,N")
    parser.add_argument("--threads", type=numbers, default=[os.cpu_count()], metavar="N,N")
    parser.add_argument("--kv", default="f16", metavar="SPEC,SPEC", help="kvant's caches")
    parser.add_argument("--peer-kv", type=names, default=["f16", "q8_0", "q4_0"], metavar="TYPE,TYPE")
    parser.add_argument("-r", "--repetitions", type=int, default=5, metavar="N")
    peer.add_option(parser)
    parser.add_argument("--kvant", default=str(peer.KVANT), metavar="BINARY")
    parser.add_argument("--save", default=str(peer.REPOSITORY / "docs" / "results" / "speed"), metavar="PREFIX")
    options = parser.parse_args()
    for kv in options.peer_kv:
        if kv not in peer.GGML_TYPE:
            parser.error(f"--peer-kv {kv}: llama.cpp's cache types here are {', '.join(peer.GGML_TYPE)}")
    if not Path(options.kvant).is_file():
        parser.error(f"{options.kvant} is not there: cargo build --release -p kvant-cli")
    return options


class Llama:
    """llama.cpp in a process of its own."""

    def __init__(self, path, options, **environment):
        command = [peer.python(), str(WORKER), json.dumps([options.peer, path])]
        env = {**os.environ, **environment}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)
        self.answer()

    def ask(self, do, **arguments):
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"llama.cpp ended early, with exit code {self.process.wait()}: see its message above")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class PacedKvant:
    """`kvant bench`, which waits for its turn before every step."""

    def __init__(self, path, options):
        command = [options.kvant, "bench", path, "--json", "--paced", "--kv", options.kv]
        command += ["-p", str(options.prefill), "-n", str(options.decode), "-r", str(options.repetitions)]
        command += ["-d", ",".join(map(str, options.depths)), "--threads", ",".join(map(str, options.threads))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        self.rows = []

    def next_step(self):
        """The step that waits to be let go; at the end none, and the rows are there."""
        for line in self.process.stdout:
            answer = json.loads(line)
            if "next" in answer:
                return answer
            self.rows.append(answer)
        if self.process.wait() != 0:
            sys.exit(f"kvant bench failed with exit code {self.process.returncode}: see its message above")
        return None

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()


def peer_cases(options):
    """In the order of kvant's own, so that what is compared runs close together."""
    # A quantised value cache needs flash attention; with f16 either may be the faster one.
    variants = [(kv, flash) for kv in options.peer_kv for flash in ((True, False) if kv == "f16" else (True,))]
    tests = [(test, n) for test, n in (("pp", options.prefill), ("tg", options.decode)) if n > 0]
    combinations = itertools.product(tests, options.depths, options.threads, variants)
    return [
        {"test": test, "tokens": n, "depth": depth, "threads": threads, "kv": kv, "flash": flash, "seconds": []}
        for (test, n), depth, threads, (kv, flash) in combinations
    ]


def context_name(case):
    return f"{case['kv']} {case['flash']} {case['depth']}"


def run_in_turns(path, options):
    """kvant's rows, and the peer's cases with their times."""
    llama, kvant, cases = Llama(path, options), PacedKvant(path, options), peer_cases(options)
    room = max(options.prefill, options.decode)
    for case in {context_name(case): case for case in cases}.values():
        say(f"llama.cpp: a context of {case['depth']}, {case['kv']}")
        shape = {key: case[key] for key in ("depth", "kv", "flash")}
        llama.ask("open", name=context_name(case), room=room, threads=max(options.threads), **shape)
    contexts = done = 0
    while step := kvant.next_step():
        say(f"kvant: {step['next']}")
        if step["timed"]:
            # The peer goes first, up to the same share of its own runs.
            mine, all_mine = step["done"] - contexts + 1, step["total"] - contexts
            while done * all_mine < mine * options.repetitions * len(cases):
                case = cases[done % len(cases)]
                time.sleep(PAUSE_S)
                shape = {key: case[key] for key in ("test", "tokens", "threads")}
                case["seconds"].append(llama.ask("run", name=context_name(case), **shape)["seconds"])
                done += 1
            time.sleep(PAUSE_S)
        else:
            contexts += 1
        kvant.go()
    llama.close()
    for row in kvant.rows:
        row["model"] = Path(path).name
    return kvant.rows, [finished(case) for case in cases]


def finished(case):
    rate = lambda seconds: case["tokens"] / seconds
    best, median = min(case["seconds"]), statistics.median(case["seconds"])
    rates = {"tok_s_best": rate(best), "tok_s_median": rate(median), "ms_best": best * 1e3 / case["tokens"]}
    return {**case, **rates}


def rotation(path, options):
    """Whether the peer rotates a q4_0 cache: its logits with the switch in the environment and without."""

    def logits(llama, kv):
        shape = {"flash": True, "tokens": ROTATION_TOKENS, "threads": max(options.threads)}
        return llama.ask("logits", kv=kv, **shape)["logits"]

    default, disabled = Llama(path, options), Llama(path, options, LLAMA_ATTN_ROT_DISABLE="1")
    exact, on, again = [logits(default, kv) for kv in ("f16", "q4_0", "q4_0")]
    off = logits(disabled, "q4_0")
    default.close()
    disabled.close()
    largest = lambda a, b: max(abs(x - y) for x, y in zip(a, b))
    distance = lambda a: statistics.fmean((x - y) ** 2 for x, y in zip(a, exact)) ** 0.5
    return {
        "is_on": largest(on, off) > 0 and largest(on, again) == 0,
        "largest_difference_when_disabled": largest(on, off),
        "largest_difference_when_repeated": largest(on, again),
        "rms_to_f16_on": distance(on),
        "rms_to_f16_off": distance(off),
    }


def first_tokens(path, options):
    llama = Llama(path, options)
    prompt = llama.ask("prompt", tokens=FIRST_PROMPT)
    llama.close()
    return [first_token(path, options, threads, prompt) for threads in options.threads]


def first_token(path, options, threads, prompt):
    """From process start to first token, and the most memory, of processes that do the same."""
    wanted = {"folder": options.peer, "path": path, "ids": prompt["ids"], "threads": threads, "generate": FIRST_GENERATED}
    theirs = [peer.python(), str(WORKER), "first-token", json.dumps(wanted)]
    ours = [options.kvant, "run", "-m", path, "--raw", "--greedy", "--ctx", "512", "--threads", str(threads)]
    ours += ["-n", str(FIRST_GENERATED), prompt["text"]]
    check_prompt(ours, prompt)
    runs = {"kvant": [], "peer": []}
    for _ in range(options.repetitions + 1):
        time.sleep(PAUSE_S)
        runs["kvant"].append(watch(ours))
        time.sleep(PAUSE_S)
        run = watch(theirs)
        clock = json.loads(run.pop("output"))
        run["first_s"], run["import_s"] = clock["first"] - run["start"], clock["imported"] - run["start"]
        runs["peer"].append(run)
    # The first of each brings files into the page cache.
    best = lambda engine, key: min(run[key] for run in runs[engine][1:])
    return {
        "threads": threads,
        "kvant_s": best("kvant", "first_s"),
        "peer_s": best("peer", "first_s"),
        "peer_without_import_s": min(run["first_s"] - run["import_s"] for run in runs["peer"][1:]),
        "kvant_peak_bytes": best("kvant", "peak_bytes"),
        "peer_peak_bytes": best("peer", "peak_bytes"),
        "file_bytes": Path(path).stat().st_size,
    }


def check_prompt(command, prompt):
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed with exit code {done.returncode}")
    tokens = json.loads(done.stdout)["prefill"]["tokens"]
    if tokens != len(prompt["ids"]):
        sys.exit(f"kvant reads the prompt as {tokens} tokens, llama.cpp as {len(prompt['ids'])}: no comparison")


def watch(command):
    """Runs a process: seconds to its first output, all of it, and its peak memory."""
    start = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    first = os.read(process.stdout.fileno(), 1)
    first_s = time.monotonic() - start
    output = first + process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0 or not first:
        sys.exit(f"{shlex.join(command[:3])} … failed with exit code {process.returncode}")
    # In bytes on macOS, in KiB elsewhere.
    unit = 1 if sys.platform == "darwin" else 1024
    return {"start": start, "first_s": first_s, "peak_bytes": usage.ru_maxrss * unit, "output": output.decode()}


def say(text):
    if sys.stderr.isatty():
        print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)


def main():
    options = arguments()
    results = []
    load = os.getloadavg()[0]
    if load > BUSY:
        print(f"other programs are running (load {load:.1f}): the figures will not be worth much", file=sys.stderr)
    for path in options.models:
        ours, theirs = run_in_turns(path, options)
        say("the peer's rotation, and first tokens")
        results.append({
            "model": Path(path).name,
            "kvant": ours,
            "peer": theirs,
            "rotation": rotation(path, options),
            "first_token": first_tokens(path, options),
        })
        say("")
        # After every model, so that a long comparison that is broken off leaves something.
        figures = speed_report.ledger(results, load, speed_report.command_line(options), peer.describe(options.peer))
        peer.save_figures(Path(options.save).with_suffix(".json"), figures)


if __name__ == "__main__":
    main()
