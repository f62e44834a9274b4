"""Arguments that are refused by name before anything begins."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

#: What a size or a number of tokens cannot reach.
_LARGEST = 2**63 - 1

#: Whose turns a conversation has, as the server has them; a developer's are the system's.
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def whole(name: str, value: Any, least: int = 0) -> int:
    """A whole number, at least `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; it must be a whole number") from None
    if not least <= number <= _LARGEST:
        raise ValueError(f"{name} is {number}; it must be {least} or more, and below 2**63")
    return number


def whole_or_none(name: str, value: Any, least: int = 0) -> int | None:
    """The same where nothing may be said."""
    return None if value is None else whole(name, value, least)


def number(name: str, value: Any) -> float:
    """A number."""
    if isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} is {value!r}; it must be a number") from None


def number_or_none(name: str, value: Any) -> float | None:
    """The same where nothing may be said."""
    return None if value is None else number(name, value)


def ids(tokens: Sequence[int]) -> list[int]:
    """Token ids."""
    found = [whole("a token id", token) for token in tokens]
    if found and max(found) >= 2**32:
        raise ValueError(f"token id {max(found)} is outside every vocabulary")
    return found


def messages(turns: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Turns of a conversation; the text parts of a content that comes as a list are put together."""
    if isinstance(turns, (str, Mapping)):
        raise TypeError("messages must be a list of turns")
    return [_message(place, turn) for place, turn in enumerate(turns)]


def _message(place: int, turn: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(turn, Mapping):
        raise TypeError(f"message {place} is {turn!r}; it must be a dictionary with a role and a content")
    message = {"content": None, **turn}
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise ValueError(f"message {place} has the role {role!r}; it must be system, developer, user, assistant or tool")
    message["role"] = _ROLES[role]
    if isinstance(message["content"], (list, tuple)):
        parts = message["content"]
        other = [part for part in parts if not isinstance(part, Mapping) or part.get("type") != "text"]
        if other:
            raise ValueError(f"message {place} has a part that is not text: {other[0]!r}")
        message["content"] = "".join(part["text"] for part in parts)
    return message
