"""Which replica has read which beginnings."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Characters of a block: a page of the cache has 64 tokens, and few tokens are shorter than a character.
BLOCK = 64


def beginnings(request: Mapping[str, Any]) -> list[bytes]:
    """A digest of every beginning of a request's prompt, block after block, the shortest first.

    What comes before the conversation in the prompt comes first here: the tools. The last turn is cut into blocks like all
    others, so that a longer conversation continues the digests of the one it grew from.
    """
    tools = json.dumps(request.get("tools") or [], sort_keys=True)
    turns = request.get("messages")
    if turns is None:
        text = tools + str(request.get("prompt", ""))
    else:
        text = tools + "".join(f"\0{turn.get('role')}\0{json.dumps(turn.get('content'))}" for turn in turns)
    digest, found = hashlib.blake2b(digest_size=16), []
    for end in range(BLOCK, len(text) + 1, BLOCK):
        digest.update(text[end - BLOCK : end].encode("utf-8", "surrogatepass"))
        found.append(digest.digest())
    if not found:
        # A short prompt is a beginning of its own.
        digest.update(text.encode("utf-8", "surrogatepass"))
        found.append(digest.digest())
    return found


class PrefixMap:
    """Remembers, for the beginnings that were routed last, the replica that read them last."""

    def __init__(self, capacity: int = 200_000) -> None:
        self._holders: OrderedDict[bytes, str] = OrderedDict()
        self._capacity = capacity
        self._routed: Counter[str] = Counter()

    def longest(self, beginnings: Sequence[bytes], replicas: Iterable[str]) -> tuple[str | None, int]:
        """The replica among `replicas` that has read the longest of the beginnings, and how many blocks that is."""
        alive = set(replicas)
        for blocks in range(len(beginnings), 0, -1):
            holder = self._holders.get(beginnings[blocks - 1])
            if holder in alive:
                return holder, blocks
        return None, 0

    def least_used(self, replicas: Sequence[str]) -> str:
        """The replica that was given the fewest requests, the first of equals."""
        return min(replicas, key=lambda replica: (self._routed[replica], replica))

    def read(self, beginnings: Iterable[bytes], replica: str) -> None:
        """The replica was given a request that begins like this."""
        self._routed[replica] += 1
        for digest in beginnings:
            self._holders[digest] = replica
            self._holders.move_to_end(digest)
        while len(self._holders) > self._capacity:
            self._holders.popitem(last=False)

    def forget(self, replica: str) -> None:
        """The replica is gone, and its cache with it."""
        self._routed.pop(replica, None)
        for digest in [digest for digest, holder in self._holders.items() if holder == replica]:
            del self._holders[digest]
