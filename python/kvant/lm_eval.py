"""lm-eval on an engine: its tasks with any cache.

>>> import lm_eval, kvant
>>> from kvant.lm_eval import KvantLM
>>> model = KvantLM("smollm2-135m", kv="int4")                                  # doctest: +SKIP
>>> lm_eval.simple_evaluate(model=model, tasks=["hellaswag"], limit=100)         # doctest: +SKIP

Importing this module also registers the model `kvant` there: `lm_eval --model kvant --model_args model=smollm2-135m,kv=int4` with
`--include_path` or a plug-in that imports it. Without lm-eval the class works by itself: requests are objects with `args`.

Texts are tokenised as lm-eval's own Hugging Face adapter does it: context and continuation together, spaces at the end of the context
moved to the continuation; a document is cut into windows in which every token is predicted once, with at least one before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ._engine import Engine
from ._generation import SAMPLING

try:
    from lm_eval.api.model import LM as _Base  # type: ignore[import-not-found, unused-ignore]
    from lm_eval.api.registry import register_model as _register  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    _Base = object

    def _register(*_names: str) -> Any:
        return lambda own: own


#: Tokens that are generated where a request names no number.
MAX_GEN_TOKS = 256


@_register("kvant")
class KvantLM(_Base):  # type: ignore[misc, valid-type]
    """An engine as lm-eval sees models."""

    def __init__(
        self,
        model: str | os.PathLike[str] | Engine,
        kv: str = "auto",
        ctx: int | str | None = None,
        threads: int | str | None = None,
        batch_size: int | str | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        del batch_size  # Texts that generate share passes as they come.
        if isinstance(model, Engine):
            self.engine = model
        else:
            number = [None if given is None else int(given) for given in (ctx, threads)]
            self.engine = Engine.open(model, kv, *number, device=device or "cpu", **options)

    def _pair(self, context: str, continuation: str) -> tuple[list[int], int]:
        """The ids of both, and the place of the continuation's first."""
        if not context:
            ids = self._prefix() + self.engine.tokenize(continuation, add_special=False)
            return ids, len(self._prefix())
        spaces = len(context) - len(context.rstrip())
        if spaces:
            context, continuation = context[:-spaces], context[-spaces:] + continuation
        whole = self.engine.tokenize(context + continuation)
        return whole, len(self.engine.tokenize(context))

    def _prefix(self) -> list[int]:
        """What stands before a text that nothing precedes."""
        info = self.engine.info
        begins = info.prefix or [id for id in (info.bos, info.eos) if id is not None][:1]
        if not begins:
            raise ValueError("this model has no token that begins a text: give every request a context")
        return begins

    def _score(self, ids: Sequence[int], start: int) -> tuple[float, bool]:
        """Summed over the ids from place `start` on; what is too long loses its beginning."""
        # The last token is predicted and not read.
        cut = max(0, len(ids) - self.engine.info.context - 1)
        start = max(1, start - cut)
        logprobs, likeliest = self.engine.score(ids[cut:], start)
        return sum(logprobs), all(likeliest)

    def loglikelihood(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """For every (context, continuation): ln p(continuation | context), and whether greedy generation would say it."""
        pairs = [self._pair(*request.args) for request in requests]
        found: list[tuple[float, bool]] = [(0.0, True)] * len(pairs)
        # Texts that begin alike come one after another, and are read once.
        for place in sorted(range(len(pairs)), key=lambda place: pairs[place][0]):
            found[place] = self._score(*pairs[place])
        return found

    def loglikelihood_rolling(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[float]:
        """For every (text,): ln p of all its tokens, in windows of the context."""
        return [self._rolling(*request.args) for request in requests]

    def _rolling(self, text: str) -> float:
        ids = self.engine.tokenize(text, add_special=False)
        prefix, context = self._prefix(), self.engine.info.context
        at = min(len(ids), context - len(prefix) + 1)
        total = self._score(prefix + ids[:at], len(prefix))[0] if ids else 0.0
        while at < len(ids):
            # As many new tokens as fit, and before them as many old ones as there is room for: one at least.
            end = min(len(ids), at + context)
            begin = max(0, end - context - 1)
            total += self._score(ids[begin:end], at - begin)[0]
            at = end
        return total

    def generate_until(self, requests: Iterable[Any], disable_tqdm: bool = False) -> list[str]:
        """For every (context, settings): what comes before one of `until`, or after `max_gen_toks` tokens."""
        texts = []
        for request in requests:
            context, asked = request.args
            texts.append(self._generate(context, dict(asked)))
        return [text.read() for text in texts]

    def _generate(self, context: str, asked: dict[str, Any]) -> Any:
        until = asked.pop("until", [])
        most = int(asked.pop("max_gen_toks", MAX_GEN_TOKS))
        is_random = asked.pop("do_sample", None)
        temperature = float(asked.pop("temperature", 0.0) or 0.0)
        options: dict[str, Any] = {"temperature": 0.0 if is_random is False else temperature}
        # What the sampler would cut by itself is what lm-eval did not ask for.
        options |= {"top_k": int(asked.pop("top_k", 0) or 0), "top_p": float(asked.pop("top_p", 1.0) or 1.0), "min_p": 0.0}
        options |= {name: asked.pop(name) for name in SAMPLING if name in asked}
        if asked:
            raise ValueError(f"generation setting {next(iter(asked))!r} is not known")
        ids = self.engine.tokenize(context)
        room = self.engine.info.context - most
        if room < 1:
            raise ValueError(f"max_gen_toks is {most}, but the context holds {self.engine.info.context} tokens")
        return self.engine.generate(ids[-room:], stop=until, max_tokens=most, **options)

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval keys its cache of prompts by."""
        return self.engine.info.architecture
