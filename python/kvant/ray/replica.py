"""One engine of many: what runs in a replica."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import kvant

from .requests import Asked


class Replica:
    """An engine on its own cores, behind a Ray Serve handle."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        self._engine = kvant.Engine.open(model, **options)

    async def describe(self) -> dict[str, Any]:
        """What there is to know of the model."""
        return asdict(self._engine.info)

    async def answer(self, request: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The parts of an answer, and at last how it ended."""
        asked = Asked(request)
        if asked.messages is not None:
            stream = self._engine.chat_stream(
                asked.messages, asked.tools, tool_choice=asked.tool_choice, variables=asked.variables, **asked.options
            )
        else:
            stream = self._engine.generate(asked.prompt, **asked.options)
        with stream:
            async for item in stream:
                if isinstance(item, str):
                    yield {"kind": "text", "text": item}
                elif item.call is not None:
                    yield {"kind": "call", "name": item.call.name, "arguments": item.call.arguments}
                else:
                    yield {"kind": item.kind, "text": item.text}
        usage = stream.usage or kvant.Usage(0, 0, 0)
        yield {"kind": "end", "finish_reason": stream.finish_reason, "usage": asdict(usage)}

    def check_health(self) -> None:
        """Called by Ray Serve now and then."""
        if self._engine.closed:
            raise RuntimeError("the engine is closed")
