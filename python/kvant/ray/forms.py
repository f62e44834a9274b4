"""Answers in OpenAI's forms."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi.responses import JSONResponse
from ray.exceptions import RayActorError


def failure(status: int, message: str) -> JSONResponse:
    """What is said of a request that has no answer."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return JSONResponse({"error": {"message": message, "type": kind, "code": status}}, status)


class Form:
    """An answer in one of OpenAI's forms."""

    prefix, object, chunk = "", "", ""

    def __init__(self, model: str) -> None:
        self._head = {"id": f"{self.prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}

    def _choice(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """What the parts come to, as the choice of a whole answer."""
        raise NotImplementedError

    def _delta(self, part: dict[str, Any], calls: int) -> dict[str, Any]:
        """What a part adds; so many calls came before it."""
        raise NotImplementedError

    async def whole(self, first: dict[str, Any], parts: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
        """The answer at once."""
        all_parts = [first, *[part async for part in parts]]
        end = all_parts.pop()
        choice = {"index": 0, **self._choice(all_parts), "finish_reason": _reason(end, all_parts)}
        return {**self._head, "object": self.object, "choices": [choice], "usage": _usage(end)}

    async def events(self, first: dict[str, Any], parts: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
        """The answer as server-sent events."""

        async def all_parts() -> AsyncIterator[dict[str, Any]]:
            yield first
            async for part in parts:
                yield part

        told: list[dict[str, Any]] = []
        try:
            async for part in all_parts():
                if part["kind"] == "end":
                    choice = {"index": 0, **self._delta({}, 0), "finish_reason": _reason(part, told)}
                    yield self._event({"choices": [choice], "usage": _usage(part)})
                    continue
                calls = sum(earlier["kind"] == "call" for earlier in told)
                told.append(part)
                yield self._event({"choices": [{"index": 0, **self._delta(part, calls), "finish_reason": None}]})
        except RayActorError:
            yield f"data: {json.dumps({'error': {'message': 'the replica died', 'type': 'server_error'}})}\n\n"
        yield "data: [DONE]\n\n"

    def _event(self, body: dict[str, Any]) -> str:
        return f"data: {json.dumps({**self._head, 'object': self.chunk, **body})}\n\n"


class ChatForm(Form):
    """A turn of the assistant."""

    prefix, object, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def _choice(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        said = {kind: "".join(part["text"] for part in parts if part["kind"] == kind) for kind in ("text", "reasoning")}
        calls = [_call(part, at) for at, part in enumerate(part for part in parts if part["kind"] == "call")]
        message: dict[str, Any] = {"role": "assistant", "content": said["text"] or (None if calls else "")}
        if said["reasoning"]:
            message["reasoning_content"] = said["reasoning"]
        if calls:
            message["tool_calls"] = calls
        return {"message": message}

    def _delta(self, part: dict[str, Any], calls: int) -> dict[str, Any]:
        kind = part.get("kind")
        if kind == "call":
            return {"delta": {"tool_calls": [{"index": calls, **_call(part, calls)}]}}
        if kind is None:
            return {"delta": {}}
        return {"delta": {"reasoning_content" if kind == "reasoning" else "content": part["text"]}}


class TextForm(Form):
    """A text, continued."""

    prefix, object, chunk = "cmpl", "text_completion", "text_completion"

    def _choice(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {"text": "".join(part["text"] for part in parts)}

    def _delta(self, part: dict[str, Any], calls: int) -> dict[str, Any]:
        return {"text": part.get("text", "")}


def _call(part: dict[str, Any], at: int) -> dict[str, Any]:
    return {"id": f"call_{at}", "type": "function", "function": {"name": part["name"], "arguments": part["arguments"]}}


def _reason(end: dict[str, Any], parts: list[dict[str, Any]]) -> str:
    if end["finish_reason"] == "stop" and any(part["kind"] == "call" for part in parts):
        return "tool_calls"
    return end["finish_reason"]


def _usage(end: dict[str, Any]) -> dict[str, Any]:
    counts = end["usage"]
    return {
        "prompt_tokens": counts["prompt"],
        "completion_tokens": counts["generated"],
        "total_tokens": counts["prompt"] + counts["generated"],
        "prompt_tokens_details": {"cached_tokens": counts["cached"]},
    }
