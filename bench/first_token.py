"""The first tokens after a long prompt, through `kvant serve`: python bench/first_token.py KVANT MODEL KV CONTEXT [options of serve]. A prompt of CONTEXT
random ids is read once; printed are its speed and the median gap between tokens 2 to 33 and 34 to 129 of its answer. Then the same prompt comes five
times more, each with an id of its own at the end: the median time to the first token of a prefix that the cache holds."""
import json, random, statistics, sys

from server import Server

kvant, model, kv, context = *sys.argv[1:4], int(sys.argv[4])
draw = random.Random(1)
ids = [draw.randrange(10, 30000) for _ in range(context)]
with Server(kvant, model, "--kv", kv, "-c", str(context + 400), "--parallel", "1", *sys.argv[5:]) as server:
    sent, came = server.ask(ids, 129, temperature=0, ignore_eos=True)
    hits = []
    for number in range(5):
        again, first = server.ask(ids + [100 + number], 4, temperature=0, ignore_eos=True)
        hits.append(1e3 * (first[0] - again))
gaps = [1e3 * (b - a) for a, b in zip(came, came[1:])]
print(json.dumps(dict(kv=kv, context=context, prompt_tokens_s=round(context / (came[0] - sent)), first_s=round(came[0] - sent, 3),
                      gap_ms_first=round(statistics.median(gaps[:32]), 3), gap_ms_later=round(statistics.median(gaps[32:]), 3), gap_ms_longest=round(max(gaps), 3),
                      hit_ms=round(statistics.median(hits), 2), hits_ms=[round(hit, 2) for hit in hits])))
