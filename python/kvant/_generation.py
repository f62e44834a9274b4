"""Texts on their way, and what came of them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypedDict, TypeVar

from . import _checks, _kvant

Item = TypeVar("Item")


class Sampling(TypedDict, total=False):
    """How tokens are chosen, when to stop, and what the text has to be."""

    #: 0 always takes the most likely token, 1 is the model's own distribution [0.7].
    temperature: float
    #: Keep only so many of the most likely tokens; 0 keeps all [40].
    top_k: int
    #: Keep the fewest tokens whose probabilities reach this sum [0.95].
    top_p: float
    #: Keep tokens at least this fraction as likely as the most likely one [0.05].
    min_p: float
    #: Penalty for recent tokens; above 1 makes them less likely [1].
    repetition_penalty: float
    #: Penalty for each recent use of a token, subtracted from its logit [0].
    frequency_penalty: float
    #: Penalty for a token that was used recently, subtracted from its logit [0].
    presence_penalty: float
    #: How many of the last tokens the penalties look at; None for all [64].
    penalty_window: int | None
    #: Keep the tokens whose surprisal is nearest to the entropy, up to this sum of probabilities [1].
    typical_p: float
    #: Keep logits within so many standard deviations of the highest; 0 keeps all [0].
    top_n_sigma: float
    #: XTC: how often the most likely tokens are cut but for the last that reaches the threshold [0].
    xtc_probability: float
    #: XTC: tokens with at least this probability are likely [0.1].
    xtc_threshold: float
    #: Dynamic temperature: so much less and more than the temperature; 0 for a fixed one [0].
    dynatemp_range: float
    #: Dynamic temperature: exponent applied to the normalized entropy [1].
    dynatemp_exponent: float
    #: 2 for mirostat 2.0, which takes the place of all cuts [0].
    mirostat: int
    #: Mirostat: target surprisal (entropy), in bits [5].
    mirostat_tau: float
    #: Mirostat: learning rate [0.1].
    mirostat_eta: float
    #: DRY: the penalty of a token that goes on with a repeated sequence of the allowed length [0].
    dry_multiplier: float
    #: DRY: factor by which the penalty grows with each token of the sequence [1.75].
    dry_base: float
    #: DRY: shortest repeated sequence that is penalized, in tokens; longer ones more [2].
    dry_allowed_length: int
    #: DRY: how many of the last tokens are looked at; None for all [None].
    dry_penalty_last_n: int | None
    #: Do not let the model end the text (ignore end-of-text tokens) [False].
    ignore_eos: bool
    #: Steps of the sampler in their order, with ; between them; those left out are not done.
    samplers: str
    #: Added to the logits of these tokens; minus infinity forbids one.
    logit_bias: Mapping[int, float] | None
    #: Makes the choice repeatable.
    seed: int | None
    #: Texts that end the generation; they are not part of it.
    stop: str | Sequence[str]
    #: The most tokens to generate [as many as the context holds].
    max_tokens: int | None
    #: A JSON schema that the text is valid under.
    schema: Mapping[str, Any] | bool | None
    #: A grammar in Lark's notation that the text follows.
    grammar: str | None
    #: A regular expression that matches the text as a whole.
    regex: str | None


#: How values of some kinds are read.
_KINDS: dict[str, Any] = {
    "number": float,
    "seed": lambda _: None,
    "window": lambda text: None if text == "all" else int(text),
    "flag": lambda text: text == "true",
    "order": str,
}
#: The sampler's settings as the engine declares them, with what holds when nobody says otherwise.
SAMPLING: dict[str, Any] = {
    name: _KINDS.get(kind, int)(usual)
    for name, kind, usual in _kvant.sampling_settings()
}
#: Those that are numbers of any kind, and options that count something.
_NUMBERS = tuple(name for name, kind, _ in _kvant.sampling_settings() if kind == "number")
_WORDS = tuple(name for name, kind, _ in _kvant.sampling_settings() if kind in ("flag", "order"))
_COUNTS = (*(name for name in SAMPLING if name not in (*_NUMBERS, *_WORDS)), "max_tokens", "logprobs")

_USUAL: dict[str, Any] = {
    **SAMPLING,
    "logit_bias": None,
    "stop": (),
    "max_tokens": None,
    "schema": None,
    "grammar": None,
    "regex": None,
}


def settings(options: Mapping[str, Any], logprobs: int | None = None) -> dict[str, Any]:
    """Options with what was not given filled in."""
    unknown = sorted(set(options) - set(_USUAL))
    if unknown:
        raise TypeError(f"there is no option {unknown[0]!r}; there are {', '.join(_USUAL)}")
    found = {**_USUAL, **options, "logprobs": logprobs}
    found |= {name: _checks.number(name, found[name]) for name in _NUMBERS}
    found |= {name: _checks.whole_or_none(name, found[name]) for name in _COUNTS}
    stop, bias = found["stop"], found["logit_bias"] or {}
    found["stop"] = [stop] if isinstance(stop, str) else list(stop or ())
    if not all(isinstance(text, str) for text in found["stop"]):
        raise TypeError(f"stop is {stop!r}; it must be a text or a list of texts")
    found["logit_bias"] = [
        (id, _checks.number("logit_bias", value)) for id, value in zip(_checks.ids(list(bias)), dict(bias).values(), strict=True)
    ]
    if found["top_k"] is None:
        raise TypeError("top_k is None; 0 keeps all tokens")
    if found["schema"] is not None:
        found["schema"] = json.dumps(found["schema"])
    sampling = [(name, found.pop(name)) for name in SAMPLING]
    return found | {"sampling": [(name, _text(name, value)) for name, value in sampling]}


def _text(name: str, value: float | bool | str | None) -> str:
    """A value of the sampler's as the engine reads it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "random" if name == "seed" else "all"
    return repr(value)


@dataclass(frozen=True)
class Usage:
    """Counts of a generation."""

    #: Tokens of the prompt.
    prompt: int
    #: Those of them that were found in the cache.
    cached: int
    #: Tokens chosen, the ending one included.
    generated: int


@dataclass(frozen=True)
class Token:
    """A token that was chosen."""

    id: int
    #: The text it let out: whole characters, no part of a stop string; often empty.
    text: str
    #: The natural logarithm of its probability in the model's own distribution.
    logprob: float
    #: The likeliest tokens with theirs, the likeliest first.
    top: list[tuple[int, float]]


@dataclass(frozen=True)
class ToolCall:
    """A call that a model asks for."""

    name: str
    #: The text of a JSON object.
    arguments: str

    def parsed(self) -> Any:
        """The arguments as Python has them."""
        return json.loads(self.arguments)


@dataclass(frozen=True)
class Part:
    """A part of a reply: `reasoning`, `text` or `call`."""

    kind: str
    text: str = ""
    call: ToolCall | None = None


@dataclass
class Reply:
    """A whole turn of the assistant."""

    text: str = ""
    #: What was thought before the answer.
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    #: `stop`, `length`, `tool_calls` or `cancelled`.
    finish_reason: str = "cancelled"
    #: The seed that repeats it.
    seed: int = 0
    usage: Usage = Usage(0, 0, 0)

    @property
    def message(self) -> dict[str, Any]:
        """The turn as the next conversation has it, in OpenAI's form."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            calls = [{"name": call.name, "arguments": call.arguments} for call in self.tool_calls]
            message["tool_calls"] = [{"type": "function", "function": call} for call in calls]
        return message


class _Stream(Generic[Item]):
    """Items of a text as they come. Leaving it, closing it or Ctrl-C ends the text before the next token."""

    def __init__(self, stream: _kvant.Stream) -> None:
        self._stream = stream
        self._waiting: list[Item] = []
        #: The text so far; of a conversation, with its markers.
        self.text = ""
        #: `stop`, `length` or `cancelled`; None until the end.
        self.finish_reason: str | None = None
        #: The stop string that ended it, if one did.
        self.stopped_by: str | None = None
        #: The seed that repeats it; None until the end.
        self.seed: int | None = None
        self.usage: Usage | None = None

    def _items(self, piece: _kvant.Piece) -> list[Item]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Item]:
        return self

    def __next__(self) -> Item:
        while not self._waiting:
            piece = self._stream.next()
            if piece is None:
                if self.finish_reason is None:
                    self.finish_reason = "cancelled"
                raise StopIteration
            self._take(piece)
        return self._waiting.pop(0)

    def _take(self, piece: _kvant.Piece) -> None:
        self.text += piece.text
        if piece.end is not None:
            self.finish_reason, self.stopped_by, self.seed, *counts = piece.end
            self.usage = Usage(*counts)
        self._waiting.extend(self._items(piece))

    def close(self) -> None:
        """Ends the text before the next token."""
        self._stream.close()

    def __enter__(self):  # noqa: ANN204 - the subclass
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[Item]:
        """The same for asyncio: a thread waits, the loop does not. Whoever leaves the loop ends the text."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[Item | None, BaseException | None]] = asyncio.Queue()

        def tell(item: Item | None, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(queue.put_nowait, (item, error))
            except RuntimeError:
                # The loop is closed: nobody listens.
                self.close()

        def pump() -> None:
            try:
                for item in self:
                    tell(item, None)
            except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
                tell(None, error)
            else:
                tell(None, StopAsyncIteration())

        threading.Thread(target=pump, name="kvant-stream", daemon=True).start()
        try:
            while True:
                item, error = await queue.get()
                if isinstance(error, StopAsyncIteration):
                    return
                if error is not None:
                    raise error
                yield item  # type: ignore[misc]
        finally:
            self.close()


class Generation(_Stream[Item]):
    """A continuation of a text: an iterator of `str`, or of `Token` where logprobs were asked for. Also an async iterator."""

    def __init__(self, stream: _kvant.Stream, has_logprobs: bool) -> None:
        super().__init__(stream)
        self._has_logprobs = has_logprobs

    def _items(self, piece: _kvant.Piece) -> list[Any]:
        if not self._has_logprobs:
            return [piece.text] if piece.text else []
        if piece.token is None:
            return []
        return [Token(piece.token, piece.text, piece.logprob or 0.0, piece.top)]

    def read(self) -> str:
        """All of the text, at once."""
        for _ in self:
            pass
        return self.text

    async def aread(self) -> str:
        """The same for asyncio."""
        async for _ in self:
            pass
        return self.text


class Chat(_Stream[Part]):
    """A turn of the assistant as it comes: an iterator of `Part`. Also an async iterator."""

    def __init__(self, stream: _kvant.Stream) -> None:
        super().__init__(stream)
        self._reply = Reply()

    def _items(self, piece: _kvant.Piece) -> list[Part]:
        parts = []
        for kind, text, arguments in piece.parts:
            if arguments is not None:
                call = ToolCall(text, arguments)
                self._reply.tool_calls.append(call)
                parts.append(Part(kind, call=call))
                continue
            if kind == "reasoning":
                self._reply.reasoning += text
            else:
                self._reply.text += text
            parts.append(Part(kind, text))
        return parts

    @property
    def reply(self) -> Reply:
        """What has come of it so far."""
        ended = self.finish_reason or "cancelled"
        is_call = ended == "stop" and self._reply.tool_calls
        self._reply.finish_reason = "tool_calls" if is_call else ended
        self._reply.seed, self._reply.usage = self.seed or 0, self.usage or Usage(0, 0, 0)
        return self._reply

    def read(self) -> Reply:
        """All of the turn, at once."""
        for _ in self:
            pass
        return self.reply

    async def aread(self) -> Reply:
        """The same for asyncio."""
        async for _ in self:
            pass
        return self.reply
