"""Long streams through `kvant serve`: python bench/streams.py KVANT MODEL KV CONTEXT STREAMS TOKENS [options of serve]. Every client sends a prompt of
CONTEXT random ids and reads TOKENS tokens; printed are the tokens per second of all clients together while all are being answered, and the median gap
between two tokens of one. TEMP and TOPK in the environment sample (greedy otherwise); `--log kvant_cuda=trace` with SERVER_LOG keeps the times of passes."""
import json, os, random, statistics, sys, threading

from server import Server

kvant, model, kv, (context, streams, tokens) = *sys.argv[1:4], map(int, sys.argv[4:7])
sampling = dict(temperature=float(os.environ.get("TEMP", 0)), top_k=int(os.environ.get("TOPK", 40)))
options = ["--kv", kv, "-c", str(context + tokens + 200), "--parallel", str(streams), "--no-prefix-cache", *sys.argv[7:]]
answers = [None] * streams


def client(server, number):
    draw = random.Random(number)
    answers[number] = server.ask([draw.randrange(10, 30000) for _ in range(context)], tokens, **sampling)


with Server(kvant, model, *options) as server:
    clients = [threading.Thread(target=client, args=(server, number)) for number in range(streams)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
began, came = min(sent for sent, _ in answers), [times for _, times in answers]
first, last = max(times[0] for times in came), min(times[-1] for times in came)
count = sum(first < t <= last for times in came for t in times)
gaps = [b - a for times in came for a, b in zip(times, times[1:]) if a >= first]
print(json.dumps(dict(kv=kv, context=context, streams=streams, events=[len(times) for times in came], prefill_s=round(first - began, 2),
                      prefill_tok_s=round(streams * context / (first - began)), tokens_per_s=round(count / max(1e-9, last - first), 1),
                      gap_ms_median=round(1e3 * statistics.median(gaps), 3) if gaps else None)))
