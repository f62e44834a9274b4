"""One sequence, step by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from . import _checks, _kvant
from ._arrays import floats
from ._generation import Sampling, settings

if TYPE_CHECKING:
    from ._engine import Engine


class Session:
    """A sequence of an engine: `prefill`, `step`, `fork`, `rollback`, `save`, `resume`.

    Logits are numpy arrays over the memory that the engine wrote, `(vocabulary,)` in f32: nothing is copied, and each stays valid as
    long as anybody holds it.
    """

    def __init__(self, engine: Engine, session: _kvant.Session) -> None:
        #: The engine it is a sequence of.
        self.engine = engine
        self._session = session
        #: The logits after the last token held; None for an empty sequence, after going back and after resuming.
        self.logits: np.ndarray | None = None

    def prefill(self, prompt: str | Sequence[int]) -> np.ndarray:
        """Brings it to hold exactly this prompt, reading what it does not hold yet; the logits after its last token."""
        ids = self.engine.tokenize(prompt) if isinstance(prompt, str) else _checks.ids(prompt)
        self.logits = None
        self.logits = self._session.prefill(ids)
        return self.logits

    def step(self, token: int) -> np.ndarray:
        """Reads one more token; the logits after it."""
        self.logits = self._session.step(*_checks.ids([token]))
        return self.logits

    @property
    def tokens(self) -> list[int]:
        """The tokens held."""
        return self._session.tokens()

    @property
    def text(self) -> str:
        """The text of the tokens held."""
        return self.engine.detokenize(self.tokens)

    def __len__(self) -> int:
        return self._session.len()

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values."""
        return self._session.nbytes()

    def fork(self) -> Session:
        """Another session that holds the same; pages are shared."""
        other = Session(self.engine, self._session.fork())
        other.logits = self.logits
        return other

    def rollback(self, length: int) -> int:
        """Goes back to at most `length` tokens and tells how many are left: fewer where the cut lies inside an encoded page, whose
        tokens must be read again."""
        before = len(self)
        left = self._session.rollback(_checks.whole("length", length))
        if left < before:
            self.logits = None
        return left

    def save(self, path: str | os.PathLike[str], note: bytes = b"") -> int:
        """Saves what is held in a file, with a note of your own; the file is replaced as a whole or not at all. Its bytes."""
        return self._session.save(os.fspath(path), note)

    def resume(self, path: str | os.PathLike[str]) -> bytes:
        """Goes on where a saved session of the same model and cache was left, without reading anything again. Its note."""
        note = self._session.resume(os.fspath(path))
        self.logits = None
        return note


class Sampler:
    """Chooses tokens from logits, remembering what penalties need. A seed repeats its choices on every machine."""

    def __init__(self, **options: Unpack[Sampling]) -> None:
        self._sampler = _kvant.TokenSampler(settings(options))

    @property
    def seed(self) -> int:
        """The seed that repeats its choices, given or picked."""
        return self._sampler.seed

    def sample(self, logits: Any) -> int:
        """A token for these logits, `(vocabulary,)`."""
        return self._sampler.sample(*floats(logits, "logits"))

    def accept(self, token: int) -> None:
        """Remembers a token that was not chosen here, such as one of the prompt."""
        self._sampler.accept(*_checks.ids([token]))
