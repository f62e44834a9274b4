"""Models with other weights, and models of random ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _checks, _kvant
from ._measure import text_of


@dataclass(frozen=True)
class Converted:
    """A converted model."""

    path: str
    #: How many weights there are.
    weights: int
    #: Bytes of all tensors.
    bytes: int
    bits_per_weight: float
    #: Every tensor: its name, type and shape.
    tensors: list[dict[str, Any]]
    #: What a person should know about it.
    notes: list[str]


def convert(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str],
    weights: str = "int4",
    *,
    calibrate: bool | str | os.PathLike[str] = False,
    tokens: int = 8192,
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Converted:
    """Writes a model with weights of another type: `int4`, `int8`, `q4_0`, `q8_0`, `q4_k`, `q6_k`, `mxfp4` or `f16`.

    With `calibrate` rounding is weighed by what every channel is multiplied with while a text of at most `tokens` tokens is read: a
    text itself, the path of a UTF-8 file, or True for one that comes with kvant. The output ends in `.gguf` or `.safetensors`. A file
    that is there is replaced with `force` only; `progress` hears of bytes written and of bytes in all, and an exception it raises
    leaves nothing behind.
    """
    settings = {
        "model": os.fspath(model),
        "output": os.fspath(output),
        "weights": weights,
        "calibrated": calibrate is not False,
        "text": None if isinstance(calibrate, bool) else text_of(calibrate)["text"],
        "tokens": _checks.whole("tokens", tokens, 1),
        "force": force,
        "threads": _checks.whole_or_none("threads", threads, 1),
    }
    return Converted(**json.loads(_kvant.convert(settings, progress)))


def synth(path: str | os.PathLike[str], config: Mapping[str, Any], *, seed: int = 0) -> None:
    """Writes a folder with a model of random weights, as a config.json describes it: as fast as a trained one of its shape, and as
    sensible as noise. The same seed gives the same files."""
    _kvant.synth(os.fspath(path), json.dumps(config), _checks.whole("seed", seed))
