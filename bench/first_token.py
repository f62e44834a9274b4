"""The first tokens after a long prompt, through `kvant serve`: python bench/first_token.py KVANT MODEL KV CONTEXT [options of serve]. A prompt of CONTEXT
random ids is read once; printed are its speed and the median gap between tokens 2 to 33 and 34 to 129 of its answer. Then the same prompt comes five
times more, each with an id of its own at the end: the median time to the first token of a prefix that the cache holds."""
import json, os, random, statistics, subprocess, sys, time, urllib.request

kvant, model, kv, context = *sys.argv[1:4], int(sys.argv[4])
port = 18000 + os.getpid() % 1000
server = subprocess.Popen([kvant, "serve", "-m", model, "--device", "cuda", "--kv", kv, "-c", str(context + 400), "--port", str(port),
                           "--parallel", "1", "--max-body", "64M", *sys.argv[5:]],
                          stderr=open(os.environ.get("SERVER_LOG", os.devnull), "w"), stdout=subprocess.DEVNULL)


def ask(ids, tokens):
    """When the request was sent, and when each token came."""
    body = json.dumps(dict(prompt=ids, max_tokens=tokens, stream=True, temperature=0, ignore_eos=True)).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"})
    sent = time.perf_counter()
    with urllib.request.urlopen(request, timeout=600) as answer:
        return sent, [time.perf_counter() for line in answer if line.startswith(b"data: {")]


try:
    for _ in range(1200):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            break
        except OSError:
            time.sleep(0.1)
    draw = random.Random(1)
    ids = [draw.randrange(10, 30000) for _ in range(context)]
    sent, came = ask(ids, 129)
    gaps = [1e3 * (b - a) for a, b in zip(came, came[1:])]
    hits = []
    for number in range(5):
        again, first = ask(ids + [100 + number], 4)
        hits.append(1e3 * (first[0] - again))
    print(json.dumps(dict(kv=kv, context=context, prompt_tokens_s=round(context / (came[0] - sent)), first_s=round(came[0] - sent, 3),
                          gap_ms_first=round(statistics.median(gaps[:32]), 3), gap_ms_later=round(statistics.median(gaps[32:]), 3), gap_ms_longest=round(max(gaps), 3),
                          hit_ms=round(statistics.median(hits), 2), hits_ms=[round(hit, 2) for hit in hits])))
finally:
    server.terminate()
    server.wait(30)
