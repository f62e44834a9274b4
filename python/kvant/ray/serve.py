"""An application for Ray Serve: OpenAI's routes before replicas of one engine."""

import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from ray.exceptions import RayActorError
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

# What the gateway uses must be there before it: Ray Serve takes its class as it is when it is decorated.
from .forms import ChatForm, Form, TextForm, failure
from .replica import Replica
from .requests import Asked, Refused
from .router import PrefixRouter

routes = FastAPI(title="kvant on Ray Serve")


def application(
    model: str,
    *,
    replicas: int = 1,
    threads: int = 1,
    name: str | None = None,
    requests: int = 16,
    retries: int = 3,
    most_ahead: int = 8,
    **options: Any,
) -> serve.Application:
    """An application to hand to `serve.run`: `replicas` engines of `threads` cores each, and the routes before them.

    `requests` is how many a replica takes at a time, `retries` how often an answer is begun again when its replica dies,
    `most_ahead` how many requests more than others a replica may have in hand and still get one for its cache. Further `options` are
    those of `kvant.Engine.open`: `kv`, `ctx`, `weights`, `kv_memory` …
    """
    router = RequestRouterConfig(request_router_class=PrefixRouter, request_router_kwargs={"most_ahead": most_ahead})
    engines = serve.deployment(
        Replica,
        name="engine",
        num_replicas=replicas,
        ray_actor_options={"num_cpus": threads},
        max_ongoing_requests=requests,
        request_router_config=router,
    ).bind(model, {"threads": threads, **options})
    return Gateway.bind(engines, name or model, retries)


@serve.deployment(name="gateway", ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1024)
@serve.ingress(routes)
class Gateway:
    """Reads requests, hands them to a replica, and tells answers in OpenAI's form."""

    def __init__(self, engines: DeploymentHandle, model: str, retries: int) -> None:
        self._engines, self._model, self._retries = engines, model, retries

    @routes.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        """The one model there is."""
        about = await self._engines.describe.remote()
        entry = {"id": self._model, "object": "model", "owned_by": "kvant", "context_length": about["context"]}
        return {"object": "list", "data": [entry]}

    @routes.post("/v1/chat/completions")
    async def chat(self, request: Request) -> Any:
        """A turn of the assistant."""
        return await self._respond(request, "messages", ChatForm)

    @routes.post("/v1/completions")
    async def completions(self, request: Request) -> Any:
        """A text, continued."""
        return await self._respond(request, "prompt", TextForm)

    async def _respond(self, request: Request, needed: str, form: type[Form]) -> Any:
        try:
            asked = await request.json()
            if not isinstance(asked, dict) or needed not in asked:
                raise Refused(f"the body must be a JSON object with {needed!r}")
            Asked(asked)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return failure(400, str(error))
        # Whoever begins the answer again must choose the same tokens.
        if asked.get("seed") is None:
            asked["seed"] = secrets.randbits(48)
        shape = form(self._model)
        parts = self._parts(asked)
        # Errors of the replica come before its first part, and become a status.
        try:
            first = await anext(parts)
        except (Refused, ValueError, TypeError) as error:
            return failure(400, str(error))
        except RayActorError:
            return failure(503, "no replica could answer: try again")
        if asked.get("stream"):
            return StreamingResponse(shape.events(first, parts), media_type="text/event-stream")
        return JSONResponse(await shape.whole(first, parts))

    async def _parts(self, asked: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The parts of an answer, begun again elsewhere when a replica dies: the same seed gives the same parts."""
        told, left = 0, self._retries
        while True:
            seen = 0
            try:
                async for part in self._engines.options(stream=True).answer.remote(asked):
                    seen += 1
                    if seen > told:
                        told = seen
                        yield part
                return
            except RayActorError:
                if left == 0:
                    raise
                left -= 1
