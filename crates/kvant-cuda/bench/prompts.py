"""Measures prompts and decode on a card and writes what docs/results/prompts.json shows of them: python3 prompts.py [DECODE_LOG PROFILE_LOG]. Run it on a
commit, in a checkout with a card; without logs it runs both examples first and keeps what they say in docs/results/raw. Then `cargo xtask ledger`."""
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
    rows = [dict(table="prompts", tokens=tokens, chunk=chunk, int4=of["int4"], f16=of.get("f16", "not run")) for (tokens, chunk), of in prompts.items()]
    rows += [dict(table="decode" if streams == 1 else "streams", streams=streams, context=context, int4=of["int4"], f16=of.get("f16", "not run"))
             for (streams, context), of in sorted(decode.items())]
    own = {tokens: of["int4"] for (tokens, chunk), of in prompts.items() if chunk == 1024}
    return rows + [dict(table="engines", engine="kvant int4, chunks of 1,024", t4=own[4096], t32=own[32768])]


def profiles(text):
    """Rows of chunks and of kernels: those of a chunk, then those of a step, after 4,096 tokens."""
    rows = [dict(table="chunks", after=int(after), ms=float(ms), rate=int(rate))
            for after, ms, rate in re.findall(r"chunk of 1024 after (\d+): ([\d.]+) ms, (\d+) tokens/s", text)]
    tables = re.findall(r"^(chunk of 1024|a step of [\dx ]+).*?: kernels .*\n((?:  .*\n)+)", text, re.M)
    chunks, steps = [lines for what, lines in tables if what.startswith("chunk")], [lines for what, lines in tables if what.startswith("a step of 1 ")]
    for name, of, least in (("kernels", chunks, 0.3), ("step", steps, 0.03)):
        for kernel, count, us, ms in re.findall(r"^  (\S.*?) +([\d.]+) x +([\d.]+) us = +([\d.]+) ms", of[min(1, len(of) - 1)], re.M):
            if float(ms) >= least and not kernel.startswith("host: launch"):
                rows.append(dict(table=name, kernel=kernel, launches=round(float(count)), us=float(us), ms=round(float(ms), 2)))
    return rows


def main():
    logs = [pathlib.Path(log) for log in sys.argv[1:]] or LOGS
    if not sys.argv[1:]:
        for command, log in zip(COMMANDS, logs):
            run(command, log)
    texts = [log.read_text() for log in logs]
    for text, kept in zip(texts, LOGS):
        kept.write_text(text)
    record = json.loads(RECORD.read_text())
    rows = speeds(texts[0]) + profiles(texts[1])
    names = {row["table"] for row in rows}
    kept = [row for row in record["rows"] if row["table"] not in names or row["table"] == "engines" and "chunks of" not in row["engine"]]
    record["rows"] = [row for row in rows if row["table"] == "engines"] + kept + [row for row in rows if row["table"] != "engines"]
    record["covers"] = dict.fromkeys(record["covers"], "")  # of this commit: the ledger fills them in
    record["commit"] = subprocess.run(["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    record["command"] = "python3 crates/kvant-cuda/bench/prompts.py\n" + "\n".join(COMMANDS)
    RECORD.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(f"{RECORD}: {len(rows)} rows; look at its sentences, then cargo xtask ledger")


if __name__ == "__main__":
    main()
