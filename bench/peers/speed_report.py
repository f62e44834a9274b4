"""The rows and tables of speed.py, as the ledger wants them (`cargo xtask ledger` makes the page)."""

import subprocess
from pathlib import Path

import peer

NOTES = [
    "Tokens per second, best of all runs, the engines taking turns. Ratios above 1: kvant is faster. *First token*: from the start of a "
    "fresh process, the file in the page cache.",
    "The peer is {peer}. Its f16 cache ran with and without flash attention; the faster one counts. Its process is Python: the ratio "
    "leaves out Python's start, the memory does not.",
]


def command_line(options):
    lists = lambda values: ",".join(map(str, values))
    models = " ".join(Path(model).name for model in options.models)
    return (
        f"python3 bench/peers/speed.py -p {options.prefill} -n {options.decode} -r {options.repetitions} "
        f"--depths {lists(options.depths)} --threads {lists(options.threads)} --kv {options.kv} "
        f"--peer-kv {lists(options.peer_kv)} {'--peer FOLDER ' if options.peer else ''}{models}"
    )


def ledger(results, load, command, described):
    machine = results[0]["kvant"][0]["machine"]
    rows, tables = [], {}
    for result in results:
        model = result["model"]
        rows += speeds(result) + first_tokens(result)
        kvs = distinct(row["kv"] for row in result["kvant"])
        peer_kvs = distinct(row["kv"] for row in result["peer"])
        tables[f"{model} speed"] = {
            "title": model,
            "where": {"model": model, "kind": "speed"},
            "columns": speed_columns(kvs, peer_kvs),
        }
        tables[f"{model} first token"] = {
            "where": {"model": model, "kind": "first token"},
            "columns": FIRST_COLUMNS,
            "below": rotation(result["rotation"]),
        }
    return {
        "title": "How does kvant compare with llama.cpp at short contexts, on a CPU?",
        "machine": f"{machine['cpu']}, {machine['cores']} cores, load {load:.1f} before the first run",
        "commit": commit(),
        "command": f"cargo build --release -p kvant-cli\n{command}",
        "notes": [note.format(peer=described) for note in NOTES],
        "tables": tables,
        "rows": rows,
        "runs": results,
    }


def commit():
    git = ["git", "-C", str(peer.REPOSITORY), "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def distinct(values):
    return list(dict.fromkeys(values))


def column(head, cell, **more):
    return {"head": head, "cell": cell, **more}


def speed_columns(kvs, peer_kvs):
    columns = [column("test", "{test}", left=True), column("depth", "{depth}"), column("threads", "{threads}")]
    columns += [column(f"llama.cpp {kv}", f"{{llama.cpp {kv} tok/s:.1}}") for kv in peer_kvs]
    for kv in kvs:
        columns += [
            column(f"kvant {kv}", f"{{kvant {kv} tok/s:.1}}"),
            column("ms/token", f"{{kvant {kv} ms:.2}}"),
            column("× fastest peer", f"**{{kvant {kv} ratio:.2}}**"),
        ]
    return columns


def speeds(result):
    ours, theirs = result["kvant"], result["peer"]
    kvs, peer_kvs = distinct(row["kv"] for row in ours), distinct(row["kv"] for row in theirs)
    rows = []
    for test, tokens, depth, threads in distinct(key(row) for row in ours):
        same = lambda row: key(row) == (test, tokens, depth, threads)
        rate = lambda rows, kv: max(row["tok_s_best"] for row in rows if same(row) and row["kv"] == kv)
        fastest = max(rate(theirs, kv) for kv in peer_kvs)
        row = {"kind": "speed", "model": result["model"], "test": f"{test}{tokens}", "depth": depth, "threads": threads}
        for kv in peer_kvs:
            row[f"llama.cpp {kv} tok/s"] = rate(theirs, kv)
        for kv in kvs:
            best = rate(ours, kv)
            row |= {f"kvant {kv} tok/s": best, f"kvant {kv} ms": 1e3 / best, f"kvant {kv} ratio": best / fastest}
        rows.append(row)
    return rows


def key(row):
    return row["test"], row["tokens"], row["depth"], row["threads"]


FIRST_COLUMNS = [
    column("threads", "{threads}"),
    column("first token, llama.cpp ms", "{peer_ms:.0}"),
    column("without Python's start", "{peer_without_import_ms:.0}"),
    column("kvant ms", "{kvant_ms:.0}"),
    column("ratio", "**{ratio:.2}**"),
    column("peak memory, llama.cpp MB", "{peer_peak_mb:.0}"),
    column("kvant MB", "{kvant_peak_mb:.0}"),
    column("file MB", "{file_mb:.0}"),
]


def first_tokens(result):
    rows = []
    for row in result["first_token"]:
        ms = {f"{name}_ms": 1e3 * row[f"{name}_s"] for name in ("peer", "peer_without_import", "kvant")}
        mb = {f"{name}_mb": row[f"{name}_bytes"] / 1e6 for name in ("peer_peak", "kvant_peak", "file")}
        ratio = row["peer_without_import_s"] / row["kvant_s"]
        rows.append({"kind": "first token", "model": result["model"], "threads": row["threads"], "ratio": ratio, **ms, **mb})
    return rows


def rotation(found):
    if not found["is_on"]:
        return "**The peer's KV rotation could not be shown to be on.**"
    moved, noise = found["largest_difference_when_disabled"], found["largest_difference_when_repeated"]
    return (
        "The peer's KV rotation is on: with `LLAMA_ATTN_ROT_DISABLE=1` its logits over a q4_0 cache move by up to\n"
        f"{moved:.2f} (by {noise:.2f} between two runs without it), and their distance to those of its f16 cache from\n"
        f"{found['rms_to_f16_on']:.3f} to {found['rms_to_f16_off']:.3f} (root mean square)."
    )
