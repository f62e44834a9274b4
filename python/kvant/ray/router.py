"""Ray Serve's request router, by prefix."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from .prefixes import PrefixMap, beginnings


class PrefixRouter(RequestRouter):
    """Sends a request to the replica that has read the longest beginning of it, and others to the replica that was asked least.

    A replica that has `most_ahead` requests more in hand than another does not get one more for its cache: reading a prompt again
    is then the shorter wait.
    """

    def initialize_state(self, most_ahead: int = 8, capacity: int = 200_000) -> None:
        """Called once by Ray Serve, with what the deployment's configuration says."""
        self._most_ahead = most_ahead
        self._prefixes = PrefixMap(capacity)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas, the best first."""
        by_name = {str(replica.replica_id.unique_id): replica for replica in candidate_replicas}
        if not by_name:
            return []
        waiting = {name: self._replica_queue_len_cache.get(replica.replica_id) or 0 for name, replica in by_name.items()}
        free = [name for name in by_name if waiting[name] <= min(waiting.values()) + self._most_ahead]
        holder, _ = self._prefixes.longest(beginnings(_request(pending_request)), free)
        first = holder or self._prefixes.least_used(sorted(free, key=lambda name: waiting[name]))
        others = [replica for name, replica in by_name.items() if name != first]
        return [[by_name[first]], others] if others else [[by_name[first]]]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """The replica will have read this prompt."""
        self._prefixes.read(beginnings(_request(pending_request)), str(replica_id.unique_id))

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        """What it held is gone."""
        super().on_replica_actor_died(replica_id)
        self._prefixes.forget(str(replica_id.unique_id))


def _request(pending: PendingRequest | None) -> dict[str, Any]:
    found = pending.args[0] if pending is not None and pending.args else {}
    return found if isinstance(found, dict) else {}
