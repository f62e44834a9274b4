"""What caches cost, and plans that make them cost less."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, overload

from . import _checks, _kvant

Progress = Callable[[int, int], object]
#: A text itself, or the path of a UTF-8 file; None for one that comes with kvant.
Text = str | os.PathLike[str] | None


def text_of(text: Text) -> dict[str, Any]:
    """The text and what to call it."""
    if text is None or isinstance(text, str):
        return {"text": text, "text_name": "a text"}
    return {"text": Path(text).read_text(encoding="utf-8"), "text_name": os.fspath(text)}


@overload
def evaluate(
    model: str | os.PathLike[str],
    kv: None = None,
    *,
    text: Text = ...,
    ctx: int = ...,
    chunks: int = ...,
    strict: bool = ...,
    activations: Literal["f32", "int8"] = ...,
    score: Literal["all", "second-half"] | None = ...,
    threads: int | None = ...,
    progress: Progress | None = ...,
) -> dict[str, Any]: ...
@overload
def evaluate(
    model: str | os.PathLike[str],
    kv: str | Sequence[str],
    *,
    text: Text = ...,
    ctx: int = ...,
    chunks: int = ...,
    strict: bool = ...,
    activations: Literal["f32", "int8"] = ...,
    score: Literal["all", "second-half"] | None = ...,
    threads: int | None = ...,
    progress: Progress | None = ...,
) -> list[dict[str, Any]]: ...
def evaluate(
    model: str | os.PathLike[str],
    kv: str | Sequence[str] | None = None,
    *,
    text: Text = None,
    ctx: int = 512,
    chunks: int = 8,
    strict: bool = False,
    activations: Literal["f32", "int8"] = "f32",
    score: Literal["all", "second-half"] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any] | list[dict[str, Any]]:
    """Perplexity with an exact cache, as a dictionary; or what the caches named by `kv` cost against it, as a list of them.

    Caches are specs, plans (`FILE.kvplan`) or `auto`; `all` is every cache there is a name for. The keys are those of
    `kvant eval --json`: `kl_mean`, `kl_p999`, `top1`, `ppl`, `dppl_percent`, `bits_per_value` ... `strict` encodes every page before
    its own tokens attend, and not only after: a bound on what is seen in use.
    """
    specs = None if kv is None else [kv] if isinstance(kv, str) else list(kv)
    settings = {
        "model": os.fspath(model),
        "kv": [] if specs == ["all"] else specs,
        **text_of(text),
        "ctx": _checks.whole("ctx", ctx, 1),
        "chunks": _checks.whole("chunks", chunks, 1),
        "strict": strict,
        "activations": activations,
        "score": score,
        "threads": _checks.whole_or_none("threads", threads, 1),
    }
    if specs == []:
        raise ValueError("kv is an empty list: name caches, or none for perplexity alone")
    return json.loads(_kvant.evaluate(settings, progress))


@dataclass(frozen=True)
class Calibrated:
    """A plan that was made."""

    path: str
    #: What it was made from.
    made: str
    #: How keys and values are kept by it.
    kv: str
    bytes_per_token: float
    bits_per_value: float


def calibrate(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    text: Text = None,
    tokens: int = 16384,
    kv: str = "k=klt4.25,v=rot4g32",
    learn: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Calibrated:
    """Reads a text once with exact keys and values and writes what they are like to a plan, beside the model unless told otherwise.

    `kv` is what the plan says when nobody asks for another cache; `learn` lists codecs to learn scales or rotations for.
    """
    settings = _settings(model, output, text, tokens, threads)
    return Calibrated(**json.loads(_kvant.calibrate(settings, kv, learn, progress)))


@dataclass(frozen=True)
class Planned:
    """A plan whose bits were spent anew."""

    path: str
    made: str
    #: How keys and values are kept by it.
    kv: str
    bits_per_value: float
    #: Mean KL divergence on another part of the text.
    kl_measured: float
    #: Every way that was tried, the best first.
    tried: list[dict[str, Any]]


def plan(
    model: str | os.PathLike[str],
    *,
    kl: float | None = None,
    bits: float | None = None,
    plan: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    text: Text = None,
    tokens: int = 512,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Planned:
    """Spends bits where they gain most: the fewest for a mean KL divergence of `kl` nats, or the least divergence with so many `bits`
    per value. Changes the plan that `calibrate` made, and writes it where it was unless told otherwise."""
    settings = _settings(model, output, text, tokens, threads)
    path = None if plan is None else os.fspath(plan)
    return Planned(**json.loads(_kvant.plan(settings, path, _goal("kl", kl), _goal("bits", bits), progress)))


def _goal(name: str, value: float | None) -> float | None:
    return None if value is None else _checks.number(name, value)


def _settings(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None,
    text: Text,
    tokens: int,
    threads: int | None,
) -> dict[str, Any]:
    return {
        "model": os.fspath(model),
        "output": None if output is None else os.fspath(output),
        **text_of(text),
        "tokens": _checks.whole("tokens", tokens, 1),
        "threads": _checks.whole_or_none("threads", threads, 1),
    }
