"""Long streams through `kvant serve`: python bench/streams.py KVANT MODEL KV CONTEXT STREAMS TOKENS [options of serve]. Every client sends a prompt of
CONTEXT random ids and reads TOKENS tokens; printed are the tokens per second of all clients together while all are being answered, and the median gap
between two tokens of one. TEMP and TOPK in the environment sample (greedy otherwise); SERVER_LOG is a file for what the server says, such as the
times of passes with --log kvant_cuda=trace."""
import json, os, random, statistics, subprocess, sys, threading, time, urllib.request

kvant, model, kv, (context, streams, tokens) = *sys.argv[1:4], map(int, sys.argv[4:7])
port = 18000 + os.getpid() % 1000
server = subprocess.Popen([kvant, "serve", "-m", model, "--device", "cuda", "--kv", kv, "-c", str(context + tokens + 200), "--port", str(port),
                           "--parallel", str(streams), "--no-prefix-cache", "--max-body", "64M", *sys.argv[7:]], stderr=open(os.environ.get("SERVER_LOG", os.devnull), "w"), stdout=subprocess.DEVNULL)
came = [[] for _ in range(streams)]


def client(number):
    ids = random.Random(number)
    body = dict(prompt=[ids.randrange(10, 30000) for _ in range(context)], max_tokens=tokens, stream=True, temperature=float(os.environ.get("TEMP", 0)),
                top_k=int(os.environ.get("TOPK", 40)))
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        came[number].extend(time.time() for line in answer if line.startswith(b"data: {"))


try:
    for _ in range(600):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1)
            break
        except OSError:
            time.sleep(0.2)
    began, clients = time.time(), [threading.Thread(target=client, args=(number,)) for number in range(streams)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    first, last = max(times[0] for times in came), min(times[-1] for times in came)
    count = sum(first < t <= last for times in came for t in times)
    gaps = [b - a for times in came for a, b in zip(times, times[1:]) if a >= first]
    print(json.dumps(dict(kv=kv, context=context, streams=streams, events=[len(times) for times in came], prefill_s=round(first - began, 2),
                          prefill_tok_s=round(streams * context / (first - began)), tokens_per_s=round(count / max(1e-9, last - first), 1),
                          gap_ms_median=round(1e3 * statistics.median(gaps), 3) if gaps else None)))
finally:
    server.terminate()
    server.wait(30)
