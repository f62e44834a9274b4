"""The codecs of the KV cache on arrays: the researcher's notebook."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from . import _kvant
from ._arrays import floats, rows_of

Side = Literal["key", "value"]


@dataclass(frozen=True)
class CodecInfo:
    """A codec there is a name for."""

    name: str
    about: str
    #: Where it was published.
    source: str
    #: The codec of keys.
    key: str
    #: The codec of values.
    value: str
    #: Bits per stored number for heads of 128 channels, scales and all; None where a plan is needed to tell.
    bits_per_value: float | None


def codecs() -> list[CodecInfo]:
    """Every codec that needs no plan: presets, then every family at the widths it is known for."""
    return [CodecInfo(**shown) for shown in json.loads(_kvant.codecs())]


def codec(spec: str) -> Codec:
    """The codec of a spec: `int4`, `k=ch4,v=rot4g32`, `tq3`, `srft4:g64` ..."""
    return Codec(spec)


@dataclass(frozen=True)
class Pages:
    """Encoded rows. `data` is `(..., pages, page_bytes)` in uint8, and may be changed: any bytes decode to something."""

    data: np.ndarray
    side: Side
    #: Channels of a row.
    dim: int
    #: Rows of each head; a last page that is not full is filled up with its last row.
    tokens: int

    @property
    def nbytes(self) -> int:
        """Bytes of all pages, scales and padding included."""
        return self.data.nbytes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the rows."""
        return (*self.data.shape[:-2], self.tokens, self.dim)


@dataclass(frozen=True)
class ErrorReport:
    """What is lost between rows and their pages."""

    #: Bits per stored number of whole pages, scales and all.
    bits_per_value: float
    #: Mean of the squared errors.
    mse: float
    #: Largest error.
    max_abs: float
    #: Root of the mean squared error over that of the rows.
    relative_rmse: float
    #: Signal over noise in decibels; infinite where nothing is lost.
    snr_db: float


class Codec:
    """A codec for keys and one for values. Rows are `(tokens, dim)` or `(heads, tokens, dim)` in f32, f16 or bf16."""

    def __init__(self, spec: str) -> None:
        #: The spec as it is printed, and the codecs it stands for.
        self.spec, self.key_spec, self.value_spec = _kvant.canonical_spec(spec)
        self._built: dict[tuple[str, int], _kvant.Codec] = {}

    def __repr__(self) -> str:
        return f"kvant.codec({self.spec!r})"

    def _of(self, side: str, dim: int) -> _kvant.Codec:
        if (side, dim) not in self._built:
            self._built[side, dim] = _kvant.Codec(self.spec, side, dim)
        return self._built[side, dim]

    def bits_per_value(self, dim: int, side: Side | None = None) -> float:
        """Bits per stored number for heads of `dim` channels, everything counted; of one side, or of both together."""
        sides: tuple[Side, ...] = ("key", "value") if side is None else (side,)
        return sum(self._of(one, dim).bits_per_value for one in sides) / len(sides)

    def page_tokens(self, dim: int, side: Side) -> int:
        """Tokens of a page."""
        return self._of(side, dim).page_tokens

    def kernels(self, dim: int, side: Side) -> dict[str, str]:
        """What runs: an instruction set, `plain`, or `decode` where pages are decoded."""
        return dict(zip(("encode", "scores", "accumulate"), self._of(side, dim).kernels, strict=True))

    def encode(self, rows: Any, side: Side = "key") -> Pages:
        """Rows as pages."""
        found, kind, shape = rows_of(rows, 3, "rows")
        if len(shape) < 2:
            raise ValueError(f"rows have the shape {shape}; they must be (tokens, dim) or (heads, tokens, dim)")
        data = self._of(side, shape[-1]).encode(found, kind)
        return Pages(data if len(shape) == 3 else data[0], side, shape[-1], shape[-2])

    def decode(self, pages: Pages) -> np.ndarray:
        """The rows that pages stand for."""
        return self._of(pages.side, pages.dim).decode(pages.data, pages.tokens).reshape(pages.shape)

    def scores(self, queries: Any, pages: Pages) -> np.ndarray:
        """q·k for queries `(queries, dim)`, or `(heads, queries, dim)`, from the encoded bytes: `(..., queries, tokens)`."""
        found, kind, shape = rows_of(queries, 3, "queries")
        scores = self._of(pages.side, pages.dim).scores(found, kind, pages.data, pages.tokens)
        return scores.reshape(*shape[:-1], pages.tokens)

    def accumulate(self, weights: Any, pages: Pages) -> np.ndarray:
        """Σ w·v for weights `(queries, tokens)`, or `(heads, queries, tokens)`, from the encoded bytes: `(..., queries, dim)`."""
        found, kind, shape = rows_of(weights, 3, "weights")
        if shape[-1] != pages.tokens:
            raise ValueError(f"there are weights for {shape[-1]} tokens, and pages of {pages.tokens}")
        return self._of(pages.side, pages.dim).accumulate(found, kind, pages.data).reshape(*shape[:-1], pages.dim)

    def error(self, rows: Any, side: Side = "key") -> ErrorReport:
        """What is lost when these rows are kept."""
        pages = self.encode(rows, side)
        exact, kind = floats(rows, "rows")
        if kind != "f32":
            bits = exact.astype(np.uint32) << 16
            exact = bits.view(np.float32) if kind == "bf16" else exact.view(np.float16)
        exact = exact.astype(np.float64)
        difference = self.decode(pages).astype(np.float64) - exact
        mse, power = float(np.mean(difference**2)), float(np.mean(exact**2))
        return ErrorReport(
            bits_per_value=self.bits_per_value(pages.dim, side),
            mse=mse,
            max_abs=float(np.max(np.abs(difference))),
            relative_rmse=(mse / power) ** 0.5 if power > 0 else 0.0,
            snr_db=10 * float(np.log10(power / mse)) if mse > 0 else float("inf"),
        )
