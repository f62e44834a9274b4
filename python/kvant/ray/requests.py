"""Requests as OpenAI's clients send them, read once for gateway and replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvant._generation import SAMPLING


class Refused(ValueError):
    """A request that cannot be answered; the message says why and what to do."""


#: Fields that are handed on as they are: the sampler's settings.
_SAME = tuple(SAMPLING)
#: Fields that say something else, or nothing here.
_OTHER = {
    "model", "messages", "prompt", "tools", "tool_choice", "stream", "stream_options", "stop", "max_tokens",
    "max_completion_tokens", "response_format", "logit_bias", "n", "user", "metadata", "store", "chat_template_kwargs",
}  # fmt: skip


class Asked:
    """What a request asks of an engine."""

    def __init__(self, request: Mapping[str, Any]) -> None:
        #: Fields that nobody here reads.
        self.unknown = sorted(set(request) - set(_SAME) - _OTHER)
        if request.get("n") not in (None, 1):
            raise Refused("n must be 1: send the request several times for several answers")
        self.messages = request.get("messages")
        self.prompt = request.get("prompt")
        if (self.messages is None) == (self.prompt is None):
            raise Refused("either messages or prompt is needed")
        self.tools = request.get("tools") or []
        choice = request.get("tool_choice") or "auto"
        self.tool_choice = choice["function"]["name"] if isinstance(choice, Mapping) else choice
        self.variables = request.get("chat_template_kwargs")
        options = {name: request[name] for name in _SAME if request.get(name) is not None}
        if request.get("stop"):
            options["stop"] = request["stop"]
        most = request.get("max_completion_tokens", request.get("max_tokens"))
        if most is not None and most >= 0:
            options["max_tokens"] = most
        if request.get("logit_bias"):
            options["logit_bias"] = {int(id): value for id, value in request["logit_bias"].items()}
        schema = _schema(request.get("response_format"))
        if schema is not None:
            options["schema"] = schema
        #: Those of `Engine.generate`.
        self.options: dict[str, Any] = options


def _schema(form: Mapping[str, Any] | None) -> Any:
    kind = (form or {}).get("type", "text")
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    if kind == "json_schema" and form is not None:
        return form["json_schema"]["schema"]
    raise Refused(f"response_format {kind!r} is not known: text, json_object or json_schema")
