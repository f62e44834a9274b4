"""Good and bad clients of one server: python bench/load.py KVANT MODEL MINUTES [options of serve]. Every good answer is compared, byte for byte, with the one that
the same request got alone. Bad clients send nonsense, grammars that explode and prompts that cannot fit, leave in the middle, or send a byte a
second; a few hundred connections say nothing at all. Caches are small, so that requests are preempted and prefixes evicted. Printed are
requests of each kind, statuses, times of good ones, the memory of the server in each quarter of the time, and its heap, each time everybody has
paused at the end of an eighth: MiB in use, and MiB held once free memory was given back (by bench/preload.c, which needs a C compiler). A wrong
answer, a 500 or the end of the server ends the program."""
import collections, json, os, pathlib, random, socket, subprocess, sys, tempfile, threading, time, urllib.error, urllib.request

kvant, model, minutes = sys.argv[1], sys.argv[2], float(sys.argv[3])
port = 17000 + os.getpid() % 900
kv_dir = tempfile.mkdtemp(prefix="kvant-load-")
words = [kvant, "serve", "-m", model, "--port", str(port), "-c", "1024", "--parallel", "4", "--kv-memory", "40M", "--kv-dir", kv_dir, "--kv-dir-size", "60M"]
log = open(os.environ.get("SERVER_LOG", os.devnull), "w")
preload, fifo = f"{kv_dir}.so", f"{kv_dir}.heap"
subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", preload, str(pathlib.Path(__file__).parent / "preload.c"), "-ldl"], check=True)
os.mkfifo(fifo)
server = subprocess.Popen(words + sys.argv[4:], env=dict(os.environ, KVANT_DEVICE="cpu", LD_PRELOAD=preload, HEAP_FIFO=fifo), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log)
ends, wrong = None, []
statuses, done, times = collections.Counter(), collections.Counter(), []
# Nobody asks while it is not set; so many are asking.
going, asking = threading.Event(), collections.Counter()
going.set()
LONG = "The keeper climbed the stairs and counted them again. "


def requests():
    """Requests whose answers are known: every protocol, with short and long prompts, formats and sampling."""
    for number in range(24):
        prompt, options = f"Part {number}. " + LONG * (1 + number * 3 % 40), dict(seed=number, temperature=[0, 0.8][number % 2])
        messages = [dict(role="user", content=prompt)]
        yield [("/v1/completions", dict(prompt=prompt, max_tokens=24, **options)),
               ("/v1/chat/completions", dict(messages=messages, max_tokens=24, **options)),
               ("/v1/messages", dict(messages=messages, max_tokens=24, model="any", temperature=options["temperature"], seed=number)),
               ("/api/chat", dict(messages=messages, stream=False, options=dict(num_predict=24, **options))),
               ("/v1/chat/completions", dict(messages=messages, max_tokens=40, response_format=dict(type="json_schema", json_schema=dict(name="x", schema=dict(
                   type="object", properties=dict(a=dict(type="integer"), b=dict(type="boolean")), required=["a", "b"], additionalProperties=False))), **options)),
               ("/v1/responses", dict(input=prompt, max_output_tokens=24, store=False, **options))][number % 6]


def text(answer):
    """What was said, without ids, times and counts."""
    if "choices" in answer:
        return json.dumps([choice.get("text") or choice["message"] for choice in answer["choices"]], sort_keys=True)
    if "message" in answer:
        return answer["message"]["content"]
    return json.dumps([part.get("content") if "output" in answer else part["text"] for part in answer.get("output") or answer["content"]], sort_keys=True).split('"id"')[0]


def post(path, body, timeout=600):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def counted(kind, status, why):
    statuses[kind, status] += 1
    done[kind] += 1
    if status == 500:
        wrong.append(f"{kind}: a 500 for {why[:300]}")


def turn(client):
    """Waits while everybody pauses; false once there is nothing left to ask."""
    asking[client] = 0
    going.wait()
    asking[client] = int(time.time() < ends and not wrong)
    return asking[client]


def heap():
    """MiB in use and MiB held, once free memory was given back; nobody asks meanwhile."""
    going.clear()
    while sum(asking.values()) and server.poll() is None:
        time.sleep(0.1)
    time.sleep(3)
    out = pathlib.Path(fifo + ".out")
    out.unlink(missing_ok=True)
    with open(fifo, "wb") as pipe:
        pipe.write(b"?")
    while server.poll() is None and not (out.exists() and out.read_text().endswith("\n")):
        time.sleep(0.05)
    going.set()
    return [round(int(count) / 2**20, 2) for count in out.read_text().split()]


def good(seed, known):
    draw = random.Random(seed)
    while turn(seed):
        number = draw.randrange(len(known))
        (path, body), truth = known[number]
        began = time.perf_counter()
        status, answer = post(path, body)
        counted("good", status, answer)
        if status == 200:
            times.append(time.perf_counter() - began)
            if text(json.loads(answer)) != truth:
                wrong.append(f"{path} {number}: {text(json.loads(answer))} instead of {truth}")


def nonsense(draw):
    values = [None, True, -1, 1e308, 2**63, "", "x" * 5000, [], {}, [[[]]], "\ud800", {"type": "regex"}, -0.0]
    fields = ["prompt", "messages", "max_tokens", "temperature", "stop", "n", "logit_bias", "tools", "stream", "seed", "top_logprobs", "response_format", "input", "model"]
    body = {draw.choice(fields): draw.choice(values) for _ in range(draw.randrange(5))}
    data = json.dumps(body).encode()
    if draw.random() < 0.3:
        data = data[: draw.randrange(len(data) + 1)] + draw.randbytes(draw.randrange(20))
    return draw.choice(["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat", "/api/generate", "/v1/embeddings", "/tokenize", "/nowhere"]), data


def bombs(draw):
    chain = "root ::= a0\n" + "\n".join(f"a{n} ::= a{n + 1}" for n in range(3000))
    nested = {"type": "array"}
    for _ in range(100):
        nested = {"type": "array", "items": nested}
    expressions = "".join(f'e{n}: /(a|b)*a(a|b){{{n}}}/\n' for n in range(2, 14))
    return draw.choice([
        ("/v1/completions", dict(prompt="a", max_tokens=4, grammar=chain)),
        ("/v1/completions", dict(prompt="a", max_tokens=4, response_format=dict(type="grammar", syntax="lark", definition="start: e2 e9 e13\n" + expressions))),
        ("/v1/chat/completions", dict(messages=[dict(role="user", content="a")], max_tokens=4, response_format=dict(type="json_schema", json_schema=dict(name="x", schema=nested)))),
        ("/v1/completions", dict(prompt="7" * 2_000_000, max_tokens=1)),
        ("/v1/completions", dict(prompt="a", max_tokens=10**12)),
        ("/tokenize", dict(content="1" * 100_000))])


def bad(seed):
    draw = random.Random(seed)
    while turn(seed):
        kind = draw.choice(["nonsense"] * 4 + ["bombs", "leaves", "half"])
        try:
            if kind in ("nonsense", "bombs"):
                path, body = nonsense(draw) if kind == "nonsense" else bombs(draw)
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                status, answer = post(path, body, timeout=30)
                counted(kind, status, f"{path} {body[:200]!r}: {answer[:200]!r}".encode().decode())
                continue
            body = json.dumps(dict(prompt=LONG * draw.randrange(60), max_tokens=200, stream=True)).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            with socket.create_connection(("127.0.0.1", port), 30) as one:
                one.sendall(head + (body if kind == "leaves" else body[: len(body) // 2]))
                time.sleep(draw.random())
            done[kind] += 1
        except OSError:
            statuses[kind, "gone"] += 1
        time.sleep(0.02)


def silent(count):
    """Connections that say nothing, and a few that send a header by the byte; they come again when they are shut."""
    held = []
    while time.time() < ends and not wrong:
        while len(held) < count:
            try:
                held.append(socket.create_connection(("127.0.0.1", port), 5))
            except OSError:
                break
        for one in list(held[:8]):
            try:
                one.sendall(b"G")
            except OSError:
                held.remove(one)
                done["shut"] += 1
        time.sleep(1)


def memory():
    fields = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) >> 10, int(fields["Threads"])


while True:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
        break
    except OSError:
        if server.poll() is not None:
            raise SystemExit("the server does not start")
        time.sleep(0.05)
known = []
for path, body in requests():
    status, answer = post(path, body)
    if status != 200:
        raise SystemExit(f"{path}: {status} {answer[:300]}")
    known.append(((path, body), text(json.loads(answer))))
ends = time.time() + 60 * minutes
clients = [threading.Thread(target=good, args=(seed, known), daemon=True) for seed in range(6)]
clients += [threading.Thread(target=bad, args=(100 + seed,), daemon=True) for seed in range(4)] + [threading.Thread(target=silent, args=(300,), daemon=True)]
for client in clients:
    client.start()
samples, heaps, began = [], [], time.time()
while time.time() < ends and not wrong and server.poll() is None:
    samples.append(memory()[0])
    time.sleep(1)
    if time.time() > began + (len(heaps) + 1) * 60 * minutes / 8.1:
        heaps.append(heap())
for client in clients:
    client.join(120)
if server.poll() is not None:
    wrong.append(f"the server ended with {server.returncode}")
else:
    last = memory()
    began = time.perf_counter()
    server.terminate()
    server.wait(60)
quarter = max(1, len(samples) // 4)
times.sort()
at = lambda part: round(times[int(part * (len(times) - 1))], 2) if times else None
print(json.dumps(dict(minutes=minutes, requests=dict(done), statuses={f"{kind} {status}": count for (kind, status), count in sorted(statuses.items(), key=str)},
                      good_s=dict(p50=at(0.5), p99=at(0.99), most=at(1)), memory_mib=[max(samples[n * quarter:(n + 1) * quarter]) for n in range(4) if samples[n * quarter:]],
                      heap_mib=heaps, wrong=wrong)))
sys.exit(bool(wrong))
