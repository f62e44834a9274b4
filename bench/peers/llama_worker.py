"""llama.cpp behind a pipe: one JSON command per line on stdin, one JSON answer per line on stdout.

Run by speed.py inside the peer's environment. The model is loaded once; contexts stay at the depth they were opened
with, and every run is forgotten after it.
"""

import json
import random
import sys
import time

import peer

BATCH = 512


class Worker:
    def __init__(self, folder, path):
        self.model = peer.open_model(folder, path)
        self.contexts = {}

    def prompt(self, tokens):
        """A text of exactly so many tokens, and their ids."""
        words = "time year people way day man thing woman life child world school state family".split()
        text = "The"
        for number in range(8 * tokens):
            ids = self.model.tokenize(text)
            if len(ids) == tokens:
                return {"text": text, "ids": ids}
            text += " " + words[number % len(words)]
        raise ValueError(f"no text of {tokens} tokens was found")

    def open(self, name, depth, room, threads, kv, flash):
        """A context that holds `depth` tokens and has room for more."""
        context = peer.open_context(self.model, depth + room, threads, kv, flash, BATCH)
        self.contexts[name] = context, depth
        self.reach(context, depth)
        self.run(name, "pp", min(32, room), threads)
        self.run(name, "tg", 1, threads)

    def run(self, name, test, tokens, threads):
        """Seconds that `tokens` more take."""
        context, depth = self.contexts[name]
        context.set_threads(threads)
        ids = self.ids(tokens)
        start = time.perf_counter()
        if test == "pp":
            self.read(context, ids, depth)
        else:
            for position, token in enumerate(ids, depth):
                context.read([token], position)
        context.synchronize()
        seconds = time.perf_counter() - start
        self.reach(context, depth)
        return {"seconds": seconds}

    def logits(self, kv, flash, tokens, threads):
        """The logits after a text, read in two steps so that the second meets the cache of the first."""
        context = peer.open_context(self.model, tokens, threads, kv, flash, BATCH)
        ids = self.ids(tokens)
        self.read(context, ids[: tokens // 2], 0)
        self.read(context, ids[tokens // 2 :], tokens // 2)
        return {"logits": context.logits(-1).tolist()}

    def ids(self, count):
        source = random.Random(1)
        limit = self.model.vocabulary
        return [source.randrange(limit) for _ in range(count)]

    def reach(self, context, depth):
        held = context.held()
        # A context that cannot forget a part forgets all.
        if held > depth and not context.forget(depth):
            held = 0
        if held < depth:
            self.read(context, self.ids(depth)[held:], held)

    def read(self, context, ids, position):
        for start in range(0, len(ids), BATCH):
            context.read(ids[start : start + BATCH], position + start)


def first_token(folder, path, ids, threads, generate):
    """What a fresh process needs: the clock after imports, and at the first token; then some more tokens."""
    imported = time.monotonic()
    worker = Worker(folder, path)
    context = peer.open_context(worker.model, 512, threads, "f16", True, BATCH)
    worker.read(context, ids, 0)
    token = int(context.logits(-1).argmax())
    first = time.monotonic()
    for position in range(len(ids), len(ids) + generate - 1):
        context.read([token], position)
        token = int(context.logits(-1).argmax())
    print(json.dumps({"imported": imported, "first": first}))


def main():
    if sys.argv[1] == "first-token":
        import numpy  # noqa: F401  (imported before the clock is read)

        options = json.loads(sys.argv[2])
        if not options["folder"]:
            import cyllama.llama.llama_cpp  # noqa: F401

        return first_token(**options)
    worker = Worker(*json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        answer = getattr(worker, command.pop("do"))(**command)
        print(json.dumps(answer or {}), flush=True)


if __name__ == "__main__":
    main()
