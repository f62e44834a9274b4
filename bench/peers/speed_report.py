"""The tables of speed.py."""

from pathlib import Path

import peer

NOTES = f"""\
- Tokens per second, the best of all runs; runs of both engines took turns. Ratios above 1: kvant is faster.
- Peer: llama.cpp through `{peer.PEER}` from PyPI,
  {peer.BUILD}. Its f16 cache is measured
  with and without flash attention, and the faster one counts; its quantised caches need flash attention.
- First token: from the start of a fresh process with the file in the page cache. The peer's process is Python;
  the ratio leaves its start and imports out. Peak memory is that of the same processes, the mapped file and the
  peer's Python included."""


def command_line(options):
    lists = lambda values: ",".join(map(str, values))
    models = " ".join(Path(model).name for model in options.models)
    return (
        f"python3 bench/peers/speed.py -p {options.prefill} -n {options.decode} -r {options.repetitions} "
        f"--depths {lists(options.depths)} --threads {lists(options.threads)} --kv {options.kv} "
        f"--peer-kv {lists(options.peer_kv)} {models}"
    )


def markdown(results, load, command):
    machine = results[0]["kvant"][0]["machine"]
    place = f"Machine: {machine['cpu']}, {machine['cores']} cores, load {load:.1f} before the first run."
    parts = ["# Speed beside llama.cpp", place, NOTES]
    for result in results:
        parts += [f"## {result['model']}", speeds(result), first_tokens(result), rotation(result["rotation"])]
    parts.append(f"```sh\ncargo build --release -p kvant-cli\n{command}\n```")
    return "\n\n".join(parts) + "\n"


def distinct(values):
    return list(dict.fromkeys(values))


def speeds(result):
    ours, theirs = result["kvant"], result["peer"]
    kvs, peer_kvs = distinct(row["kv"] for row in ours), distinct(row["kv"] for row in theirs)
    heads = [f"llama.cpp {kv}" for kv in peer_kvs]
    heads += [head for kv in kvs for head in (f"kvant {kv}", "ms/token", "× fastest peer")]
    lines = ["| test | depth | threads | " + " | ".join(heads) + " |", "|---|" + "--:|" * (2 + len(heads))]
    for test, tokens, depth, threads in distinct(key(row) for row in ours):
        same = lambda row: key(row) == (test, tokens, depth, threads)
        rate = lambda rows, kv: max(row["tok_s_best"] for row in rows if same(row) and row["kv"] == kv)
        fastest = max(rate(theirs, kv) for kv in peer_kvs)
        cells = [f"{rate(theirs, kv):.1f}" for kv in peer_kvs]
        for kv in kvs:
            best = rate(ours, kv)
            cells += [f"{best:.1f}", f"{1e3 / best:.2f}", f"**{best / fastest:.2f}**"]
        lines.append(f"| {test}{tokens} | {depth} | {threads} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def key(row):
    return row["test"], row["tokens"], row["depth"], row["threads"]


def first_tokens(result):
    lines = [
        "| threads | first token, llama.cpp ms | without Python's start | kvant ms | ratio | peak memory, llama.cpp MB "
        "| kvant MB | file MB |",
        "|" + "--:|" * 8,
    ]
    for row in result["first_token"]:
        ms = [f"{1e3 * row[name]:.0f}" for name in ("peer_s", "peer_without_import_s", "kvant_s")]
        mb = [f"{row[name] / 1e6:.0f}" for name in ("peer_peak_bytes", "kvant_peak_bytes", "file_bytes")]
        ratio = f"**{row['peer_without_import_s'] / row['kvant_s']:.2f}**"
        lines.append("| " + " | ".join([str(row["threads"]), *ms, ratio, *mb]) + " |")
    return "\n".join(lines)


def rotation(found):
    if not found["is_on"]:
        return "**The peer's KV rotation could not be shown to be on.**"
    moved, noise = found["largest_difference_when_disabled"], found["largest_difference_when_repeated"]
    return (
        "The peer's KV rotation is on: with `LLAMA_ATTN_ROT_DISABLE=1` its logits over a q4_0 cache move by up to\n"
        f"{moved:.2f} (by {noise:.2f} between two runs without it), and their distance to those of its f16 cache from\n"
        f"{found['rms_to_f16_on']:.3f} to {found['rms_to_f16_off']:.3f} (root mean square)."
    )
