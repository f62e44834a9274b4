"""Measures prompts and decode on a card and writes what docs/results/prompts.json shows of them: python3 prompts.py [DECODE_LOG [PROFILE_LOG]]. Run it on
a commit, in a checkout with a card; without logs it runs both examples first and keeps what they say in docs/results/raw. Without a profile the tables of
kernels stay. Then `cargo xtask ledger`."""
import json, pathlib, re, subprocess, sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
RAW, RECORD = ROOT / "docs/results/raw", ROOT / "docs/results/prompts.json"
RUN = "cargo run --release --features cuda -p kvant-cuda --example "
COMMANDS = [f"{RUN}decode_speed -- 0.4 0,4096,32768,131072 int4,f16 q4_0", f"{RUN}profile -- 0,4096,32768 int4 1024 8,16,64"]
LOGS = [RAW / "cuda-prompts.log", RAW / "cuda-prompts-profile.log"]


def run(command, log):
    with open(log, "w") as out:
        process = subprocess.Popen(command, shell=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for line in process.stdout:
            print(line, end="", flush=True)
            out.write(line)
    if process.wait():
        sys.exit(f"`{command}` failed")


def speeds(text):
    """Rows of prompts and of decode, of the usual options: those that are printed first."""
    usual = re.split(r"^PassOptions", text, flags=re.M)[1]
    prompts, decode = {}, {}
    for kv, tokens, chunk, rate in re.findall(r"^prefill (\w+) of (\d+) at \d+ in chunks of (\d+): (\d+) tokens/s", usual, re.M):
        prompts.setdefault((int(tokens), int(chunk)), {})[kv] = int(rate)
    for kv, where, rate in re.findall(r"^decode (\w+)(?: at |, )([\dx ]+), token: .*?, ([\d.]+) tokens/s", usual, re.M):
        streams, context = map(int, where.split(" x ")) if " x " in where else (1, int(where))
        decode.setdefault((streams, context), {})[kv] = round(float(rate))
    rows = [dict(table="prompts", tokens=tokens, chunk=chunk, int4=of["int4"], f16=of.get("f16", "not run")) for (tokens, chunk), of in prompts.items() if chunk == 1024]
    rows += [dict(table="decode" if streams == 1 else "streams", streams=streams, context=context, int4=of["int4"], f16=of.get("f16", "not run"))
             for (streams, context), of in sorted(decode.items())]
    own = {tokens: of["int4"] for (tokens, chunk), of in prompts.items() if chunk == 1024}
    return rows + [dict(table="engines", engine="kvant int4, chunks of 1,024", t4=own[4096], t32=own[32768])]


def profiles(text):
    """Rows of kernels, the longest ones: those of a chunk, then those of a step, after 4,096 tokens. A page of results has 80 lines."""
    rows = []
    tables = re.findall(r"^(chunk of 1024|a step of [\dx ]+).*?: kernels .*\n((?:  .*\n)+)", text, re.M)
    chunks, steps = [lines for what, lines in tables if what.startswith("chunk")], [lines for what, lines in tables if what.startswith("a step of 1 ")]
    for name, of, most in (("kernels", chunks, 4), ("step", steps, 5)):
        if not of:
            sys.exit(f"the profile has no table of {name}")
        found = re.findall(r"^  (\S.*?) +([\d.]+) x +([\d.]+) us = +([\d.]+) ms", of[min(1, len(of) - 1)], re.M)
        for kernel, count, us, ms in [row for row in found if not row[0].startswith("host: ")][:most]:
            rows.append(dict(table=name, kernel=kernel, launches=round(float(count)), us=float(us), ms=round(float(ms), 2)))
    return rows


# Least figures that are wanted: table, what finds the row, the figure, in words.
TARGETS = [("prompts", dict(tokens=4096, chunk=1024), 28_000, "a prompt of 4,096"), ("prompts", dict(tokens=32768, chunk=1024), 18_000, "one of 32,768"),
           ("prompts", dict(tokens=131072, chunk=1024), 7_000, "one of 131,072"), ("decode", dict(streams=1, context=132), 480, "decode at an empty context"),
           ("streams", dict(streams=64, context=4096), 6_000, "64 sequences of 4,096")]
LLAMA_CPP, TORCH = (11160, 8545), (39100, 25700)  # of 4,096 and 32,768 tokens, measured on another day
SHAPE = "8B shape (32 layers, 32/8 heads of 128), random Q4_0 weights, medians. Output: [raw/cuda-prompts.log](raw/cuda-prompts.log), " \
        "[raw/cuda-prompts-profile.log](raw/cuda-prompts-profile.log). Kernels are timed one by one there, so their sum is more than a pass takes."


def column(head, cell, left=False):
    return dict(head=head, cell=cell, **(dict(left=True) if left else {}))


def sentences(record, rows):
    """What the page says in words, and the titles of tables that are of this commit."""
    own = next(row for row in rows if row["table"] == "engines")
    t = own["t4"], own["t32"]
    beside = [" and ".join(f"{a / b:.1f}" for a, b in zip(t, other)) for other in (LLAMA_CPP, TORCH)]
    record["answer"] = f"An H200 reads 4,096 tokens at {t[0]:,} tokens/s and 32,768 at {t[1]:,} with int4: {beside[0]} times llama.cpp f16, {beside[1]} of plain torch."
    record["notes"] = [SHAPE + " The size of a chunk changes no bit."]
    missed = []
    for table, key, least, what in TARGETS:
        found = [row["int4"] for row in rows if row["table"] == table and key.items() <= row.items()]
        if not found or found[0] < least:
            missed.append(f"{least:,} for {what} ({f'{found[0]:,}' if found else 'not run'})")
    kept = [line for line in record["short"] if not line.startswith(("Targets", "Products of a chunk", "memcheck"))]
    record["short"] = [f"Targets missed, tokens/s: {'; '.join(missed)}." if missed else "Targets: all of those of prompts and of decode are met."] + kept
    tables = record["tables"]
    numbers = all(isinstance(row["f16"], int) for row in rows if row["table"] == "prompts")
    tables["prompts"]["columns"][3]["cell"] = "{f16:,}" if numbers else "{f16}"
    if not any(row["table"] == "step" for row in rows):
        return
    tables.pop("chunks", None)
    record["rows"] = [row for row in record["rows"] if row["table"] != "chunks"]
    tables["kernels"]["title"] = "Where a chunk of 1,024 after some 9,000 spends its time"
    tables["attention"]["title"] = "Attention of one layer over closed pages at 7d4394d and before, 32/8 heads of 128: µs (TFLOP/s)"
    tables["step"] = dict(title="Where a decode step after some 9,000 spends its time", where=dict(table="step"),
                          columns=[column("kernel", "{kernel}", True), column("launches", "{launches}"), column("µs each", "{us}"), column("ms", "{ms}")])


def main():
    logs = [pathlib.Path(log) for log in sys.argv[1:]] or LOGS
    if not sys.argv[1:]:
        for command, log in zip(COMMANDS, logs):
            run(command, log)
    texts = [log.read_text() for log in logs]
    for text, kept in zip(texts, LOGS):
        kept.write_text(text)
    record = json.loads(RECORD.read_text())
    rows = speeds(texts[0]) + (profiles(texts[1]) if len(texts) > 1 else [])
    names = {row["table"] for row in rows}
    kept = [row for row in record["rows"] if row["table"] not in names or row["table"] == "engines" and "chunks of" not in row["engine"]]
    record["rows"] = [row for row in rows if row["table"] == "engines"] + kept + [row for row in rows if row["table"] != "engines"]
    sentences(record, rows)
    record["covers"] = dict.fromkeys(record["covers"], "")  # of this commit: the ledger fills them in
    record["commit"] = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    record["command"] = "python3 crates/kvant-cuda/bench/prompts.py\n" + "\n".join(COMMANDS)
    RECORD.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(f"{RECORD}: {len(rows)} rows; look at its sentences, then cargo xtask ledger")


if __name__ == "__main__":
    main()
