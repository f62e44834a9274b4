"""Models with other weights, and models of random ones."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _checks, _kvant


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
    force: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Converted:
    """Writes a model with weights of another type: `int4`, `int8`, `q4_0`, `q8_0`, `q4_k`, `q6_k`, `mxfp4` or `f16`.

    The output ends in `.gguf` or `.safetensors`. A file that is there is replaced with `force` only; `progress` hears of bytes written
    and of bytes in all, and an exception it raises leaves nothing behind.
    """
    threads = _checks.whole_or_none("threads", threads, 1)
    told = _kvant.convert(os.fspath(model), os.fspath(output), weights, force, threads, progress)
    return Converted(**json.loads(told))


def synth(path: str | os.PathLike[str], config: Mapping[str, Any], *, seed: int = 0) -> None:
    """Writes a folder with a model of random weights, as a config.json describes it: as fast as a trained one of its shape, and as
    sensible as noise. The same seed gives the same files."""
    _kvant.synth(os.fspath(path), json.dumps(config), _checks.whole("seed", seed))
